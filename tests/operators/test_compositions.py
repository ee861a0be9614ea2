"""What is put together from several operators, in random plans, against formulas and one device."""

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, operator_info
from shardwright.operators.models.batch_normalization import emit_batch_norm
from shardwright.operators.models.loss import emit_cross_entropy, emit_mean_squared_error
from shardwright.passes.annotate import Annotate
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.partition import Partition
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
ROWS, CLASSES, CHANNELS = 8, 12, 4
RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.standard_normal((ROWS, CLASSES)) * 20
CLASS = RANDOM.integers(0, CLASSES, ROWS)
WEIGHTS = RANDOM.random((ROWS, CLASSES))
IMAGES = RANDOM.standard_normal((ROWS, CHANNELS, 2, 2)) + 3
GAMMA, BETA = RANDOM.standard_normal((2, CHANNELS))

Arrays = dict[str, Array]
Model = Callable[[Builder, dict[str, Value]], Value]


def traced(model: Model, parameters: Arrays, inputs: Arrays) -> Graph:
    """Return the graph of the sum of what a model gives, weighted so that no gradient is zero."""
    build = Builder()
    values = {
        name: build.input(Value(name, TensorType(str(x.dtype), x.shape)))
        for name, x in inputs.items()
    }
    for name, x in parameters.items():
        values[name] = build.parameter(Value(name, TensorType("float64", x.shape)))
    result = model(build, values)
    if result.type.rank:
        result = build.emit("reduce_sum", build.emit("mul", result, values["weight"]))
    return build.graph("model", (result.name,))


def random_plan(graph: Graph, seed: int) -> Graph:
    """Partition with a strategy drawn for each operator, and parameters stored anyhow."""
    random = Random(seed)
    strategies, stored = {}, {}
    for node in graph.nodes:
        types = [value.type for value in graph.operand_values(node)]
        choices = operator_info(node.operator, types, node.attributes).generate_strategies(MESH)
        strategies[node.name] = random.choice(choices)
    for value in (*graph.inputs, *(p.value for p in graph.parameters)):
        split = (
            random.choice(((), ("x",), ("x", "y"))) if value.type.shape[:1] in ((4,), (8,)) else ()
        )
        stored[value.name] = Layout((split, *((),) * (value.type.rank - 1))[: value.type.rank])
    decisions = Decisions(MESH, strategies, stored)
    lowering = LowerRedistributions(cluster("cpu"))
    pipeline = (Annotate(decisions), Partition(), InsertMirrors(), Differentiate(), lowering)
    return PassManager().run_all(pipeline, graph)


def run(program: Graph, parameters: Arrays, inputs: Arrays) -> Arrays:
    ranks = LocalCommunicator(program.mesh)
    state = initialize(program, 0, ranks, parameters)
    outputs = Executor(program, ranks).step(inputs, state).outputs
    whole = [assemble(program, name, parts) for name, parts in outputs.items()]
    return dict(zip(("loss", *(f"{name}.grad" for name in parameters)), whole, strict=True))


def check(model: Model, parameters: Arrays, inputs: Arrays, expected: Mapping[str, Array]) -> None:
    """Check one device against `expected`, and random plans against one device."""
    graph = traced(model, parameters, inputs)
    whole = run(Differentiate().run(graph), parameters, inputs)
    for name, right in expected.items():
        np.testing.assert_allclose(whole[name], right, rtol=1e-10, atol=1e-12, err_msg=name)
    for seed in range(12):
        for name, found in run(random_plan(graph, seed), parameters, inputs).items():
            np.testing.assert_allclose(
                found, whole[name], rtol=1e-10, atol=1e-12, err_msg=f"{name}, plan {seed}"
            )


def row_softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("sparse", [True, False])
def test_cross_entropy(sparse: bool) -> None:
    weight = np.arange(1.0, ROWS + 1)
    labels = CLASS if sparse else WEIGHTS
    dense = np.eye(CLASSES)[CLASS] if sparse else WEIGHTS
    probabilities = row_softmax(LOGITS)
    losses = -(dense * np.log(probabilities)).sum(axis=1)
    slope = probabilities * dense.sum(axis=1, keepdims=True) - dense
    check(
        lambda build, v: emit_cross_entropy(build, v["logits"], v["labels"], sparse),
        {"logits": LOGITS},
        {"labels": labels, "weight": weight},
        {"loss": (weight * losses).sum(), "logits.grad": weight[:, None] * slope},
    )


def test_cross_entropy_of_large_scores_stays_finite() -> None:
    scores = np.array([[1000.0, 0.0], [-1000.0, -1000.0]])
    check(
        lambda build, v: emit_cross_entropy(build, v["logits"], v["labels"], False),
        {"logits": scores},
        {"labels": np.array([[0.0, 1.0], [0.5, 0.5]]), "weight": np.ones(2)},
        {"loss": np.array(1000 + np.log(2)), "logits.grad": np.array([[1.0, -1.0], [0.0, 0.0]])},
    )


def batch_norm_loss(x: Array, weight: Array) -> Array:
    """The formula; it holds for complex numbers too."""
    gamma, beta = GAMMA.reshape(1, -1, 1, 1), BETA.reshape(1, -1, 1, 1)
    centred = x - x.mean((0, 2, 3), keepdims=True)
    variance = (centred**2).mean((0, 2, 3), keepdims=True)
    return np.asarray((weight * (centred / np.sqrt(variance + 1e-5) * gamma + beta)).sum())


def complex_step(loss: Callable[[Array], Array], x: Array) -> Array:
    """Return a derivative exact to rounding: the imaginary part after an imaginary step."""
    slope = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-20
        slope[index] = np.imag(loss(x + 1j * step)) / 1e-20
    return slope


def test_batch_norm() -> None:
    weight = RANDOM.standard_normal(IMAGES.shape)
    check(
        lambda build, v: emit_batch_norm(build, v["x"], v["gamma"], v["beta"])[0],
        {"x": IMAGES, "gamma": GAMMA, "beta": BETA},
        {"weight": weight},
        {
            "loss": batch_norm_loss(IMAGES, weight),
            "x.grad": complex_step(lambda x: batch_norm_loss(x, weight), IMAGES),
            "beta.grad": weight.sum((0, 2, 3)),
        },
    )


def test_normalization_attention_and_dropout_do_not_depend_on_the_plan() -> None:
    def model(build: Builder, v: dict[str, Value]) -> Value:
        y = build.emit("layer_norm", v["x"], v["gamma"], v["beta"])
        y = build.emit("scaled_dot_product_attention", y, v["x"], v["x"], causal=True)
        y = build.emit("dropout", y, v["step"], rate=0.3)
        y = build.emit("rms_norm", y, v["gamma"])
        return build.emit("softmax", y)

    x, weight = RANDOM.standard_normal((2, 4, 2, 4, CHANNELS))
    parameters = {"x": x, "gamma": GAMMA, "beta": BETA}
    check(model, parameters, {"step": np.array(5), "weight": weight}, {})


def test_mean_squared_error() -> None:
    check(
        lambda build, v: emit_mean_squared_error(build, v["prediction"], v["target"]),
        {"prediction": LOGITS},
        {"target": WEIGHTS},
        {
            "loss": np.mean((LOGITS - WEIGHTS) ** 2),
            "prediction.grad": 2 * (LOGITS - WEIGHTS) / LOGITS.size,
        },
    )
