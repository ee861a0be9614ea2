"""Operators on complex numbers, and Fourier transforms.

A complex tensor is the real one of `torch.view_as_real`: real and imaginary parts in a last
dimension of size 2. Its operators have entries of their own in the table.
"""

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.converters.reduction import root
from shardwright.frontends.torch.converters.shape import permute
from shardwright.frontends.torch.table import COMPLEX, CONVERTERS, Function, converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array

Parts = tuple[Value, Value | None]  # the real part, and the imaginary part if it is not zero


def _both(*operators: str) -> Callable[[Function], Function]:
    """Register a function as the converter of operators on complex numbers."""
    return converts(*(f"{COMPLEX}aten.{name}" for name in operators))


def _parts(call: Call, x: Operand, argument: str) -> Parts:
    """Return the parts of an argument, which may be a real tensor or number."""
    if not isinstance(x, Value):
        if isinstance(x, complex):
            raise UnsupportedError("an operator with a complex number that is no tensor")
        return call.fill(x, call.result.dtype), None
    if argument not in call.complex_arguments:
        return call.cast(x, call.result.dtype), None
    last = x.type.rank - 1
    shape = x.type.shape[:-1]
    a, b = (call.reshape(call.part(x, last, at, 1), shape) for at in (0, 1))
    return a, b


def _joined(call: Call, real: Value, imaginary: Value | None) -> Value:
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


@_both("view_as_complex", "view_as_real", "clone", "alias", "contiguous", "lift_fresh_copy")
@_both("resolve_conj", "resolve_neg")
def _same(call: Call, x: Value) -> Value:
    return x


@_both("_to_copy", "to")
def _to(call: Call, x: Value, dtype: str | None = None) -> Value:
    real, imaginary = _parts(call, x, "x")
    return _joined(call, real, imaginary) if call.is_complex else real


@_both("complex")
def _complex(call: Call, real: Value, imag: Value) -> Value:
    return _joined(call, real, imag)


@_both("polar")
def _polar(call: Call, abs: Value, angle: Value) -> Value:
    cos, sin = call.emit("cos", angle), call.emit("sin", angle)
    return _joined(call, call.emit("mul", abs, cos), call.emit("mul", abs, sin))


@_both("real")
def _real(call: Call, x: Value) -> Value:
    return _parts(call, x, "x")[0]


@_both("imag")
def _imaginary(call: Call, x: Value) -> Value:
    found = _parts(call, x, "x")[1]
    assert found is not None
    return found


@_both("_conj", "_conj_physical", "conj", "conj_physical")
def _conjugate(call: Call, x: Value) -> Value:
    real, imaginary = _parts(call, x, "x")
    return _joined(call, real, _minus(call, None, imaginary))


@_both("neg")
def _negative(call: Call, x: Value) -> Value:
    return call.emit("neg", x)


@_both("abs")
def _size(call: Call, x: Value) -> Value:
    real, imaginary = _parts(call, x, "x")
    assert imaginary is not None
    squares = call.emit("square", real), call.emit("square", imaginary)
    return root(call, call.emit("add", *squares))


@_both("angle")
def _angle(call: Call, x: Value) -> Value:
    real, imaginary = _parts(call, x, "x")
    assert imaginary is not None
    return call.emit("atan2", imaginary, real)


@_both("add", "sub")
def _sum(call: Call, x: Operand, other: Operand) -> Value:
    combine = _plus if "add" in call.operator else _minus
    pairs = zip(_parts(call, x, "x"), _parts(call, other, "other"), strict=True)
    real, imaginary = (combine(call, a, b) for a, b in pairs)
    assert real is not None
    return _joined(call, real, imaginary)


@_both("mul")
def _mul(call: Call, x: Operand, other: Operand) -> Value:
    (a, b), (c, d) = _parts(call, x, "x"), _parts(call, other, "other")
    real = _minus(call, _times(call, a, c), _times(call, b, d))
    imaginary = _plus(call, _times(call, a, d), _times(call, b, c))
    assert real is not None
    return _joined(call, real, imaginary)


@_both("div")
def _div(call: Call, x: Value, other: Operand) -> Value:
    if "other" in call.complex_arguments:
        raise UnsupportedError("a quotient by complex numbers")
    divisor, _ = _parts(call, other, "other")
    real, imaginary = _parts(call, x, "x")
    parts = (
        None if part is None else call.emit("div", part, divisor) for part in (real, imaginary)
    )
    return _joined(call, *parts)  # type: ignore[arg-type]


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
for _name in ("transpose", "slice", "select", "narrow", "sum", "mean", "flip"):
    _of_shape(_name, "dim", "dim0", "dim1", "dims")


@_both("permute")
def _permute(call: Call, x: Value, dims: list[int]) -> Value:
    rank = x.type.rank - 1
    return permute(call, x, [*(d % rank for d in dims), rank])


@_both("constant_pad_nd")
def _pad(call: Call, x: Value, pad: list[int], value: Operand = 0) -> Value:
    found: Value = CONVERTERS["aten.constant_pad_nd"].function(call, x, [0, 0, *pad], value=value)
    return found


# Fourier transforms: products with matrices of cosines and sines


def _waves(before: int, after: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines ``[before, after]`` of a transform of a length."""
    places = np.outer(np.arange(before), np.arange(after)) % length
    angle = 2 * np.pi * places / length
    return np.cos(angle), np.sin(angle)


def _transformed(call: Call, parts: Parts, axis: int, after: int, sign: float) -> Parts:
    """Return the parts of the transform of one dimension; `sign` is that of the exponent."""
    length = parts[0].type.shape[axis]
    cos, sin = _waves(length, after, length)
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


@_both("_fft_c2c")
def _fft(call: Call, x: Value, dim: list[int], normalization: int, forward: bool) -> Value:
    parts = _parts(call, x, "x")
    sizes = parts[0].type.shape
    for axis in dim:
        parts = _transformed(call, parts, axis, sizes[axis], -1.0 if forward else 1.0)
    return _joined(call, *_scaled(call, parts, normalization, prod(sizes[d] for d in dim)))


@_both("_fft_r2c")
def _real_fft(call: Call, x: Value, dim: list[int], normalization: int, onesided: bool) -> Value:
    parts: Parts = (x, None)
    sizes = x.type.shape
    for axis in reversed(dim):
        after = call.result.shape[axis] if axis == dim[-1] else sizes[axis]
        parts = _transformed(call, parts, axis, after, -1.0)
    return _joined(call, *_scaled(call, parts, normalization, prod(sizes[d] for d in dim)))


@_both("_fft_c2r")
def _fft_to_real(
    call: Call, x: Value, dim: list[int], normalization: int, last_dim_size: int
) -> Value:
    parts = _parts(call, x, "x")
    sizes = call.result.shape
    for axis in dim[:-1]:
        parts = _transformed(call, parts, axis, sizes[axis], 1.0)
    last, count = dim[-1], last_dim_size // 2 + 1
    cos, sin = _waves(count, last_dim_size, last_dim_size)
    twice = np.full((count, 1), 2.0)  # the other half is conjugate
    twice[0] = 1.0
    if last_dim_size % 2 == 0:
        twice[-1] = 1.0
    real, imaginary = (None if p is None else call.part(p, last, 0, count) for p in parts)
    assert real is not None
    real = call.mixed(real, twice * cos, last)
    if imaginary is not None:
        real = call.emit("sub", real, call.mixed(imaginary, twice * sin, last))
    return _scaled(call, (real, None), normalization, prod(sizes[d] for d in dim))[0]
