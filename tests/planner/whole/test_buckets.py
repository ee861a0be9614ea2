"""Buckets are never slower than none, than fixed sizes, or than MindSpore's algorithms."""

import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.cost_model.timeline import simulate
from shardwright.ir.graph import Graph
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.buckets import fastest_fusion
from shardwright.planner.whole.plan import NO_BUCKETS
from tests.random_graphs import multilayer_perceptron, random_graph
from tests.zoo_sizes import SMALL

CPU, POD = cluster("cpu"), cluster("h100-pod:figures=datasheet")
OTHERS = (NO_BUCKETS, 25.0, 64.0, FusionSettings(1, times=2), FusionSettings(1, times=4))


def unfused(graph: Graph, devices: int = 8, on=CPU) -> Graph:
    found = compile_graph(graph, on, devices, CompileOptions(search="data_parallel"))
    return found.passes.after("clean_up")


@pytest.mark.long
@pytest.mark.parametrize("model", ["mlp", "lenet5", "dlrm"])
def test_the_choice_is_never_slower(model: str) -> None:
    program = unfused(zoo.load(SMALL[model]).graph)
    _, timeline = fastest_fusion(program, CPU)
    for fusion in OTHERS:
        step = simulate(FuseAllReduces(fusion).run(program), CPU).step_seconds
        assert timeline.step_seconds <= step


def test_many_small_gradients_are_reduced_together() -> None:
    program = unfused(multilayer_perceptron(batch=256, width=16, layers=8), 64, POD)
    fusion, _ = fastest_fusion(program, POD)
    fused = FuseAllReduces(fusion).run(program)
    assert sum(node.operator == "all_reduce" for node in fused.nodes) < 8


@pytest.mark.parametrize("seed", range(6))
def test_buckets_keep_the_memory_limit(seed: int) -> None:
    program = unfused(random_graph(seed, nodes=8))
    limit = simulate(program, CPU, 0.0).peak_bytes
    _, timeline = fastest_fusion(program, CPU, limit)
    assert timeline.peak_bytes <= limit
    assert timeline.step_seconds <= simulate(program, CPU, limit).step_seconds
    assert fastest_fusion(program, CPU)[1].step_seconds <= timeline.step_seconds


def test_no_buckets_are_tried_once_the_budget_is_spent() -> None:
    graph = multilayer_perceptron(batch=256, width=16, layers=8)
    found = compile_graph(graph, POD, 64, CompileOptions(search="data_parallel"))
    program = found.passes.after("clean_up")
    assert fastest_fusion(program, POD)[0] != NO_BUCKETS
    fusion, timeline = fastest_fusion(program, POD, is_late=lambda: True)
    assert fusion == NO_BUCKETS
    assert timeline.step_seconds == simulate(program, POD).step_seconds
