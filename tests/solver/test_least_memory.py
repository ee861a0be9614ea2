"""The least memory that would do, against brute force."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwright.solver import Problem, Variable, evaluate, minimize_memory
from tests.extent import first

ProblemMaker = Callable[[int], Problem]


def least_peak(problem: Problem) -> tuple[float, float]:
    """(peak, cost) of the cheapest of the assignments with the least peak."""
    free = replace(problem, memory_limit=None)
    best = (np.inf, np.inf)
    for assignment in itertools.product(*map(range, problem.sizes)):
        result = evaluate(free, assignment)
        if result.feasible:
            best = min(best, (result.peak_usage, result.cost))
    return best


@pytest.mark.long
@pytest.mark.parametrize("block", first(2, range(5)))
def test_agrees_with_brute_force(random_problem: ProblemMaker, block: int):
    for seed in range(40 * block, 40 * (block + 1)):
        problem = random_problem(seed)
        peak, cost = least_peak(problem)
        found = minimize_memory(problem)
        assert found.cost == pytest.approx(peak, rel=1e-9), seed
        assert found.lower_bound <= peak
        if found.assignment is None:
            assert found.status == "infeasible"
        else:
            assert found.status == "optimal"
            assert evaluate(problem, found.assignment).cost == pytest.approx(cost, rel=1e-9), seed


def test_without_memory_use():
    found = minimize_memory(Problem((Variable("a", np.array([2.0, 1.0])),), (), 5.0))
    assert (found.assignment, found.cost, found.status) == ((1,), 0.0, "optimal")
