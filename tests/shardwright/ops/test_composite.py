"""What MindSpore has as one operator and is several here."""

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from tests.shardwright.programs import outputs_of

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(4, 6))


WILD = np.array([1.0, np.nan, np.inf, -np.inf])


class Function(nn.Cell):
    def __init__(self, function):
        self.function = function

    def construct(self, *inputs):
        return self.function(*inputs)


def results(function, *arrays):
    specs = [InputSpec(f"x{i}", TensorType(a.dtype.name, a.shape), 9) for i, a in enumerate(arrays)]
    definition = trace(Function(function), specs)
    return outputs_of(definition, {s.name: a for s, a in zip(specs, arrays, strict=True)})


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (lambda x, y: ops.AddN()((x, y, x)), (X, Y), 2 * X + Y),
        (lambda x, y: ops.Addcmul()(x, x, y, 0.5), (X, Y), X + X * Y / 2),
        (ops.Hypot(), (X, Y), np.hypot(X, Y)),
        (ops.Lerp(), (X, Y, np.array(0.25)), X + (Y - X) / 4),
        (ops.L2Loss(), (X,), (X**2).sum() / 2),
        (ops.MulNoNan(), (X, np.where(X > 0, Y, 0.0)), np.where(X > 0, X * Y, 0)),
        (lambda x, y: ops.DivMod()(x, y, "trunc"), (X, Y), np.trunc(X / Y)),
        (lambda x, y: ops.DivMod()(x, y, "floor"), (X, Y), np.floor(X / Y)),
        (lambda x, m: ops.MaskedFill()(x, m, 3.0), (X, X > 0), np.where(X > 0, 3.0, X)),
        (lambda x, m: ops.DropoutDoMask()(x, m, 0.5), (X, X > 0), np.where(X > 0, 2 * X, 0)),
        (lambda x: ops.StridedSlice()(x, (1, 0), (3, 5), (1, 2)), (X,), X[1:3, 0:5:2]),
        (
            lambda x: ops.StridedSlice(ellipsis_mask=1, shrink_axis_mask=2)(x, (0, 3), (0, 4)),
            (X,),
            X[..., 3],
        ),
        (ops.Swiglu(), (X,), X[:, :3] / (1 + np.exp(-X[:, :3])) * X[:, 3:]),
        (
            lambda x, y: ops.KLDivLoss("batchmean")(x, ops.exp(y)),
            (X, Y),
            (np.exp(Y) * (Y - X)).sum() / 4,
        ),
        (lambda x: ops.SplitWithSize()(x, (1, 5), -1)[1], (X,), X[:, 1:]),
        (lambda x: ops.SplitTensor()(x, 4, 1)[1], (X,), X[:, 4:]),
        (ops.RepeatElements(3, 1), (X,), np.repeat(X, 3, axis=1)),
        (lambda x: x * ops.Range()(0, 6).astype("float64"), (X,), X * np.arange(6)),
        (lambda x: x * ops.LinSpace()(0, 1, 6).astype("float64"), (X,), X * np.linspace(0, 1, 6)),
        (ops.NanToNum(1.0, 2.0, 3.0), (WILD,), np.nan_to_num(WILD, True, 1.0, 2.0, 3.0)),
        (ops.TruncateMod(), (X, Y), np.fmod(X, Y)),
        (ops.TruncateDiv(), (X, Y), np.trunc(X / Y)),
        (ops.Xlogy(), (np.array([0.0, 2.0]), np.array([0.0, 3.0])), [0, 2 * np.log(3)]),
        (ops.Xdivy(), (np.array([0.0, 2.0]), np.array([0.0, 4.0])), [0, 0.5]),
        (lambda x: ops.TraceV2()(x, 1), (X,), np.trace(X, 1)),
        (ops.Cdist(), (X, Y), np.linalg.norm(X[:, None] - Y, axis=-1)),
    ],
)
def test_compositions(function, arrays, expected):
    np.testing.assert_allclose(results(function, *arrays)[0], expected, rtol=1e-6, atol=1e-12)


def test_parts_that_do_not_make_up_a_dimension_are_refused():
    with pytest.raises(ModelError, match=r"parts of \(1, 2\) do not make up 6 elements"):
        results(lambda x: ops.SplitWithSize()(x, (1, 2), 1), X)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_extrema_with_their_positions(axis, keep):
    for operator, position, value in (
        (ops.ArgMaxWithValue, np.argmax, np.max),
        (ops.ArgMinWithValue, np.argmin, np.min),
    ):
        found = results(operator(axis, keep), X)
        np.testing.assert_array_equal(found[0], position(X, axis=axis, keepdims=keep))
        np.testing.assert_array_equal(found[1], value(X, axis=axis, keepdims=keep))


def test_rows_that_a_table_does_not_hold_are_zero():
    rows = np.array([5, 6, 9, 10], np.int64)
    found = results(lambda t, i: ops.EmbeddingLookup()(t, i, 6), X, rows)[0]
    np.testing.assert_array_equal(found, [X[0] * 0, X[0], X[3], X[0] * 0])


@pytest.mark.parametrize(("operator", "sign"), [("Add", 1), ("Sub", -1)])
def test_scattered_slices_add_up(operator, sign):
    positions, updates = np.array([[1], [1], [3]]), Y[:3]
    scatter = getattr(ops, f"TensorScatter{operator}")()
    expected = X.copy()
    np.add.at(expected, [1, 1, 3], sign * updates)
    np.testing.assert_allclose(results(scatter, X, positions, updates)[0], expected, rtol=1e-12)


class Counter(nn.Cell):
    def __init__(self, operator, trained=False):
        self.total = Parameter("ones", shape=(3,), requires_grad=trained)
        self.operator = operator

    def construct(self, x):
        self.operator(self.total, x)
        return (x * 2.0).mean()


@pytest.mark.parametrize("name", ["Assign", "AssignAdd", "AssignSub"])
def test_a_parameter_is_given_another_value(name):
    spec = InputSpec("x", TensorType("float32", (3,)))
    graph = trace(Counter(getattr(ops, name)()), [spec]).graph
    ((parameter, _),) = graph.updates
    assert parameter == "total"


@pytest.mark.parametrize(
    "name", ["ScatterAdd", "ScatterSub", "ScatterUpdate", "ScatterMax", "ScatterMin"]
)
def test_rows_of_a_parameter_are_given_other_values(name):
    class Rows(nn.Cell):
        def __init__(self):
            self.table = Parameter("ones", shape=(4, 3), requires_grad=False, dtype="float64")

        def construct(self, indices, x):
            return getattr(ops, name)()(self.table, indices, x)

    kinds = (TensorType("int64", (2,)), TensorType("float64", (2, 3)))
    specs = [InputSpec(f"x{i}", kind, 4) for i, kind in enumerate(kinds)]
    definition = trace(Rows(), specs)
    assert [parameter for parameter, _ in definition.graph.updates] == ["table"]
    rows = np.array([3, 1])
    expected = np.ones((4, 3))
    given = Y[:2, :3]
    expected[rows] = {
        "ScatterAdd": 1 + given,
        "ScatterSub": 1 - given,
        "ScatterUpdate": given,
        "ScatterMax": np.maximum(1, given),
        "ScatterMin": np.minimum(1, given),
    }[name]
    found = outputs_of(definition, {"x0": rows, "x1": Y[:2, :3]})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_trained_parameter_is_not_assigned_to():
    spec = InputSpec("x", TensorType("float32", (3,)))
    with pytest.raises(ModelError, match="`total` is assigned to, and trained"):
        trace(Counter(ops.Assign(), trained=True), [spec])


def test_constants_that_are_made_on_the_way_are_kept_apart():
    def sums(x):
        for number in range(20):  # each is forgotten: the next may reuse its address
            x = x + Tensor(np.full(3, float(number)))
        return x

    np.testing.assert_array_equal(results(sums, np.zeros(3))[0], np.full(3, 190.0))
