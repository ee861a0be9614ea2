"""Real costs in whole numbers: the bound holds, and what is found is as good as it says."""

from collections.abc import Callable

import numpy as np
import pytest

from shardwright.solver import Pair, Problem, Variable, brute_force, evaluate, solve
from shardwright.solver.exact import search as exact_search
from shardwright.solver.exact.integer_scaling import solve_whole

ProblemMaker = Callable[[int], Problem]


@pytest.mark.parametrize("block", range(4))
def test_agrees_with_brute_force(random_problem: ProblemMaker, block: int) -> None:
    for seed in range(15 * block, 15 * (block + 1)):
        problem = random_problem(seed)
        truth = brute_force(problem)
        found = solve_whole(problem, truth.cost, 10.0, 0, 1, 0.0)
        assert (found.status == "infeasible") == (truth.status == "infeasible"), seed
        if found.assignment is None:
            continue
        result = evaluate(problem, found.assignment)
        assert result.feasible
        assert result.cost == pytest.approx(truth.cost, rel=1e-9, abs=1e-9), seed
        assert found.lower_bound <= truth.cost + 1e-9 * abs(truth.cost), seed


def test_what_is_too_wide_for_elimination_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    side, labels = 6, 4
    costs = [Variable(str(i), random.random(labels)) for i in range(side * side)]
    edges = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    edges += [(i, i + side) for i in range(side * (side - 1))]
    pairs = tuple(Pair(i, j, random.random((labels, labels))) for i, j in edges)
    problem = Problem(tuple(costs), pairs)
    truth = solve(problem)
    assert truth.status == "optimal"
    monkeypatch.setattr(exact_search, "PATIENCE", 0.0)
    monkeypatch.setattr(exact_search, "IS_FAST", True)
    found = solve(problem, time_limit=20.0)
    assert found.how == "message passing"
    assert found.cost == pytest.approx(truth.cost, rel=1e-9)
    assert found.lower_bound <= truth.cost * (1 + 1e-12)
    assert found.gap <= 1e-9
