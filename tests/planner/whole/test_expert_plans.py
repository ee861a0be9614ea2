"""The answer is never slower than an expert plan on the same mesh, nor missing where one fits."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import NotFoundError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.problem import PlanProblem
from shardwright.planner.whole.search import WholeSearch
from shardwright.search.budget_note import says_so
from shardwright.search.method import SearchResult
from shardwright.solver.work import Budget
from tests.extent import first
from tests.random_graphs import multilayer_perceptron, random_graph
from tests.zoo_sizes import SMALL

CPU, POD = cluster("cpu"), cluster("h100-pod:figures=datasheet")
ROUNDING = 1 + 1e-9
DEVICES = 4
DEGREES = ("tensor=1", "tensor=2", "tensor=4", "tensor=2,sequence_parallel")
ZERO = ("", ",zero=1", ",zero=2", ",zero=3")


def compiled(graph: Graph, **options: object) -> Compiled:
    return compile_graph(graph, CPU, DEVICES, CompileOptions(**options))  # type: ignore[arg-type]


def named(graph: Graph, **options: object) -> Iterator[Compiled]:
    """Yield the expert plans that the model allows and that fit."""
    for degrees in DEGREES:
        for zero in ZERO:
            try:
                yield compiled(graph, plan=degrees + zero, **options)
            except ShardwrightError:
                continue


def check_never_slower(graph: Graph, **options: object) -> int:
    """Compare the answer with every expert plan; return how many there are."""
    plans = list(named(graph, **options))
    found = compiled(graph, gap=0.0, **options)
    assert found.result is not None
    for plan in plans:
        assert plan.result is not None
        assert found.result.lower_bound <= plan.result.cost * ROUNDING
        assert found.result.cost <= plan.result.cost * ROUNDING
    return len(plans)


@pytest.mark.long
def test_no_expert_plan_of_a_random_program_is_faster() -> None:
    count = 0
    for seed in first(8, range(12)):
        graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 5))
        count += check_never_slower(graph)
    assert count >= 25


@pytest.mark.long
def test_no_expert_plan_that_fits_is_faster_where_memory_is_short() -> None:
    graph = multilayer_perceptron(batch=8, width=8, layers=3)
    sizes = sorted(plan.memory.peak_bytes for plan in named(graph))
    assert check_never_slower(graph, memory_limit=sizes[len(sizes) // 2])


def test_where_the_searches_find_nothing_a_plan_by_rule_that_fits_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*_: object) -> SearchResult:
        raise NotFoundError("no plan was found that fits")

    graph = multilayer_perceptron(batch=8, width=8, layers=3)
    plans = list(named(graph))
    limit = sorted(plan.memory.peak_bytes for plan in plans)[len(plans) // 2]
    monkeypatch.setattr(PlanProblem, "fit", nothing)
    monkeypatch.setattr(WholeSearch, "_search", nothing)
    found = compiled(graph, memory_limit=limit, gap=0.0)
    assert found.result is not None
    assert found.memory.peak_bytes <= limit
    assert found.result.lower_bound <= found.result.cost


@pytest.mark.long
@pytest.mark.parametrize(("share", "passes"), [(None, 1), (1.0, 2)])
def test_a_plan_is_given_where_the_searches_leave_nothing(
    share: float | None, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    options = CompileOptions(micro_batches=passes, optimizer=Optimizer("adam"))
    sharded = replace(options, search="fully_sharded", recompute="full", objective="serial")
    least = compile_graph(graph, POD, 4, sharded)
    limit = None if share is None else share * peak_memory(least.program).peak_bytes
    spent = Budget(60)
    spent.charge(61)
    monkeypatch.setattr(WholeSearch, "searching", spent)
    found = compile_graph(graph, POD, 4, replace(options, memory_limit=limit))
    assert found.result is not None
    assert says_so(found.result)
    assert found.result.lower_bound <= found.result.cost
    assert limit is None or found.memory.peak_bytes <= limit
