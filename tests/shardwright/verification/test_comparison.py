"""What `verify` calls equal, and how small an error it finds."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.ir.graph import Node, Value, renamed
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.tracing import Definition, InputSpec, trace
from shardwright.verification.comparison import verify_plan
from tests.extent import ANY_PLAN, crossed, first, long_after
from tests.zoo_sizes import SMALL


class DenseNormalized(nn.Cell):
    """The bias before a normalization over the batch has the gradient zero."""

    shape, zero = (32, 16), "a.bias"

    def __init__(self):
        self.a, self.bn, self.b = nn.Dense(16, 32), nn.BatchNorm1d(32), nn.Dense(32, 4)

    def construct(self, x):
        return self.b(ops.relu(self.bn(self.a(x))))


class ConvolutionNormalized(nn.Cell):
    shape, zero = (8, 3, 8, 8), "c.bias"

    def __init__(self):
        self.c, self.bn = nn.Conv2d(3, 8, 3, has_bias=True), nn.BatchNorm2d(8)
        self.f, self.b = nn.Flatten(), nn.Dense(8 * 64, 4)

    def construct(self, x):
        return self.b(self.f(ops.relu(self.bn(self.c(x)))))


class Attention(nn.Cell):
    """The bias of the keys adds the same to all scores of a row."""

    shape, zero = (8, 12, 16), "k.bias"

    def __init__(self):
        self.q, self.k, self.v = nn.Dense(16, 16), nn.Dense(16, 16), nn.Dense(16, 16)
        self.o = nn.Dense(16, 4)

    def construct(self, x):
        scores = ops.matmul(self.q(x), self.k(x).transpose(0, 2, 1))
        return ops.ReduceMean()(self.o(ops.matmul(ops.Softmax()(scores), self.v(x))), 1)


def plan_of(network, devices, optimizer="adam"):
    inputs = (
        InputSpec("x", TensorType("float32", network.shape)),
        InputSpec("y", TensorType("int32", network.shape[:1]), 4),
    )
    model = trace(network(), inputs, loss_fn=nn.CrossEntropyLoss())
    options = {"optimizer": Optimizer(optimizer), "mode": "data_parallel"}
    return sw.compile(model, devices, cluster="cpu", **options).plan


ZERO = crossed(
    (DenseNormalized, ConvolutionNormalized, Attention),
    [(2, "sgd"), (8, "momentum"), (2, "adam"), (8, "sgd"), (2, "momentum"), (8, "adam")],
)


@pytest.mark.parametrize(("network", "how"), long_after(1, first(6, ZERO)))
def test_gradients_that_are_mathematically_zero_are_no_difference(network, how):
    result = sw.verify(plan_of(network, *how))
    assert (result.equal, result.first_difference, result.reason) == (True, None, None)


def test_gradients_that_are_no_numbers_on_one_device_are_said_to_be():
    """The gradient of the triangular factors of a matrix with equal rows divides by zero."""
    build = Builder()
    row = build.parameter(Value("w", TensorType("float32", (3,))), {"initializer": "ones"})
    matrix = build.emit("tile", build.emit("reshape", row, shape=(1, 3)), multiples=(3, 1))
    factors = build.emit("lu", matrix)
    loss = build.emit("reduce_sum", build.emit("mul", factors, factors))
    result = sw.verify(sw.compile(Definition(build.graph("g", (loss.name,)), ()), 2, cluster="cpu"))
    assert (result.equal, result.first_difference) == (False, "w.grad")
    assert result.reason == (
        "it has NaN on one device, which nothing is equal to: compare with other values"
    )


def test_a_loss_that_is_mathematically_zero_is_no_difference():
    """The mean of what a normalization over the row leaves."""
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (16, 8))))
    w = build.parameter(Value("w", TensorType("float32", (8, 8))), {"initializer": "normal(0.5)"})
    ones, zeros = (
        build.parameter(
            Value(n, TensorType("float32", (8,))), {"initializer": n, "trainable": False}
        )
        for n in ("ones", "zeros")
    )
    normal = build.emit("layer_norm", build.emit("matmul", x, w), ones, zeros)
    loss = build.emit("reduce_sum", normal)
    model = Definition(build.graph("g", (loss.name,)), (InputSpec("x", x.type),))
    for devices in (2, 4, 8):
        result = sw.verify(sw.compile(model, devices, cluster="cpu", mode="data_parallel"))
        assert (result.equal, result.reason) == (True, None)


def inserted(plan, name, operator, **attributes):
    """Return the plan in which all readers of a value read an operator on it instead."""
    program = plan.program
    value = program.values[name]
    wrong = Node(operator, (name,), (replace(value, name="wrong"),), attributes)
    nodes = []
    for node in program.nodes:
        nodes.append(renamed(node, {name: "wrong"}))
        if name in {result.name for result in node.results}:
            nodes.append(wrong)
    return replace(plan, program=program.with_nodes(tuple(nodes)))


@pytest.mark.parametrize("network", [DenseNormalized, ConvolutionNormalized, Attention])
def test_an_error_of_a_billionth_of_the_terms_of_a_zero_gradient_is_found(network):
    """The terms are what `x.bias.grad` adds up: their sum is zero to rounding."""
    plan = plan_of(network, 4, "sgd")
    gradient = f"{network.zero}.grad"
    reduction = plan.program.producers[gradient]
    local = plan.program.producers[reduction.operands[0]]
    assert (reduction.operator, local.operator) == ("all_reduce", "reduce_sum")
    terms = local.operands[0]
    nodes, value = [], plan.program.values[terms]
    for node in plan.program.nodes:
        nodes.append(renamed(node, {terms: "wrong"}) if node is local else node)
        if node.name == terms:
            wrong = (replace(value, name="weights"), replace(value, name="wrong"))
            # Terms that do not cancel: those which are positive get larger by a billionth.
            nodes.append(Node("relu", (terms,), wrong[:1]))
            small = replace(value, name="small")
            nodes.append(Node("scale", ("weights",), (small,), {"factor": 1e-9}))
            nodes.append(Node("add", (terms, "small"), wrong[1:]))
    wrong_plan = replace(plan, program=plan.program.with_nodes(tuple(nodes)))
    result = verify_plan(wrong_plan, 1)
    assert (result.equal, result.first_difference) == (False, gradient)


@pytest.mark.parametrize("name", ["b.weight.grad", "a.weight.grad", "bn.gamma.grad"])
def test_a_relative_error_of_three_billionths_in_a_gradient_is_found(name):
    plan = plan_of(DenseNormalized, 4)
    producer = plan.program.producers[name]
    source = producer.operands[0]
    wrong = inserted(plan, source, "scale", factor=1 + 3e-9)
    result = verify_plan(wrong, 1)
    assert (result.equal, result.first_difference) == (False, name)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_relative_error_of_three_billionths_in_an_update_is_found(optimizer):
    """Relative to the change of the parameter, which is much smaller than the parameter."""
    plan = plan_of(DenseNormalized, 4, optimizer)
    assert verify_plan(plan, 1).equal
    update = next(n for n in plan.program if n.name == "b.weight.next")
    rate = plan.document.optimizer.settings.get("learning_rate", 0.001)
    attributes = {**update.attributes, "learning_rate": rate * (1 + 3e-9)}
    nodes = tuple(
        replace(n, attributes=attributes) if n is update else n for n in plan.program.nodes
    )
    result = verify_plan(replace(plan, program=plan.program.with_nodes(nodes)), 1)
    assert (result.equal, result.first_difference) == (False, "b.weight")


@pytest.mark.parametrize("static", [True, False])
def test_a_loss_of_which_every_rank_returns_its_part_is_found(static):
    """The parts add up to the loss, but no rank has it."""
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (64, 32))))
    w = build.parameter(Value("w", TensorType("float32", (32, 32))), {"initializer": "normal(0.1)"})
    loss = build.emit("reduce_sum", build.emit("square", build.emit("matmul", x, w)))
    model = Definition(build.graph("g", (loss.name,)), (InputSpec("x", x.type),))
    plan = sw.compile(model, 4, cluster="cpu", mode="data_parallel").plan
    program = plan.program
    last = program.producers[program.outputs[0]]
    assert last.operator == "all_reduce"
    nodes = tuple(node for node in program.nodes if node is not last)
    partial = replace(program, nodes=nodes, outputs=last.operands)
    result = verify_plan(replace(plan, program=partial), static=static)
    assert (result.equal, result.first_difference) == (False, plan.reference.outputs[0])


def test_a_parameter_that_is_not_trained_but_changes_is_found():
    plan = plan_of(DenseNormalized, 4, "sgd")
    for graph in (plan.model, plan.program):
        assert "a.weight" in {parameter.name for parameter in graph.parameters}
    frozen = tuple(
        replace(p, attributes={**p.attributes, "trainable": False}) if p.name == "a.weight" else p
        for p in plan.model.parameters
    )
    result = verify_plan(replace(plan, model=replace(plan.model, parameters=frozen)), 1)
    assert (result.equal, result.first_difference) == (False, "a.weight")


def test_every_step_begins_with_the_values_of_one_device():
    """An error in the first step is seen in the first step, and does not grow."""
    plan = plan_of(ConvolutionNormalized, 4)
    result = verify_plan(plan, 30)
    assert result.equal
    assert result.max_relative_error < 1e-10


ADAM = [("bert", 8), ("unet", 4), ("resnet18-cifar", 2), ("vit", 4)]
ADAM += [("resnet18-cifar", n) for n in (4, 8)]
ADAM += [(model, n) for model in ("bert", "vit", "unet") for n in (2, 4, 8)]


@pytest.mark.long
@pytest.mark.parametrize(("model", "devices"), first(1, list(dict.fromkeys(ADAM))))
def test_networks_trained_by_adam_are_equal(model, devices):
    plan = sw.compile(SMALL[model], devices, cluster="cpu", optimizer="adam", **ANY_PLAN).plan
    result = sw.verify(plan)
    assert (result.equal, result.first_difference, result.reason) == (True, None, None)
    assert result.max_relative_error < 1e-10
