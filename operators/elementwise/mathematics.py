"""Transcendental functions, point by point."""

from math import pi, sqrt

import numpy as np

from shardwright.operators.elementwise.functions import define
from shardwright.operators.info import Array

# Coefficients of Cody's rational approximations, highest power first.
_ERF_NEAR = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e00,
        1.13864154151050156e02,
        3.77485237685302021e02,
        3.20937758913846947e03,
    ),
    (
        1.0,
        2.36012909523441209e01,
        2.44024637934444173e02,
        1.28261652607737228e03,
        2.84423683343917062e03,
    ),
)
_ERFC_MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e00,
        6.61191906371416295e01,
        2.98635138197400131e02,
        8.81952221241769090e02,
        1.71204761263407058e03,
        2.05107837782607147e03,
        1.23033935479799725e03,
    ),
    (
        1.0,
        1.57449261107098347e01,
        1.17693950891312499e02,
        5.37181101862009858e02,
        1.62138957456669019e03,
        3.29079923573345963e03,
        4.36261909014324716e03,
        3.43936767414372164e03,
        1.23033935480374942e03,
    ),
)
_ERFC_FAR = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e00,
        1.87295284992346725e00,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Evaluate by Horner's rule, in place and in the element type of `x`."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def erf(x: Array) -> Array:
    """Return the error function, to within a few units of the last digit.

    References
    ----------
    W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of
    Computation 23 (1969).
    """
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    size = np.minimum(np.abs(x), 6.0)  # erf(6) is 1 to all digits
    squared = np.square(np.minimum(size, 0.5))
    near = x * (_polynomial(_ERF_NEAR[0], squared) / _polynomial(_ERF_NEAR[1], squared))
    far = np.copysign(1 - np.exp(-size * size) * erfc_ratio(size), x)
    return np.where(size < 0.46875, near, far)


def erfc_ratio(size: Array) -> Array:
    """Return exp(x^2) (1 - erf(x)), of numbers from 0.46875 on."""
    middle = np.minimum(size, 4.0)
    ratio = _polynomial(_ERFC_MIDDLE[0], middle) / _polynomial(_ERFC_MIDDLE[1], middle)
    far = np.maximum(size, 4.0)
    squared = 1 / (far * far)
    tail = _polynomial(_ERFC_FAR[0], squared) / _polynomial(_ERFC_FAR[1], squared)
    return np.where(size < 4.0, ratio, (1 / sqrt(pi) - squared * tail) / far)


_POSITIVE = (0.5, 2.0)

define("exp", "Exponential.", np.exp, lambda y: y, keeps="result", flops=10.0)
define("expm1", "Exponential less one.", np.expm1, lambda y: y + 1, keeps="result", flops=10.0)
define("log", "Natural logarithm.", np.log, lambda x: 1 / x, domain=_POSITIVE, flops=10.0)
define(
    "log1p",
    "Logarithm of one more.",
    np.log1p,
    lambda x: 1 / (1 + x),
    domain=(-0.5, 2.0),
    flops=10.0,
)
define("sin", "Sine.", np.sin, np.cos, flops=10.0)
define("cos", "Cosine.", np.cos, lambda x: -np.sin(x), flops=10.0)
define(
    "tan",
    "Tangent.",
    np.tan,
    lambda y: 1 + y * y,
    keeps="result",
    domain=(-1.0, 1.0),
    flops=10.0,
)
define("erf", "Error function.", erf, lambda x: 2 / sqrt(pi) * np.exp(-x * x), flops=20.0)
define("sinh", "Hyperbolic sine.", np.sinh, np.cosh, flops=10.0)
define("cosh", "Hyperbolic cosine.", np.cosh, np.sinh, flops=10.0)
define(
    "asin",
    "Inverse of the sine.",
    np.arcsin,
    lambda x: 1 / np.sqrt(1 - x * x),
    domain=(-0.45, 0.45),
    flops=10.0,
)
define(
    "acos",
    "Inverse of the cosine.",
    np.arccos,
    lambda x: -1 / np.sqrt(1 - x * x),
    domain=(-0.45, 0.45),
    flops=10.0,
)
define("atan", "Inverse of the tangent.", np.arctan, lambda x: 1 / (1 + x * x), flops=10.0)
define(
    "asinh",
    "Inverse of the hyperbolic sine.",
    np.arcsinh,
    lambda x: 1 / np.sqrt(1 + x * x),
    flops=10.0,
)
define(
    "acosh",
    "Inverse of the hyperbolic cosine.",
    np.arccosh,
    lambda x: 1 / np.sqrt(x * x - 1),
    domain=(1.5, 4.0),
    flops=10.0,
)
define(
    "atanh",
    "Inverse of the hyperbolic tangent.",
    np.arctanh,
    lambda x: 1 / (1 - x * x),
    domain=(-0.45, 0.45),
    flops=10.0,
)
