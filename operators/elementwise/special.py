"""Special functions, point by point."""

from math import comb, factorial, inf, pi, sqrt

import numpy as np

from shardwright.operators.elementwise.functions import define
from shardwright.operators.elementwise.mathematics import erf, erfc_ratio
from shardwright.operators.info import Array

_NODES = 64  # of the rule that integrates the Bessel functions
_NEAR = 30.0  # up to where that many nodes are enough
_TERMS = 20
# Coefficients of polynomials in what is left of log(1 - x^2), highest power first: M. Giles,
# "Approximating the erfinv function", GPU Computing Gems, 2012.
_ERFINV_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_ERFINV_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
_SHIFT = 8  # from where on the asymptotic series of the gamma function have all digits
_BERNOULLI = (
    *((2, 1 / 6), (4, -1 / 30), (6, 1 / 42), (8, -1 / 30), (10, 5 / 66), (12, -691 / 2730)),
    (14, 7 / 6),
)


def erfc(x: Array) -> Array:
    """Return one less the error function, to full relative precision where it is small."""
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    size = np.abs(x)
    tail = np.exp(-size * size) * erfc_ratio(size)
    return np.where(size < 0.46875, 1 - erf(x), np.where(x < 0, 2 - tail, tail))


def erfinv(x: Array) -> Array:
    """Return the inverse error function: an approximation, then two Newton steps."""
    size = np.minimum(np.abs(x).astype(np.float64), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = -np.log1p(-size * size)
        near, far = np.polyval(_ERFINV_NEAR, w - 2.5), np.polyval(_ERFINV_FAR, np.sqrt(w) - 3)
        y = np.where(w < 5, near, far) * size
        for _ in range(2):
            # Where the error function is near one, its distance from one has the digits.
            wrong = np.where(size < 0.5, erf(y) - size, (1 - size) - erfc(y))
            y = y - wrong * np.exp(y * y) * (sqrt(pi) / 2)
    y = np.where(np.abs(x) > 1, np.nan, np.where(size == 1, np.inf, y))
    return np.asarray(np.copysign(y, x), x.dtype)


def _series(z: Array, coefficients: tuple[float, ...]) -> Array:
    """Return a polynomial in ``1 / z^2``, the constant first."""
    total = np.zeros_like(z)
    for coefficient in reversed(coefficients):
        total = total / (z * z) + coefficient
    return total


def lgamma(x: Array) -> Array:
    """Return the logarithm of the absolute value of the gamma function."""
    up = np.where(x < 0.5, 1 - x, x).astype(np.float64)  # by reflection
    far = up >= _SHIFT
    z, product = np.where(far, up, up + _SHIFT), np.ones_like(up)
    for k in range(_SHIFT):
        product = product * np.where(far, 1, up + k)
    tail = _series(z, (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)) / z
    value = (z - 0.5) * np.log(z) - z + np.log(2 * pi) / 2 + tail - np.log(product)
    with np.errstate(divide="ignore", invalid="ignore"):
        reflected = np.log(pi / np.abs(np.sin(pi * x))) - value
        found = np.where(x < 0.5, reflected, value)
    return np.asarray(np.where(_is_pole(x) | np.isinf(x), np.inf, found), x.dtype)


def _is_pole(x: Array) -> Array:
    """Return where the gamma function is infinite: at zero and at negative whole numbers."""
    return np.asarray((x <= 0) & (x == np.floor(x)))


def polygamma(x: Array, order: int) -> Array:
    """Return a derivative of the logarithm of the gamma function: the first has the order 0.

    By the asymptotic series 6.4.11 of M. Abramowitz and I. Stegun, "Handbook of Mathematical
    Functions", 1964, behind steps of the recurrence 6.4.6; on the left by the reflection 6.4.7.
    """
    up = np.where(x < 0.5, 1 - x, x).astype(np.float64)
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
        reflected = (-1) ** order * value - pi ** (order + 1) * slope(1 / np.tan(pi * x))
        found = np.where(x < 0.5, reflected, value)
    at_pole: Array | float = inf if order % 2 else -inf
    if order == 0:  # from either side of zero, and of other poles, another infinity
        at_pole = np.where(x < 0, np.nan, np.copysign(inf, -x))
    return np.asarray(np.where(_is_pole(x), at_pole, found), x.dtype)


def _bessel(x: Array, order: int) -> Array:
    """Return the modified Bessel function of the first kind, of order 0 or 1."""
    return np.asarray(_scaled_bessel(x, order) * np.exp(np.abs(x)), x.dtype)


def _bessel_i1_slope(x: Array) -> Array:
    """Return the derivative; one half at zero, where the formula divides by it."""
    over = _bessel(x, 1) / np.where(x == 0, 1, x)
    return np.where(x == 0, 0.5, _bessel(x, 0) - over)


def _scaled_bessel(x: Array, order: int) -> Array:
    """Return exp(-|x|) times the modified Bessel function of the first kind, of order 0 or 1.

    Near zero it is the mean of ``exp(|x| (cos t - 1)) cos(order t)`` over the circle, which the
    trapezoidal rule gives to all digits; far away the asymptotic series.
    """
    size = np.abs(x)
    near, mean = np.minimum(size, _NEAR), np.zeros_like(x)
    for node in range(_NODES):
        cosine = np.cos(2 * pi * node / _NODES)
        mean += np.exp(near * (cosine - 1)) * (cosine**order / _NODES)
    far = 1 / (8 * np.maximum(size, _NEAR))
    series = np.zeros_like(x)
    for k in reversed(range(_TERMS)):
        factors = [4 * order * order - (2 * i - 1) ** 2 for i in range(1, k + 1)]
        series = series * far + (-1) ** k * np.prod(factors, dtype=float) / factorial(k)
    value = np.where(size <= _NEAR, mean, series * np.sqrt(4 * far / pi))
    return np.asarray(value * np.sign(x) if order else value, x.dtype)


def _bessel_i0e(x: Array) -> Array:
    return _scaled_bessel(x, 0)


def _bessel_i1e(x: Array) -> Array:
    return _scaled_bessel(x, 1)


def _bessel_i1e_slope(x: Array) -> Array:
    """Return the derivative; one half at zero, where the formula divides by it."""
    at_zero = x == 0
    over = _bessel_i1e(x) / np.where(at_zero, 1, x)
    slope = _bessel_i0e(x) - np.sign(x) * _bessel_i1e(x) - over
    return np.where(at_zero, 0.5, slope)


define(
    "erfc",
    "One less the error function.",
    erfc,
    lambda x: -2 / sqrt(pi) * np.exp(-x * x),
    flops=20.0,
)
define(
    "bessel_i0e",
    "exp(-|x|) times the modified Bessel function of order zero.",
    _bessel_i0e,
    lambda x: _bessel_i1e(x) - np.sign(x) * _bessel_i0e(x),
    flops=100.0,
)
define(
    "bessel_i1e",
    "exp(-|x|) times the modified Bessel function of order one.",
    _bessel_i1e,
    _bessel_i1e_slope,
    flops=100.0,
)
define(
    "bessel_i0",
    "The modified Bessel function of order zero.",
    lambda x: _bessel(x, 0),
    lambda x: _bessel(x, 1),
    flops=110.0,
)
define(
    "bessel_i1",
    "The modified Bessel function of order one.",
    lambda x: _bessel(x, 1),
    _bessel_i1_slope,
    flops=110.0,
)
define(
    "erfinv",
    "Inverse of the error function.",
    erfinv,
    lambda y: sqrt(pi) / 2 * np.exp(y * y),
    keeps="result",
    domain=(-0.9, 0.9),
    flops=100.0,
)
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
