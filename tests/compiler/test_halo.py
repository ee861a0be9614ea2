"""Plans that split the space of convolutions and poolings compute what the whole computes."""

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.graph import Graph, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN, first
from tests.random_plans import profile_for, random_program

CPU = cluster("cpu")


def network(batch: int = 1, size: int = 13, channels: int = 4) -> Graph:
    """Return a small U-Net: down, up, a bridge, and a loss."""
    build = Builder()

    def parameter(name: str, *shape: int) -> Value:
        kind = TensorType("float32", shape)
        return build.parameter(Value(name, kind), {"initializer": "normal(0.3)"})

    x = build.input(Value("x", TensorType("float32", (batch, 2, size, size))))
    first = parameter("first", channels, 2, 3, 3)
    second = parameter("second", channels, channels, 3, 3)
    depth = parameter("depth", channels, 1, 3, 3)
    up = parameter("up", channels, channels, 3, 3)
    h = build.emit("relu", build.emit("convolution", x, first, padding="same", name="c1"))
    p = build.emit("max_pool", h, kernel=3, stride=2, padding=1, name="pool")
    g = build.emit("convolution", p, second, padding="same", name="c2")
    g = build.emit("convolution", g, depth, padding="same", groups=channels, name="c3")
    u = build.emit("transposed_convolution", g, up, stride=2, padding=1, name="up1")
    s = build.emit("add", u, h)
    a = build.emit("average_pool", s, kernel=2, stride=1, name="mean")
    loss = build.emit("reduce_mean", build.emit("square", a))
    return build.graph("unet", (loss.name,))


def alone(graph: Graph) -> dict[str, np.ndarray]:
    return trained(compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program)


@pytest.mark.long
def test_random_plans_compute_the_same() -> None:
    graph = network()
    whole, exchanges = alone(graph), 0
    for seed in first(3, range(8)):
        program = random_program(graph, profile_for(8), np.random.default_rng(seed), Optimizer())
        exchanges += sum(node.operator == "halo_exchange" for node in program.nodes)
        assert_equal(trained(program), whole)
    assert exchanges > 2


@pytest.mark.parametrize(("rows", "columns"), [(4, 1), (2, 2)])
def test_every_window_split(rows: int, columns: int) -> None:
    graph = network(size=15)
    split, whole = (1, 1, rows, columns), (1, 1, 1, 1)
    weighted = {"c1": whole, "c2": whole, "c3": whole, "up1": whole}
    pins = {name: (split, weight) for name, weight in weighted.items()}
    pins |= {name: (split,) for name in ("pool", "mean")}
    compiled = compile_graph(graph, CPU, 4, CompileOptions(pins=pins, **ANY_PLAN))
    kinds = [node.operator for node in compiled.program.nodes]
    dimensions = (rows > 1) + (columns > 1)
    assert kinds.count("halo_exchange") == 6 * dimensions  # five forward, one for a cotangent
    assert kinds.count("halo_sum") == 5 * dimensions
    gathered = [n.provenance.tensor for n in compiled.program.nodes if n.operator == "all_gather"]
    assert {parameter.name for parameter in graph.parameters}.issuperset(gathered)
    assert_equal(trained(compiled.program), alone(graph))


def test_the_search_splits_the_space_where_that_pays() -> None:
    """One large image: there is no batch to split, and channels would have to be gathered."""
    graph = network(size=1025, channels=32)
    pod = cluster("a100-pod:figures=datasheet")
    compiled = compile_graph(graph, pod, 8, CompileOptions(objective="serial"))
    strategies = {node.name: node.strategy for node in compiled.program.nodes if node.strategy}
    assert compiled.result is not None
    assert compiled.result.status == "optimal"
    for name in ("c1", "c3", "mean"):
        assert {"s0", "s1"} & set(strategies[name].axes), f"{name}: {strategies[name]}"
    exchanged = [n for n in compiled.program.nodes if n.operator == "halo_exchange"]
    assert exchanged
    whole = compile_graph(graph, pod, 1, CompileOptions(mode="stand_alone"))
    assert compiled.step_seconds < whole.step_seconds
