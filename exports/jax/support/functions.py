"""Operators of a plan that are rarer functions of real numbers: special ones, powers, activations.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32. JAX has no `erfcx`.
"""

from math import pi, sqrt

import jax.numpy as jnp
from jax import Array, lax

from .pointwise import by_operand
from .shared.elementwise import widened
from .shared.special import *  # noqa: F403
from .shared.special import (
    _times,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cosh,
    erf,
    erfc,
    lgamma,
    log_ndtr,
    sinh,
)

sinh_gradient, cosh_gradient = by_operand(sinh), by_operand(cosh)
asin_gradient, acos_gradient, atan_gradient = map(by_operand, (asin, acos, atan))
asinh_gradient, acosh_gradient, atanh_gradient = map(by_operand, (asinh, acosh, atanh))
erf_gradient, erfc_gradient = by_operand(erf), by_operand(erfc)
lgamma_gradient = by_operand(lgamma)


@_times
def log_ndtr_gradient(x: Array) -> Array:
    return jnp.exp(-x * x / 2 - log_ndtr(x)) / sqrt(2 * pi)


@widened
def incomplete_gamma(a: Array, x: Array, *, upper: bool = False) -> Array:
    a, x = jnp.broadcast_arrays(a, x)
    return lax.igammac(a, x) if upper else lax.igamma(a, x)


def prelu(x: Array, weight: Array) -> Array:
    return jnp.where(x > 0, x, x * weight.reshape(-1, *(1,) * (x.ndim - 2)))


def population_count(x: Array) -> Array:
    return jnp.bitwise_count(x).astype(jnp.uint8)
