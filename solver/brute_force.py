"""Brute force: every assignment. An oracle for tests of the other solvers."""

from __future__ import annotations

import itertools

from shardwright.ir.errors import SolverError
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution

MOST_ASSIGNMENTS = 10**6


def brute_force(problem: Problem) -> Solution:
    """Return the first of the cheapest assignments, in lexicographic order.

    Raises
    ------
    SolverError
        If there are more than `MOST_ASSIGNMENTS`.
    """
    count = 1
    for size in problem.sizes:
        count *= size
    if count > MOST_ASSIGNMENTS:
        raise SolverError(
            f"the problem has {count} assignments, expected at most {MOST_ASSIGNMENTS}"
        )
    best, cost = None, float("inf")
    for assignment in itertools.product(*(range(size) for size in problem.sizes)):
        result = evaluate(problem, assignment)
        if result.feasible and result.cost < cost:
            best, cost = assignment, result.cost
    status = "infeasible" if best is None else "optimal"
    return Solution(
        assignment=best,
        cost=cost,
        lower_bound=cost,
        status=status,  # type: ignore[arg-type]
        how="brute force",
        seconds=0.0,
        statistics={"assignments": count},
    )
