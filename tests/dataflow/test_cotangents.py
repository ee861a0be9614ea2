"""Where cotangents flow, and that search, partition and gradient agree about it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.dataflow.cotangents import cotangent_flow, untrained_parameters
from shardwright.ir.errors import ShardwrightWarning
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace
from tests.any_operators import any_graph
from tests.extent import ANY_PLAN, first, long_after

pytestmark = pytest.mark.filterwarnings("ignore:trainable parameters get no update")
Function = Callable[[Builder, Value, Value], Value]


def definition_of(graph: Graph) -> Definition:
    """Return a model that is a graph."""
    return Definition(graph, tuple(InputSpec(value.name, value.type) for value in graph.inputs))


def two_products(function: Function) -> Graph:
    """Return the squares of a function of ``z = x w w`` (and of ``x``), summed."""
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (8, 6))))
    kind = TensorType("float32", (6, 6))
    w = build.parameter(Value("w", kind), {"initializer": "normal(0.5)"})
    z = build.emit("matmul", build.emit("matmul", x, w), w)
    y = function(build, z, x)
    if y.type.rank:
        y = build.emit("reduce_sum", build.emit("mul", y, y))
    return build.graph("two_products", (y.name,))


def through_integers(build: Builder, z: Value, x: Value) -> Value:
    counted = build.emit("cast", build.emit("tanh", z), dtype="int32")
    return build.emit("add", z, build.emit("cast", counted, dtype="float32"))


def of_positions(build: Builder, z: Value, x: Value) -> Value:
    positions = build.emit_all("top_k", build.emit("tanh", z), k=2)[1]
    total = build.emit("reduce_sum", z, axis=1, keep_dims=True)
    return build.emit("add", total, build.emit("cast", positions, dtype="float32"))


def of_classes(build: Builder, z: Value, x: Value) -> Value:
    classes = build.emit("argmax", build.emit("tanh", z), axis=1)
    return build.emit("add", z, build.emit("one_hot", classes, depth=6))


def of_row_maxima(build: Builder, z: Value, x: Value) -> Value:
    maxima = build.emit(
        "reduce_max", build.emit("tanh", z), axis=1, keep_dims=True, differentiable=False
    )
    return build.emit("sub", z, maxima)


def of_labels(loss: str, squash: str) -> Function:
    """Return a loss whose labels are computed from the parameter too."""
    return lambda build, z, x: build.emit(loss, z, build.emit(squash, build.emit("tanh", z)))


def only(operator: str) -> Function:
    """Return an operator of tanh."""
    return lambda build, z, x: build.emit(operator, build.emit("tanh", z))


def added(operator: str) -> Function:
    """Return z and an operator of tanh."""
    return lambda build, z, x: build.emit("add", z, build.emit(operator, build.emit("tanh", z)))


def chosen(build: Builder, z: Value, x: Value) -> Value:
    return build.emit("where", build.emit("greater", build.emit("tanh", z), x), z, x)


def chosen_constant(build: Builder, z: Value, x: Value) -> Value:
    return build.emit("where", build.emit("greater", build.emit("tanh", z), x), x, x)


FUNCTIONS: dict[str, Function] = {
    **{f"{name} alone": only(name) for name in ("sign", "round", "floor", "ceil", "trunc")},
    **{f"{name} added": added(name) for name in ("sign", "round", "floor", "ceil", "trunc")},
    "stop_gradient": added("stop_gradient"),
    "ones_like": added("ones_like"),
    "through integers": through_integers,
    "floor_div": lambda b, z, x: b.emit("add", z, b.emit("floor_div", b.emit("tanh", z), x)),
    "mod": lambda b, z, x: b.emit("mod", b.emit("tanh", z), x),
    "binary labels": of_labels("sigmoid_cross_entropy", "sigmoid"),
    "soft labels": of_labels("softmax_cross_entropy", "softmax"),
    "row maxima": of_row_maxima,
    "row_max": lambda b, z, x: b.emit(
        "add", b.emit("reduce_sum", z, axis=1), b.emit("row_max", b.emit("tanh", z))
    ),
    "greater and where": chosen,
    "greater alone": chosen_constant,
    "argmax and one_hot": of_classes,
    "top_k positions": of_positions,
    "is_finite": lambda b, z, x: b.emit("mask", z, b.emit("is_finite", b.emit("tanh", z))),
}
UNTRAINED = {"greater alone", *(name for name in FUNCTIONS if name.endswith(" alone"))}
SETTINGS: tuple[tuple[int, str, dict[str, Any]], ...] = (  # on so many devices
    (1, "sgd", {"mode": "data_parallel"}),
    (2, "sgd", ANY_PLAN),
    (4, "adam", {"mode": "data_parallel"}),
    (8, "adam", {"gap": 0.0, "objective": "serial"}),
)


def with_another(graph: Graph) -> Graph:
    """Return a program that trains another parameter too."""
    build = Builder(None, graph)
    other = build.parameter(Value("other", TensorType("float32", (6,))), {"initializer": "ones"})
    square = build.emit("reduce_sum", build.emit("mul", other, other))
    total = build.emit("add", graph.values[graph.outputs[0]], square)
    return build.graph(graph.name, (total.name, *graph.outputs[1:]))


def check_plans(definition: Definition, number: int = 0) -> None:
    """Compile for some devices; the program costs what the search said, and is correct."""
    turn = number % len(SETTINGS)
    for devices, kind, options in first(2, (*SETTINGS[turn:], *SETTINGS[:turn])):
        optimizer = Optimizer(kind)  # type: ignore[arg-type]
        plan = sw.compile(definition, devices, cluster="cpu", optimizer=optimizer, **options)
        result = sw.verify(plan, steps=2)
        assert result.equal, (devices, kind, options, result.reason)


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_trained_path_may_pass_operators_without_a_gradient(name: str) -> None:
    graph = two_products(FUNCTIONS[name])
    assert untrained_parameters(graph) == (("w",) if name in UNTRAINED else ())
    check_plans(definition_of(with_another(graph)), list(FUNCTIONS).index(name))


class Net(nn.Cell):
    """Two layers, of which what `outcome` stops is not trained."""

    def __init__(self, outcome: Callable[["Net", Tensor], Tensor]) -> None:
        self.a = nn.Dense(8, 8, has_bias=False)
        self.b = nn.Dense(8, 8, has_bias=False)
        self.outcome = outcome

    def construct(self, x: Tensor) -> Tensor:
        return self.outcome(self, x)


def mean_square(x: Tensor) -> Tensor:
    return ops.ReduceMean()(ops.square(x), (0, 1))


def straight_through(net: Net, x: Tensor) -> Tensor:
    z = net.a(x)
    return mean_square(z + ops.stop_gradient(ops.Round()(z) - z))


def two_readers_before_the_stop(net: Net, x: Tensor) -> Tensor:
    z = net.b(x)
    return mean_square(net.a(x) - ops.stop_gradient(ops.relu(z) + z))


NETS: dict[str, tuple[Callable[[Net, Tensor], Tensor], tuple[str, ...]]] = {
    "distilled": (lambda n, x: mean_square(n.a(x) - ops.stop_gradient(n.b(x))), ("b.weight",)),
    "read twice": (
        lambda n, x: mean_square(n.a(x) - ops.stop_gradient(n.b(n.b(x)))),
        ("b.weight",),
    ),
    "stopped term": (
        lambda n, x: ops.ReduceMean()(ops.stop_gradient(n.b(x)), (0, 1)) + mean_square(n.a(x)),
        ("b.weight",),
    ),
    "own target": (lambda n, x: mean_square(n.a(x) - ops.stop_gradient(n.a(x * 2.0))), ()),
    "two readers": (two_readers_before_the_stop, ("b.weight",)),
    "straight through": (straight_through, ()),
}


@pytest.mark.parametrize("name", NETS)
def test_networks_with_a_stopped_gradient_train(name: str) -> None:
    outcome, untrained = NETS[name]
    definition = trace(Net(outcome), [InputSpec("x", TensorType("float32", (16, 8)))])
    assert untrained_parameters(definition.graph) == untrained
    check_plans(definition)


def test_a_parameter_behind_a_stopped_gradient_is_named() -> None:
    definition = trace(Net(NETS["distilled"][0]), [InputSpec("x", TensorType("float32", (16, 8)))])
    with pytest.warns(ShardwrightWarning, match="no update, no gradient reaches them: `b.weight`"):
        sw.compile(definition, 2, cluster="cpu")


def test_what_gets_no_gradient_is_neither_updated_nor_given_states() -> None:
    outcome, (untrained,) = NETS["distilled"]
    definition = trace(Net(outcome), [InputSpec("x", TensorType("float32", (16, 8)))])
    plan = sw.compile(definition, 2, cluster="cpu", optimizer=Optimizer("adam"), **ANY_PLAN).plan
    updated = {name for name, _ in plan.program.updates}
    assert untrained not in updated
    assert {name for name in plan.program.values if name.startswith("a.weight.")} >= {
        "a.weight.m",
        "a.weight.v",
    }
    assert not {f"{untrained}.m", f"{untrained}.grad"} & plan.program.values.keys()


def test_cotangents_flow_to_the_operands_that_the_gradient_reaches() -> None:
    graph = two_products(of_labels("softmax_cross_entropy", "softmax"))
    flow = cotangent_flow(graph)
    by_operator = {node.operator: flow.operands[node.name] for node in graph.nodes}
    assert by_operator["softmax_cross_entropy"] == (True, False)
    assert by_operator["tanh"] == by_operator["softmax"] == (False,)
    assert by_operator["matmul"] == (True, True)
    assert "x" not in flow.values


def test_an_unread_parameter_is_untrained() -> None:
    graph = two_products(only("tanh"))
    build = Builder(None, graph)
    build.parameter(Value("unread", TensorType("float32", (4,))), {"initializer": "ones"})
    build.parameter(Value("frozen", TensorType("float32", (4,))), {"trainable": False})
    assert untrained_parameters(build.graph("g", graph.outputs)) == ("unread",)


@pytest.mark.parametrize("seed", long_after(1, first(3, range(24))))
def test_random_programs_cost_what_the_search_said(seed: int) -> None:
    graph = any_graph(seed, nodes=3 + seed % 9, parameters=1 + seed % 4, outputs=1 + seed % 3)
    check_plans(definition_of(graph), seed)


@pytest.mark.parametrize(
    "outputs", long_after(1, [(("l", "h"),), (("l", "h", "h"),), (("l", "h", "y"),)])
)
def test_a_tensor_that_is_an_output_too_returns_its_gradient_as_the_search_said(
    outputs: tuple[str, ...],
) -> None:
    """Splitting by rows and by columns meet in the whole tensor, where messages are dear."""
    build, kind = Builder(), TensorType("float32", (16, 16))
    x = build.input(Value("x", kind))
    w = build.parameter(Value("w", kind), {"initializer": "normal(0.1)"})
    y = build.emit("tanh", build.emit("matmul", x, w, name="h"), name="y")
    build.emit("reduce_sum", build.emit("mul", y, y), name="l")
    described = cluster("cpu").model_dump()
    levels = [{**level, "latency": 1e-5, "bandwidth": 1e5} for level in described["levels"]]
    plan = sw.compile(
        definition_of(build.graph("g", outputs)),
        2,
        cluster=Cluster.model_validate({**described, "levels": levels}),
        strategies={"h": ((2, 1), (1, 1)), "y": ((1, 2),)},
        gap=0.0,
    )
    decisions = plan.compiled.decisions
    assert decisions is not None
    assert decisions.shared_layouts["h"].layout == Layout.replicated(2)
    assert sw.verify(plan).equal


def numeric_gradient(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Return central differences."""
    slope, step = np.zeros_like(at), 1e-6
    for index in np.ndindex(at.shape):
        moved = np.zeros_like(at)
        moved[index] = step
        slope[index] = (function(at + moved) - function(at - moved)) / (2 * step)
    return slope


def rounded(build: Builder, z: Value, x: Value) -> Value:
    moved = build.emit("sub", build.emit("round", z), z)
    return build.emit("add", z, build.emit("stop_gradient", moved))


def binary(build: Builder, z: Value, x: Value) -> Value:
    squashed = build.emit("tanh", z)
    moved = build.emit("sub", build.emit("sign", squashed), squashed)
    return build.emit("add", squashed, build.emit("stop_gradient", moved))


def hard_choice(build: Builder, z: Value, x: Value) -> Value:
    soft = build.emit("softmax", z)
    hard = build.emit("one_hot", build.emit("argmax", z, axis=1), depth=6)
    return build.emit("add", build.emit("sub", hard, build.emit("stop_gradient", soft)), soft)


def softmax(z: np.ndarray) -> np.ndarray:
    shares = np.exp(z - z.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


Array = Callable[[np.ndarray], np.ndarray]
ESTIMATORS: dict[str, tuple[Function, Array, Array]] = {  # the value, the surrogate
    "rounded": (rounded, np.round, lambda z: z),
    "binary": (binary, lambda z: np.sign(np.tanh(z)), np.tanh),
    "hard choice": (hard_choice, lambda z: np.eye(6)[z.argmax(1)], softmax),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_gradient_of_a_straight_through_estimator_is_that_of_its_surrogate(name: str) -> None:
    function, forward, surrogate = ESTIMATORS[name]
    graph = Differentiate().run(Canonicalize().run(two_products(function)))
    random = np.random.default_rng(4)
    x, w = random.normal(size=(8, 6)), random.normal(size=(6, 6))
    communicator = LocalCommunicator(Mesh(()))
    state = initialize(graph, 0, communicator, {}, "float64") | {"w": {0: w}}
    outputs = Executor(graph, communicator, float_dtype="float64").step({"x": x}, state).outputs
    kept = forward(x @ w @ w) - surrogate(x @ w @ w)
    expected = numeric_gradient(lambda v: float(((surrogate(x @ v @ v) + kept) ** 2).sum()), w)
    np.testing.assert_allclose(outputs[graph.outputs[0]][0], (forward(x @ w @ w) ** 2).sum())
    np.testing.assert_allclose(outputs["w.grad"][0], expected, rtol=1e-5, atol=1e-5)
