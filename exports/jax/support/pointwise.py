"""Operators of a plan that compute point by point.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32 where there are several steps.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from math import inf, pi
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

_LOW = (jnp.float16, jnp.bfloat16)


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function of tensors of 16 bits in float32; each result has the operands' type."""

    @wraps(function)
    def run(*tensors: Array, **attributes: Any) -> Any:
        low = next((t.dtype for t in tensors if t.dtype in _LOW), None)
        if low is None:
            return function(*tensors, **attributes)
        wide = (t.astype(jnp.float32) if t.dtype in _LOW else t for t in tensors)
        found = function(*wide, **attributes)
        if isinstance(found, tuple):
            return tuple(_narrowed(t, low) for t in found)
        return _narrowed(found, low)

    return run


def _narrowed(tensor: Array, low: Any) -> Array:
    return tensor.astype(low) if tensor.dtype == jnp.float32 else tensor


# Arithmetic

add, sub, mul, div = jnp.add, jnp.subtract, jnp.multiply, jnp.divide
neg, sign, power, atan2 = jnp.negative, jnp.sign, jnp.power, jnp.arctan2
mod, floor_div = jnp.remainder, jnp.floor_divide
floor, ceil, trunc = jnp.floor, jnp.ceil, jnp.trunc
round = jnp.round
zeros_like, ones_like = jnp.zeros_like, jnp.ones_like


def identity(x: Array) -> Array:
    return x


stop_gradient = identity


def with_gradient_of(value: Array, source: Array) -> Array:
    return value


def on_gradient(
    x: Array, *others: Array, shapes: tuple[tuple[int, ...], ...]
) -> Array | tuple[Array, ...]:
    made = tuple(jnp.zeros(shape, x.dtype) for shape in shapes)
    return made if len(made) > 1 else made[0]


def scale(x: Array, *, factor: float = 1.0) -> Array:
    return x * jnp.asarray(factor, x.dtype)


def add_scalar(x: Array, *, value: float = 0.0) -> Array:
    return x + jnp.asarray(value, x.dtype)


def bias_add(x: Array, bias: Array, *, axis: int = 1) -> Array:
    return x + bias.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


def div_no_nan(a: Array, b: Array) -> Array:
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def squared_difference(a: Array, b: Array) -> Array:
    return jnp.square(a - b)


# Comparisons and types

equal, not_equal = jnp.equal, jnp.not_equal
less, less_equal, greater, greater_equal = (
    *(jnp.less, jnp.less_equal),
    *(jnp.greater, jnp.greater_equal),
)
logical_and, logical_or = jnp.logical_and, jnp.logical_or
logical_xor, logical_not = jnp.logical_xor, jnp.logical_not
is_nan, is_inf, is_finite = jnp.isnan, jnp.isinf, jnp.isfinite


def where(condition: Array, a: Array, b: Array) -> Array:
    return jnp.where(condition, a, b)


def mask(x: Array, keep: Array) -> Array:
    return jnp.where(keep, x, jnp.zeros((), x.dtype))


def dtype_of(name: str) -> Any:
    """Return the element type of a name, `float32`; 64 bits are 32 where JAX has no wider types."""
    return jax.dtypes.canonicalize_dtype(name)


def cast(x: Array, *, dtype: str = "float32", reduce: str = "", accumulate: str = "") -> Array:
    return x.astype(dtype_of(dtype))


def convert(x: Array, *, dtype: str = "float32") -> Array:
    return x.astype(dtype_of(dtype))


def fill(*, shape: Sequence[int], dtype: str = "float32", value: float = 0.0) -> Array:
    return jnp.full(tuple(shape), value, dtype_of(dtype))


# Functions of one variable, and their gradients

exp, expm1, log, log1p = jnp.exp, jnp.expm1, jnp.log, jnp.log1p
sin, cos, tanh = jnp.sin, jnp.cos, jnp.tanh
abs, square, rsqrt = jnp.abs, jnp.square, lax.rsqrt
sqrt, reciprocal = jnp.sqrt, jnp.reciprocal
exp_gradient = jnp.multiply


def pow(x: Array, *, exponent: float = 1.0) -> Array:
    return jnp.power(x, exponent)


def maximum(a: Array, b: Array, *, halves: bool = False, both: bool = False) -> Array:
    return jnp.maximum(a, b)


def minimum(a: Array, b: Array, *, halves: bool = False, both: bool = False) -> Array:
    return jnp.minimum(a, b)


def clip(x: Array, *, low: float = 0.0, high: float = 1.0, inside: bool = False) -> Array:
    return jnp.clip(x, low, high)


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


@widened
def fast_gelu(x: Array) -> Array:
    return x * jax.nn.sigmoid(1.702 * x)


@widened
def softplus(x: Array) -> Array:
    return jnp.logaddexp(x, 0)


@widened
def hard_sigmoid(x: Array, *, alpha: float = 1 / 6, beta: float = 0.5) -> Array:
    return jnp.clip(alpha * x + beta, 0, 1)


@widened
def hard_swish(x: Array) -> Array:
    return x * jnp.clip(x / 6 + 0.5, 0, 1)


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
def pow_gradient(dy: Array, x: Array, *, exponent: float = 1.0) -> Array:
    return dy * exponent * jnp.power(x, exponent - 1 if exponent else 0)


@widened
def expm1_gradient(dy: Array, y: Array) -> Array:
    return dy * (y + 1)


@widened
def tanh_gradient(dy: Array, y: Array) -> Array:
    return dy * (1 - y * y)


@widened
def abs_gradient(dy: Array, x: Array) -> Array:
    return dy * jnp.sign(x)


@widened
def sqrt_gradient(dy: Array, y: Array) -> Array:
    return dy * 0.5 / y


@widened
def rsqrt_gradient(dy: Array, y: Array) -> Array:
    return dy * -0.5 * y * y * y


@widened
def reciprocal_gradient(dy: Array, y: Array) -> Array:
    return -dy * y * y


@widened
def sigmoid_gradient(dy: Array, y: Array) -> Array:
    return dy * y * (1 - y)


def relu_gradient(dy: Array, y: Array) -> Array:
    return jnp.where(y > 0, dy, jnp.zeros((), dy.dtype))


def relu6_gradient(dy: Array, y: Array) -> Array:
    return jnp.where((y > 0) & (y < 6), dy, jnp.zeros((), dy.dtype))


def leaky_relu_gradient(dy: Array, y: Array, *, slope: float = 0.01) -> Array:
    return jnp.where(y > 0, dy, dy * slope)


@widened
def elu_gradient(dy: Array, y: Array, *, alpha: float = 1.0) -> Array:
    return jnp.where(y > 0, dy, dy * (y + alpha))


def clip_gradient(
    dy: Array, x: Array, *, low: float = 0.0, high: float = 1.0, inside: bool = False
) -> Array:
    over = x > low if inside and low != -inf else x >= low
    passes = over & (x < high if inside and high != inf else x <= high)
    return jnp.where(passes, dy, jnp.zeros((), dy.dtype))


@widened
def softsign_gradient(dy: Array, y: Array) -> Array:
    return dy * jnp.square(1 - jnp.abs(y))


@widened
def hard_sigmoid_gradient(dy: Array, y: Array, *, alpha: float = 1 / 6, beta: float = 0.5) -> Array:
    return dy * alpha * ((y > 0) & (y < 1))


@widened
def hard_swish_gradient(dy: Array, x: Array) -> Array:
    return dy * jnp.where(jnp.abs(x) < 3, x / 3 + 0.5, (x > 0).astype(x.dtype))
