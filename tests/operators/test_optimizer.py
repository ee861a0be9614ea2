"""The updates against the textbook, one number at a time."""

from math import sqrt

import numpy as np
import pytest

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel

GRADIENTS = (0.5, -1.0, 0.25, 2.0)


def update(operator: str, *operands: Array, **attributes: Attribute) -> tuple[Array, ...]:
    types = [TensorType(str(x.dtype), x.shape) for x in operands]
    return whole_kernel(operator_info(operator, types, attributes), *operands)


def test_sgd() -> None:
    (p,) = update("sgd_update", np.array([1.0]), np.array([0.5]), learning_rate=0.1)
    assert p[0] == pytest.approx(1.0 - 0.1 * 0.5)
    settings = {"learning_rate": 0.1, "weight_decay": 0.2}
    (p,) = update("sgd_update", np.array([3.0]), np.array([0.5]), **settings)
    assert p[0] == pytest.approx(3.0 - 0.1 * (0.5 + 0.2 * 3.0))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_a_decaying_sum(nesterov: bool) -> None:
    p, m = np.array([1.0]), np.array([0.0])
    q, n = 1.0, 0.0
    for g in GRADIENTS:
        settings = {"learning_rate": 0.1, "momentum": 0.8, "nesterov": nesterov}
        p, m = update("momentum_update", p, np.array([g]), m, **settings)
        n = 0.8 * n + g
        q -= 0.1 * (g + 0.8 * n if nesterov else n)
        assert (p[0], m[0]) == pytest.approx((q, n), rel=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_as_published(decay: float) -> None:
    p, m, v = np.array([1.0]), np.array([0.0]), np.array([0.0])
    q, mean, square = 1.0, 0.0, 0.0
    for t, g in enumerate(GRADIENTS, 1):
        settings = {"learning_rate": 0.1, "beta1": 0.7, "beta2": 0.9, "weight_decay": decay}
        p, m, v = update("adam_update", p, np.array([g]), m, v, np.array(t), **settings)
        mean = 0.7 * mean + 0.3 * g
        square = 0.9 * square + 0.1 * g * g
        step = mean / (1 - 0.7**t) / (sqrt(square / (1 - 0.9**t)) + 1e-8)
        q = q - 0.1 * step - 0.1 * decay * q
        assert (p[0], m[0], v[0]) == pytest.approx((q, mean, square), rel=1e-13)


def test_parameter_and_states_keep_their_types() -> None:
    half, single = np.ones(2, np.float16), np.ones(2, np.float32)
    p, m, v = update("adam_update", single, half, single, single, np.array(1))
    assert {x.dtype for x in (p, m, v)} == {np.dtype(np.float32)}
    (p,) = update("sgd_update", half, single)
    assert p.dtype == np.float16


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(IRError) as caught:
        update("sgd_update", np.ones((4, 2)), np.ones(2))
    assert str(caught.value) == (
        "sgd_update: parameter, gradient and states have the shapes [(4, 2), (2,)], one expected"
    )


def test_float16_is_updated_in_float32() -> None:
    """A gradient whose square, like the epsilon, is zero in float16."""
    g = np.array([1e-4], np.float16)
    states = np.zeros(1, np.float32), np.zeros(1, np.float32)
    p, m, v = update("adam_update", np.ones(1, np.float16), g, *states, np.array(1))
    assert (p.dtype, m.dtype, v.dtype) == (np.float16, np.float32, np.float32)
    assert p[0] == np.float16(1 - 0.001)
    assert v[0] == pytest.approx(0.001 * float(g[0]) ** 2, rel=1e-6)
