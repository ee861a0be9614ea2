"""Operators of a plan that compute point by point.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32 where there are several steps.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.arrays import dtype_of
from .shared.elementwise import *  # noqa: F403
from .shared.elementwise import cos, fast_gelu, log, log1p, sin, softplus, square, widened

# Arithmetic

add, sub, mul, div = jnp.add, jnp.subtract, jnp.multiply, jnp.divide
neg, floor_div, equal = jnp.negative, jnp.floor_divide, jnp.equal


def identity(x: Array) -> Array:
    return x


stop_gradient = identity


# Types


def cast(x: Array, *, dtype: str = "float32", reduce: str = "", accumulate: str = "") -> Array:
    return x.astype(dtype_of(dtype))


def convert(x: Array, *, dtype: str = "float32") -> Array:
    return x.astype(dtype_of(dtype))


def fill(*, shape: Sequence[int], dtype: str = "float32", value: float = 0.0) -> Array:
    return jnp.full(tuple(shape), value, dtype_of(dtype))


# Functions of one variable, and their gradients

rsqrt = lax.rsqrt


def relu(x: Array) -> Array:
    return jnp.maximum(x, 0)


def relu6(x: Array) -> Array:
    return jnp.clip(x, 0, 6)


def leaky_relu(x: Array, *, slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, slope * x)


@widened
def sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


@widened
def silu(x: Array) -> Array:
    return x * jax.nn.sigmoid(x)


@widened
def mish(x: Array) -> Array:
    return x * jnp.tanh(softplus(x))


@widened
def softsign(x: Array) -> Array:
    return x / (1 + jnp.abs(x))


@widened
def gelu(x: Array, *, approximate: bool = True) -> Array:
    if approximate:
        return 0.5 * x * (1 + jnp.tanh((2 / pi) ** 0.5 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x / 2**0.5))


@widened
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def by_operand(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the gradient of a smooth function, by JAX, from its operand."""

    @widened
    def gradient(dy: Array, x: Array, **attributes: Any) -> Array:
        found: Array = jax.vjp(lambda x: function(x, **attributes), x)[1](dy)[0]
        return found

    return gradient


log_gradient, log1p_gradient = by_operand(log), by_operand(log1p)
sin_gradient, cos_gradient = by_operand(sin), by_operand(cos)
square_gradient = by_operand(square)
softplus_gradient, silu_gradient = by_operand(softplus), by_operand(silu)
fast_gelu_gradient, mish_gradient = by_operand(fast_gelu), by_operand(mish)


@widened
def gelu_gradient(dy: Array, x: Array, *, approximate: bool = True) -> Array:
    return by_operand(gelu)(dy, x, approximate=approximate)


@widened
def tanh_gradient(dy: Array, y: Array) -> Array:
    return dy * (1 - y * y)


@widened
def sigmoid_gradient(dy: Array, y: Array) -> Array:
    return dy * y * (1 - y)
