"""Random small programs, for tests that must hold for every program."""

import numpy as np

from shardwright.ir.graph import Graph, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.verify import verify


def random_graph(seed: int, nodes: int = 3) -> Graph:
    """Return a program of about `nodes` operators that ends in a scalar loss."""
    random = np.random.default_rng(seed)
    build = Builder()
    rows = int(random.choice([2, 4, 8]))
    width = int(random.choice([2, 4, 6]))
    values = [build.input(Value("x", TensorType("float64", (rows, width))))]
    for _ in range(nodes):
        value = values[int(random.integers(len(values)))]
        kind = random.choice(["matmul", "relu", "add", "mul", "bias", "transpose"])
        values.append(_node(build, str(kind), value, values, random))
    last = values[-1]
    loss = build.emit(
        "reduce_sum", build.emit("mul", last, last) if random.random() < 0.5 else last
    )
    if not build.parameters:
        weight = build.parameter(Value("w", TensorType("float64", ())), {"initializer": "ones"})
        loss = build.emit("mul", loss, weight)
    graph = build.graph(f"random_{seed}", (loss.name,))
    verify(graph)
    return graph


def _node(
    build: Builder, kind: str, value: Value, values: list[Value], random: np.random.Generator
) -> Value:
    width = value.type.shape[-1]
    if kind == "matmul":
        shape = (width, int(random.choice([2, 4, 6])))
        return build.emit("matmul", value, _parameter(build, shape))
    if kind == "bias":
        return build.emit("add", value, _parameter(build, (width,)))
    if kind == "transpose":
        return build.emit("transpose", value, permutation=(1, 0))
    if kind in ("add", "mul"):
        others = [other for other in values if other.type == value.type]
        return build.emit(kind, value, others[int(random.integers(len(others)))])
    return build.emit("relu", value)


def _parameter(build: Builder, shape: tuple[int, ...]) -> Value:
    name = f"w{len(build.parameters)}"
    value = Value(name, TensorType("float64", shape))
    return build.parameter(value, {"initializer": "normal(0.5)"})


def multilayer_perceptron(batch: int = 32, width: int = 64, layers: int = 4) -> Graph:
    """Return dense layers with rectifiers, and the sum of the squares of what comes out."""
    build = Builder()
    hidden = build.input(Value("x", TensorType("float64", (batch, width))))
    for layer in range(layers):
        weight = Value(f"w{layer}", TensorType("float64", (width, width)))
        build.parameter(weight, {"initializer": "normal(0.1)"})
        hidden = build.emit("relu", build.emit("matmul", hidden, weight))
    loss = build.emit("reduce_sum", build.emit("square", hidden))
    return build.graph("multilayer_perceptron", (loss.name,))
