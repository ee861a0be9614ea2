"""Rarer functions of real numbers, by functions that all systems have.

`functions` has these, and the gradients that systems compute in ways of their own.
"""

from collections.abc import Callable
from math import factorial, pi, sqrt
from typing import Any

from . import arrays
from .arrays import Array, special, xp
from .elementwise import widened


def _times(slope: Callable[..., Array]) -> Callable[..., Any]:
    """Return the gradient of a function, from its slope at the saved tensor."""

    @widened
    def gradient(dy: Array, kept: Array, **attributes: Any) -> Array:
        return dy * slope(kept, **attributes)

    return gradient


# Trigonometric and hyperbolic functions

tan, sinh, cosh = xp.tan, xp.sinh, xp.cosh
asin, acos, atan = xp.asin, xp.acos, xp.atan
asinh, acosh, atanh = xp.asinh, xp.acosh, xp.atanh
tan_gradient = _times(lambda y: 1 + y * y)

# The error function, and the distribution function of normal numbers

erf, erfc, erfinv = special.erf, special.erfc, widened(special.erfinv)
log_ndtr, ndtri = widened(special.log_ndtr), widened(special.ndtri)
erfinv_gradient = _times(lambda y: sqrt(pi) / 2 * xp.exp(y * y))
ndtri_gradient = _times(lambda y: sqrt(2 * pi) * xp.exp(y * y / 2))

# Bessel functions

bessel_i0, bessel_i0e = widened(special.i0), widened(special.i0e)
bessel_i1, bessel_i1e = widened(special.i1), widened(special.i1e)
bessel_i0_gradient = _times(bessel_i1)
bessel_i0e_gradient = _times(lambda x: bessel_i1e(x) - xp.sign(x) * bessel_i0e(x))


@_times
def bessel_i1_gradient(x: Array) -> Array:
    slope = bessel_i0(x) - bessel_i1(x) / xp.where(x == 0, 1, x)
    return xp.where(x == 0, 0.5, slope)


@_times
def bessel_i1e_gradient(x: Array) -> Array:
    over = bessel_i1e(x) / xp.where(x == 0, 1, x)
    return xp.where(x == 0, 0.5, bessel_i0e(x) - xp.sign(x) * bessel_i1e(x) - over)


# The gamma function

lgamma = special.gammaln


@widened
def polygamma(x: Array, *, order: int = 0) -> Array:
    # PyTorch's own function of order 1 has nine digits.
    if order == 0:
        return special.digamma(x)
    size = factorial(order) * special.zeta(xp.full_like(x, order + 1), x)
    return size if order % 2 else -size


@widened
def polygamma_gradient(dy: Array, x: Array, *, order: int = 0) -> Array:
    return dy * polygamma(x, order=order + 1)


# Activations


@widened
def selu(x: Array, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    return gamma * xp.where(x > 0, x, alpha * xp.expm1(arrays.at_most(x, 0)))


@widened
def selu_gradient(
    dy: Array,
    y: Array,
    *,
    alpha: float = 1.6732632423543772,
    gamma: float = 1.0507009873554805,
) -> Array:
    return dy * xp.where(y > 0, gamma, y + gamma * alpha)


def hard_shrink(x: Array, *, bound: float = 0.5) -> Array:
    return xp.where(xp.abs(x) > bound, x, arrays.scalar(0, x))


@widened
def soft_shrink(x: Array, *, bound: float = 0.5) -> Array:
    return xp.sign(x) * arrays.at_least(xp.abs(x) - bound, 0)


def hard_shrink_gradient(dy: Array, x: Array, *, bound: float = 0.5) -> Array:
    return xp.where(xp.abs(x) > bound, dy, arrays.scalar(0, dy))


soft_shrink_gradient = hard_shrink_gradient


@widened
def prelu_gradient(dy: Array, x: Array, weight: Array) -> tuple[Array, ...]:
    dx = xp.where(x > 0, dy, dy * weight.reshape(-1, *(1,) * (x.ndim - 2)))
    others = tuple(d for d in range(x.ndim) if d != 1)
    return dx, (dy * arrays.at_most(x, 0)).sum(others)


# Bits of integers

bitwise_and, bitwise_or, bitwise_xor = xp.bitwise_and, xp.bitwise_or, xp.bitwise_xor
left_shift, right_shift = xp.bitwise_left_shift, xp.bitwise_right_shift
invert, gcd = xp.bitwise_not, xp.gcd
