"""Special functions, point by point."""

from math import factorial, pi, sqrt

import numpy as np

from shardwright.operators.elementwise import define
from shardwright.operators.info import Array
from shardwright.operators.mathematics import erf, erfc_ratio

_NODES = 64  # of the rule that integrates the Bessel functions
_NEAR = 30.0  # up to where that many nodes are enough
_TERMS = 20


def erfc(x: Array) -> Array:
    """Return one less the error function, to full relative precision where it is small."""
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    size = np.abs(x)
    tail = np.exp(-size * size) * erfc_ratio(size)
    return np.where(size < 0.46875, 1 - erf(x), np.where(x < 0, 2 - tail, tail))


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
