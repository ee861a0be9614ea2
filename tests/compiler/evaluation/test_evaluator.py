"""The evaluation of a named plan: the numbers of its compiled program."""

import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from shardwright.api import compile
from shardwright.compiler.evaluation.evaluator import Evaluation, Evaluator
from shardwright.compiler.plans.accounting import traffic
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.models import load_model
from shardwright.operators.models.loss_scale import DynamicLossScale
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
from tests.extent import first, long_after

POD = cluster("h100-pod:figures=datasheet")
SMALL = "hidden=64,heads=4,sequence=32,vocabulary=100,batch=16"
LLAMA = f"llama:layers=8,kv_heads=4,inner=128,{SMALL}"
# Its reduced statistics of experts are delayed.
MIXTURE = (
    "mixtral:layers=4,hidden=512,heads=4,kv_heads=2,inner=1024,experts=4,sequence=512,"
    "vocabulary=8000,batch=32"
)
CASES = first(
    5,
    [
        (MIXTURE, "data=8,expert=4,zero=1,micro_batch=1"),
        (LLAMA, "data=8,zero=3,micro_batch=1,recompute=full"),
        (LLAMA, "pipeline=2,tensor=2,data=2,micro_batch=2,chunks=2,schedule=interleaved"),
        (f"mixtral:layers=6,kv_heads=4,inner=128,experts=8,{SMALL}", "data=8,expert=4,zero=1"),
        (f"gpt:layers=8,dropout=0.1,{SMALL}", "data=8"),
        (f"gpt:layers=2,{SMALL}", "data=4,tensor=2,zero=2,sequence_parallel,micro_batch=2"),
        (LLAMA, "tensor=2,data=4,zero=1,sequence_parallel"),
        (LLAMA, "pipeline=2,data=4,zero=1,micro_batch=1"),
        (LLAMA, "pipeline=2,data=4,micro_batch=1,recompute=full:block=3"),
        (LLAMA, "tensor=2,pipeline=2,data=2,chunks=2,micro_batch=2,recompute=full:block=1"),
        (LLAMA, "data=8,zero=1,micro_batch=1,recompute=full:uniform=4"),
        (LLAMA, "pipeline=2,data=4,zero=1,micro_batch=1,recompute=full:uniform=2"),
        (MIXTURE, "data=8,zero=3,micro_batch=1,recompute=full"),
    ],
)


def evaluated(model: str, plan: str, precision: str = "bfloat16", **options: Any) -> Evaluation:
    asked = CompileOptions(optimizer=Optimizer("adam"), precision=precision, **options)
    evaluator = Evaluator(load_model(model).graph, POD.used_by(8), 8, asked)
    return evaluator.evaluation(NamedPlan.parse(plan))


@pytest.mark.long
@pytest.mark.parametrize(("model", "plan"), CASES)
def test_numbers_are_those_of_the_compiled_program(model: str, plan: str) -> None:
    found = evaluated(model, plan)
    built = compile(model, 8, cluster=POD, plan=plan, optimizer="adam", precision="bfloat16")
    memory = built.plan.document.memory
    assert found.fits
    assert found.seconds == pytest.approx(built.plan.document.objective, rel=1e-6)
    assert found.memory.peak_bytes == pytest.approx(memory.peak_bytes, rel=1e-6)
    assert found.memory.by_kind == pytest.approx(dict(memory.by_kind), rel=1e-6)
    assert found.memory.by_group == pytest.approx(memory.by_group, rel=1e-6)
    assert traffic(found.program) == traffic(built.plan.program)


@pytest.mark.long
@pytest.mark.parametrize("plan", ["data=8,zero=1", "pipeline=2,tensor=2,data=2,micro_batch=2"])
def test_blocks_at_both_ends_may_stay_in_bfloat16(plan: str) -> None:
    """Numbers are those of the compiled program, between those of bfloat16 and of the recipe."""
    how = {"cluster": POD, "plan": plan, "optimizer": "adam"}
    precisions = ("fp8-current", "fp8-current+first-last-bf16")
    whole, ends = (evaluated(LLAMA, plan, precision) for precision in precisions)
    built = compile(LLAMA, 8, precision=precisions[1], **how)
    assert ends.seconds == pytest.approx(built.plan.document.objective, rel=1e-6)
    peak = built.plan.document.memory.peak_bytes
    assert ends.memory.peak_bytes == pytest.approx(peak, rel=1e-6)
    products = [n for n in built.plan.model.nodes if n.operator == "quantized_matmul"]
    assert {n.scope.split("/")[1] for n in products} == set("123456")
    assert ends.seconds != whole.seconds


@pytest.mark.parametrize("layers", long_after(1, [7, 8]))
@pytest.mark.parametrize("plan", ["tensor=2,data=4", "tensor=4,data=2,micro_batch=4"])
def test_weights_may_be_split_by_columns_and_rows_in_turns(layers: int, plan: str) -> None:
    model = f"mlp:layers={layers},batch=32,inputs=64,hidden=128,classes=8"
    found = evaluated(model, plan)
    built = compile(model, 8, cluster=POD, plan=plan, optimizer="adam", precision="bfloat16")
    assert found.seconds == pytest.approx(built.plan.document.objective, rel=1e-9)
    assert found.memory.by_kind == built.plan.document.memory.by_kind
    assert traffic(found.program) == traffic(built.plan.program)


@pytest.mark.long
def test_plan_that_does_not_fit_takes_what_it_takes_without_a_limit() -> None:
    plan = "data=8,zero=1,micro_batch=1"
    found = evaluated(LLAMA, plan, memory_limit=1e4)
    given: dict[str, Any] = {"optimizer": "adam", "precision": "bfloat16", "plan": plan}
    built = compile(LLAMA, 8, cluster=POD, memory_limit=inf, objective="serial", **given)
    assert not found.fits
    assert found.memory.peak_bytes == built.plan.document.memory.peak_bytes
    assert found.seconds == pytest.approx(built.timeline_within(inf).step_seconds, rel=1e-9)


def test_plans_that_the_model_has_not_are_refused_as_by_the_compiler() -> None:
    for plan in ("tensor=3,data=2", "data=8,expert=2", "pipeline=8,micro_batch=2,chunks=4"):
        with pytest.raises(ShardwrightError) as refused:
            compile(LLAMA, 8, cluster=POD, plan=plan)
        with pytest.raises(type(refused.value), match=f"^{re.escape(str(refused.value))}$"):
            evaluated(LLAMA, plan)


DEEP = f"llama:layers=16,kv_heads=4,inner=128,{SMALL}"
IN_STAGES = first(
    3,
    [
        (DEEP, "pipeline=2,data=4,micro_batch=2,chunks=4,schedule=interleaved,zero=1", 1.0),
        (DEEP, "pipeline=8,data=1,micro_batch=2,schedule=zero_bubble", DynamicLossScale()),
        (DEEP, "pipeline=4,data=2,chunks=2,micro_batch=1,schedule=dualpipe_v", 1.0),
        (DEEP, "pipeline=4,data=2,chunks=2,micro_batch=1,schedule=zero_bubble_v", 1.0),
        (f"gpt:layers=24,dropout=0.1,{SMALL}", "pipeline=4,data=2,chunks=3,micro_batch=2", 1.0),
        (
            f"llama:layers=40,kv_heads=4,inner=128,{SMALL}",
            "pipeline=4,tensor=2,data=1,micro_batch=4,recompute=full,sequence_parallel",
            1.0,
        ),
    ],
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "plan", "scale"), IN_STAGES)
def test_of_equal_stages_few_go_through_the_passes(
    model: str, plan: str, scale: float | DynamicLossScale, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted, emit = [], Evaluator._emitted

    def emitting(self: Evaluator, few: Graph, *others: Any) -> Graph:
        emitted.append(len(few))
        return emit(self, few, *others)

    monkeypatch.setattr(Evaluator, "_emitted", emitting)
    found = evaluated(model, plan, loss_scale=scale)
    given: dict[str, Any] = {"optimizer": "adam", "precision": "bfloat16", "loss_scale": scale}
    built = compile(model, 8, cluster=POD, plan=plan, **given)
    assert found.seconds == pytest.approx(built.plan.document.objective, rel=1e-12)
    assert found.memory.by_kind == built.plan.document.memory.by_kind
    assert found.memory.by_group == built.plan.document.memory.by_group
    assert traffic(found.program) == traffic(built.plan.program)
    if scale == 1.0:  # else gradients of all stages are looked at: all layers are emitted
        assert 4 * emitted[-1] < len(found.program)


@pytest.mark.parametrize(
    "plan", ["tensor=2,data=4,zero=3,micro_batch=1,sequence_parallel", "data=8"]
)
def test_problem_of_a_plan_has_its_strategies_alone(plan: str) -> None:
    asked = CompileOptions(optimizer=Optimizer("adam"), precision="bfloat16")
    evaluator = Evaluator(load_model(LLAMA).graph, POD.used_by(8), 8, asked)
    named = NamedPlan.parse(plan)
    options = evaluator._options_of(named)
    source = evaluator._in_one_stage(options).whole
    found = evaluator._decided(source, named, options)
    *_, restricted = evaluator._asked.values()
    of_all = replace(restricted, named=None)
    assert found == of_all.decisions(of_all.solve(of_all.space, SearchOptions()))
    few, many = (
        max(len(choice.options) for choice in space.choices if choice.kind == "operator")
        for space in (restricted.space, of_all.space)
    )
    assert few < many
