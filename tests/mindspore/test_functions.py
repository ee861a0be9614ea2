"""Functions and primitives have the defaults, the types and the results that MindSpore's have."""

from math import erf

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import IRError, ModelError
from shardwright.mindspore import Tensor, nn, ops

X = np.array([[-1.5, 0.25, 2.0], [0.5, -0.75, 1.0]], np.float32)
WHOLE = np.array([[-7, 4, 9], [5, -6, 3]], np.int32)
GELU = np.vectorize(lambda x: x * (1 + erf(x / 2**0.5)) / 2)(X).astype(np.float32)

CASES = {
    "gelu is exact": (lambda x: ops.gelu(x), X, GELU),
    "leaky_relu": (lambda x: ops.leaky_relu(x), X, np.where(X < 0, np.float32(0.2) * X, X)),
    "a power of a number": (lambda x: ops.pow(2.5, x), X, np.float32(2.5) ** X),
    "a power of a tensor": (lambda x: ops.Pow()(x, x), X[:, 2:], X[:, 2:] ** X[:, 2:]),
    "Mod": (lambda x: ops.Mod()(x, Tensor(WHOLE[0])), WHOLE, np.fmod(WHOLE, WHOLE[0])),
    "TruncateDiv": (
        lambda x: ops.TruncateDiv()(x, Tensor([4, -3, -2], "int32")),
        WHOLE,
        np.array([[-1, -1, -4], [1, 2, -1]], np.int32),
    ),
    "Div of whole numbers": (
        lambda x: ops.Div()(x, x + 10),
        WHOLE,
        (WHOLE / (WHOLE + 10)).astype(np.float32),
    ),
    "quotients": (lambda x: x // 2, WHOLE, WHOLE // 2),
    "remainders": (lambda x: x % 4, WHOLE, WHOLE % 4),
    "L2Normalize": (
        lambda x: ops.L2Normalize()(x),
        X,
        X / np.sqrt(np.square(X).sum(0, keepdims=True)),
    ),
    "Argmax": (lambda x: ops.Argmax()(x), X, X.argmax(-1).astype(np.int32)),
    "argmax of all": (lambda x: ops.argmax(x), X, np.int64(2)),
    "argmin with its dimension": (
        lambda x: ops.argmin(x, axis=1, keepdims=True),
        X,
        X.argmin(1)[:, None].astype(np.int32),
    ),
    "where max stands": (lambda x: ops.max(x, 1)[1], X, X.argmax(1)),
    "max by position": (lambda x: x.max(1)[1], X, X.argmax(1)),
    "min by position": (lambda x: x.min(-1)[0], X, X.min(1)),
    "min along dim": (lambda x: x.min(dim=1, keepdim=True)[1], X, X.argmin(1)[:, None]),
    "max along axis": (lambda x: x.max(axis=1, keepdims=True), X, X.max(1, keepdims=True)),
    "max of two dimensions": (lambda x: x.max((0, 1)), X, X.max()),
    "max with return_indices": (
        lambda x: x.max(axis=1, return_indices=True)[1],
        X,
        X.argmax(1),
    ),
    "max of all": (lambda x: ops.max(x, keepdims=True)[0], X, X.max()),
    "argmin": (lambda x: x.argmin(1), X, X.argmin(1).astype(np.int32)),
    "argmax with keepdim": (lambda x: x.argmax(dim=1, keepdim=True), X, X.argmax(1)[:, None]),
    "topk": (lambda x: ops.topk(x, 1, dim=0)[1], X, X.argmax(0)[None].astype(np.int32)),
    "prod": (lambda x: ops.prod(x), WHOLE, np.int64(WHOLE.astype(np.int64).prod())),
    "CumProd": (
        lambda x: ops.CumProd(exclusive=True, reverse=True)(x, 1),
        X,
        np.stack([X[:, 1] * X[:, 2], X[:, 2], np.ones(2, np.float32)], 1),
    ),
    "split": (lambda x: ops.split(x, 2, axis=1)[0], X, X[:, :2]),
    "pad": (lambda x: ops.pad(x, (1, 0, 0, 1)), X, np.pad(X, ((0, 1), (1, 0)))),
    "pad by reflection": (
        lambda x: ops.pad(x, (2, 1), mode="reflect"),
        X,
        np.pad(X, ((0, 0), (2, 1)), mode="reflect"),
    ),
    "one_hot": (lambda x: ops.one_hot(x, 3), np.array([2, 0]), np.eye(3, dtype=np.int64)[[2, 0]]),
    "gather in each row": (
        lambda x: ops.gather(x, Tensor([[2, 0], [1, 1]], "int32"), 1, batch_dims=1),
        X,
        np.take_along_axis(X, np.array([[2, 0], [1, 1]]), 1),
    ),
    "clip by one bound": (lambda x: ops.clip(x, min=0.1), X, np.maximum(X, np.float32(0.1))),
    "tensor_dot": (
        lambda x: ops.tensor_dot(x, x, ((0, 1), (0, 1))),
        X,
        np.float32(np.square(X).sum()),
    ),
    "matmul of vectors": (lambda x: ops.matmul(x[0], x[1]), X, X[0] @ X[1]),
    "TensorScatterAdd outside of a network": (
        lambda x: ops.TensorScatterAdd()(x, Tensor([[1]], "int32"), x[:1]),
        X,
        X + np.stack([np.zeros(3, np.float32), X[0]]),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_function_returns_what_mindspore_does(case):
    function, given, expected = CASES[case]
    found = function(Tensor(given)).asnumpy()
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_two_results_are_unpacked():
    for found in (Tensor(X).max(1), ops.min(Tensor(X), 1)):
        values, positions = found
        assert (values.shape, positions.dtype) == ((2,), "int64")


def test_ctc_loss_returns_losses_and_sums():
    logs = np.log(np.full((4, 2, 3), 1 / 3, np.float32))
    operands = [Tensor(logs), Tensor([[1, 2], [1, 1]], "int32"), [4, 3], [2, 1]]
    loss, sums = ops.ctc_loss(*operands)
    losses, _ = ops.ctc_loss(*operands, reduction="none")
    assert (loss.shape, losses.shape, sums.shape) == ((), (2,), (2, 4, 5))
    # 15 of 81 paths of 4 steps read "12", 6 of 27 of 3 steps "1"
    expected = -np.log([15 / 81, 6 / 27])
    np.testing.assert_allclose(losses.asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(loss.asnumpy(), (expected / [2, 1]).mean(), rtol=1e-5)
    np.testing.assert_allclose(np.exp(sums.asnumpy()[1, 1]), [1 / 9, 2 / 9, 1 / 9, 0, 0], rtol=1e-5)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda x: ops.gather(x, Tensor([0, 5]), 0),
        lambda x: ops.Gather()(x, Tensor([0, 5]), 0),
        lambda x: ops.gather_elements(x, 0, Tensor([[5, 0, 0]])),
    ],
)
def test_known_positions_outside_are_refused(look_up):
    message = r"the position \[5\] is outside a tensor of the shape \(2,\); positions count from 0"
    with pytest.raises(ModelError, match=message):
        look_up(Tensor(X))


def test_known_tuples_of_positions_outside_are_refused():
    with pytest.raises(ModelError, match=r"the position \[-1, 0\] is outside"):
        ops.gather_nd(Tensor(X), Tensor([[0, 0], [-1, 0]]))


def test_positions_along_two_dimensions_are_refused():
    with pytest.raises(IRError, match="finds positions along one dimension"):
        ops.max(Tensor(X), (0, 1))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.ones(2, np.float32)), name="weight")
        self.gamma = ms.Parameter(Tensor(np.ones(2, np.float32)), name="gamma")


def stepped(kind, **settings):
    net = Net()
    optimizer = kind(net.trainable_params(), learning_rate=0.1, **settings)
    optimizer((Tensor(np.full(2, 0.5, np.float32)),) * 2)
    return net.weight.asnumpy()[0], net.gamma.asnumpy()[0]


def test_sgd_does_not_decay_scales_and_ftrl_does():
    weight, gamma = stepped(nn.SGD, weight_decay=0.5)
    assert (weight, gamma) == pytest.approx((1 - 0.1 * (0.5 + 0.5), 1 - 0.1 * 0.5))
    weight, gamma = stepped(nn.FTRL, weight_decay=0.5)
    assert weight == gamma


def test_the_mean_squares_of_rmsprop_begin_with_one():
    weight, _ = stepped(nn.RMSProp)
    assert weight == pytest.approx(1 - 0.1 * 0.5 / np.sqrt(0.9 + 0.1 * 0.25))


def test_layer_norm_of_several_dimensions_has_a_small_epsilon():
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4) * 1e-3
    made = nn.LayerNorm((3, 4), 1, 1)(Tensor(x)).asnumpy()
    np.testing.assert_allclose(made, (x - x.mean()) / np.sqrt(x.var() + 1e-7), rtol=1e-4, atol=1e-5)


def test_the_moving_variance_is_an_estimate_of_that_of_all_samples():
    net, x = nn.BatchNorm1d(3), np.stack([X[0], X[1], 2 * X[0]])
    net.set_train()
    ms.grad(lambda x: net(x).sum(), 0)(Tensor(x))
    moved = net.moving_variance.asnumpy()
    np.testing.assert_allclose(moved, 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("said", [True, False])
def test_what_is_said_of_batch_statistics_holds_in_training(said):
    net = nn.BatchNorm1d(3, use_batch_statistics=said).set_train()
    made = net(Tensor(X)).asnumpy()
    by_batch = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    np.testing.assert_allclose(made, by_batch if said else X / np.sqrt(1 + 1e-5), rtol=1e-4)
