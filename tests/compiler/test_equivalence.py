"""Whatever the plan, the program computes what the whole program computes."""

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.equivalence import assert_equal, trained
from tests.extent import first, long_after
from tests.random_graphs import random_graph
from tests.random_plans import profile_for, random_program

CPU = cluster("cpu")


def alone(graph: Graph, optimizer: Optimizer) -> dict[str, np.ndarray]:
    options = CompileOptions(mode="stand_alone", optimizer=optimizer)
    return trained(compile_graph(graph, CPU, 1, options).program)


@pytest.mark.parametrize("kind", long_after(1, ["sgd", "momentum", "adam"]))
def test_random_plans_of_random_programs(kind: str) -> None:
    profile, random = profile_for(8), np.random.default_rng(0)
    optimizer = Optimizer(kind)  # type: ignore[arg-type]
    for seed in first(8, range(40)):
        graph = random_graph(seed, nodes=6)
        program = random_program(graph, profile, random, optimizer)
        assert_equal(trained(program), alone(graph, optimizer))


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("search", ["exact", "tensor_parallel", "fully_sharded", "data_parallel"])
def test_every_number_of_devices(search: str, devices: int) -> None:
    optimizer = Optimizer("adam")
    for seed in first(1, range(3)):
        graph = random_graph(seed, nodes=8)
        options = CompileOptions(search=search, optimizer=optimizer)  # type: ignore[arg-type]
        program = compile_graph(graph, CPU, devices, options).program
        assert_equal(trained(program), alone(graph, optimizer))
