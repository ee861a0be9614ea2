"""Integer scaling: real costs as integers for the anytime search, with bounds that stay valid."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shardwright.ir.rounding import OF_SUM
from shardwright.solver.anytime.compiled import COMPILED
from shardwright.solver.anytime.flat import LARGEST_SUM
from shardwright.solver.methods import SolveOptions
from shardwright.solver.on_demand import anytime_search
from shardwright.solver.problem import (
    FORBIDDEN,
    Array,
    Identity,
    MemoryUse,
    Problem,
    Variable,
    distinct,
)
from shardwright.solver.solution import Solution

IS_FAST = COMPILED
"""Whether the anytime search is compiled; otherwise it takes long."""

_LARGEST_SUM = 2.0**50
"""Sum of the scaled costs where the magnitude is unknown: float64 adds them exactly."""


def solve_scaled(problem: Problem, magnitude: float, options: SolveOptions) -> Solution:
    """Solve a problem with real costs by the anytime search; the bound holds for the real costs.

    Costs and memory are rounded down, so no assignment costs less than the bound.

    Parameters
    ----------
    problem : Problem
        Costs of any type.
    magnitude : float
        The cost of a known assignment, which decides how finely costs are rounded; 0 and infinity
        are treated as unknown. Entries 10^5 times as large become forbidden.
    options : SolveOptions

    Returns
    -------
    Solution
        Its cost is that of the rounded problem.
    """
    scale = _cost_scale(problem, magnitude)
    solution: Solution = anytime_search.solve_anytime(_rounded(problem, scale), options)
    return replace(solution, cost=solution.cost / scale, lower_bound=solution.lower_bound / scale)


def _cost_scale(problem: Problem, magnitude: float) -> float:
    """Return a factor by which integers tell costs apart up to `OF_SUM`, and no sum overflows."""
    if not magnitude or not math.isfinite(magnitude):
        largest = _largest_sum(problem, FORBIDDEN)
        return _LARGEST_SUM / largest if largest else 1.0
    scale = 1 / OF_SUM / abs(magnitude)
    while _largest_sum(problem, FORBIDDEN / scale) * scale >= LARGEST_SUM:
        scale /= 2
    return scale


def _largest_sum(problem: Problem, forbidden: float) -> float:
    """Return the sum over the vectors and tables of their largest allowed absolute entries."""
    largest: dict[Identity, float] = {}
    arrays = [variable.cost for variable in problem.variables]
    arrays += [pair.table for pair in problem.pairs]
    for array in distinct(arrays):
        allowed = array[array < min(forbidden, FORBIDDEN)]
        largest[Identity(array)] = float(np.abs(allowed).max(initial=0.0))
    return math.fsum(largest[Identity(array)] for array in arrays)


def _rounded(problem: Problem, scale: float) -> Problem:
    """Return the problem in integers; arrays shared by reference stay shared."""
    memo: dict[tuple[Identity, float], Array] = {}

    def rounded(array: Array, scale: float) -> Array:
        key = Identity(array), scale
        if key not in memo:
            memo[key] = _floor(array, scale)
        return memo[key]

    unit = _memory_scale(problem)
    variables = tuple(
        Variable(
            variable.name,
            rounded(variable.cost, scale),
            tuple(MemoryUse(rounded(u.usage, unit), u.start, u.end) for u in variable.memory),
        )
        for variable in problem.variables
    )
    pairs = tuple(replace(pair, table=rounded(pair.table, scale)) for pair in problem.pairs)
    limit = problem.memory_limit
    if limit is None or math.isinf(limit):
        return Problem(variables, pairs)
    return Problem(variables, pairs, math.ceil(limit * unit))


def _floor(array: Array, scale: float) -> Array:
    scaled = np.floor(np.minimum(array.astype(np.float64), FORBIDDEN) * scale)
    forbidden = (array >= FORBIDDEN) | (scaled >= FORBIDDEN)
    return np.where(forbidden, FORBIDDEN, scaled).astype(np.int64)


def _memory_scale(problem: Problem) -> float:
    """Return 1 where memory is in whole bytes, else a factor that keeps the fractions."""
    usages = distinct(use.usage for v in problem.variables for use in v.memory)
    if not problem.memory_limit or all((a == np.floor(a)).all() for a in usages):
        return 1.0
    return float(2**40 / problem.memory_limit)
