"""Whatever the plan, the program computes what the whole program computes."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.profile import TimeProfile
from shardwright.cost_model.redistribution import RedistributionPlanner
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.passes.baselines import complete
from shardwright.passes.cleanup import drop_mirrors
from shardwright.passes.compile import CompileOptions, compile_graph
from shardwright.passes.gradient import differentiate, gradient_name
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.optimizer import Optimizer, append_optimizer
from shardwright.passes.partition import insert_mirrors, partition
from shardwright.passes.search_space import build_search_space
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.state import assemble, initialize
from tests.passes.random_graphs import random_graph

CPU = cluster("cpu")


def trained(program: Graph, steps: int = 2) -> dict[str, np.ndarray]:
    """Run a training program and return its losses, gradients and parameters, whole."""
    communicator = LocalCommunicator(program.mesh or Mesh(()))
    executor = Executor(program, communicator, float_dtype="float64")
    state = initialize(program, 0, communicator, float_dtype="float64")
    random = np.random.default_rng(1)
    gradients = [n for p in program.parameters if (n := gradient_name(p.name)) in program.values]
    found = {}
    for step in range(steps):
        inputs = {v.name: random.normal(size=v.type.shape) for v in program.inputs}
        result = executor.step(inputs, state, fetch=gradients)
        for name, parts in {**result.outputs, **result.fetched}.items():
            kind = "loss" if name not in gradients else name
            found[f"{step}.{kind}"] = assemble(program, name, parts, tolerance=1e-9)
    for parameter in program.parameters:
        parts = state[parameter.name]
        found[parameter.name] = assemble(program, parameter.name, parts, tolerance=1e-9)
    return found


def assert_equal(plan: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> None:
    assert plan.keys() == whole.keys()
    for name, expected in whole.items():
        scale = max(1e-6, float(np.abs(expected).max()))
        assert np.abs(plan[name] - expected).max() <= 1e-9 * scale, name


def alone(graph: Graph, optimizer: Optimizer) -> dict[str, np.ndarray]:
    options = CompileOptions(mode="stand_alone", optimizer=optimizer)
    return trained(compile_graph(graph, CPU, 1, options).program)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_random_plans_of_random_programs(kind: str) -> None:
    planner = RedistributionPlanner(mesh_for(CPU, 8), CPU)
    profile = TimeProfile(planner)
    random = np.random.default_rng(0)
    optimizer = Optimizer(kind)  # type: ignore[arg-type]
    for seed in range(40):
        graph = random_graph(seed, nodes=6)
        space = build_search_space(graph, profile)
        strategies = {
            choice.name: choice.options[int(random.integers(len(choice.options)))]
            for choice in space.choices
            if choice.kind == "operator"
        }
        decisions = space.decisions(complete(space, strategies))  # type: ignore[arg-type]
        passes = PassManager()
        program = passes.run("partition", lambda g, d=decisions: partition(g, d), graph)
        program = passes.run("mirror", lambda g, d=decisions: insert_mirrors(g, d), program)
        program = passes.run("gradient", differentiate, program)
        program = passes.run("lowering", lambda g: lower_redistributions(g, planner), program)
        program = passes.run("optimizer", lambda g: append_optimizer(g, optimizer), program)
        program = passes.run("cleanup", drop_mirrors, program)
        assert_equal(trained(program), alone(graph, optimizer))


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("search", ["exact", "tensor_parallel", "fully_sharded", "data_parallel"])
def test_every_number_of_devices(search: str, devices: int) -> None:
    optimizer = Optimizer("adam")
    for seed in range(3):
        graph = random_graph(seed, nodes=8)
        options = CompileOptions(search=search, optimizer=optimizer)  # type: ignore[arg-type]
        program = compile_graph(graph, CPU, devices, options).program
        assert_equal(trained(program), alone(graph, optimizer))
