import math

import numpy as np
import pytest

from shardwright.solver import MemoryUse, Problem, Variable, brute_force, evaluate, solve
from shardwright.solver.work import Budget
from tests.extent import first


def followed(problem):
    """Solve, and return the bounds that were told on the way too."""
    bounds = []
    answer = solve(
        problem,
        method="anytime",
        budget=Budget(20),
        progress=lambda _, cost, bound: bounds.append(bound),
    )
    return answer, bounds


@pytest.mark.parametrize("part", first(5, range(9, -1, -1)))
def test_small_problems_are_solved_as_by_brute_force(random_whole_problem, part):
    for seed in range(100 * part, 100 * part + 100):
        problem = random_whole_problem(seed)
        known = brute_force(problem)
        answer, bounds = followed(problem)
        assert answer.cost == known.cost, f"seed {seed}"
        assert answer.status == known.status, f"seed {seed}"
        assert max(bounds, default=-math.inf) <= known.cost, f"seed {seed}"
        if known.assignment is not None:
            judged = evaluate(problem, answer.assignment)
            assert judged.feasible
            assert judged.cost == known.cost


def test_nothing_to_choose():
    answer = solve(Problem((Variable("v", np.array([4])),)), method="anytime")
    assert (answer.assignment, answer.cost, answer.lower_bound) == ((0,), 4, 4)


def test_what_cannot_be_avoided_may_not_fit():
    use = MemoryUse(np.array([8, 9]), 0, 2)
    answer = solve(Problem((Variable("v", np.array([4, 5]), (use,)),), (), 7), method="anytime")
    assert (answer.assignment, answer.status) == (None, "infeasible")
