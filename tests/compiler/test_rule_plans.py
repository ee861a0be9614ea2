"""Plans built by rule: the answer is never slower than an expert plan on the same mesh."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from shardwright import zoo
from shardwright.compiler.attempts import Attempts
from shardwright.compiler.buckets import NO_BUCKETS, fastest_fusion
from shardwright.compiler.compiled import Compiled
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.fitting import Attempt
from shardwright.compiler.partitioning import Partitioning
from shardwright.compiler.rule_plans import RulePlans
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import NotFoundError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.search.budget_note import says_so
from shardwright.search.heuristics.expert_plans import expert_walks
from shardwright.solver.work import Budget
from tests.extent import first
from tests.random_graphs import multilayer_perceptron, random_graph
from tests.zoo_sizes import SMALL

CPU, POD = cluster("cpu"), cluster("h100-pod")
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


def test_no_expert_plan_of_a_random_program_is_faster() -> None:
    count = 0
    for seed in first(8, range(12)):
        graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 5))
        count += check_never_slower(graph)
    assert count >= 25


def test_no_expert_plan_that_fits_is_faster_where_memory_is_short() -> None:
    graph = multilayer_perceptron(batch=8, width=8, layers=3)
    sizes = sorted(plan.memory.peak_bytes for plan in named(graph))
    assert check_never_slower(graph, memory_limit=sizes[len(sizes) // 2])


@dataclass
class Built:
    """What a compilation has to build plans by rule."""

    attempts: Attempts
    rules: RulePlans


def built(graph: Graph, **options: object) -> Built:
    given = CompileOptions(**options)  # type: ignore[arg-type]
    mesh = mesh_for(CPU, DEVICES, (2, 2))
    source = Canonicalize().run(graph)
    found = Partitioning(source, CPU, mesh, given, PassManager(), None, Budget(60))
    attempts = found._serial
    assert attempts.rules is not None
    return Built(attempts, attempts.rules)


@pytest.mark.parametrize(
    ("model", "passes"), first(1, [("gpt", 2), ("gpt", 1), ("mixtral", 1), ("mixtral", 2)])
)
def test_expert_plans_on_merged_axes_are_the_named_plans(model: str, passes: int) -> None:
    graph = zoo.load(SMALL[model].replace("layers=2", "layers=1")).graph
    by_rule = built(graph, micro_batches=passes)
    attempts = by_rule.attempts
    steps: dict[str, float] = {}
    for plan in by_rule.rules.fastest((), lambda: 1e9, with_heuristics=False):
        program = attempts.emit(attempts.limits, plan.result).program
        steps[plan.result.how] = fastest_fusion(program, CPU)[1].step_seconds
    assert any("tensor=4" in text for text in steps)
    assert any("expert_tensor=1" in text for text in steps) == (model == "mixtral")
    assert any("zero=3" in text for text in steps)
    assert ("data=4,zero=2" in steps) == (passes > 1)
    for text, step in steps.items():
        alone = compiled(graph, micro_batches=passes, plan=text)
        assert alone.result is not None
        assert step <= alone.result.cost * ROUNDING


def test_the_loads_of_a_plan_are_estimated_from_below() -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    by_rule = built(graph)
    partitioning = Partitioning(
        Canonicalize().run(graph),
        *(CPU, mesh_for(CPU, DEVICES, (2, 2)), CompileOptions(), PassManager(), None, Budget(60)),
    )
    emitted = partitioning.emit()
    assert emitted.result is not None
    searched = [one.request for w, one in partitioning._searches.items() if w is not None]
    queue = list(by_rule.rules.fastest(searched, lambda: 1e9, with_heuristics=True))
    assert any(plan.least_cost for plan in queue)
    for plan in queue:
        program = by_rule.attempts.emit(by_rule.attempts.limits, plan.result).program
        _, timeline = fastest_fusion(program, CPU)
        assert plan.least_cost <= timeline.step_seconds * ROUNDING


def test_a_plan_that_does_not_fit_recomputes_more() -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    by_rule = built(graph)
    plans = {plan.result.how: plan for plan in by_rule.rules.cheapest(1e9)}
    plain = plans["data=4"]
    thriftier = plain.thriftier(math.inf)
    assert thriftier is not None
    assert plain.thriftier(1.0) is None  # its parameters take more
    assert thriftier.result.how == "data=4, recompute=selective"
    more = thriftier.thriftier(math.inf)
    assert more is not None
    assert more.result.how == "data=4, recompute=operators"
    most = more.thriftier(math.inf)
    assert most is not None
    assert most.result.how == "data=4, recompute=full"
    assert most.thriftier(math.inf) is None
    assert plain.result.cost <= thriftier.result.cost < most.result.cost
    assert plain.result.memory_bytes > most.result.memory_bytes


def test_a_plan_that_leaves_memory_recomputes_less_in_its_last_blocks() -> None:
    sizes = "layers=4,hidden=32,heads=4,batch=16,sequence=32,vocabulary=32"
    graph = zoo.load(f"gpt:{sizes},dtype=float32").graph
    plan = {one.result.how: one for one in built(graph).rules.cheapest(1e9)}["data=4"]
    levels = [plan]
    while (more := levels[-1].thriftier(math.inf)) is not None:
        levels.append(more)
    less, most = levels[-2:]
    room = less.result.memory_bytes - most.result.memory_bytes
    assert room > 0
    some = most.richer(0.7 * room)
    assert some is not None
    assert some.result.how == "data=4, recompute=full, operators in the last 2 blocks"
    assert less.result.memory_bytes > some.result.memory_bytes > most.result.memory_bytes
    assert less.result.cost < some.result.cost < most.result.cost
    fewer = some.thriftier(math.inf)
    assert fewer is not None
    assert fewer.result.how == "data=4, recompute=full, operators in the last 1 blocks"
    assert fewer.thriftier(math.inf) is None
    assert most.richer(0.0) is None


def test_where_the_searches_find_nothing_a_plan_by_rule_that_fits_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*_: object) -> Attempt:
        raise NotFoundError("no plan was found that fits")

    graph = multilayer_perceptron(batch=8, width=8, layers=3)
    plans = list(named(graph))
    limit = sorted(plan.memory.peak_bytes for plan in plans)[len(plans) // 2]
    monkeypatch.setattr(Attempts, "_searched", nothing)
    found = compiled(graph, memory_limit=limit, gap=0.0)
    assert found.result is not None
    assert found.memory.peak_bytes <= limit
    assert found.result.lower_bound <= found.result.cost


def test_axes_of_one_purpose_and_level_are_merged_while_a_plan_is_built() -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    mesh = mesh_for(CPU, 8, (2, 2, 2))
    shapes = {walk.plan.text: walk.on.mesh.shape for walk in expert_walks(graph, mesh)}
    assert shapes["data=8"] == (8,)
    assert shapes["tensor=2,data=4"] == (4, 2)
    assert shapes["tensor=4,data=2"] == (2, 4)
    assert shapes["tensor=8,data=1"] == (8,)


def test_experts_fold_onto_tensor_ranks() -> None:
    mesh = mesh_for(CPU, 8, (2, 2, 2))
    walks = {
        walk.plan.text: walk.on for walk in expert_walks(zoo.load(SMALL["mixtral"]).graph, mesh)
    }
    folded = {text: on.mesh.shape for text, on in walks.items() if "expert_tensor" in text}
    assert folded == {
        "tensor=2,data=4,expert=2,expert_tensor=1,sequence_parallel": (4, 2),
        "tensor=2,data=4,expert=4,expert_tensor=1,sequence_parallel": (2, 2, 2),
        "tensor=2,data=4,expert=8,expert_tensor=1,sequence_parallel": (4, 2),
        "tensor=4,data=2,expert=4,expert_tensor=1,sequence_parallel": (2, 4),
        "tensor=4,data=2,expert=8,expert_tensor=1,sequence_parallel": (2, 4),
        "tensor=8,data=1,expert=8,expert_tensor=1,sequence_parallel": (8,),
    }


def test_nothing_is_built_by_rule_once_the_budget_is_spent() -> None:
    request = built(zoo.load(SMALL["gpt"]).graph).attempts.request
    late = RulePlans(request, Budget(0))
    assert not list(late.fastest((), lambda: 1e9, with_heuristics=True))
    assert not list(late.cheapest(1e9))


def test_no_buckets_are_tried_once_the_budget_is_spent() -> None:
    graph = multilayer_perceptron(batch=256, width=16, layers=8)
    found = compile_graph(graph, POD, 64, CompileOptions(search="data_parallel"))
    program = found.passes.after("clean_up")
    assert fastest_fusion(program, POD)[0] != NO_BUCKETS
    fusion, timeline = fastest_fusion(program, POD, is_late=lambda: True)
    assert fusion == NO_BUCKETS
    assert timeline.step_seconds == simulate(program, POD).step_seconds


@pytest.mark.parametrize(("share", "passes"), [(None, 1), (1.0, 2)])
def test_a_plan_is_given_where_the_searches_leave_nothing(
    share: float | None, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    options = CompileOptions(micro_batches=passes, optimizer=Optimizer("adam"))
    sharded = replace(options, search="fully_sharded", recompute="full", objective="serial")
    least = compile_graph(graph, POD, 8, sharded)
    limit = None if share is None else share * peak_memory(least.program).peak_bytes
    spent = Budget(60)
    spent.charge(61)
    monkeypatch.setattr("shardwright.compiler.partitioning.Partitioning.searching", spent)
    monkeypatch.setattr("shardwright.compiler.attempts._LARGE", 0)
    monkeypatch.setattr("shardwright.compiler.partitioning._LARGE", 0)
    found = compile_graph(graph, POD, 8, replace(options, memory_limit=limit))
    assert found.result is not None
    assert says_so(found.result)
    assert found.result.lower_bound <= found.result.cost
    assert limit is None or found.memory.peak_bytes <= limit
