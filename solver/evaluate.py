"""The cost and the peak memory of an assignment: the referee of all solvers.

Plain loops over the original problem, exact sums, and no code shared with the solvers, so that a
mistake there cannot hide here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardwright.ir.errors import SolverError
from shardwright.solver.problem import FORBIDDEN, Problem


@dataclass(frozen=True)
class Evaluation:
    """The value of an assignment.

    Parameters
    ----------
    cost : int or float
        An exact integer where every cost of the problem is an integer; can be ``inf``.
    peak_usage : float
        The largest memory use at any time.
    feasible : bool
        Whether it is within the memory limit and contains no forbidden entry.
    """

    cost: float
    peak_usage: float
    feasible: bool


def evaluate(problem: Problem, assignment: Sequence[int]) -> Evaluation:
    """Return the cost, the peak memory use and the feasibility of ``assignment``.

    Raises
    ------
    SolverError
        If the assignment does not name one existing strategy for every variable.

    Examples
    --------
    >>> import numpy as np
    >>> from shardwright.solver.problem import Variable
    >>> evaluate(Problem((Variable("only", np.array([3, 4])),)), [1])
    Evaluation(cost=4, peak_usage=0.0, feasible=True)
    """
    _check(problem, assignment)
    terms = _terms(problem, assignment)
    peak = _peak_usage(problem, assignment)
    within = problem.memory_limit is None or float(peak) <= problem.memory_limit
    return Evaluation(_sum(terms), float(peak), within and _are_allowed(terms))


def cost_of(problem: Problem, assignment: Sequence[int]) -> float:
    """Return the cost of ``assignment`` alone; see `evaluate`."""
    _check(problem, assignment)
    return _sum(_terms(problem, assignment))


def cost_if_feasible(problem: Problem, assignment: Sequence[int]) -> float | None:
    """Return the cost of ``assignment`` if it is feasible, else None; see `evaluate`.

    Memory is looked at only where it has a limit.
    """
    _check(problem, assignment)
    terms, limit = _terms(problem, assignment), problem.memory_limit
    if not _are_allowed(terms):
        return None
    within = limit is None or float(_peak_usage(problem, assignment)) <= limit
    return _sum(terms) if within else None


def _terms(problem: Problem, assignment: Sequence[int]) -> list[float]:
    terms = [
        variable.cost.item(choice)
        for variable, choice in zip(problem.variables, assignment, strict=True)
    ]
    return terms + [
        pair.table.item(assignment[pair.first], assignment[pair.second]) for pair in problem.pairs
    ]


def _are_allowed(terms: Sequence[float]) -> bool:
    return all(term < FORBIDDEN for term in terms)


def _sum(terms: Sequence[float]) -> float:
    whole = all(isinstance(term, int) for term in terms)
    return sum(terms) if whole else math.fsum(terms)


def _check(problem: Problem, assignment: Sequence[int]) -> None:
    if len(assignment) != len(problem.variables):
        raise SolverError(
            f"the assignment has {len(assignment)} entries, expected {len(problem.variables)}"
        )
    for variable, choice in zip(problem.variables, assignment, strict=True):
        if not 0 <= choice < len(variable.cost):
            raise SolverError(
                f"the assignment names strategy {choice}, "
                f"expected a number from 0 to {len(variable.cost) - 1}",
                f"variable `{variable.name}`",
            )


def _peak_usage(problem: Problem, assignment: Sequence[int]) -> Fraction | int:
    """Sweep over time; sums are exact, so the order of the events does not matter."""
    change: dict[int, Fraction | int] = {}
    for variable, choice in zip(problem.variables, assignment, strict=True):
        for use in variable.memory:
            amount = use.usage.item(choice)
            if amount and use.start < use.end:
                whole = int(amount)
                exact = whole if whole == amount else Fraction(amount)
                change[use.start] = change.get(use.start, 0) + exact
                change[use.end] = change.get(use.end, 0) - exact
    peak: Fraction | int = 0
    level: Fraction | int = 0
    for time in sorted(change):
        level += change[time]
        peak = max(peak, level)
    return peak
