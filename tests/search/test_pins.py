"""Pins: they restrict their operator alone; a plan's own strategies give the plan again."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import SplitCounts
from shardwright.passes.canonicalize import Canonicalize, merged_values
from shardwright.tracing import Definition, InputSpec
from tests.any_operators import any_graph
from tests.extent import first

Pins = dict[str, SplitCounts]
ROWS: SplitCounts = ((4, 1),)
COLUMNS: SplitCounts = ((1, 4),)


def described(seed: int) -> Cluster:
    """Return a cluster on which small tensors are split, or not."""
    random, base = np.random.default_rng(seed), cluster("cpu").model_dump()
    device = {**base["device"], "launch_seconds": 1e-12}
    device["memory_bandwidth"] = float(10 ** random.uniform(3, 6))
    levels = [
        {
            **level,
            "latency": float(10 ** random.uniform(-8, -3)),
            "bandwidth": float(10 ** random.uniform(3, 7)),
        }
        for level in base["levels"]
    ]
    return Cluster.model_validate({**base, "device": device, "levels": levels})


def own_strategies(plan: Plan) -> Pins:
    return {name: item.split_counts for name, item in plan.document.strategies.items()}


def twins() -> Graph:
    """Return a program in which two equal operators read a product."""
    build, kind = Builder(), TensorType("float32", (64, 64))
    x = build.input(Value("x", kind))
    w = build.parameter(Value("w", kind), {"initializer": "normal(0.1)"})
    h = build.emit("matmul", x, w)
    one, other = build.emit("tanh", h), build.emit("tanh", h)
    loss = build.emit("reduce_sum", build.emit("add", one, other))
    return build.graph("twins", (loss.name,))


def plan_of(graph: Graph, pins: Pins | None = None) -> Plan:
    inputs = tuple(InputSpec(value.name, value.type) for value in graph.inputs)
    definition = Definition(graph, inputs)
    return sw.compile(definition, 4, cluster="cpu", gap=0.0, strategies=pins).plan


def tanhs(plan: Plan) -> dict[str, SplitCounts]:
    return {name: pin for name, pin in own_strategies(plan).items() if name.startswith("tanh")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"tanh_0": ROWS}, {"tanh_0": ROWS}, id="first"),
        pytest.param({"tanh_1": ROWS}, {"tanh_0": ROWS}, id="second"),
        pytest.param({"tanh_0": ROWS, "tanh_1": ROWS}, {"tanh_0": ROWS}, id="both the same"),
        pytest.param(
            {"tanh_0": ROWS, "tanh_1": COLUMNS}, {"tanh_0": ROWS, "tanh_1": COLUMNS}, id="different"
        ),
    ],
)
def test_equal_operators_are_merged_unless_their_pins_differ(
    pins: Pins, expected: Pins | None
) -> None:
    plan = plan_of(twins(), pins)
    assert expected is None or tanhs(plan) == expected
    assert len(tanhs(plan)) == len(expected or {"tanh_0": ROWS})
    again = plan_of(twins(), own_strategies(plan))
    assert again.program == plan.program
    assert sw.verify(plan).equal


def test_a_pin_on_no_operator_is_refused() -> None:
    with pytest.raises(StrategyError, match="pinned on `tanh_7`, but the model has no such"):
        plan_of(twins(), {"tanh_7": ROWS})


def test_of_three_equal_nodes_those_are_merged_that_may_be() -> None:
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (8, 8))))
    a, b, c, d = (build.emit("relu", x, name=name) for name in "abcd")
    e = build.emit("identity", a, name="e")
    graph = build.graph("g", tuple(value.name for value in (a, b, c, d, e)))
    pins = ({"b": ROWS, "c": COLUMNS}, {"d": ROWS, "e": ROWS})
    assert merged_values(graph, pins) == {"b": "a", "d": "a"}
    merged = Canonicalize(*pins).run(graph)
    assert [node.name for node in merged] == ["a", "c", "e"]
    assert merged.outputs == ("a", "a", "c", "a", "e")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:trainable parameters get no update")
@pytest.mark.parametrize(
    ("seed", "gap"), [(seed, (0.0, 1e-3)[seed // 2 % 2]) for seed in first(8, range(20))]
)
def test_a_plan_s_own_strategies_give_it_again(seed: int, gap: float) -> None:
    graph = any_graph(seed, nodes=5, outputs=1 + seed % 2)
    definition = Definition(graph, tuple(InputSpec(v.name, v.type) for v in graph.inputs))
    where, devices = described(seed), (2, 4, 8)[seed % 3]
    options = {"cluster": where, "gap": gap, "objective": "serial"}
    plan = sw.compile(definition, devices, **options).plan
    pins = own_strategies(plan)
    again = sw.compile(definition, devices, strategies=pins, **options).plan
    assert again.program == plan.program
    assert again.document.objective == plan.document.objective


@pytest.mark.parametrize(
    "model", first(2, ["lenet5:batch=16", "two_matmul", "bert:layers=2", "dlrm"])
)
def test_a_zoo_model_s_own_strategies_give_its_plan_again(model: str) -> None:
    plan = sw.compile(model, 4, objective="serial").plan
    again = sw.compile(model, 4, objective="serial", strategies=own_strategies(plan)).plan
    assert again.program == plan.program
