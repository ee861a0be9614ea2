"""Real costs as integers, for the solver of large problems, without losing the bound."""

import importlib
import math
from dataclasses import replace

import numpy as np

from shardwright.solver.anytime.compiled import COMPILED
from shardwright.solver.problem import FORBIDDEN, Array, MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution

IS_FAST = COMPILED
"""Whether the solver of large problems is compiled; else it takes long."""

_DIGITS = 12
"""Digits of the whole cost that are kept."""


def solve_whole(
    problem: Problem, about: float, time_limit: float, seed: int, workers: int, gap: float
) -> Solution:
    """Solve a problem with real costs by `large.search`; the bound holds for the real costs.

    Costs and memory are rounded down, so no assignment costs less than the bound says.

    Parameters
    ----------
    problem : Problem
        Costs of any type.
    about : float
        What assignments cost about; tells how finely costs are rounded.
    time_limit, seed, workers, gap
        As for `solve.solve`.

    Returns
    -------
    Solution
        Its cost is of the rounded problem.
    """
    scale = 10.0**_DIGITS / abs(about) if about and math.isfinite(about) else 10.0**_DIGITS
    rounded = _rounded(problem, scale)
    # What it needs takes long to load, and most plans never need it.
    search = importlib.import_module("shardwright.solver.anytime.search")
    found: Solution = search.solve_anytime(rounded, time_limit, seed, workers, gap=gap)
    return replace(found, cost=found.cost / scale, lower_bound=found.lower_bound / scale)


def _rounded(problem: Problem, scale: float) -> Problem:
    known: dict[tuple[int, float], Array] = {}  # tables are shared by reference, and remain so

    def whole(array: Array, scale: float) -> Array:
        key = id(array), scale
        if key not in known:
            scaled = np.floor(np.minimum(array.astype(np.float64), FORBIDDEN) * scale)
            beyond = (array >= FORBIDDEN) | (scaled >= FORBIDDEN)
            known[key] = np.where(beyond, FORBIDDEN, scaled).astype(np.int64)
        return known[key]

    unit = _memory_scale(problem)
    variables = tuple(
        Variable(
            variable.name,
            whole(variable.cost, scale),
            tuple(MemoryUse(whole(u.usage, unit), u.start, u.end) for u in variable.memory),
        )
        for variable in problem.variables
    )
    pairs = tuple(Pair(pair.first, pair.second, whole(pair.table, scale)) for pair in problem.pairs)
    limit = problem.memory_limit
    if limit is None or math.isinf(limit):
        return Problem(variables, pairs)
    return Problem(variables, pairs, math.ceil(limit * unit))


def _memory_scale(problem: Problem) -> float:
    """Return 1 where memory is in whole bytes, else what makes little of it get lost."""
    arrays = {id(use.usage): use.usage for v in problem.variables for use in v.memory}
    if not problem.memory_limit or all((a == np.floor(a)).all() for a in arrays.values()):
        return 1.0
    return float(2**40 / problem.memory_limit)
