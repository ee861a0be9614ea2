import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.ir.errors import IRError, ModelError
from shardwright.ir.types import TensorType
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from tests.shardwright.programs import outputs_of

A = np.arange(1, 25, dtype=np.float64).reshape(2, 3, 4)
B = np.linspace(0.5, 2, 12).reshape(3, 4)


def run(function):
    """Return what `function` makes of A and B as tensors."""

    class Applied(nn.Cell):
        def construct(self, a, b):
            return function(a, b)

    specs = [InputSpec(n, TensorType("float64", x.shape)) for n, x in (("a", A), ("b", B))]
    return outputs_of(trace(Applied(), specs), {"a": A, "b": B})[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        lambda a, b: a + 2,
        lambda a, b: 2 + a,
        lambda a, b: a - b,
        lambda a, b: a - 2,
        lambda a, b: 2 - a,
        lambda a, b: a * b,
        lambda a, b: 3 * a * 2,
        lambda a, b: a / b,
        lambda a, b: a / 4,
        lambda a, b: 4 / a,
        lambda a, b: -a,
        lambda a, b: a**2,
        lambda a, b: a @ b.T,
        lambda a, b: a.reshape(6, -1),
        lambda a, b: a.reshape((4, 6)),
        lambda a, b: a.flatten(),
        lambda a, b: a.transpose(2, 0, 1),
        lambda a, b: a.transpose((0, 2, 1)),
        lambda a, b: a.swapaxes(-1, 0),
        lambda a, b: a.T,
        lambda a, b: a.sum(),
        lambda a, b: a.sum(axis=(0, -1)),
        lambda a, b: a.mean(axis=1),
        lambda a, b: a.max(axis=2),
        lambda a, b: a < 2 * b,
        lambda a, b: a >= 7,
        lambda a, b: a == 7,
        lambda a, b: a != 7,
        lambda a, b: a[1],
        lambda a, b: a[-1, 1:],
        lambda a, b: a[:, 1],
        lambda a, b: a[..., 2],
        lambda a, b: a[..., 1:3],
        lambda a, b: a[:, None, 1:2, ::2],
        lambda a, b: a[0, ..., None],
        lambda a, b: a[:, :, :],
        lambda a, b: a[1, 2, 3],
    ],
)
def test_a_tensor_does_what_an_array_does(function):
    np.testing.assert_allclose(run(function), function(A, B), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: ops.ReduceSum(True)(a, 1), A.sum(1, keepdims=True)),
        (lambda a, b: ops.reduce_mean(a, (0, 1)), A.mean((0, 1))),
        (lambda a, b: ops.Reshape()(a, (-1, 4)), A.reshape(-1, 4)),
        (lambda a, b: ops.Transpose()(a, (1, 0, 2)), A.transpose(1, 0, 2)),
        (lambda a, b: ops.Add()(a, 1), A + 1),
        (lambda a, b: ops.Pow()(a, 3), A**3),
        (lambda a, b: ops.Concat(1)((a, a)), np.concatenate([A, A], 1)),
        (lambda a, b: ops.Split(-1, 2)(a)[1], A[..., 2:]),
        (lambda a, b: ops.FloorDiv()(a, b), A // B),
        (lambda a, b: ops.Cast()(a > 3, "float64"), (A > 3).astype(float)),
        (lambda a, b: ops.MatMul(transpose_b=True)(b, b), B @ B.T),
        (lambda a, b: ops.matmul(b, b, transpose_a=True), B.T @ B),
        (lambda a, b: ops.expand_dims(b, 0), B[None]),
        (lambda a, b: ops.ReLU()(2 - b), np.maximum(2 - B, 0)),
        (lambda a, b: ops.Gather()(b, Tensor([2, 0]), 0), B[[2, 0]]),
        (lambda a, b: ops.OneHot()(Tensor([1, 0]), 3), np.eye(3)[[1, 0]]),
    ],
)
def test_primitives_take_arguments_as_mindspore_has_them(function, expected):
    np.testing.assert_allclose(run(function), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda a, b: a[5], "the index 5 is outside a dimension of size 2"),
        (lambda a, b: a[2:2], "the slice slice(2, 2, None) of a dimension of size 2 keeps nothing"),
        (lambda a, b: b[0, 0, 0], "3 indices are given for a tensor of 2 dimensions"),
        (
            lambda a, b: a["x"],
            "a tensor is indexed by 'x', expected a number, a slice, None or ...",
        ),
        (lambda a, b: a == "x", "a tensor is compared with 'x', expected a tensor or a number"),
        (
            lambda a, b: ops.Softmax(1, 2)(a),
            "`softmax` is given 2 arguments that are no tensors, it takes 1: ('axis',)",
        ),
        (
            lambda a, b: ops.Gather()(b, a, 1),
            "gather: operand 1 is f64[2, 3, 4], positions are integers",
        ),
        (lambda a, b: ops.relu(a).asnumpy(), "the elements of a tensor of type f64[2, 3, 4]"),
    ],
)
def test_wrong_uses_are_refused(function, what):
    with pytest.raises(ModelError) as caught:
        run(function)
    assert caught.value.what.startswith(what)


def test_a_tensor_knows_its_type():
    x = Tensor([[1, 2, 3]], "float32")
    assert (x.shape, x.dtype, x.ndim, x.size, len(x)) == ((1, 3), "float32", 2, 3, 1)
    assert repr(x) == "Tensor(f32[1, 3])"


def test_a_tensor_has_an_element_type_of_ours():
    with pytest.raises(ModelError, match="a tensor has the element type `complex128`"):
        Tensor([1j])


def test_an_unknown_primitive_is_no_attribute():
    with pytest.raises(AttributeError, match="no operator is called `Rleu`"):
        _ = ops.Rleu


def test_a_tensor_prints_its_elements():
    tensor = Tensor(Tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 5.0]], "float32"))
    assert (str(tensor), repr(tensor)) == ("[[1. 3. 2.]\n [4. 0. 5.]]", "Tensor(f32[2, 3])")
    assert (tensor.argmax(1).asnumpy().tolist(), int(tensor.argmax().asnumpy())) == ([1, 2], 5)


def test_numbers_of_two_types_are_compared():
    narrow, wide = Tensor([1, -1], "int32"), Tensor([1, 2**32 - 1], "int64")
    assert (narrow == wide).asnumpy().tolist() == [True, False]
    assert (wide > narrow).asnumpy().tolist() == [False, True]
    assert (narrow == Tensor([1.0, 2.0], "float32")).asnumpy().tolist() == [True, False]
    with pytest.raises(IRError, match="the operands are int64 and uint64"):
        wide == Tensor([1, 2], "uint64")  # noqa: B015


def test_integers_meet_real_numbers_in_float32() -> None:
    """As in MindSpore; truths meet integers in int32."""
    x, truths = Tensor(np.array([1, 2, -3], np.int32)), Tensor(np.array([True, False]))
    made = [x + 0.5, 0.5 - x, x * 0.5, x / 2, 2 / x, x**0.5, x**-1, x**2, truths + 1, truths * 0.5]
    right = [[1.5, 2.5, -2.5], [-0.5, -1.5, 3.5], [0.5, 1, -1.5], [0.5, 1, -1.5], [2, 1, -2 / 3]]
    right += [[1, 2**0.5, np.nan], [1, 0.5, -1 / 3], [1, 4, 9], [2, 1], [0.5, 0]]
    for found, expected in zip(made, right, strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
    assert [one.dtype for one in made] == ["float32"] * 7 + ["int32", "int32", "float32"]
    assert not (x == 1.5).asnumpy().any()
    assert (x < 1.5).asnumpy().tolist() == [True, False, True]
