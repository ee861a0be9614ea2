"""A loss in chunks: the same numbers under every plan, in less memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.graph import Graph
from shardwright.zoo import load
from tests.equivalence import trained
from tests.extent import ANY_PLAN, first

WORDS = 96
SIZES = f"layers=1,hidden=16,heads=4,batch=8,sequence=6,vocabulary={WORDS},dtype=float32"
MODELS = {
    "llama": f"llama:kv_heads=2,inner=24,{SIZES}",
    "tied": f"gpt:dropout=0.0,{SIZES}",
    "bias": f"bert:dropout=0.0,{SIZES}",
}
PLANS: list[dict[str, Any]] = [
    {"plan": "tensor=2,data=2,sequence_parallel,zero=1"},
    {"plan": "tensor=4"},
    {"plan": "tensor=2,data=2,micro_batch=1,zero=3"},
    {"micro_batches": 2, **ANY_PLAN},
    {"plan": "pipeline=2,tensor=2,micro_batch=2"},
    {"plan": "data=2,context=2,recompute=full"},
    ANY_PLAN,
]
# Each plan with one of the models, then with the others.
CASES = [
    ([*MODELS][(at + turn) % len(MODELS)], options)
    for turn in range(len(MODELS))
    for at, options in enumerate(PLANS)
]
HEAD = "head_log_sum_and_pick"


def compiled(model: str, ranks: int, chunks: int, **options: Any) -> Plan:
    more = {"cluster": "cpu", "precision": "float32", "optimizer": "momentum", "effort": 1 / 6}
    definition = load(MODELS.get(model, model))
    return sw.compile(definition, ranks, loss_chunks=chunks, **{**more, **options}).plan


def numbers(program: Graph) -> dict[str, np.ndarray]:
    """Return losses, gradients and parameters of two steps, in float64."""
    highs = {value.name: WORDS for value in program.inputs}
    return trained(program, highs=highs)


@pytest.fixture(scope="module")
def whole() -> Mapping[str, Mapping[str, np.ndarray]]:
    """The numbers of each model with whole logits, on one device."""
    return {model: numbers(compiled(model, 1, 1).program) for model in MODELS}


@pytest.mark.long
@pytest.mark.parametrize(("model", "options"), first(len(PLANS), CASES), ids=str)
def test_a_plan_in_chunks_trains_as_whole_logits_do(
    whole: Mapping[str, Mapping[str, np.ndarray]], model: str, options: dict[str, Any]
) -> None:
    plan = compiled(model, 4, 3, **options)
    operators = [node.operator for node in plan.program.nodes]
    assert HEAD in operators
    assert f"{HEAD}_gradient" in operators
    assert "exp_sum_and_pick" not in operators
    assert sw.prove(plan).proven
    found, right = numbers(plan.program), whole[model]
    assert found.keys() == right.keys()
    largest = max(float(np.abs(x).max()) for x in right.values())
    for name, expected in right.items():
        scale = max(float(np.abs(expected).max()), 1e-4 * largest)  # a gradient may be zero
        assert np.abs(found[name] - expected).max() <= 1e-12 * scale, name


def test_tensor_ranks_share_the_vocabulary_also_of_a_head_with_a_bias() -> None:
    plan = compiled("bias", 4, 3, plan="tensor=4")
    (head,) = [node for node in plan.program.nodes if node.operator == HEAD]
    assert [str(result.layout) for result in head.results] == ["[*, *, tensor]", "[*, *] +tensor"]


def test_any_vocabulary_and_number_of_chunks() -> None:
    """Those that nothing divides, on ranks with fewer tokens than chunks."""
    model = MODELS["llama"].replace("96", "97").replace("sequence=6", "sequence=1")
    right = numbers(compiled(model, 1, 1).program)
    for chunks, options in ((7, ANY_PLAN), (3, {"plan": "tensor=2,data=2"})):
        found = numbers(compiled(model, 4, chunks, **options).program)
        for name, expected in right.items():
            assert np.abs(found[name] - expected).max() <= 1e-12 * max(1.0, abs(expected).max())


def test_in_low_precision_sums_are_wide() -> None:
    plan = compiled("llama", 2, 2, precision="bfloat16", plan="tensor=2")
    (head,) = [node for node in plan.program.nodes if node.operator == HEAD]
    values = plan.program.values
    assert [values[name].type.dtype for name in head.operands[:2]] == ["bfloat16"] * 2
    assert {result.type.dtype for result in head.results} == {"float32"}
    found = sw.verify(plan)
    assert found.equal, found.first_difference


def test_memory_falls_by_the_logits_and_the_report_counts_those_of_a_chunk() -> None:
    """Of 4,096 tokens x 8,192 entries in float32: 128 MiB whole, 16 MiB in 8 chunks."""
    model = "llama:layers=1,hidden=64,heads=4,kv_heads=2,inner=64,batch=4,sequence=1024,"
    model += "vocabulary=8192"
    peaks, logits = {}, 4 * 1024 * 8192 * 4
    for chunks in (1, 8, 16):
        peaks[chunks] = compiled(
            model, 1, chunks, cluster="h100-pod:figures=datasheet"
        ).document.memory.peak_bytes
    assert peaks[1] > 2 * logits  # and their gradient
    assert peaks[8] < peaks[1] - 1.5 * logits
    assert peaks[16] < peaks[8]


def test_the_head_of_a_searched_plan_costs_what_the_search_said() -> None:
    plan = compiled("llama", 4, 2, objective="serial", cluster="h100-pod:figures=datasheet")
    assert plan.document.objective == pytest.approx(plan.document.predicted_step_seconds, rel=1e-6)


def test_more_chunks_take_longer_and_launch_more() -> None:
    steps = []
    for chunks in (1, 2, 8):
        plan = compiled("llama", 1, chunks, cluster="h100-pod:figures=datasheet")
        assert plan.document.micro_batch_statistics == ()
        steps.append(plan.document.predicted_step_seconds)
    assert steps[0] < steps[1] < steps[2]
