"""The entry point: one problem in, one answer with its certificate out."""

from __future__ import annotations

import importlib

from shardwright.ir.errors import SolverError
from shardwright.solver.exact.dynamic_programming import dynamic_programming
from shardwright.solver.exact.search import Progress, solve_exact
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    method: str = "exact",
    gap: float = 0.0,
) -> Solution:
    """Return the cheapest assignment that fits, with a lower bound and how both are known.

    Parameters
    ----------
    time_limit : float
        Seconds; what is known by then is returned.
    seed, workers : int
        For CP-SAT, where it is needed. One worker gives the same answer every time.
    progress : callable, optional
        Called with (seconds, cost, lower bound) whenever one of them improves.
    method : {"exact", "dynamic_programming", "anytime"}
        `dynamic_programming` is MindSpore's, which is exact only on some graphs; `anytime` is for
        integer problems with tens of thousands of variables.
    gap : float
        The search stops once the cost is this near to the lower bound, relatively.

    Examples
    --------
    >>> import numpy as np
    >>> from shardwright.solver.problem import Pair, Variable
    >>> apart = np.array([[0.0, 5.0], [5.0, 0.0]])
    >>> costs = [Variable("a", np.array([1.0, 2.0])), Variable("b", np.array([4.0, 1.0]))]
    >>> solution = solve(Problem(tuple(costs), (Pair(0, 1, apart),)))
    >>> solution.assignment, solution.cost, solution.status
    ((1, 1), 3.0, 'optimal')
    """
    if method == "dynamic_programming":
        return dynamic_programming(problem)
    if method not in ("exact", "anytime"):
        raise SolverError(
            f"there is no method `{method}`, expected `exact`, `dynamic_programming` or `anytime`"
        )
    if method == "anytime":
        # What it needs takes long to load, and most plans never need it.
        search = importlib.import_module("shardwright.solver.anytime.search")
        return search.solve_anytime(problem, time_limit, seed, workers, progress, gap)
    return solve_exact(problem, time_limit, seed, workers, progress, gap)
