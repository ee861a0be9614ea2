"""Whatever the plan, the program computes what the whole program computes."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.redistribution import RedistributionPlanner
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.graph import Graph
from shardwright.passes.baselines import complete
from shardwright.passes.cleanup import drop_mirrors
from shardwright.passes.compile import CompileOptions, compile_graph
from shardwright.passes.gradient import differentiate
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.optimizer import Optimizer, append_optimizer
from shardwright.passes.partition import insert_mirrors, partition
from shardwright.passes.space_builder import build_search_space
from tests.equivalence import assert_equal, trained
from tests.passes.random_graphs import random_graph

CPU = cluster("cpu")


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
