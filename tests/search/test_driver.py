import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.profile import UpdateRule, check_cotangents
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.errors import (
    InfeasibleError,
    NotFoundError,
    OptionError,
    StrategyError,
    TableLimitError,
    TimeLimitError,
)
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search import solving
from shardwright.search.driver import SEARCHES, search
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space import context
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.parameters import ParameterChoices
from shardwright.search.space.saved.offloading import Offloading
from shardwright.search.space.saved.tensors import SavedTensors
from shardwright.search.space.space import SearchSpace
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution
from shardwright.solver.work import Budget
from tests.extent import ANY_PLAN, first
from tests.random_graphs import multilayer_perceptron, random_graph

CPU = cluster("cpu")
SERIAL = CompileOptions(objective="serial")


def space_of(graph: Graph, devices: int) -> SearchSpace:
    profile = TimeProfile(mesh_for(CPU, devices), CPU, UpdateRule(Optimizer("sgd", {})))
    return build_search_space(graph, profile)


def cheapest(problem: Problem) -> float | None:
    """Return the least cost of all assignments; None where they are too many to try."""
    sizes = problem.sizes
    if np.prod(np.array(sizes, dtype=float)) > 3e6:
        return None
    total = np.zeros(sizes)
    for i, variable in enumerate(problem.variables):
        total = total + variable.cost.reshape([-1 if d == i else 1 for d in range(len(sizes))])
    for pair in problem.pairs:
        shape = [sizes[d] if d in (pair.first, pair.second) else 1 for d in range(len(sizes))]
        table = pair.table if pair.first < pair.second else pair.table.T
        total = total + table.reshape(shape)
    return float(total.min())


def test_exact_search_equals_brute_force_on_random_graphs() -> None:
    compared, wanted = 0, len(first(100, range(300)))
    for seed in range(1000):
        space = space_of(random_graph(seed, nodes=1 + seed % 3), 2)
        least = cheapest(space.problem)
        if least is None:
            continue
        found = search(space)
        assert found.status == "optimal"
        assert found.cost == pytest.approx(least, rel=1e-9)
        assert found.lower_bound <= least * (1 + 1e-12)
        compared += 1
        if compared == wanted:
            return
    pytest.fail(f"only {compared} of the random graphs are small enough, {wanted} are wanted")


@pytest.mark.parametrize("seed", range(20))
def test_no_mode_beats_exact_search(seed: int) -> None:
    space = space_of(random_graph(seed, nodes=6), 8)
    best = search(space)
    assert best.status == "optimal"
    for mode in SEARCHES:
        assert best.cost <= search(space, mode).cost * (1 + 1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("mode", SEARCHES)
def test_the_emitted_program_costs_what_the_search_said(mode: str, optimizer: str) -> None:
    for seed in first(2, range(4)):
        kinds = {"optimizer": Optimizer(optimizer), "loss_scale": 8.0}
        options = CompileOptions(search=mode, **kinds, **ANY_PLAN)
        compiled = compile_graph(random_graph(seed, nodes=6), CPU, 8, options)
        assert compiled.result is not None
        assert program_seconds(compiled.program, CPU) == pytest.approx(
            compiled.result.cost, rel=1e-6
        )


def test_gradients_lie_as_their_rules_say() -> None:
    mesh = mesh_for(CPU, 8)
    profile = TimeProfile(mesh, CPU)
    for seed in range(10):
        build_search_space(random_graph(seed, nodes=6), profile)
    for table in profile._tables.values():
        check_cotangents(table, mesh)


def test_a_limit_that_binds_is_kept_and_costs_time() -> None:
    graph = multilayer_perceptron()
    free = compile_graph(graph, CPU, 8, SERIAL)
    assert free.result is not None
    limit = 0.95 * free.memory.peak_bytes
    tight = compile_graph(graph, CPU, 8, replace(SERIAL, memory_limit=limit))
    assert tight.result is not None
    assert tight.memory.peak_bytes <= limit
    assert tight.result.cost > free.result.cost


def test_an_impossible_limit_names_the_least_that_would_do() -> None:
    with pytest.raises(InfeasibleError) as caught:
        compile_graph(multilayer_perceptron(), CPU, 8, CompileOptions(memory_limit=10.0))
    error = caught.value
    assert error.least_memory_bytes is not None
    assert error.least_memory_bound is not None
    assert 10.0 < error.least_memory_bound <= error.least_memory_bytes
    assert str(error) == (
        "no plan fits 10 B on each device: every plan takes at least 45.88 KiB, the smallest "
        "program found takes 50.01 KiB (activations 26.01 KiB, parameters 16.00 KiB, gradients "
        "8.00 KiB) (in mesh x=2 x y=2 x z=2); 87% of it is taken by 2x matmul 20.00 KiB, w2 8.00 "
        "KiB, w3 8.00 KiB, w0 4.00 KiB"
    )


def test_pins_are_honoured_and_priced() -> None:
    graph = multilayer_perceptron()
    node = next(node for node in graph.nodes if node.operator == "matmul")
    whole = tuple((1,) * graph.values[name].type.rank for name in node.operands)
    options = replace(SERIAL, pins={node.name: whole})
    pinned, free = compile_graph(graph, CPU, 8, options), compile_graph(graph, CPU, 8, SERIAL)
    assert pinned.result is not None
    assert free.result is not None
    assert pinned.decisions is not None
    assert not pinned.decisions.strategies[node.name].assignment
    price = pinned.result.cost - free.result.cost
    assert pinned.pin_prices[node.name] == pytest.approx(price)


def test_pins_of_results_are_honoured() -> None:
    graph = multilayer_perceptron()
    options = CompileOptions(result_pins={"matmul_1": ((1, 4),)})
    compiled = compile_graph(graph, CPU, 8, options)
    layout = compiled.passes.after("partition").values["matmul_1"].layout
    assert layout is not None
    assert layout.counts(compiled.mesh) == (1, 4)
    wrong = CompileOptions(result_pins={"matmul_1": ((5, 1),)})
    with pytest.raises(StrategyError, match="cannot leave its results split by"):
        compile_graph(graph, CPU, 8, wrong)


def test_wrong_pins_are_refused() -> None:
    graph = multilayer_perceptron()
    node = next(node for node in graph.nodes if node.operator == "matmul")
    with pytest.raises(StrategyError, match="but the model has no such operator"):
        compile_graph(graph, CPU, 8, CompileOptions(pins={"nothing": ((2,),)}))
    with pytest.raises(StrategyError, match="cannot be split by"):
        compile_graph(graph, CPU, 8, CompileOptions(pins={node.name: ((3, 1), (1, 1))}))


def test_a_mesh_too_fine_for_the_effort_is_refused_and_an_operator_named() -> None:
    with pytest.raises(StrategyError) as caught:
        compile_graph(multilayer_perceptron(), CPU, 8, CompileOptions(effort=1e-9))
    assert str(caught.value).startswith(
        "building the search takes more than the 6e-08 s of work that effort 1e-09 leaves for it: "
        "`matmul_0` alone has "
    )
    assert "strategies on mesh x=2 x y=2 x z=2; merge axes of the mesh" in str(caught.value)


def test_building_with_nothing_left_is_refused_by_the_effort_of_the_user() -> None:
    profile = TimeProfile(mesh_for(CPU, 2), CPU, UpdateRule(Optimizer("sgd", {})))
    build = partial(build_search_space, multilayer_perceptron(), profile, effort=2.0)
    with pytest.raises(TimeLimitError) as caught:
        build(budget=Budget(0.0))
    assert str(caught.value) == (
        "nothing is left of effort 2 to build the search on mesh x=2; allow more effort"
    )
    with pytest.raises(TimeLimitError) as caught:
        build(budget=Budget(1e-9))
    assert str(caught.value).startswith(
        "building the search takes more than the 1e-09 s of work that effort 2 leaves for it: "
    )


def test_a_safety_stop_is_told_from_a_budget_that_is_spent() -> None:
    with pytest.raises(TimeLimitError) as caught:
        compile_graph(multilayer_perceptron(), CPU, 8, CompileOptions(time_limit=1e-9))
    assert str(caught.value) == (
        "the time limit ended building the search on mesh x=2 x y=2 x z=2; allow more time"
    )


def test_tables_that_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "TABLE_LIMIT", 1_000)
    with pytest.raises(TableLimitError) as caught:
        compile_graph(multilayer_perceptron(), CPU, 8, CompileOptions())
    assert str(caught.value) == (
        "the tables of the search have more than 1,000 entries: `matmul_0` alone has 20 strategies "
        "on mesh x=2 x y=2 x z=2; merge axes of the mesh"
    )


@pytest.mark.parametrize(
    ("part", "step"),
    [(SavedTensors, "hold"), (ParameterChoices, "add"), (Offloading, "with_choice")],
)
def test_every_part_of_building_ends_when_its_budget_is_spent(
    part: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, calls = getattr(part, step), 0

    def late(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        context = getattr(self, "context", None) or self.saved.context
        context.budget.charge(3600)
        return own(self, *arguments, **named)

    monkeypatch.setattr(part, step, late)
    profile = TimeProfile(mesh_for(CPU, 2), CPU, UpdateRule(Optimizer("sgd", {})))
    with pytest.raises(TimeLimitError, match="more than the 60 s of work that effort 1"):
        build_search_space(multilayer_perceptron(), profile, budget=Budget(60))
    assert calls == 1


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(OptionError) as error:
        search(space_of(random_graph(1), 2), "magic")
    assert str(error.value) == (
        "unknown search `magic`; expected one of data_parallel, dynamic_programming, exact, "
        "fully_sharded, recursive_programming, sharding_propagation, tensor_parallel"
    )
    with pytest.raises(OptionError, match="`mode` is `magic`, expected auto_parallel, "):
        compile_graph(random_graph(1), CPU, 2, CompileOptions(mode="magic"))  # type: ignore[arg-type]


def test_no_plan_in_the_budget_is_told_from_no_plan_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Solution(None, math.inf, 0.0, "unknown", "nothing")
    monkeypatch.setattr(solving, "solve", lambda *_, **__: unknown)
    for budget in (Budget(7), Budget(0)):
        options = SearchOptions(budget=budget, effort=0.5)
        with pytest.raises(NotFoundError, match=r"no plan was found with effort 0\.5"):
            search(space_of(multilayer_perceptron(), 2), options=options)


def test_a_plan_says_where_the_budget_ended_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = multilayer_perceptron()
    free = compile_graph(graph, CPU, 8).result
    assert free is not None
    assert "budget" not in free.how

    def late(*arguments: Any) -> SearchResult:
        return replace(search(*arguments), seconds=1e6)

    monkeypatch.setattr("shardwright.planner.search_request.search", late)
    ended = compile_graph(graph, CPU, 8, CompileOptions(search="dynamic_programming")).result
    assert ended is not None
    assert "; a share of the budget ended a search of the solver after 45 s; " in ended.how


@pytest.mark.parametrize(
    ("too_large", "said"),
    [
        (3, "`dynamic_programming` found no plan within 1.00 KiB on each device"),
        (0, "found no plan: it chose layouts between which a tensor cannot be redistributed"),
    ],
)
def test_memory_is_blamed_only_where_something_does_not_fit(
    too_large: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = Solution(None, math.inf, 0.0, "unknown", "", 0.0, {"too large": float(too_large)})
    monkeypatch.setattr(solving, "solve", lambda *_, **__: missed)
    options = SearchOptions(1024.0)
    with pytest.raises(NotFoundError, match=said) as error:
        search(space_of(multilayer_perceptron(), 2), "dynamic_programming", options)
    assert str(error.value).endswith("; search with `exact`")
