"""Names of layers and parameters that look like those the compiler makes."""

from functools import cache

import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.compiler.reasons import collectives
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.tracing import Definition, InputSpec, trace
from tests.extent import crossed, first

SEARCHES = ("data_parallel", "tensor_parallel", "fully_sharded")


def network(first="w", second="v", node=None, data="x"):
    build = Builder()
    x = build.input(Value(data, TensorType("float32", (16, 16))))
    w, v = (
        build.parameter(Value(n, TensorType("float32", (16, 16))), {"initializer": "normal(0.3)"})
        for n in (first, second)
    )
    h = build.emit("relu", build.emit("matmul", x, w), name=node)
    y = build.emit("add", build.emit("matmul", h, v), build.emit("tanh", h))
    y = build.emit("add", build.emit("add", y, x), build.emit("matmul", x, v))
    loss = build.emit("reduce_sum", build.emit("square", y))
    return Definition(build.graph("g", (loss.name,)), (InputSpec(data, x.type),))


def compiled(model, search, optimizer="adam", **options):
    kind = Optimizer(optimizer)
    fixed = {"mesh": "2x4", "cluster": "cpu", "optimizer": kind, "search": search}
    return sw.compile(model, 8, **fixed, **options)


@cache
def with_usual_names(search):
    """Return the plan that others are compared with."""
    return compiled(network(), search, fusion=64.0)


NAMES = [
    ("w", "w.next"),
    ("w", "w.mirror"),
    ("w", "w.to_0"),
    ("w", "w.grad.packed"),
    ("w", "w.grad.to_0"),
    ("w", "reduce_sum_0.grad"),
    ("a.grad", "b.grad"),
    ("x.to_0", "x.to_1"),
    ("moment1", "mirror"),
    ("w.step_0", "w.step_1"),
    ("w", "v", "x.to_0"),
    ("w", "v", "w.to_0"),
    ("w", "v", "v.mirror"),
    ("w", "v", "fill_0"),
    ("w", "v", "matmul_0.to_0"),
    ("w", "v", "w.next"),
    ("w", "v", None, "x.grad"),
]


@pytest.mark.long
@pytest.mark.parametrize(("search", "names"), first(len(NAMES), crossed(SEARCHES, NAMES)))
def test_names_like_those_of_the_compiler_change_nothing(names, search):
    found = compiled(network(*names), search, fusion=64.0)
    assert sw.verify(found, 1).equal
    usual = with_usual_names(search)
    document, expected = found.plan.document, usual.plan.document
    assert document.memory.by_kind == expected.memory.by_kind
    assert document.communication == expected.communication
    renaming = dict(zip(("w", "v"), names, strict=False))
    mine = [(c.axes, c.forward) for c in collectives(found.compiled, found.cluster)]
    theirs = [(c.axes, c.forward) for c in collectives(usual.compiled, usual.cluster)]
    assert mine == theirs
    expected_states = {f"{renaming[p]}.{s}" for p in ("w", "v") for s in ("m", "v")} | {
        "optimizer.step"
    }
    parameters = found.plan.program.parameters
    assert {p.name for p in parameters if p.role == "state"} == expected_states


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("w", "w.grad"), "the gradient of `w`"),
        (("w", "v", "w.grad"), "the gradient of `w`"),
        (("w", "v", None, "w.grad"), "the gradient of `w`"),
        (("w", "w.m"), "the state `m` of `w`"),
        (("w", "v", "v.v"), "the state `v` of `v`"),
        (("optimizer.step", "w"), "the number of the step"),
    ],
)
def test_names_of_training_are_refused(names, what):
    with pytest.raises(PassError) as caught:
        compiled(network(*names), "data_parallel")
    name = next(n for n in reversed(names) if n and "." in n)
    assert (
        caught.value.what
        == f"a tensor of the model is called `{name}`, the name of {what} in training"
    )
    assert caught.value.hint == "give it another name"


def test_names_of_another_optimizer_are_free():
    assert sw.verify(compiled(network("w", "w.m"), "fully_sharded", "momentum"), 1).equal
    assert sw.verify(compiled(network("optimizer.step", "w"), "fully_sharded", "sgd"), 1).equal


class Steps(nn.Cell):
    """A cell whose layers are called as the steps of a redistribution are."""

    def __init__(self, *names):
        self.names = names
        for name in names:
            setattr(self, name, nn.Dense(16, 16, has_bias=False))

    def construct(self, x):
        for name in self.names:
            x = ops.tanh(getattr(self, name)(x))
        return x


class Outer(nn.Cell):
    def __init__(self, *names):
        self.cell, self.head = Steps(*names), nn.Dense(16, 4)

    def construct(self, x):
        return self.head(self.cell(x))


def moves_of(*names, search):
    inputs = (
        InputSpec("x", TensorType("float32", (16, 16))),
        InputSpec("y", TensorType("int32", (16,)), 4),
    )
    model = trace(Outer(*names), inputs, loss_fn=nn.CrossEntropyLoss())
    found = compiled(model, search)
    return [
        (c.node.operator, c.move, c.tensor, c.reason, c.forward)
        for c in collectives(found.compiled, found.cluster)
    ]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("names", [("step_1", "step_2"), ("to_0", "to_1"), ("grad", "mirror")])
def test_reasons_do_not_depend_on_names(names, search):
    """Layers called `first` and `second` have the same moves, for the same reasons."""
    usual = moves_of("first", "second", search=search)

    def renamed(text):
        for mine, theirs in zip(names, ("first", "second"), strict=True):
            text = text.replace(f"cell.{theirs}", f"cell.{mine}").replace(
                f"cell/{theirs}", f"cell/{mine}"
            )
        return text

    expected = [tuple(map(renamed, row[:-1])) + row[-1:] for row in usual]
    assert moves_of(*names, search=search) == expected


def test_statistics_of_a_normalization_are_no_states_of_the_optimizer():
    class Normalized(nn.Cell):
        def __init__(self):
            self.a, self.bn, self.b = nn.Dense(16, 32), nn.BatchNorm1d(32), nn.Dense(32, 4)

        def construct(self, x):
            return self.b(ops.relu(self.bn(self.a(x))))

    inputs = (
        InputSpec("x", TensorType("float32", (16, 16))),
        InputSpec("y", TensorType("int32", (16,)), 4),
    )
    model = trace(Normalized(), inputs, loss_fn=nn.CrossEntropyLoss())
    trained = 16 * 32 + 32 + 2 * 32 + 32 * 4 + 4
    for optimizer, states in (("sgd", 0), ("momentum", 4 * trained), ("adam", 8 * trained + 8)):
        plan = sw.compile(
            model, 4, cluster="cpu", mode="data_parallel", optimizer=Optimizer(optimizer)
        ).plan
        kinds = plan.document.memory.by_kind
        assert kinds["parameters"] == 4 * (trained + 2 * 32)
        assert kinds["optimizer states"] == states
