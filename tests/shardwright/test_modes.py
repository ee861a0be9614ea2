"""Every mode of every model computes what one device computes."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.tracing import Definition
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN, crossed, first, long_after

CPU = cluster("cpu")
MODELS = {
    "mlp": "mlp:batch=16,inputs=24,hidden=32,classes=8",
    "gpt": "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64,dtype=float32",
    "bert": "bert:layers=1,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64,dtype=float32",
}
OPTIMIZERS = {
    "sgd": Optimizer("sgd", {"learning_rate": 0.1}),
    "momentum": Optimizer("momentum", {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": Optimizer("adam", {"learning_rate": 0.01}),
}
MESHES = {"1": "1", "2": "2", "4": "4", "8": "8", "2x2x2": "2x2x2"}


@lru_cache
def definition(model: str) -> Definition:
    return zoo.load(MODELS[model])


def highs(model: Definition) -> dict[str, int]:
    return {spec.name: spec.high for spec in model.inputs if spec.high is not None}


@lru_cache
def reference(model: str, optimizer: str) -> dict[str, np.ndarray]:
    found = definition(model)
    options = CompileOptions(mode="stand_alone", optimizer=OPTIMIZERS[optimizer])
    program = compile_graph(found.graph, CPU, 1, options).program
    return trained(program, 3, highs(found))


def compiled(model: str, mesh: str, **options: object) -> Compiled:
    devices = int(np.prod([int(size) for size in mesh.split("x")]))
    graph = definition(model).graph
    pinned = _one_pin(graph, devices) if options.get("mode") == "semi_auto_parallel" else {}
    chosen = CompileOptions(pins=pinned, **options)  # type: ignore[arg-type]
    return compile_graph(graph, CPU, devices, chosen, mesh_for(CPU, devices, mesh))


def _one_pin(graph: Graph, devices: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Split the columns of the first weight over all devices."""
    node = next(node for node in graph.nodes if node.operator == "matmul")
    ranks = [graph.values[name].type.rank for name in node.operands]
    return {node.name: ((1,) * ranks[0], (devices, 1))}


KINDS = ("data_parallel", "semi_auto_parallel", "auto_parallel")
# Every mode on every mesh with one optimizer, of the larger model on two, then with the others.
CASES = first(
    len(KINDS) * (len(MESHES) + 2),
    [
        (model, mode, [*OPTIMIZERS][(turn + row + column) % len(OPTIMIZERS)], mesh)
        for turn in range(len(OPTIMIZERS))
        for model, meshes in (("mlp", [*MESHES]), ("gpt", ["2x2x2", "4", "1", "2", "8"]))
        for column, mesh in enumerate(meshes)
        for row, mode in enumerate(KINDS)
    ],
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "mode", "optimizer", "mesh"), CASES)
def test_modes(model: str, mode: str, optimizer: str, mesh: str) -> None:
    how = ANY_PLAN if mode == "auto_parallel" else {}
    plan = compiled(model, MESHES[mesh], mode=mode, optimizer=OPTIMIZERS[optimizer], **how)
    found = trained(plan.program, 3, highs(definition(model)))
    assert_equal(found, reference(model, optimizer))


SEARCHES = ("tensor_parallel", "fully_sharded", "recursive_programming", "dynamic_programming")


@pytest.mark.long
@pytest.mark.parametrize(("model", "search"), first(len(SEARCHES), crossed(MODELS, SEARCHES)))
def test_searches(model: str, search: str) -> None:
    plan = compiled(model, "2x2x2", search=search, optimizer=OPTIMIZERS["adam"])
    found = trained(plan.program, 3, highs(definition(model)))
    assert_equal(found, reference(model, "adam"))


OPTIONS: list[dict[str, object]] = [
    {"fusion": 64.0, "search": "data_parallel"},
    {"fusion": 0.001, "search": "data_parallel"},
    {"optimizer_parallel": True, **ANY_PLAN},
    {"optimizer_parallel": True, "search": "data_parallel"},
    {"cost_model": "mindspore", **ANY_PLAN},
    {"loss_scale": 1024.0, **ANY_PLAN},
]


@pytest.mark.long
@pytest.mark.parametrize(("model", "options"), first(len(OPTIONS), crossed(MODELS, OPTIONS)))
def test_options(model: str, options: dict[str, object]) -> None:
    plan = compiled(model, "2x2x2", optimizer=OPTIMIZERS["momentum"], **options)
    expected = dict(reference(model, "momentum"))
    if "loss_scale" in options:
        expected = {
            name: value * (1024.0 if ".grad" in name else 1.0) for name, value in expected.items()
        }
    found = trained(plan.program, 3, highs(definition(model)))
    assert_equal(found, expected)


UNEVEN = {
    "mlp": "mlp:batch=13,inputs=783,hidden=510,classes=7",
    "gpt": "gpt:layers=1,hidden=30,heads=3,batch=6,sequence=7,vocabulary=53,dtype=float32",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "search"),
    first(3, crossed(UNEVEN, ["exact", "recursive_programming", "fully_sharded"])),
)
def test_sizes_that_nothing_divides(model: str, search: str) -> None:
    found, adam = zoo.load(UNEVEN[model]), OPTIMIZERS["adam"]
    alone = CompileOptions(mode="stand_alone", optimizer=adam)
    whole = trained(compile_graph(found.graph, CPU, 1, alone).program, 3, highs(found))
    options = CompileOptions(search=search, optimizer=adam, fusion=64.0)  # type: ignore[arg-type]
    plan = compile_graph(found.graph, CPU, 8, options)
    assert any(value.layout and value.layout.split_axes for value in plan.program.values.values())
    assert_equal(trained(plan.program, 3, highs(found)), whole)


@pytest.mark.parametrize(
    ("model", "cost_model"), long_after(1, first(2, crossed(MODELS, ["time", "mindspore"])))
)
def test_no_search_beats_the_exact_one(model: str, cost_model: str) -> None:
    best = compiled(model, "2x2x2", cost_model=cost_model, objective="serial").result
    assert best is not None
    assert best.status == "optimal"
    searches = ["recursive_programming", "data_parallel", "tensor_parallel", "fully_sharded"]
    for search in searches if cost_model == "time" else ["dynamic_programming"]:
        other = compiled(model, "2x2x2", cost_model=cost_model, search=search).result
        assert other is not None
        assert best.cost <= other.cost * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto_parallel", "semi_auto_parallel", "data_parallel"])
def test_a_value_that_is_returned_twice_costs_what_it_costs_once(mode: str) -> None:
    graph = definition("mlp").graph
    twice = replace(graph, outputs=(*graph.outputs, graph.outputs[0]))
    options = CompileOptions(mode=mode, optimizer=OPTIMIZERS["momentum"])  # type: ignore[arg-type]
    found = [compile_graph(g, CPU, 4, options, mesh_for(CPU, 4, "4")) for g in (graph, twice)]
    assert found[0].cost == pytest.approx(found[1].cost, rel=1e-12)
    assert len(set(found[1].program.outputs)) == 1
