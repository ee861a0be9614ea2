"""The entry point: takes a problem, returns an answer with its certificate."""

from __future__ import annotations

from shardwright.solver.exact.dynamic_programming import dynamic_programming
from shardwright.solver.exact.search import solve_exact
from shardwright.solver.methods import (
    DEFAULT_SECONDS,
    METHODS,
    Progress,
    SolveOptions,
    register_method,
)
from shardwright.solver.on_demand import anytime_search
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution
from shardwright.solver.work import Budget


def solve(
    problem: Problem,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    method: str = "exact",
    gap: float = 0.0,
) -> Solution:
    """Return the cheapest assignment that fits into memory, with a lower bound.

    Parameters
    ----------
    budget : Budget, optional
        What the search may spend, `DEFAULT_SECONDS` of a reference core by default; the best
        answer known by then is returned. The work is counted: it is the same on every machine.
    seed, workers : int
        For CP-SAT, where it is needed. One worker gives the same answer every time.
    progress : callable, optional
        Called with (seconds, cost, lower bound) whenever one of them improves.
    method : str
        A registered method: `exact`; `dynamic_programming`, MindSpore's, which is exact only on
        some graphs; `anytime` for integer problems with tens of thousands of variables.
    gap : float
        The relative gap between cost and lower bound at which the search stops.

    Raises
    ------
    SolverError
        If no method has that name, or the method does not support the problem.

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
    budget = Budget(DEFAULT_SECONDS) if budget is None else budget
    return METHODS[method](problem, SolveOptions(budget, seed, workers, progress, gap))


@register_method("exact")
def _exact(problem: Problem, options: SolveOptions) -> Solution:
    return solve_exact(problem, options)


@register_method("dynamic_programming")
def _dynamic_programming(problem: Problem, options: SolveOptions) -> Solution:
    return dynamic_programming(problem)


@register_method("anytime")
def _anytime(problem: Problem, options: SolveOptions) -> Solution:
    solution: Solution = anytime_search.solve_anytime(problem, options)
    return solution
