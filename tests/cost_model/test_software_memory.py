"""Memory of programs as training software keeps it."""

from math import prod

import pytest

from shardwright.api import compile
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.memory_as_run import (
    RESERVE,
    WORKSPACE,
    lasting_bytes,
    memory_as_run,
)
from shardwright.cost_model.efficiency.software import Software, software
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import ClusterError
from shardwright.ir.graph import Graph
from shardwright.models import training_definition
from tests.cost_model.test_efficiency import SMALL, figure, program
from tests.extent import long_after

DEVICE = cluster("a100-selene").device


def keeping(**changes: object) -> Software:
    """Return a profile that keeps tensors as the program does, but for some changes."""
    found = software("torchtitan")
    assert found is not None
    assert found.memory is not None
    own = {"activations": figure(1), "workspace": figure(0), "reserved": figure(1), "libraries": {}}
    memory = found.memory.model_copy(update={**own, **changes})
    return found.model_copy(update={"memory": memory})


PLANS = ("tensor=2,sequence_parallel,data=2,micro_batch=1", "pipeline=2,data=2,micro_batch=1")


@pytest.mark.parametrize("plan", PLANS)
def test_what_lasts_is_below_the_peak_and_terms_add_up(plan: str) -> None:
    graph = program(f"{SMALL},layers=2,tied=false", plan, 4, 8)
    plain = memory_as_run(graph, keeping(), DEVICE)
    assert plain.peak_bytes == pytest.approx(sum(plain.by_kind.values()))
    assert plain.peak_bytes <= 1.5 * peak_memory(graph).peak_bytes
    more = memory_as_run(graph, keeping(workspace=figure(1000), reserved=figure(1.5)), DEVICE)
    assert more.peak_bytes == pytest.approx(1.5 * (plain.peak_bytes + 1000))
    assert more.by_kind[WORKSPACE] == 1000
    assert more.by_kind[RESERVE] == pytest.approx(more.peak_bytes / 3)
    assert max(lasting_bytes(graph, keeping(), DEVICE)) < plain.peak_bytes
    assert len(lasting_bytes(graph, keeping(), DEVICE)) == max(1, len(plain.by_group))


@pytest.mark.long
def test_saved_bytes_grow_with_their_factor_and_with_what_is_gathered() -> None:
    graph = program(f"{SMALL},layers=2", PLANS[0], 4, 8)
    once = memory_as_run(graph, keeping(logits=figure(0)), DEVICE).peak_bytes
    twice = memory_as_run(
        graph, keeping(logits=figure(0), activations=figure(2)), DEVICE
    ).peak_bytes
    saved = memory_as_run(graph, keeping(logits=figure(0), gathered="saved"), DEVICE).peak_bytes
    assert once < saved
    assert once < twice


def test_logits_take_their_bytes() -> None:
    graph = program(
        "gpt:layers=1,hidden=8,heads=2,sequence=64,vocabulary=4096,dtype=float32", "data=2", 2, 2
    )
    few, many = (
        memory_as_run(graph, keeping(logits=figure(each)), DEVICE).peak_bytes for each in (100, 104)
    )
    assert many - few == pytest.approx(4 * 64 * 4096)


def test_separate_attention_saves_its_scores() -> None:
    graph = program(
        "gpt:layers=2,hidden=8,heads=2,sequence=512,vocabulary=8,dtype=float32", "data=2", 2, 2
    )
    apart = keeping().model_copy(update={"attention": "separate"})
    more = (
        memory_as_run(graph, apart, DEVICE).peak_bytes
        - memory_as_run(graph, keeping(), DEVICE).peak_bytes
    )
    assert more == pytest.approx(5 * 2 * 2 * 512 * 512, rel=0.01)  # layers, heads


def test_gradients_that_are_kept_take_four_bytes_of_each_weight() -> None:
    # One micro-batch: gradients are not accumulated.
    graph = program(f"{SMALL},layers=1,dtype=float32", "tensor=2", 2, 2)
    whole, needed = keeping(gradients="whole"), keeping()
    lasting = lasting_bytes(graph, whole, DEVICE)[0] - lasting_bytes(graph, needed, DEVICE)[0]
    stored = [p for p in graph.parameters if p.role != "state"]
    assert lasting == pytest.approx(4 * sum(_elements(graph, p.name) for p in stored))
    assert memory_as_run(graph, whole, DEVICE).by_kind["gradients"] >= lasting


def _elements(graph: Graph, name: str) -> float:
    value, mesh = graph.values[name], graph.mesh
    assert mesh is not None
    assert value.layout is not None
    return float(prod(value.layout.slice_shape(value.type.shape, mesh)))


def test_libraries_take_workspaces_as_large_as_on_the_device() -> None:
    graph = program(f"{SMALL},layers=1,dtype=float32", "tensor=2", 2, 2)
    older, newer = cluster("a100-selene").device, cluster("h100-3200g").device
    several = keeping(libraries={"cublas": 2, "transformer_engine": 1, "unheard_of": 3})
    found = [lasting_bytes(graph, several, device)[0] for device in (older, newer)]
    none = lasting_bytes(graph, keeping(libraries={}), older)[0]
    mib = 2**20
    assert [nbytes - none for nbytes in found] == [2 * 8.125 * mib + 4 * mib, 96 * mib]
    assert memory_as_run(graph, several, newer).by_kind[WORKSPACE] == 96 * mib


def test_options_change_libraries_one_by_one() -> None:
    found = software("megatron-core+local+deterministic")
    assert found is not None
    assert found.memory is not None
    expected = {"cublas": 0, "cublas_deterministic": 2, "transformer_engine": 0}
    assert found.memory.libraries == expected
    assert found.memory.score_buffer is not None
    plain = software("megatron-core")
    assert plain is not None
    assert plain.memory is not None
    assert found.memory.logits == plain.memory.logits
    with pytest.raises(ClusterError, match="two options that change `attention`; leave one out"):
        software("megatron-core+local+separate_attention")


def test_a_buffer_of_scores_lasts() -> None:
    graph = program(
        "gpt:layers=2,hidden=8,heads=2,sequence=512,vocabulary=8,dtype=float32", "data=2", 2, 2
    )
    kept = keeping(score_buffer=figure(2))
    more = lasting_bytes(graph, kept, DEVICE)[0] - lasting_bytes(graph, keeping(), DEVICE)[0]
    assert more == 2 * 2 * 512 * 512  # heads


def test_gradients_of_a_table_with_two_readers_are_counted_whole() -> None:
    # They are reduced to parts, then added.
    graph = program(f"{SMALL},layers=1,tied=true,dtype=float32", "data=4", 4, 8)
    lasting = lasting_bytes(graph, keeping(gradients="whole"), DEVICE)[0]
    needed = lasting_bytes(graph, keeping(), DEVICE)[0]
    stored = [p for p in graph.parameters if p.role != "state"]
    assert lasting - needed == 4 * sum(prod(graph.values[p.name].type.shape) for p in stored)


@pytest.mark.parametrize("zero", long_after(1, [3, 0, 1, 2]))
def test_no_more_is_kept_between_steps_than_at_the_peak(zero):
    text = (
        "llama:layers=2,hidden=1024,heads=8,kv_heads=4,inner=2816,sequence=256,vocabulary=8000,"
        "dtype=float32"
    )
    definition = training_definition(text, 32, 1)[0]
    plan = f"tensor=2,data=4,micro_batch=1,zero={zero},recompute=full,sequence_parallel"
    where = {"cluster": cluster("h100-3200g"), "precision": "bfloat16", "optimizer": "adam"}
    graph = compile(definition, 8, plan=plan, **where).plan.program
    device = cluster("h100-3200g").device
    for name in ("megatron-core", "nanotron", "deepspeed"):
        run_by = software(name)
        assert run_by is not None
        (lasting,) = lasting_bytes(graph, run_by, device)
        assert lasting <= memory_as_run(graph, run_by, device).peak_bytes


def test_the_step_of_deepspeed_makes_gradients_of_parts_flat_and_then_float32() -> None:
    # ZeRO-2 with Adam over 4 ranks: 16-bit weights, float32 parts of weights and both states, two
    # 16-bit copies of the gradients of the parts, and a float32 one: 2 + (12 + 2 * 2 + 4) / 4.
    text = (
        "llama:layers=4,hidden=512,heads=8,kv_heads=8,inner=1024,sequence=8,vocabulary=64,"
        "dtype=float32"
    )
    where = {"cluster": cluster("a100-1600g"), "precision": "bfloat16", "optimizer": "adam"}
    plan = "data=4,micro_batch=1,zero=2,recompute=full"
    graph = compile(training_definition(text, 4, 1)[0], 4, plan=plan, **where).plan.program
    run_by = software("deepspeed")
    assert run_by is not None
    found = memory_as_run(graph, run_by, cluster("a100-1600g").device)
    elements = sum(prod(p.value.type.shape) for p in graph.parameters if p.role == "weight")
    assert found.peak_bytes == pytest.approx(7 * elements, rel=0.02)
