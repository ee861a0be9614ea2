"""The gamma function, point by point: its logarithm, derivatives of that, incomplete integrals."""

from math import comb, factorial, inf, pi
from typing import ClassVar

import numpy as np

from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.elementwise.functions import Binary, define
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.rule import ShardView

# From where on the asymptotic series of the gamma function have all digits: from half of it on they
# lose 6e-11, and twice as many steps to it gain nothing.
_SHIFT = 8
_LAST = 2.0**-50  # of a sum, the share of a term after which others are below its rounding
_BERNOULLI = (
    *((2, 1 / 6), (4, -1 / 30), (6, 1 / 42), (8, -1 / 30), (10, 5 / 66), (12, -691 / 2730)),
    (14, 7 / 6),
)


def _series(z: Array, coefficients: tuple[float, ...]) -> Array:
    """Return a polynomial in ``1 / z^2``, the constant first."""
    total = np.zeros_like(z)
    for coefficient in reversed(coefficients):
        total = total / (z * z) + coefficient
    return total


def lgamma(x: Array) -> Array:
    """Return the logarithm of the absolute value of the gamma function."""
    wide = x.astype(np.float64)
    up = np.where(wide < 0.5, 1 - wide, wide)  # by reflection
    far = up >= _SHIFT
    z, product = np.where(far, up, up + _SHIFT), np.ones_like(up)
    for k in range(_SHIFT):
        product = product * np.where(far, 1, up + k)
    tail = _stirling(z)
    value = (z - 0.5) * np.log(z) - z + np.log(2 * pi) / 2 + tail - np.log(product)
    with np.errstate(divide="ignore", invalid="ignore"):
        reflected = np.log(pi / np.abs(np.sin(pi * wide))) - value
        found = np.where(x < 0.5, reflected, value)
    return np.asarray(np.where(_is_pole(x) | np.isinf(x), np.inf, found), x.dtype)


def _stirling(z: Array) -> Array:
    """Return by how much the logarithm of the gamma function is above Stirling's formula."""
    return _series(z, (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)) / z


def _is_pole(x: Array) -> Array:
    """Return where the gamma function is infinite: at zero and at negative whole numbers."""
    return np.asarray((x <= 0) & (x == np.floor(x)))


def polygamma(x: Array, order: int) -> Array:
    """Return a derivative of the logarithm of the gamma function: the first has the order 0.

    By the asymptotic series 6.4.11 of M. Abramowitz and I. Stegun, "Handbook of Mathematical
    Functions", 1964, behind steps of the recurrence 6.4.6; on the left by the reflection 6.4.7.
    """
    wide = x.astype(np.float64)
    up = np.where(wide < 0.5, 1 - wide, wide)
    shift = _SHIFT + 2 * order  # from where on the series of every order has all digits
    far, steps = up >= shift, np.zeros_like(up)
    z = np.where(far, up, up + shift)
    for k in range(shift):
        steps = steps + np.where(far, 0, (up + k) ** -(order + 1))
    tail = _series(z, tuple(b / k * comb(k + order - 1, order) for k, b in _BERNOULLI)) / (z * z)
    head = (1 / order + tail) / z**order if order else tail - np.log(z)
    size = factorial(order) * (head + 0.5 / z ** (order + 1) + steps)
    value = -size if order % 2 == 0 else size
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.polynomial.Polynomial([0, 1])
        for _ in range(order):  # of the cotangent, in powers of the cotangent
            slope = -slope.deriv() * np.polynomial.Polynomial([1, 0, 1])
        reflected = (-1) ** order * value - pi ** (order + 1) * slope(1 / np.tan(pi * wide))
        found = np.where(x < 0.5, reflected, value)
    at_pole: Array | float = inf if order % 2 else -inf
    if order == 0:  # from either side of zero, and of other poles, another infinity
        at_pole = np.where(x < 0, np.nan, np.copysign(inf, -x))
    return np.asarray(np.where(_is_pole(x), at_pole, found), x.dtype)


define(
    "lgamma",
    "Logarithm of the absolute value of the gamma function.",
    lgamma,
    lambda x: polygamma(x, 0),
    domain=(0.3, 5.0),
    flops=60.0,
)
define(
    "polygamma",
    "Derivative of `lgamma`, of the derivative `order`: the digamma function has the order 0.",
    polygamma,
    lambda x, order: polygamma(x, order + 1),
    defaults={"order": 0},
    example={"order": 1},
    not_negative=("order",),
    domain=(0.3, 5.0),
    flops=60.0,
)


@register
class IncompleteGamma(Binary):
    """The share of the gamma integral of the first operand below the second one.

    The share above it with ``upper``. There is no gradient by the first operand.
    """

    name = "incomplete_gamma"
    defaults: ClassVar = {"upper": False}
    of_reals = True
    flops_per_point = 200.0
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]"), ranges={0: (0.5, 4.0), 1: (0.3, 6.0)}, constants=(0,)),
        Example(
            ("f64[4, 1]", "f64[2, 1, 6]"),
            {"upper": True},
            {0: (0.5, 4.0), 1: (0.3, 6.0)},
            constants=(0,),
        ),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum a series below, and a continued fraction above."""
        a, x = np.broadcast_arrays(*(operand.astype(np.float64) for operand in operands))
        found = _incomplete(a, x, self.attributes["upper"])
        return np.asarray(found, operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply by what is integrated."""
        (a, x), emit = at.operands, build.emit
        power = emit("mul", emit("add_scalar", a, value=-1.0), emit("log", x))
        slope = emit("exp", emit("sub", emit("sub", power, x), emit("lgamma", a)))
        dx = emit("mul", at.cotangents[0], slope)
        return [None, unbroadcast(build, emit("neg", dx) if self.attributes["upper"] else dx, x)]


def _incomplete(a: Array, x: Array, upper: bool) -> Array:
    """Return a share of the gamma integral, by 6.5.29 and 6.5.31 of Abramowitz and Stegun."""
    safe = np.where(np.isfinite(a) & (a > 0), a, 1.0)
    is_series = x < safe + 1
    with np.errstate(all="ignore"):
        factor = _factor(safe, x)
        lower = factor * _below(safe, np.where(is_series & (x > 0), x, 0.0))
        above = factor * _above(np.where(is_series, 1.0, safe), np.where(is_series, 3.0, x))
        if upper:
            found = np.where(is_series, 1 - lower, above)
        else:
            found = np.where(is_series, lower, 1 - above)
    is_above = (x == 0) | np.isposinf(a)
    is_end = is_above | np.isposinf(x) | (a == 0)
    found = np.where(is_end, is_above if upper else ~is_above, found)
    none = (x < 0) | (a < 0) | np.isnan(x + a) | ((a == 0) & (x == 0))
    none = none | (np.isinf(a) & np.isinf(x))
    return np.asarray(np.where(none, np.nan, found))


def _factor(a: Array, x: Array) -> Array:
    """Return ``x^a exp(-x)`` over the gamma function, by Stirling's series where it serves."""
    is_far = a >= _SHIFT
    z = np.where(is_far, a, _SHIFT)
    beside = (x - z) / z
    far = np.sqrt(z / (2 * pi)) * np.exp(z * (np.log1p(beside) - beside) - _stirling(z))
    return np.asarray(np.where(is_far, far, np.exp(a * np.log(x) - x - lgamma(np.minimum(a, 9)))))


def _below(a: Array, x: Array) -> Array:
    """Return the sum of ``x^n / (a (a + 1) ... (a + n))``."""
    term = 1 / a
    total, n = term, 0
    while (term > total * _LAST).any():
        n += 1
        term = term * x / (a + n)
        total = total + term
    return np.asarray(total)


def _above(a: Array, x: Array) -> Array:
    """Return the continued fraction of the integral above, by Lentz's method."""
    b = x + 1 - a
    d = 1 / b
    c, found, n = np.full_like(b, np.inf), d, 0
    change = np.full_like(b, 2.0)
    while (np.abs(change - 1) > _LAST).any():
        n += 1
        step = n * (a - n)
        b = b + 2
        d, c = 1 / (step * d + b), b + step / c
        change = c * d
        found = found * change
    return np.asarray(found)
