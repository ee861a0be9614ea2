"""The exact search agrees with brute force, proves it, and does repeated work once."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwright.solver import (
    MemoryUse,
    Pair,
    Problem,
    Solution,
    Variable,
    brute_force,
    evaluate,
    solve,
)
from shardwright.solver.elimination import Elimination, Relaxed
from shardwright.solver.exact.search import LEAST_MESSAGE
from shardwright.solver.network import build_network
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget

ProblemMaker = Callable[[int], Problem]
LayerMaker = Callable[[int, int], Problem]


def check_certificate(problem: Problem, solution: Solution, optimum: float) -> None:
    assert solution.lower_bound <= optimum
    if solution.assignment is not None:
        result = evaluate(problem, solution.assignment)
        assert result.feasible
        assert result.cost == solution.cost


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_brute_force(random_problem: ProblemMaker, block: int):
    for seed in range(60 * block, 60 * (block + 1)):
        problem = random_problem(seed)
        truth, found = brute_force(problem), solve(problem)
        assert found.status == truth.status, seed
        assert found.cost == pytest.approx(truth.cost, rel=1e-9), seed
        check_certificate(problem, found, truth.cost)


def test_whole_costs_give_a_whole_bound(random_problem: ProblemMaker):
    whole = [problem for problem in map(random_problem, range(60)) if is_whole(problem)]
    assert len(whole) > 10
    for problem in whole:
        solution = solve(problem)
        if solution.status == "optimal":
            assert solution.lower_bound == solution.cost


def test_what_was_found_out_for_another_problem_changes_no_answer(
    random_problem: ProblemMaker,
):
    draw = np.random.default_rng(0)
    for problem in map(random_problem, range(12)):
        solve(problem)
        usages = [float(draw.integers(5, 35)), None]
        costs = [draw.permutation(variable.cost) for variable in problem.variables]
        bare = [Variable(v.name, cost) for v, cost in zip(problem.variables, costs, strict=True)]
        made = [*map(problem.limited, usages), problem.costing(costs), problem.costing(costs)]
        alone = [Problem(problem.variables, problem.pairs, usage) for usage in usages]
        alone += [Problem(tuple(bare), problem.pairs)] * 2
        for one, other in zip(made, alone, strict=True):
            assert solve(one) == solve(other)
            assert solve(one.limited(None, "edge")) == solve(other.limited(None, "edge"))


def is_whole(problem: Problem) -> bool:
    return all(variable.cost.dtype.kind == "i" for variable in problem.variables)


def test_repeated_layers_are_eliminated_once(repeated_layers: LayerMaker):
    few = solve(repeated_layers(12, 8))
    many = solve(repeated_layers(96, 8))
    assert few.status == many.status == "optimal"
    extra = many.statistics["messages"] - few.statistics["messages"]
    assert many.statistics["variables"] - few.statistics["variables"] == 84 * 4
    assert extra <= 12  # messages along the chain soon repeat, but for a constant


def test_marginals_add_what_messages_leave_out(random_problem: ProblemMaker):
    for seed in range(40):
        problem = random_problem(seed)
        network = build_network(problem)
        if network.empty:
            continue
        elimination = Elimination(network.sizes, network.tables)
        least = elimination.minimise(network.unary, list(network.tables.values())).value
        for marginal in elimination.marginals() if math.isfinite(least) else ():
            assert marginal.min() == pytest.approx(least, rel=1e-12)


def test_equal_arrays_need_not_be_the_same_object(repeated_layers: LayerMaker):
    shared = repeated_layers(24, 6)
    copied = replace(
        shared, pairs=tuple(replace(pair, table=pair.table.copy()) for pair in shared.pairs)
    )
    one, other = solve(shared), solve(copied)
    assert one.assignment == other.assignment
    assert one.statistics["messages"] == other.statistics["messages"]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_binding_memory_on_layers(repeated_layers: LayerMaker, share: float):
    problem = repeated_layers(2, 5)
    most = evaluate(problem, solve(problem).assignment or ()).peak_usage
    limited = replace(problem, memory_limit=np.floor(most * share))
    found = solve(limited)
    if found.status == "infeasible":
        least = [int(variable.memory[0].usage.argmin()) for variable in limited.variables[1:]]
        assert not evaluate(limited, [0, *least]).feasible
        return
    assert found.status == "optimal"
    assert found.cost > solve(problem).cost
    check_certificate(limited, found, found.cost)


@pytest.mark.parametrize("gap", [0.3, 0.03])
def test_a_gap_that_is_allowed_is_proven(repeated_layers: LayerMaker, gap: float):
    problem = repeated_layers(4, 5)
    most = evaluate(problem, solve(problem).assignment or ()).peak_usage
    limited = replace(problem, memory_limit=np.floor(most * 0.6))
    best, found = solve(limited), solve(limited, gap=gap)
    assert best.status == "optimal"
    assert found.lower_bound <= best.cost <= found.cost <= found.lower_bound * (1 + 2 * gap)
    assert evaluate(limited, found.assignment or ()).feasible


def wide_problem() -> Problem:
    """A clique of 14 variables with 6 strategies has messages of 6**13 entries."""
    random = np.random.default_rng(3)
    variables = tuple(Variable(f"v{index}", random.random(6)) for index in range(14))
    pairs = tuple(
        Pair(first, second, random.random((6, 6)) * 0.2)
        for first in range(14)
        for second in range(first)
    )
    return Problem(variables, pairs)


@pytest.mark.long
def test_wide_problem_is_solved_by_what_remains():
    solution = solve(wide_problem(), budget=Budget(2.0))
    assert solution.status in ("optimal", "feasible")
    assert 0 < solution.lower_bound <= solution.cost


def test_same_answer_every_time(random_problem: ProblemMaker):
    for seed in range(40):
        first, second = solve(random_problem(seed)), solve(random_problem(seed))
        assert first.assignment == second.assignment
        assert first.lower_bound == second.lower_bound


def test_ties_go_to_the_lowest_index():
    variables = tuple(Variable(f"v{index}", np.array([2.0, 1.0, 1.0])) for index in range(3))
    pairs = (Pair(0, 1, np.zeros((3, 3))), Pair(1, 2, np.zeros((3, 3))))
    assert solve(Problem(variables, pairs)).assignment == (1, 1, 1)


def test_infeasible_by_memory_and_by_tables():
    heavy = Variable("a", np.zeros(2), (MemoryUse(np.array([5.0, 6.0]), 0, 1),))
    assert solve(Problem((heavy,), (), 4.0)).status == "infeasible"
    apart = Pair(0, 1, np.full((2, 2), np.inf))
    answer = solve(Problem((heavy, heavy), (apart,)))
    assert (answer.status, answer.assignment, answer.lower_bound) == ("infeasible", None, np.inf)


def test_progress_is_told_of_every_improvement(repeated_layers: LayerMaker):
    reports: list[tuple[float, float, float]] = []
    solution = solve(repeated_layers(3, 4), progress=lambda *report: reports.append(report))
    assert reports[-1][1:] == (solution.cost, solution.lower_bound)


def test_many_equal_layers_with_binding_memory_are_proven(repeated_layers: LayerMaker):
    problem = repeated_layers(48, 8)
    most = evaluate(problem, solve(problem).assignment or ()).peak_usage
    solution = solve(replace(problem, memory_limit=np.floor(most * 0.6)), budget=Budget(30))
    assert solution.status == "optimal"
    assert solution.how == "variable elimination, memory prices, fronts"


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_without_time_an_answer_takes_one_elimination(
    repeated_layers: LayerMaker, share: float, monkeypatch: pytest.MonkeyPatch
):
    free = repeated_layers(12, 6).limited(None)
    peak = evaluate(free, solve(free).assignment or ()).peak_usage
    problem = free.limited(share * peak)
    best = solve(problem)
    calls: list[Elimination] = []
    minimise = Elimination.minimise

    def counted(elimination: Elimination, *arguments: Any) -> Relaxed:
        calls.append(elimination)
        return minimise(elimination, *arguments)

    monkeypatch.setattr(Elimination, "minimise", counted)
    answer = solve(problem, budget=Budget(0.0))
    assert len(calls) == 1
    assert answer.how == "variable elimination"
    assert answer.lower_bound <= best.cost * (1 + 1e-9)
    assert answer.status == ("optimal" if share == 1.0 else "unknown")


def test_without_time_a_wide_problem_takes_small_messages_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardwright.solver.exact.search.solve_scaled", None)
    answer = solve(wide_problem(), budget=Budget(0.0))
    assert 0 < answer.lower_bound <= answer.cost < math.inf
    assert answer.statistics["largest_message"] <= LEAST_MESSAGE


def test_one_structure_is_planned_once_and_solved_for_any_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[int] = []
    plan = Elimination._plan

    def counted(elimination: Elimination) -> None:
        planned.append(len(elimination.sizes))
        plan(elimination)

    monkeypatch.setattr(Elimination, "_plan", counted)
    draw = np.random.default_rng(7)
    edges = [(0, 1), (1, 2), (0, 3), (2, 3)]
    for sizes in ([3, 2, 4, 2], [3, 2, 4, 3]):
        for _ in range(3):
            unary = [draw.random(size) for size in sizes]
            tables = [draw.random((sizes[i], sizes[j])) for i, j in edges]
            pairs = [Pair(i, j, table) for (i, j), table in zip(edges, tables, strict=True)]
            variables = [Variable(f"v{i}", cost) for i, cost in enumerate(unary)]
            truth = brute_force(Problem(tuple(variables), tuple(pairs)))
            for limit in (2**24, 4):
                elimination = Elimination(list(sizes), edges, limit)
                found = elimination.minimise(unary, tables)
                assert found.value <= truth.cost * (1 + 1e-12)
                assert not elimination.exact or found.value == pytest.approx(truth.cost)
    assert len(planned) == 4  # two structures, with and without small messages


@pytest.mark.parametrize("kind", [float, np.int64])
def test_an_entry_that_may_not_be_chosen_need_not_be_infinite(kind: type) -> None:
    cost = np.array([2 * FORBIDDEN, 3]).astype(kind)
    table = np.array([[0, 0], [FORBIDDEN, 0]]).astype(kind)
    problem = Problem((Variable("one", cost), Variable("other", 0 * cost)), (Pair(0, 1, table),))
    network = build_network(problem)
    assert network.unary[0].tolist() == [math.inf, 3.0]
    assert network.tables[0, 1].tolist() == [[0.0, 0.0], [math.inf, 0.0]]
    assert solve(problem).assignment == (1, 1)
