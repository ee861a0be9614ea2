"""Equations on complex numbers, as functions of real ones that JAX traces.

A complex tensor is a real one with a last dimension of two, its real and its imaginary part. What
only moves elements, or is linear in them, is applied to both parts; the rest is written out.
Fourier transforms are products with matrices of cosines and sines.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.fourier import waves, waves_to_real
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.jax.importer import bound, is_complex
from shardwright.frontends.jax.primitives import converts

Pair = tuple[Any, Any]  # the real and the imaginary part
# Primitives that are applied to each part of their complex operands, with the same other ones.
_OF_PARTS = frozenset(
    {
        *("add", "add_any", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum"),
        *("dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "neg", "pad"),
        *(
            "optimization_barrier",
            "pvary",
            "reduce_sum",
            "reshape",
            "rev",
            "scatter",
            "scatter-add",
        ),
        *("select_n", "sharding_constraint", "slice", "split", "squeeze", "stack", "stop_gradient"),
        *("sub", "transpose", "unstack", "name"),
    }
)


@converts("complex")
def _complex(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Convert an equation with complex operands or results, which are pairs here."""
    name, invars = equation.primitive.name, equation.invars
    if name not in _OF_PARTS and name not in _RULES:
        raise UnsupportedError(f"the primitive `{name}` of complex numbers")
    pairs = [
        _pairs(item) if is_complex(v) else item for item, v in zip(operands, invars, strict=True)
    ]

    def rule(*arrays: Any) -> list[Any]:
        parts = [
            (array[..., 0], array[..., 1]) if is_complex(v) else (array, None)
            for array, v in zip(arrays, invars, strict=True)
        ]
        made = _of_parts(equation, parts) if name in _OF_PARTS else [_RULES[name](equation, *parts)]
        return [
            jnp.stack(part, -1) if is_complex(v) else part
            for part, v in zip(made, equation.outvars, strict=True)
        ]

    closed = jax.make_jaxpr(rule)(*(_pair_type(v.aval) for v in invars))
    found = importer.within(equation, closed, pairs)
    results = zip(found, equation.outvars, strict=True)
    return [_whole(item) if is_complex(v) else item for item, v in results]


def _pairs(item: Item) -> Item:
    """Return a complex constant as its parts, and a value as it is."""
    if not isinstance(item, Constant):
        return item
    parts = np.stack([item.array.real, item.array.imag], axis=-1)
    return Constant(parts, str(parts.dtype.name))


def _whole(item: Item) -> Item:
    """Return a constant pair as complex numbers, and a value as it is."""
    if not isinstance(item, Constant):
        return item
    whole = item.array[..., 0] + 1j * item.array[..., 1]
    return Constant(whole, str(whole.dtype.name))


def _pair_type(aval: Any) -> Any:
    if not jnp.issubdtype(aval.dtype, jnp.complexfloating):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.ShapeDtypeStruct((*aval.shape, 2), np.zeros(0, aval.dtype).real.dtype)


def _of_parts(equation: Any, operands: list[tuple[Any, Any]]) -> list[Any]:
    """Return what a primitive makes of the real parts, and of the imaginary ones."""
    sides = [
        bound(equation, [real if part is None or side == 0 else part for real, part in operands])
        for side in (0, 1)
    ]
    return list(zip(*sides, strict=True))


# Rules: of an equation and the parts of its operands, the parts of its result


def _times(x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _squares(x: Pair) -> Any:
    return x[0] * x[0] + x[1] * x[1]


def _scaled(x: Pair) -> tuple[Any, Pair]:
    """Return the larger part, a constant, and both parts over it, whose squares do not overflow."""
    unit = lax.stop_gradient(jnp.maximum(jnp.abs(x[0]), jnp.abs(x[1])))
    unit = jnp.where((unit == 0) | ~jnp.isfinite(unit), 1, unit)
    return unit, (x[0] / unit, x[1] / unit)


def _over(x: Pair, y: Pair) -> Pair:
    """Return a quotient by parts relative to the larger one of the divisor, so none overflows."""
    unit, below = _scaled(y)
    real, imaginary = _times(x, (below[0], -below[1]))
    size = _squares(below) * unit
    return real / size, imaginary / size


def _root(squares: Any) -> Any:
    """Return the root of numbers, whose gradient is zero at zero."""
    is_zero = squares == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))


def _abs(_: Any, x: Pair) -> Any:
    unit, scaled = _scaled(x)
    return unit * _root(_squares(scaled))


def _exp(_: Any, x: Pair) -> Pair:
    return _polar(jnp.exp(x[0]), x[1])


def _log(_: Any, x: Pair) -> Pair:
    unit, scaled = _scaled(x)
    return jnp.log(_squares(scaled)) / 2 + jnp.log(unit), jnp.arctan2(x[1], x[0])


def _polar(size: Any, angle: Any) -> Pair:
    return size * jnp.cos(angle), size * jnp.sin(angle)


def _sqrt(equation: Any, x: Pair) -> Pair:
    return _polar(_root(_abs(equation, x)), jnp.arctan2(x[1], x[0]) / 2)


def _sinh(_: Any, x: Pair) -> Pair:
    return jnp.sinh(x[0]) * jnp.cos(x[1]), jnp.cosh(x[0]) * jnp.sin(x[1])


def _cosh(_: Any, x: Pair) -> Pair:
    return jnp.cosh(x[0]) * jnp.cos(x[1]), jnp.sinh(x[0]) * jnp.sin(x[1])


def _sin(_: Any, x: Pair) -> Pair:
    return jnp.sin(x[0]) * jnp.cosh(x[1]), jnp.cos(x[0]) * jnp.sinh(x[1])


def _cos(_: Any, x: Pair) -> Pair:
    return jnp.cos(x[0]) * jnp.cosh(x[1]), -jnp.sin(x[0]) * jnp.sinh(x[1])


def _tanh(_: Any, x: Pair) -> Pair:
    t, s = jnp.tanh(x[0]), jnp.tan(x[1])
    below = 1 + t * t * s * s
    return t * (1 + s * s) / below, s * (1 - t * t) / below


def _power(equation: Any, x: Pair) -> Pair:
    count = equation.params["y"]
    found = x
    for _ in range(abs(count) - 1):
        found = _times(found, x)
    if count == 0:
        return jnp.ones_like(x[0]), jnp.zeros_like(x[0])
    return found if count > 0 else _over((jnp.ones_like(x[0]), jnp.zeros_like(x[0])), found)


def _any_power(equation: Any, x: Pair, y: tuple[Any, Any]) -> Pair:
    exponent = y if y[1] is not None else (y[0], jnp.zeros_like(y[0]))
    is_zero = (x[0] == 0) & (x[1] == 0)
    is_one = (exponent[0] == 0) & (exponent[1] == 0)
    known = _log(equation, (jnp.where(is_zero, 1, x[0]), x[1]))
    real, imaginary = _exp(equation, _times(known, exponent))
    is_known = is_zero | is_one
    return jnp.where(is_known, 1 * is_one, real), jnp.where(is_known, 0, imaginary)


def _product(equation: Any, x: tuple[Any, Any], y: tuple[Any, Any]) -> Pair:
    """Return a product of tensors, of which one may be real."""

    def of(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, equation.params["dimension_numbers"])

    (a, b), (c, d) = x, y
    if b is None:
        return of(a, c), of(a, d)
    if d is None:
        return of(a, c), of(b, c)
    return of(a, c) - of(b, d), of(a, d) + of(b, c)


def _converted(equation: Any, x: tuple[Any, Any]) -> Any:
    dtype = equation.params["new_dtype"]
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return x[0].astype(dtype)
    kind = np.zeros(0, dtype).real.dtype
    return x[0].astype(kind), jnp.zeros(x[0].shape, kind) if x[1] is None else x[1].astype(kind)


def _equal(_: Any, x: Pair, y: Pair) -> Any:
    return (x[0] == y[0]) & (x[1] == y[1])


# Fourier transforms


def _along(x: Any, matrix: Any, axis: int) -> Any:
    """Return a tensor with one dimension multiplied by a matrix ``[before, after]``."""
    moved = jnp.moveaxis(x, axis, -1)
    return jnp.moveaxis(moved @ matrix.astype(x.dtype), -1, axis)


def _turned(x: tuple[Any, Any], axis: int, after: int, sign: float) -> Pair:
    """Return the transform along one dimension; `sign` is that of the exponent."""
    length = x[0].shape[axis]
    cos, sin = waves(length, after, length)
    real, imaginary = _along(x[0], cos, axis), _along(x[0], sign * sin, axis)
    if x[1] is None:
        return real, imaginary
    return real - _along(x[1], sign * sin, axis), imaginary + _along(x[1], cos, axis)


def _fourier(equation: Any, x: tuple[Any, Any]) -> Any:
    lengths = equation.params["fft_lengths"]
    kind = int(equation.params["fft_type"])  # forward, back, from and to real numbers
    axes = range(x[0].ndim - len(lengths), x[0].ndim)
    sizes = dict(zip(axes, lengths, strict=True))
    if kind == 2:
        last = axes[-1]
        x = _turned(x, last, sizes[last] // 2 + 1, -1.0)
        axes = axes[:-1]
    back = kind in (1, 3)
    for axis in axes[:-1] if kind == 3 else axes:
        x = _turned(x, axis, sizes[axis], 1.0 if back else -1.0)
    if not back:
        return x
    if kind == 3:
        x = _to_real(x, axes[-1], sizes[axes[-1]]), None
    real, imaginary = (None if part is None else part / prod(lengths) for part in x)
    return real if kind == 3 else (real, imaginary)


def _to_real(x: tuple[Any, Any], axis: int, length: int) -> Any:
    """Return the real numbers whose transform is given by its first half."""
    count = length // 2 + 1
    cos, sin = waves_to_real(length)
    real, imaginary = (lax.slice_in_dim(part, 0, count, axis=axis) for part in x)
    return _along(real, cos, axis) - _along(imaginary, sin, axis)


_RULES: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "complex": lambda _, real, imaginary: (real[0], imaginary[0]),
    "conj": lambda _, x: (x[0], jnp.zeros_like(x[0]) if x[1] is None else -x[1]),
    "convert_element_type": _converted,
    "cos": _cos,
    "cosh": _cosh,
    "div": lambda _, x, y: _over(x, y),
    "dot_general": _product,
    "eq": _equal,
    "exp": _exp,
    "fft": _fourier,
    "imag": lambda _, x: x[1],
    "integer_pow": _power,
    "is_finite": lambda _, x: jnp.isfinite(x[0]) & jnp.isfinite(x[1]),
    "log": _log,
    "mul": lambda _, x, y: _times(x, y),
    "ne": lambda _, x, y: ~_equal(_, x, y),
    "pow": _any_power,
    "real": lambda _, x: x[0],
    "sin": _sin,
    "sinh": _sinh,
    "sqrt": _sqrt,
    "square": lambda _, x: _times(x, x),
    "tanh": _tanh,
}
