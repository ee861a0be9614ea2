"""Integer scaling: the bound holds for the real costs, and the cost is the one it states."""

from collections.abc import Callable

import numpy as np
import pytest

from shardwright.solver import Pair, Problem, Variable, brute_force, evaluate, solve
from shardwright.solver.exact import search as exact_search
from shardwright.solver.exact.integer_scaling import solve_scaled
from shardwright.solver.methods import SolveOptions
from shardwright.solver.work import Budget

ProblemMaker = Callable[[int], Problem]


@pytest.mark.long
@pytest.mark.parametrize("block", range(4))
def test_agrees_with_brute_force(random_problem: ProblemMaker, block: int) -> None:
    for seed in range(15 * block, 15 * (block + 1)):
        problem = random_problem(seed)
        truth = brute_force(problem)
        found = solve_scaled(problem, truth.cost, SolveOptions(budget=Budget(10.0)))
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
    monkeypatch.setattr(exact_search, "WORK_PER_SECOND", 1)
    monkeypatch.setattr(exact_search, "PASSING", 0)
    monkeypatch.setattr(exact_search, "IS_FAST", True)
    found = solve(problem, budget=Budget(20.0))
    assert found.how == "message passing"
    assert found.cost == pytest.approx(truth.cost, rel=1e-9)
    assert found.lower_bound <= truth.cost * (1 + 1e-12)
    assert found.gap <= 1e-9


@pytest.mark.parametrize("magnitude", [0.0, np.inf])
@pytest.mark.parametrize("unit", [1e-15, 1.0, 9e4, 2e5, 1e12])
def test_costs_of_any_size_where_the_magnitude_is_unknown(magnitude: float, unit: float) -> None:
    """The scale must neither overflow the sums nor make costs forbidden."""
    apart = np.array([[0.0, 5.0], [5.0, 0.0]]) * unit
    costs = (np.array([9.0, 1.0]), np.array([1.0, 3.0]), np.array([2.0, 8.0]))
    variables = tuple(Variable(str(i), cost * unit) for i, cost in enumerate(costs))
    problem = Problem(variables, (Pair(0, 1, apart), Pair(1, 2, apart)))
    truth = brute_force(problem)
    found = solve_scaled(problem, magnitude, SolveOptions(budget=Budget(10.0)))
    assert found.assignment == truth.assignment
    assert found.cost == pytest.approx(truth.cost, rel=1e-9)
    assert found.lower_bound <= truth.cost


def test_costs_that_are_all_zero() -> None:
    problem = Problem((Variable("a", np.zeros(3)), Variable("b", np.array([np.inf, 0.0]))))
    found = solve_scaled(problem, 0.0, SolveOptions(budget=Budget(10.0)))
    assert (found.status, found.cost, (found.assignment or ())[1]) == ("optimal", 0.0, 1)


def test_costs_far_above_the_known_cost_do_not_overflow() -> None:
    costs = tuple(Variable(str(i), np.array([0.025, 9e4])) for i in range(40))
    found = solve_scaled(Problem(costs), 1.0, SolveOptions(budget=Budget(10.0)))
    assert (found.status, found.assignment) == ("optimal", (0,) * 40)
    assert found.cost == pytest.approx(1.0)
