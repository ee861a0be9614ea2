"""Where no mesh is given, meshes, stages and micro-batches of large models are searched."""

import numpy as np
import pytest

import shardwright
from shardwright import nn, zoo
from shardwright.compiler.outer import meshes
from shardwright.cost_model.cluster import cluster
from shardwright.operators.models.optimizer import Optimizer
from shardwright.parallel import AutoParallel
from shardwright.planner.options import CompileOptions
from shardwright.session import begin

MLP = "mlp:batch=4,inputs=16,hidden=16,classes=4"


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(meshes, "LARGE", 0.0)


def searched(**options):
    if "plan" not in options:  # which leaves workers nothing to do
        options["workers"] = 1
    found = shardwright.compile(MLP, 2, cluster="cpu", **options)
    trace = found.search_trace
    return set() if trace is None else {item.configuration.stages for item in trace.tried}


def test_a_large_model_is_searched_with_its_stages(all_are_large):
    assert searched(gap=0.9) == {1, 2}


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "default", "gap": 0.9},
        {"mesh": "2", "gap": 0.9},
        {"micro_batches": 2, "gap": 0.9},
        {"micro_batches": 1, "gap": 0.9},
        {"stages": 1, "gap": 0.9},
        {"chunks": 1, "gap": 0.9},
        {"objective": "serial"},
        {"mode": "data_parallel"},
        {"plan": "data=2"},
    ],
)
def test_what_is_given_is_not_searched(all_are_large, options):
    assert searched(**options) == set()


def test_a_small_model_is_compiled_on_the_default_mesh():
    assert searched(gap=0.9) == set()


class Net(nn.Cell):
    def __init__(self):
        self.dense = nn.Dense(6, 4)
        self.head = nn.Dense(4, 4)

    def construct(self, x):
        return self.head(self.dense(x)).sum()


def test_auto_parallel_searches_large_models_too(all_are_large):
    inputs = {"x": np.zeros((4, 6), np.float32)}
    for mesh, is_searched in ((None, True), ("default", False)):
        found = begin(
            Net(),
            inputs,
            AutoParallel(Net(), "auto_parallel", devices=2, mesh=mesh, gap=0.9).options,
        ).compiled
        assert (found.trace is not None) == is_searched


def test_one_stage_that_is_asked_for_is_not_searched(all_are_large):
    inputs = {"x": np.zeros((4, 6), np.float32)}
    options = AutoParallel(Net(), "auto_parallel", devices=2, stages=1, gap=0.9).options
    assert begin(Net(), inputs, options).compiled.trace is None
    later = AutoParallel(Net(), "auto_parallel", devices=2, gap=0.9)
    later.pipeline(stages=1)
    assert begin(Net(), inputs, later.options).compiled.trace is None


def test_a_model_is_large_that_takes_the_memory_of_eight_devices_and_fits_all():
    graph, described = zoo.load("mlp").graph, cluster("a100-pod:figures=datasheet")
    held = 2 * sum(one.value.type.nbytes for one in graph.parameters)  # with gradients
    for devices, is_large in ((7.9, False), (8.1, True), (15.9, True), (16.1, False)):
        options = CompileOptions(memory_limit=held / devices)
        mesh, chosen = meshes.with_search_of_large(graph, described, 16, None, options)
        assert (mesh, chosen.stages) == (("search", "search") if is_large else (None, 1))
    adam = CompileOptions(memory_limit=held / 7.9, optimizer=Optimizer("adam"))
    assert meshes.with_search_of_large(graph, described, 16, None, adam)[0] == "search"


def test_a_large_batch_is_searched_in_micro_batches():
    graph, described = (
        zoo.load("mlp:batch=4096,hidden=16").graph,
        cluster("a100-pod:figures=datasheet"),
    )
    made = sum(result.type.nbytes for node in graph.nodes for result in node.results)
    held = 2 * sum(one.value.type.nbytes for one in graph.parameters)
    assert made > 4 * held
    for share, chosen in ((0.5, "search"), (2, 1)):
        options = CompileOptions(memory_limit=share * made / 2)
        found = meshes.with_search_of_large(graph, described, 2, None, options)
        assert (found[0], found[1].micro_batches) == (None, chosen)
    few = CompileOptions(memory_limit=0.5 * made / 2, micro_batches=2)
    assert meshes.with_search_of_large(graph, described, 2, None, few)[1].micro_batches == 2


@pytest.mark.long
def test_the_plan_of_a_large_batch_accumulates_gradients():
    model = "mlp:batch=64,inputs=16,hidden=16,classes=4"
    free = shardwright.compile(model, 2, cluster="cpu", mesh="2", recompute="none", gap=0.3)
    needed = free.plan.document.memory.peak_bytes
    options = {"cluster": "cpu", "memory_limit": 0.6 * needed, "recompute": "none", "gap": 0.5}
    found = shardwright.compile(model, 2, workers=1, **options)
    assert found.plan.document.micro_batches > 1
    assert found.plan.document.memory.peak_bytes <= 0.6 * needed
