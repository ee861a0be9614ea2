"""Operators of a plan that compute point by point, by functions that all systems have.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32 where there are several steps.
"""

from collections.abc import Callable
from functools import wraps
from math import inf
from typing import Any

from . import arrays
from .arrays import Array, as_type, xp

_LOW = (xp.float16, xp.bfloat16)


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function of tensors of 16 bits in float32; each result has the operands' type."""

    @wraps(function)
    def run(*tensors: Array, **attributes: Any) -> Any:
        low = next((t.dtype for t in tensors if t.dtype in _LOW), None)
        if low is None:
            return function(*tensors, **attributes)
        wide = (as_type(t, xp.float32) if t.dtype in _LOW else t for t in tensors)
        found = function(*wide, **attributes)
        if isinstance(found, tuple):
            return tuple(_narrowed(t, low) for t in found)
        return _narrowed(found, low)

    return run


def _narrowed(tensor: Array, low: Any) -> Array:
    return as_type(tensor, low) if tensor.dtype == xp.float32 else tensor


# Arithmetic

mod, power = xp.remainder, xp.pow
floor, ceil, trunc = xp.floor, xp.ceil, xp.trunc
round, sign, atan2 = xp.round, xp.sign, xp.arctan2
zeros_like, ones_like = xp.zeros_like, xp.ones_like


def on_gradient(
    x: Array, *others: Array, shapes: tuple[tuple[int, ...], ...]
) -> Array | tuple[Array, ...]:
    made = tuple(arrays.zeros(shape, x) for shape in shapes)
    return made if len(made) > 1 else made[0]


def with_gradient_of(value: Array, source: Array) -> Array:
    return value


def scale(x: Array, *, factor: float = 1.0) -> Array:
    return x * arrays.number(factor, x)


def add_scalar(x: Array, *, value: float = 0.0) -> Array:
    return x + arrays.number(value, x)


def bias_add(x: Array, bias: Array, *, axis: int = 1) -> Array:
    return x + bias.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


def div_no_nan(a: Array, b: Array) -> Array:
    return xp.where(b == 0, xp.zeros_like(a), a / xp.where(b == 0, 1, b))


def squared_difference(a: Array, b: Array) -> Array:
    return xp.square(a - b)


# Comparisons

not_equal = xp.not_equal
less, less_equal, greater, greater_equal = xp.less, xp.less_equal, xp.greater, xp.greater_equal
logical_and, logical_or = xp.logical_and, xp.logical_or
logical_xor, logical_not = xp.logical_xor, xp.logical_not
is_nan, is_inf, is_finite = xp.isnan, xp.isinf, xp.isfinite


def where(condition: Array, a: Array, b: Array) -> Array:
    return xp.where(condition, a, b)


def mask(x: Array, keep: Array) -> Array:
    return xp.where(keep, x, arrays.scalar(0, x))


# Functions of one variable or two, and their gradients

exp, expm1, log, log1p = xp.exp, xp.expm1, xp.log, xp.log1p
sin, cos, tanh = xp.sin, xp.cos, xp.tanh
abs, square, sqrt, reciprocal = xp.abs, xp.square, xp.sqrt, xp.reciprocal
exp_gradient = xp.multiply


def pow(x: Array, *, exponent: float = 1.0) -> Array:
    return xp.pow(x, exponent)


def maximum(a: Array, b: Array, *, halves: bool = False, both: bool = False) -> Array:
    return xp.maximum(a, b)


def minimum(a: Array, b: Array, *, halves: bool = False, both: bool = False) -> Array:
    return xp.minimum(a, b)


def clip(x: Array, *, low: float = 0.0, high: float = 1.0, inside: bool = False) -> Array:
    return xp.clip(x, low, high)


def clip_gradient(
    dy: Array, x: Array, *, low: float = 0.0, high: float = 1.0, inside: bool = False
) -> Array:
    over = x > low if inside and low != -inf else x >= low
    passes = over & (x < high if inside and high != inf else x <= high)
    return xp.where(passes, dy, arrays.scalar(0, dy))


@widened
def expm1_gradient(dy: Array, y: Array) -> Array:
    return dy * (y + 1)


@widened
def abs_gradient(dy: Array, x: Array) -> Array:
    return dy * xp.sign(x)


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
def pow_gradient(dy: Array, x: Array, *, exponent: float = 1.0) -> Array:
    return dy * exponent * xp.pow(x, exponent - 1 if exponent else 0)


# Activations


def relu_gradient(dy: Array, y: Array) -> Array:
    return xp.where(y > 0, dy, arrays.scalar(0, dy))


def relu6_gradient(dy: Array, y: Array) -> Array:
    return xp.where((y > 0) & (y < 6), dy, arrays.scalar(0, dy))


def leaky_relu_gradient(dy: Array, y: Array, *, slope: float = 0.01) -> Array:
    return xp.where(y > 0, dy, dy * slope)


@widened
def elu_gradient(dy: Array, y: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(y > 0, dy, dy * (y + alpha))


@widened
def fast_gelu(x: Array) -> Array:
    return x * arrays.sigmoid(1.702 * x)


@widened
def softplus(x: Array) -> Array:
    return xp.logaddexp(x, xp.zeros_like(x))


@widened
def softsign_gradient(dy: Array, y: Array) -> Array:
    return dy * xp.square(1 - xp.abs(y))


@widened
def hard_sigmoid(x: Array, *, alpha: float = 1 / 6, beta: float = 0.5) -> Array:
    return xp.clip(alpha * x + beta, 0, 1)


@widened
def hard_sigmoid_gradient(dy: Array, y: Array, *, alpha: float = 1 / 6, beta: float = 0.5) -> Array:
    return dy * alpha * ((y > 0) & (y < 1))


@widened
def hard_swish(x: Array) -> Array:
    return x * xp.clip(x / 6 + 0.5, 0, 1)


@widened
def hard_swish_gradient(dy: Array, x: Array) -> Array:
    return dy * xp.where(xp.abs(x) < 3, x / 3 + 0.5, as_type(x > 0, x.dtype))
