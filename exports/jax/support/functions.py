"""Operators of a plan that are rarer functions of real numbers: special ones, powers, activations.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32.
"""

from collections.abc import Callable
from math import factorial, pi, sqrt
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .pointwise import by_operand, widened


def _times(slope: Callable[..., Array]) -> Callable[..., Any]:
    """Return the gradient of a function, from its slope at the saved tensor."""

    @widened
    def gradient(dy: Array, kept: Array, **attributes: Any) -> Array:
        return dy * slope(kept, **attributes)

    return gradient


# Trigonometric and hyperbolic functions

tan, sinh, cosh = jnp.tan, jnp.sinh, jnp.cosh
asin, acos, atan = jnp.arcsin, jnp.arccos, jnp.arctan
asinh, acosh, atanh = jnp.arcsinh, jnp.arccosh, jnp.arctanh
tan_gradient = _times(lambda y: 1 + y * y)
sinh_gradient, cosh_gradient = by_operand(sinh), by_operand(cosh)
asin_gradient, acos_gradient, atan_gradient = map(by_operand, (asin, acos, atan))
asinh_gradient, acosh_gradient, atanh_gradient = map(by_operand, (asinh, acosh, atanh))

# The error function, and the distribution function of normal numbers; JAX has no `erfcx`

erf, erfc = lax.erf, lax.erfc
erfinv = widened(lax.erf_inv)
log_ndtr, ndtri = widened(jax.scipy.special.log_ndtr), widened(jax.scipy.special.ndtri)
erf_gradient, erfc_gradient = by_operand(erf), by_operand(erfc)
erfinv_gradient = _times(lambda y: sqrt(pi) / 2 * jnp.exp(y * y))
ndtri_gradient = _times(lambda y: sqrt(2 * pi) * jnp.exp(y * y / 2))


@_times
def log_ndtr_gradient(x: Array) -> Array:
    return jnp.exp(-x * x / 2 - log_ndtr(x)) / sqrt(2 * pi)


# Bessel functions

bessel_i0, bessel_i0e = widened(jax.scipy.special.i0), widened(lax.bessel_i0e)
bessel_i1, bessel_i1e = widened(jax.scipy.special.i1), widened(lax.bessel_i1e)
bessel_i0_gradient = _times(bessel_i1)
bessel_i0e_gradient = _times(lambda x: bessel_i1e(x) - jnp.sign(x) * bessel_i0e(x))


@_times
def bessel_i1_gradient(x: Array) -> Array:
    slope = bessel_i0(x) - bessel_i1(x) / jnp.where(x == 0, 1, x)
    return jnp.where(x == 0, 0.5, slope)


@_times
def bessel_i1e_gradient(x: Array) -> Array:
    over = bessel_i1e(x) / jnp.where(x == 0, 1, x)
    return jnp.where(x == 0, 0.5, bessel_i0e(x) - jnp.sign(x) * bessel_i1e(x) - over)


# The gamma function

lgamma = lax.lgamma
lgamma_gradient = by_operand(lgamma)


@widened
def polygamma(x: Array, *, order: int = 0) -> Array:
    if order == 0:
        return lax.digamma(x)
    size = factorial(order) * lax.zeta(jnp.full_like(x, order + 1), x)
    return size if order % 2 else -size


@widened
def polygamma_gradient(dy: Array, x: Array, *, order: int = 0) -> Array:
    return dy * polygamma(x, order=order + 1)


@widened
def incomplete_gamma(a: Array, x: Array, *, upper: bool = False) -> Array:
    a, x = jnp.broadcast_arrays(a, x)
    return lax.igammac(a, x) if upper else lax.igamma(a, x)


# Activations


@widened
def selu(x: Array, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    return gamma * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


@widened
def selu_gradient(
    dy: Array,
    y: Array,
    *,
    alpha: float = 1.6732632423543772,
    gamma: float = 1.0507009873554805,
) -> Array:
    return dy * jnp.where(y > 0, gamma, y + gamma * alpha)


def hard_shrink(x: Array, *, bound: float = 0.5) -> Array:
    return jnp.where(jnp.abs(x) > bound, x, jnp.zeros((), x.dtype))


@widened
def soft_shrink(x: Array, *, bound: float = 0.5) -> Array:
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - bound, 0)


def hard_shrink_gradient(dy: Array, x: Array, *, bound: float = 0.5) -> Array:
    return jnp.where(jnp.abs(x) > bound, dy, jnp.zeros((), dy.dtype))


soft_shrink_gradient = hard_shrink_gradient


def prelu(x: Array, weight: Array) -> Array:
    return jnp.where(x > 0, x, x * weight.reshape(-1, *(1,) * (x.ndim - 2)))


@widened
def prelu_gradient(dy: Array, x: Array, weight: Array) -> tuple[Array, ...]:
    dx = jnp.where(x > 0, dy, dy * weight.reshape(-1, *(1,) * (x.ndim - 2)))
    others = tuple(d for d in range(x.ndim) if d != 1)
    return dx, (dy * jnp.minimum(x, 0)).sum(others)


# Bits of integers

bitwise_and, bitwise_or, bitwise_xor = jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor
left_shift, right_shift = jnp.left_shift, jnp.right_shift
invert, gcd = jnp.bitwise_not, jnp.gcd


def population_count(x: Array) -> Array:
    return jnp.bitwise_count(x).astype(jnp.uint8)
