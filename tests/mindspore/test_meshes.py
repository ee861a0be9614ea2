"""Strategies that the default mesh has no axes for: another mesh of the same devices has them."""

import numpy as np
import pytest

from shardwright.communication import world
from shardwright.ir.errors import StrategyError
from shardwright.mindspore import AutoParallel, Parameter, Tensor, nn, ops

X = np.arange(256, dtype=np.float32).reshape(16, 16) / 64
W = np.eye(16, dtype=np.float32)[::-1] + X / 8


class Product(nn.Cell):
    def __init__(self, *strategies):
        super().__init__()
        self.matmuls = [ops.MatMul().shard(one) for one in strategies or (None,)]
        self.w = Parameter(Tensor(W), name="w")

    def construct(self, x):
        for matmul in self.matmuls:
            x = matmul(x, self.w)
        return x


@pytest.mark.parametrize(
    ("devices", "strategies"),
    [
        (16, [((4, 2), (2, 2))]),
        (16, [((4, 4), (4, 1))]),
        (16, [((2, 1), (1, 8)), ((8, 1), (1, 2))]),
        (12, [((3, 2), (2, 2))]),
    ],
)
def test_strategies_that_the_default_mesh_has_no_axes_for_run(devices, strategies):
    if devices == 12:
        x, w = X[:12, :12], W[:12, :12]
    else:
        x, w = X, W
    network = Product(*strategies)
    network.w = Parameter(Tensor(w), name="w")
    right = x.astype("f8")
    for _ in strategies:
        right = right @ w
    with world(devices):
        found = AutoParallel(network, "semi_auto")(Tensor(x)).asnumpy()
    np.testing.assert_allclose(found, right, rtol=1e-5)


def test_inputs_take_axes_in_order():
    with world(16):
        spread = AutoParallel(Product(), "semi_auto")
        spread.dataset_strategy(((4, 4),))
        np.testing.assert_allclose(spread(Tensor(X)).asnumpy(), X @ W, rtol=1e-5)


def test_what_no_mesh_has_axes_for_is_refused():
    with world(16), pytest.raises(StrategyError, match=r"cannot be split by \(\(16, 2\)"):
        AutoParallel(Product(((16, 2), (2, 1))), "semi_auto")(Tensor(X))
