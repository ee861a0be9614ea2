"""Operators on complex numbers, and Fourier transforms.

A complex tensor is the real one of `torch.view_as_real`: real and imaginary parts in a last
dimension of size 2. Its operators have entries of their own in the table.
"""

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.fourier import waves, waves_to_real
from shardwright.frontends.torch.aten import COMPLEX, CONVERTERS, Function, converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.reduction import root
from shardwright.frontends.torch.converters.shape import permute
from shardwright.ir.graph import Value

Parts = tuple[Value, Value | None]  # the real part, and the imaginary part if it is not zero


def both(*operators: str) -> Callable[[Function], Function]:
    """Register a function as the converter of operators on complex numbers."""
    return converts(*(f"{COMPLEX}aten.{name}" for name in operators))


def parts_of(call: Call, x: Operand, argument: str) -> Parts:
    """Return the parts of an argument, which may be a real tensor or number."""
    if not isinstance(x, Value):
        real = call.fill(complex(x).real, call.result.dtype)
        is_real = not isinstance(x, complex)
        return real, None if is_real else call.fill(complex(x).imag, call.result.dtype)
    if argument not in call.complex_arguments:
        return call.cast(x, call.result.dtype), None
    last = x.type.rank - 1
    shape = x.type.shape[:-1]
    a, b = (call.reshape(call.part(x, last, at, 1), shape) for at in (0, 1))
    return a, b


def joined(call: Call, real: Value, imaginary: Value | None) -> Value:
    """Return a complex tensor of its parts."""
    if imaginary is None:
        imaginary = call.emit("zeros_like", real)
    shape = np.broadcast_shapes(real.type.shape, imaginary.type.shape)
    parts = (call.broadcast(part, shape) for part in (real, imaginary))
    return call.emit("stack", *parts, axis=len(shape))


def _minus(call: Call, a: Value | None, b: Value | None) -> Value | None:
    if a is None or b is None:
        return a if b is None else call.emit("neg", b)
    return call.emit("sub", a, b)


def _plus(call: Call, a: Value | None, b: Value | None) -> Value | None:
    if a is None or b is None:
        return a if b is None else b
    return call.emit("add", a, b)


def _times(call: Call, a: Value | None, b: Value | None) -> Value | None:
    return None if a is None or b is None else call.emit("mul", a, b)


@both("view_as_complex", "view_as_real", "clone", "alias", "contiguous", "lift_fresh_copy")
@both("resolve_conj", "resolve_neg")
def _same(call: Call, x: Value) -> Value:
    return x


@both("_to_copy", "to")
def _to(call: Call, x: Value, dtype: str | None = None) -> Value:
    real, imaginary = parts_of(call, x, "x")
    return joined(call, real, imaginary) if call.is_complex else real


@both("complex")
def _complex(call: Call, real: Value, imag: Value) -> Value:
    return joined(call, real, imag)


@both("polar")
def _polar(call: Call, abs: Value, angle: Value) -> Value:
    cos, sin = call.emit("cos", angle), call.emit("sin", angle)
    return joined(call, call.emit("mul", abs, cos), call.emit("mul", abs, sin))


@both("real")
def _real(call: Call, x: Value) -> Value:
    return parts_of(call, x, "x")[0]


@both("imag")
def _imaginary(call: Call, x: Value) -> Value:
    found = parts_of(call, x, "x")[1]
    assert found is not None
    return found


@both("_conj", "_conj_physical", "conj", "conj_physical")
def _conjugate(call: Call, x: Value) -> Value:
    real, imaginary = parts_of(call, x, "x")
    return joined(call, real, _minus(call, None, imaginary))


@both("neg", "_neg_view")
def _negative(call: Call, x: Value) -> Value:
    return call.emit("neg", x)


@both("abs")
def _size(call: Call, x: Value) -> Value:
    real, imaginary = parts_of(call, x, "x")
    assert imaginary is not None
    squares = call.emit("square", real), call.emit("square", imaginary)
    return root(call, call.emit("add", *squares))


@both("angle")
def _angle(call: Call, x: Value) -> Value:
    real, imaginary = parts_of(call, x, "x")
    assert imaginary is not None
    return call.emit("atan2", imaginary, real)


@both("add", "sub")
def _sum(call: Call, x: Operand, other: Operand) -> Value:
    combine = _plus if "add" in call.operator else _minus
    pairs = zip(parts_of(call, x, "x"), parts_of(call, other, "other"), strict=True)
    real, imaginary = (combine(call, a, b) for a, b in pairs)
    assert real is not None
    return joined(call, real, imaginary)


@both("mul")
def _mul(call: Call, x: Operand, other: Operand) -> Value:
    return joined(call, *product_of(call, parts_of(call, x, "x"), parts_of(call, other, "other")))


def product_of(call: Call, x: Parts, y: Parts) -> Parts:
    """Return the parts of a product."""
    (a, b), (c, d) = x, y
    real = _minus(call, _times(call, a, c), _times(call, b, d))
    assert real is not None
    return real, _plus(call, _times(call, a, d), _times(call, b, c))


@both("div")
def _div(call: Call, x: Operand, other: Operand) -> Value:
    return joined(call, *quotient(call, parts_of(call, x, "x"), parts_of(call, other, "other")))


def quotient(call: Call, x: Parts, y: Parts) -> Parts:
    """Return the parts of a quotient."""
    (c, d), size = y, y[0]
    if d is not None:
        size = call.emit("add", call.emit("square", c), call.emit("square", d))
        x = product_of(call, x, (c, call.emit("neg", d)))
    real, imaginary = (None if part is None else call.emit("div", part, size) for part in x)
    assert real is not None
    return real, imaginary


# Shapes: as those of real tensors, with dimensions counted from the front


def _of_shape(name: str, *dimensions: str) -> None:
    """Register the converter of real tensors, whose arguments `dimensions` are counted again."""
    plain = CONVERTERS[f"aten.{name}"]

    def convert(call: Call, x: Value, **arguments: Any) -> Any:
        rank = x.type.rank - 1
        for argument in dimensions:
            given = arguments.get(argument)
            if isinstance(given, list):
                arguments[argument] = [d % rank for d in given]
            elif given is not None:
                arguments[argument] = given % rank
        return plain.function(call, x, **arguments)

    entry = type(plain)(convert, plain.names, plain.numbers, plain.items)
    CONVERTERS[f"{COMPLEX}aten.{name}"] = entry


for _name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"):
    _of_shape(_name)
for _name in ("expand", "detach"):
    _of_shape(_name)
for _name in ("transpose", "slice", "select", "narrow", "flip"):
    _of_shape(_name, "dim", "dim0", "dim1", "dims")


@both("permute")
def _permute(call: Call, x: Value, dims: list[int]) -> Value:
    rank = x.type.rank - 1
    return permute(call, x, [*(d % rank for d in dims), rank])


@both("constant_pad_nd")
def _pad(call: Call, x: Value, pad: list[int], value: Operand = 0) -> Value:
    found: Value = CONVERTERS["aten.constant_pad_nd"].function(call, x, [0, 0, *pad], value=value)
    return found


# Fourier transforms: products with matrices of cosines and sines


def _transformed(call: Call, parts: Parts, axis: int, after: int, sign: float) -> Parts:
    """Return the parts of the transform of one dimension; `sign` is that of the exponent."""
    length = parts[0].type.shape[axis]
    cos, sin = waves(length, after, length)
    real, imaginary = (
        (None, None)
        if part is None
        else (call.mixed(part, cos, axis), call.mixed(part, sign * sin, axis))
        for part in parts
    )
    found = _minus(call, real[0], imaginary[1])
    assert found is not None
    return found, _plus(call, imaginary[0], real[1])


def _scaled(call: Call, parts: Parts, normalization: int, count: int) -> Parts:
    """Return parts divided by the number of elements of a transform, its root, or nothing."""
    factor = (1.0, 1 / sqrt(count), 1 / count)[normalization]
    real, imaginary = (None if p is None else call.scaled(p, factor) for p in parts)
    assert real is not None
    return real, imaginary


@both("_fft_c2c")
def _fft(call: Call, x: Value, dim: list[int], normalization: int, forward: bool) -> Value:
    parts = parts_of(call, x, "x")
    sizes = parts[0].type.shape
    for axis in dim:
        parts = _transformed(call, parts, axis, sizes[axis], -1.0 if forward else 1.0)
    return joined(call, *_scaled(call, parts, normalization, prod(sizes[d] for d in dim)))


@both("_fft_r2c")
def _real_fft(call: Call, x: Value, dim: list[int], normalization: int, onesided: bool) -> Value:
    parts: Parts = (x, None)
    sizes = x.type.shape
    for axis in reversed(dim):
        after = call.result.shape[axis] if axis == dim[-1] else sizes[axis]
        parts = _transformed(call, parts, axis, after, -1.0)
    return joined(call, *_scaled(call, parts, normalization, prod(sizes[d] for d in dim)))


@both("_fft_c2r")
def _fft_to_real(
    call: Call, x: Value, dim: list[int], normalization: int, last_dim_size: int
) -> Value:
    parts = parts_of(call, x, "x")
    sizes = call.result.shape
    for axis in dim[:-1]:
        parts = _transformed(call, parts, axis, sizes[axis], 1.0)
    last, count = dim[-1], last_dim_size // 2 + 1
    cos, sin = waves_to_real(last_dim_size)
    real, imaginary = (None if p is None else call.part(p, last, 0, count) for p in parts)
    assert real is not None
    real = call.mixed(real, cos, last)
    if imaginary is not None:
        real = call.emit("sub", real, call.mixed(imaginary, sin, last))
    return _scaled(call, (real, None), normalization, prod(sizes[d] for d in dim))[0]
