"""Special functions, point by point."""

from math import factorial, pi, sqrt

import numpy as np

from shardwright.operators.elementwise.functions import define
from shardwright.operators.elementwise.mathematics import erf, erfc_ratio
from shardwright.operators.info import Array

# Of the rule that integrates the Bessel functions: half of them lose 2e-7, twice as many gain none.
_NODES = 64
# Up to where so many are enough: the series beyond loses 4e-13 from half of it on, and up to twice
# of it the nodes lose 3e-14.
_NEAR = 30.0
_TERMS = 20  # of that series; half of them lose 2e-13, and the last is 1e-19 of the first
_STEPS = 8  # of Newton's method: half of them lose 1e-6, twice as many gain nothing
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


def erfc(x: Array) -> Array:
    """Return one less the error function, to full relative precision where it is small."""
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    size = np.abs(x)
    tail = np.exp(-size * size) * erfc_ratio(size)
    return np.where(size < 0.46875, 1 - erf(x), np.where(x < 0, 2 - tail, tail))


def erfcx(x: Array) -> Array:
    """Return exp(x^2) times `erfc`, which is small but not zero where `erfc` is."""
    wide = x.astype(np.float64)
    size = np.abs(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        grown = np.exp(np.square(wide))
        tail = np.where(size < 0.46875, np.minimum(grown, 2) * (1 - erf(size)), erfc_ratio(size))
        return np.asarray(np.where(x < 0, 2 * grown - tail, tail), x.dtype)


def log_ndtr(x: Array) -> Array:
    """Return the logarithm of the distribution function of standard normal numbers."""
    wide = x.astype(np.float64)
    below = np.minimum(wide, -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.log(erfcx(-below / sqrt(2)) / 2) - np.square(below) / 2
        found = np.where(x < -1, far, np.log1p(-erfc(np.maximum(wide, -1.0) / sqrt(2)) / 2))
    return np.asarray(np.where(x == -np.inf, -np.inf, found), x.dtype)


def ndtri(x: Array) -> Array:
    """Return the inverse of the distribution function of standard normal numbers.

    By Newton's method on its logarithm, which is concave: from the left of the solution every step
    comes nearer to it.
    """
    p = np.minimum(x, 1 - x).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        goal = np.log(p)
        y = -np.sqrt(-2 * goal)
        for _ in range(_STEPS):
            y = y + (goal - log_ndtr(y)) * erfcx(-y / sqrt(2)) * sqrt(pi / 2)
    y = np.where(p == 0, -np.inf, np.where(p < 0, np.nan, y))
    return np.asarray(np.where(x > 0.5, -y, y), x.dtype)


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


def _bessel(x: Array, order: int) -> Array:
    """Return the modified Bessel function of the first kind, of order 0 or 1."""
    return np.asarray(_scaled_bessel(x, order) * np.exp(np.abs(x)), x.dtype)


def _bessel_i1_slope(x: Array) -> Array:
    """Return the derivative; one half at zero, where the formula divides by it."""
    over = _bessel(x, 1) / np.where(x == 0, 1, x)
    return np.where(x == 0, 0.5, _bessel(x, 0) - over)


def _scaled_bessel(x: Array, order: int) -> Array:
    """Return exp(-|x|) times the modified Bessel function of the first kind, of order 0 or 1.

    Near zero it is the mean of ``exp(|x| (cos t - 1)) cos(order t)`` over the circle, which equal
    steps give to all digits; far away the asymptotic series. Of four angles two have the same
    cosine, and two its negative: their difference is taken before it could cancel.
    """
    size = np.abs(x)
    near, mean = np.minimum(size, _NEAR), np.zeros_like(x)
    for node in range(_NODES // 4):
        cosine = np.cos(pi * (2 * node + 1) / _NODES)
        less = np.expm1(-2 * near * cosine)
        both = -cosine * less if order else 2 + less
        mean += np.exp(near * (cosine - 1)) * (both * 2 / _NODES)
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
    "erfcx",
    "exp(x^2) times one less the error function.",
    erfcx,
    lambda x: 2 * x * erfcx(x) - 2 / sqrt(pi),
    flops=30.0,
)
define(
    "log_ndtr",
    "Logarithm of the distribution function of standard normal numbers.",
    log_ndtr,
    lambda x: sqrt(2 / pi) / erfcx(-x / sqrt(2)),
    flops=40.0,
)
define(
    "ndtri",
    "Inverse of the distribution function of standard normal numbers.",
    ndtri,
    lambda y: sqrt(2 * pi) * np.exp(y * y / 2),
    keeps="result",
    domain=(0.1, 0.9),
    flops=400.0,
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
