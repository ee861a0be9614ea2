"""All assignments that fit come in the order of bounds of their costs."""

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest

from shardwright.solver import Problem, Variable, evaluate
from shardwright.solver.exact.in_order import in_order
from shardwright.solver.work import Budget

ProblemMaker = Callable[[int], Problem]
_ALL = 10**6


@pytest.mark.parametrize("block", range(4))
def test_every_assignment_that_fits_comes_once(random_problem: ProblemMaker, block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        problem = random_problem(seed)
        choices = product(*map(range, problem.sizes))
        fitting = [choice for choice in choices if evaluate(problem, choice).feasible]
        found = list(in_order(problem, Budget(60), _ALL))
        assert sorted(one.assignment for one in found) == fitting, seed
        assert all(one.lower_bound <= other.lower_bound + 1e-9 for one, other in pairwise(found))
        for bound, choice in found:
            assert bound <= evaluate(problem, choice).cost, seed


def test_without_a_limit_the_bound_is_the_cost(random_problem: ProblemMaker) -> None:
    for seed in range(20):
        problem = random_problem(seed).limited(None)
        for bound, choice in in_order(problem, Budget(60), _ALL):
            assert bound == pytest.approx(evaluate(problem, choice).cost)


def test_the_search_ends_early_with_the_cheapest() -> None:
    costs = np.arange(3.0)
    problem = Problem(tuple(Variable(name, costs) for name in "abcd"))
    found = list(in_order(problem, Budget(60), _ALL))
    some = list(in_order(problem, Budget(60), 40))
    assert 0 < len(some) < len(found) == 3**4
    assert some == found[: len(some)]
    assert not list(in_order(problem, Budget(0), _ALL))
