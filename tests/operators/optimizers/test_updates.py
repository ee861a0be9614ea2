"""The updates against the textbook, one number at a time."""

from math import sqrt

import numpy as np
import pytest

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError, OptionError
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


RATES = (0.1, 0.05, 0.2, 0.0125)
SCHEDULED = {
    "sgd": 0,
    "momentum": 1,
    "adam": 2,
    "ftrl": 2,
    "adagrad": 1,
    "rmsprop": 2,
}


@pytest.mark.parametrize("kind", SCHEDULED)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_rate_that_is_read_is_as_good_as_an_attribute(kind: str, dtype: type) -> None:
    random = np.random.default_rng(0)
    state = np.float32 if dtype == np.float16 else dtype
    operands = [random.standard_normal(5).astype(dtype) for _ in range(2)]
    operands += [random.random(5).astype(state) for _ in range(SCHEDULED[kind])]
    operands += [np.array(3)] * (kind == "adam")
    for rate in RATES:
        fixed = update(f"{kind}_update", *operands, learning_rate=rate)
        read = update(f"{kind}_update", *operands, np.array(rate))
        guard = (np.array(1.0, np.float32), np.array(0))
        guarded = update(f"{kind}_update", *operands, np.array(rate), *guard)
        for a, b, c in zip(fixed, read, guarded, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)
        skipped = update(f"{kind}_update", *operands, np.array(rate), guard[0], np.array(1))
        np.testing.assert_array_equal(skipped[0], operands[0])


@pytest.mark.parametrize("correction", ["rate", "none"])
def test_other_corrections_of_adam(correction: str) -> None:
    """The form at the end of section 2 of the paper, and that without correction."""
    p, m, v = np.array([1.0]), np.array([0.0]), np.array([0.0])
    q, mean, square = 1.0, 0.0, 0.0
    settings = {"learning_rate": 0.1, "beta1": 0.7, "beta2": 0.9, "l2": 0.3, "epsilon": 0.01}
    for t, g in enumerate(GRADIENTS, 1):
        own = {**settings, "bias_correction": correction}
        p, m, v = update("adam_update", p, np.array([g]), m, v, np.array(t), **own)
        g += 0.3 * q
        mean = 0.7 * mean + 0.3 * g
        square = 0.9 * square + 0.1 * g * g
        rate = 0.1
        if correction == "rate":
            rate *= sqrt(1 - 0.9**t) / (1 - 0.7**t)
        q -= rate * mean / (sqrt(square) + 0.01)
        assert (p[0], m[0], v[0]) == pytest.approx((q, mean, square), rel=1e-13)


def test_lazy_adam_keeps_what_has_no_gradient() -> None:
    p, m, v = np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([0.3, 0.4])
    g, step = np.array([0.0, 0.5]), np.array(4)
    settings = {"l2": 0.3, "weight_decay": 0.1}
    lazy = update("adam_update", p, g, m, v, step, lazy=True, **settings)
    dense = update("adam_update", p, g, m, v, step, **settings)
    for new, old, other in zip(lazy, (p, m, v), dense, strict=True):
        assert (new[0], new[1]) == (old[0], other[1])
        assert other[0] != old[0]


def test_ftrl_as_published() -> None:
    """The closed form of the proximal problem, with the sums of McMahan et al., algorithm 1."""
    p, n, z = np.array([0.3]), np.array([0.1]), np.array([0.0])
    q, total, linear = 0.3, 0.1, 0.0
    for g in GRADIENTS:
        settings = {"learning_rate": 0.2, "l1": 0.3, "l2": 0.1}
        p, n, z = update("ftrl_update", p, np.array([g]), n, z, **settings)
        sigma = (sqrt(total + g * g) - sqrt(total)) / 0.2
        linear += g - sigma * q
        total += g * g
        q = 0.0
        if abs(linear) > 0.3:
            sign = 1 if linear > 0 else -1
            q = -(linear - sign * 0.3) / (sqrt(total) / 0.2 + 2 * 0.1)
        assert (p[0], n[0], z[0]) == pytest.approx((q, total, linear), rel=1e-13)


def test_adagrad_and_rmsprop_as_published() -> None:
    p, n = np.array([1.0]), np.array([0.1])
    r, v, m = np.array([1.0]), np.array([0.0]), np.array([0.0])
    q, total, s, square, moved = 1.0, 0.1, 1.0, 0.0, 0.0
    for g in GRADIENTS:
        p, n = update("adagrad_update", p, np.array([g]), n, learning_rate=0.1)
        total += g * g
        q -= 0.1 * g / sqrt(total)
        assert (p[0], n[0]) == pytest.approx((q, total), rel=1e-13)
        settings = {"learning_rate": 0.1, "decay": 0.8, "momentum": 0.5, "weight_decay": 0.2}
        r, v, m = update("rmsprop_update", r, np.array([g]), v, m, **settings)
        g += 0.2 * s
        square = 0.8 * square + 0.2 * g * g
        moved = 0.5 * moved + 0.1 * g / sqrt(square + 1e-10)
        s -= moved
        assert (r[0], v[0], m[0]) == pytest.approx((s, square, moved), rel=1e-13)


@pytest.mark.parametrize("variant", ["amsgrad", "nesterov"])
def test_variants_of_adam(variant: str) -> None:
    """AMSGrad as in PyTorch: the greatest mean of squares is corrected as the last one would be."""
    p, states = np.array([1.0]), [np.array([0.0])] * (3 if variant == "amsgrad" else 2)
    q, mean, square, most = 1.0, 0.0, 0.0, 0.0
    settings = {"learning_rate": 0.1, "beta1": 0.7, "beta2": 0.5}
    kind = "adam"
    if variant == "amsgrad":
        kind = variant
    else:
        settings["nesterov"] = True
    for t, g in enumerate((2.0, -1.0, 0.25, 0.1), 1):
        p, *states = update(f"{kind}_update", p, np.array([g]), *states, np.array(t), **settings)
        mean = 0.7 * mean + 0.3 * g
        square = 0.5 * square + 0.5 * g * g
        most = max(most, square)
        ahead = 0.7 * mean + 0.3 * g if variant == "nesterov" else mean
        root = sqrt((most if variant == "amsgrad" else square) / (1 - 0.5**t)) + 1e-8
        q -= 0.1 * ahead / (1 - 0.7**t) / root
        assert p[0] == pytest.approx(q, rel=1e-13)


def test_dampening_leaves_the_first_gradient_whole() -> None:
    p, m = np.array([1.0]), np.array([0.0])
    q, n = 1.0, 0.0
    settings = {"learning_rate": 0.1, "momentum": 0.8, "dampening": 0.25, "weight_decay": 0.5}
    for t, g in enumerate(GRADIENTS, 1):
        p, m = update("dampened_update", p, np.array([g]), m, np.array(t), **settings)
        g += 0.5 * q
        n = g if t == 1 else 0.8 * n + 0.75 * g
        q -= 0.1 * n
        assert (p[0], m[0]) == pytest.approx((q, n), rel=1e-14)


def test_centered_rmsprop_divides_by_the_standard_deviation() -> None:
    p, v, m, mean = np.array([1.0]), np.array([1.0]), np.array([0.0]), np.array([0.0])
    q, square, moved, first = 1.0, 1.0, 0.0, 0.0
    settings = {"learning_rate": 0.1, "decay": 0.8, "momentum": 0.5, "epsilon": 0.01}
    for g in GRADIENTS:
        p, v, m, mean = update("centered_update", p, np.array([g]), v, m, mean, **settings)
        square = 0.8 * square + 0.2 * g * g
        first = 0.8 * first + 0.2 * g
        moved = 0.5 * moved + 0.1 * g / sqrt(square - first * first + 0.01)
        q -= moved
        assert (p[0], v[0], m[0], mean[0]) == pytest.approx((q, square, moved, first), rel=1e-13)


def test_ftrl_needs_a_rate() -> None:
    operands = [np.ones(1), np.ones(1), np.ones(1), np.zeros(1), np.array(0.0)]
    with pytest.raises(OptionError) as caught:
        update("ftrl_update", *operands)
    assert str(caught.value) == "`learning_rate of FTRL` is 0.0, expected a number above 0"
