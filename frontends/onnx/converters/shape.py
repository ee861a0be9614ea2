"""Shapes, and operators that reshape, repeat, slice and join tensors."""

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import TensorProto

from shardwright.frontends.common.emission import check_constant
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import FOLDERS, converts
from shardwright.frontends.onnx.onnx_types import array_of, dtype_of
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension


@converts("Constant")
def _constant(call: Call) -> Item | Array:
    found = {name: value for name, value in call.attributes.items() if name.startswith("value")}
    name, value = next(iter(found.items()), ("nothing", TensorProto()))
    if name == "value":
        return call.importer.item(array_of(value), dtype_of(value.data_type))
    if name.startswith(("value_float", "value_int")):
        return np.asarray(value, np.float32 if "float" in name else np.int64)
    raise UnsupportedError(f"a constant of `{name}`")


@converts("Shape")
def _shape(call: Call) -> Array:
    shape = np.asarray(call.shape(0), np.int64)
    return shape[call.attribute("start", 0) : call.attribute("end", len(shape))]


@converts("Size")
def _size(call: Call) -> Array:
    return np.asarray(prod(call.shape(0)), np.int64)


@converts("ConstantOfShape")
def _constant_of_shape(call: Call) -> Item | Array:
    given = call.attribute("value")
    check_constant(prod(call.ints(0)))
    if given is None:
        return np.zeros(call.ints(0), np.float32)
    array = np.broadcast_to(array_of(given).reshape(()), call.ints(0))
    return call.importer.item(array, dtype_of(given.data_type))


@converts("Range")
def _range(call: Call) -> Item:
    dtype = call.dtype(0)
    start, limit, delta = (call.array(i).reshape(()) for i in range(3))
    if not delta:
        raise UnsupportedError("a range whose step is 0")
    count = max(int(np.ceil((limit - start) / delta)), 0)
    check_constant(count)
    array = (start + np.arange(count) * delta).astype(numpy_dtype(dtype))
    return call.importer.item(array, dtype)


@converts("EyeLike")
def _eye_like(call: Call) -> Item:
    rows, columns = call.shape(0)
    check_constant(rows * columns)
    asked = call.attribute("dtype")
    dtype = dtype_of(asked) if asked else call.dtype(0)
    array = np.eye(rows, columns, call.attribute("k", 0), numpy_dtype(dtype))
    return call.importer.item(array, dtype)


# The same elements


def resolved_shape(call: Call, asked: Sequence[int], keeps_zero: bool) -> tuple[int, ...]:
    """Return the target shape of a reshape: 0 means the old size, -1 the quotient."""
    before = call.shape(0)
    shape = [before[i] if n == 0 and not keeps_zero else n for i, n in enumerate(asked)]
    if -1 in shape:
        rest = prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = prod(before) // rest if rest else 0
    elif prod(shape) != prod(before) == before[0] * prod(shape[1:]):
        shape[0] = before[0]  # the batch size of the exported model differs from the imported size
    return tuple(shape)


@converts("Reshape")
def _reshape(call: Call) -> Value:
    shape = resolved_shape(call, call.ints(1), bool(call.attribute("allowzero", 0)))
    return call.reshape(call.value(0), shape)


@converts("Flatten")
def _flatten(call: Call) -> Value:
    shape = call.shape(0)
    axis = dimension(call.attribute("axis", 1), len(shape) + 1)
    if call.attribute("axis", 1) < 0:
        axis = call.attribute("axis") + len(shape)
    return call.reshape(call.value(0), (prod(shape[:axis]), prod(shape[axis:])))


def squeezed(shape: Sequence[int], axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return a shape without some dimensions of size one; by default without all of them."""
    if axes is None:
        return tuple(n for n in shape if n != 1)
    gone = {dimension(a, len(shape)) for a in axes}
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def unsqueezed(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with dimensions of size one inserted at `axes` of the result."""
    rank = len(shape) + len(axes)
    new = {dimension(a, rank) for a in axes}
    rest = iter(shape)
    return tuple(1 if i in new else next(rest) for i in range(rank))


@converts("Squeeze")
def _squeeze(call: Call) -> Value:
    return call.reshape(call.value(0), squeezed(call.shape(0), call.ints_of("axes", 1)))


@converts("Unsqueeze")
def _unsqueeze(call: Call) -> Value:
    return call.reshape(call.value(0), unsqueezed(call.shape(0), call.ints_of("axes", 1) or ()))


@converts("Transpose")
def _transpose(call: Call) -> Value:
    reverse = tuple(reversed(range(len(call.shape(0)))))
    return call.transpose(call.value(0), call.attribute("perm", reverse))


# More elements


@converts("Expand")
def _expand(call: Call) -> Value:
    x = call.value(0)
    shape = np.broadcast_shapes(x.type.shape, call.ints(1))
    return x if shape == x.type.shape else call.emit("broadcast_to", x, shape=shape)


@converts("Tile")
def _tile(call: Call) -> Value:
    return call.emit("tile", call.value(0), multiples=call.ints(1))


@converts("Concat")
def _concat(call: Call) -> Value:
    full = [i for i in range(len(call.items)) if prod(call.shape(i))]
    return join(call, [call.value(i) for i in full], call.attribute("axis"))


def join(call: Call, values: Sequence[Value], axis: int) -> Value:
    """Concatenate values; a single value is returned unchanged."""
    return values[0] if len(values) == 1 else call.emit("concat", *values, axis=axis)


@converts("Pad")
def _pad(call: Call) -> Value:
    x, mode = call.value(0), call.attribute("mode", "constant")
    rank = x.type.rank
    axes = call.ints(3) if call.has(3) else tuple(range(rank))
    given = call.ints_of("pads", 1) or ()
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = given[i], given[i + len(axes)]
    value = call.number(2) if call.has(2) else call.attribute("value", 0.0)
    if mode == "constant":
        return padded(call, x, before, after, value)
    for axis in range(rank):
        x = _extended(call, x, axis, before[axis], after[axis], mode)
    return x


def padded(
    call: Call, x: Value, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> Value:
    """Return a value padded with a number; negative padding slices."""
    if any(n < 0 for n in (*before, *after)):
        begin = tuple(max(-n, 0) for n in before)
        ends = (n - max(-a, 0) for n, a in zip(x.type.shape, after, strict=True))
        x = cut(call, x, begin, tuple(ends))
    put = tuple(max(n, 0) for n in before), tuple(max(n, 0) for n in after)
    if not any((*put[0], *put[1])):
        return x
    return call.emit("pad", x, before=put[0], after=put[1], value=value)


def _extended(call: Call, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Return a value extended by its own elements before and after it along a dimension."""
    if not before and not after:
        return x
    size = x.type.shape[axis]
    how = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    if mode not in how:
        raise UnsupportedError(f"padding of mode `{mode}`")
    places = np.arange(size)
    places = places[max(-before, 0) : size - max(-after, 0)]
    put = (max(before, 0), max(after, 0))
    return take(call, x, np.pad(places, put, mode=mode), axis)  # type: ignore[call-overload]


def take(call: Call, x: Value, places: Array, axis: int) -> Value:
    """Return the slices at constant positions along a dimension."""
    return call.emit("gather", x, call.constant(places, "int64"), axis=axis)


# Fewer elements


def cut(call: Call, x: Value, begin: Sequence[int], end: Sequence[int]) -> Value:
    """Return the elements from `begin` to before `end` of each dimension."""
    size = tuple(e - b for b, e in zip(begin, end, strict=True))
    if size == x.type.shape:
        return x
    return call.emit("slice", x, begin=tuple(begin), size=size)


@converts("Split")
def _split(call: Call) -> list[Item | Array]:
    shape = call.shape(0)
    axis = dimension(call.attribute("axis", 0), len(shape))
    sizes = call.ints_of("split", 1)
    if sizes is None:
        count = call.attribute("num_outputs", call.outputs)
        step = -(-shape[axis] // count)
        sizes = tuple(min(step, shape[axis] - i * step) for i in range(count))
    return list(parts_of(call, call.value(0), axis, sizes))


def parts_of(call: Call, x: Value, axis: int, sizes: Sequence[int]) -> tuple[Item, ...]:
    """Return the parts of a value, of sizes that may be zero."""
    if len(sizes) == 1:
        return (x,)
    if len(set(sizes)) == 1:
        return call.emit_all("split", x, axis=axis, parts=len(sizes))
    found: list[Item] = []
    at = 0
    for size in sizes:
        begin, end = [0] * x.type.rank, list(x.type.shape)
        begin[axis], end[axis] = at, at + size
        if size:
            found.append(cut(call, x, begin, end))
        else:
            shape = [0 if i == axis else n for i, n in enumerate(end)]
            found.append(call.importer.item(np.zeros(shape), x.type.dtype))
        at += size
    return tuple(found)


def _slices(call: Call) -> dict[int, slice]:
    """Return the bounds of each sliced dimension."""
    shape = call.shape(0)
    starts, ends = call.ints(1), call.ints(2)
    axes = call.ints(3) if call.has(3) else range(len(starts))
    steps = call.ints(4) if call.has(4) else (1,) * len(starts)
    bounds = zip(axes, starts, ends, steps, strict=True)
    return {dimension(a, len(shape)): slice(b, e, t) for a, b, e, t in bounds}


@converts("Slice")
def _slice(call: Call) -> Item:
    x, slices = call.value(0), _slices(call)
    kept = [range(n)[slices.get(axis, slice(None))] for axis, n in enumerate(x.type.shape)]
    if not all(kept):
        return call.importer.item(np.zeros([len(places) for places in kept]), x.type.dtype)
    begin, size, strides, turned = [], [], [], []
    for axis, places in enumerate(kept):
        if places.step < 0:
            turned.append(axis)
            places = places[::-1]
        begin.append(places[0])
        size.append(len(places))
        strides.append(places.step if len(places) > 1 else 1)
    if any(t > 1 for t in strides):
        x = call.emit("slice", x, begin=tuple(begin), size=tuple(size), strides=tuple(strides))
    else:
        x = cut(call, x, begin, [b + s for b, s in zip(begin, size, strict=True)])
    return call.emit("reverse", x, axis=tuple(turned)) if turned else x


@converts("CenterCropPad")
def _center_crop_pad(call: Call) -> Value:
    x, wanted = call.value(0), call.ints(1)
    rank = x.type.rank
    axes = [dimension(a, rank) for a in call.attribute("axes", tuple(range(rank)))]
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, wanted, strict=True):
        missing = size - x.type.shape[axis]
        less = abs(missing) // 2
        before[axis] = less if missing > 0 else -less
        after[axis] = missing - before[axis]
    return padded(call, x, before, after)


# Constants without elements

FOLDERS.update(
    {
        "Concat": lambda call, arrays: np.concatenate(arrays, call.attribute("axis")),
        "Gather": lambda call, arrays: np.take(arrays[0], arrays[1], call.attribute("axis", 0)),
        "Reshape": lambda call, arrays: arrays[0].reshape(
            resolved_shape(call, call.ints(1), bool(call.attribute("allowzero", 0)))
        ),
        "Slice": lambda call, arrays: arrays[0][
            tuple(_slices(call).get(i, slice(None)) for i in range(arrays[0].ndim))
        ],
        "Squeeze": lambda call, arrays: arrays[0].reshape(
            squeezed(arrays[0].shape, call.ints_of("axes", 1))
        ),
        "Unsqueeze": lambda call, arrays: arrays[0].reshape(
            unsqueezed(arrays[0].shape, call.ints_of("axes", 1) or ())
        ),
        "Cast": lambda call, arrays: arrays[0].astype(numpy_dtype(dtype_of(call.attribute("to")))),
        "ReduceProd": lambda call, arrays: np.asarray(np.prod(arrays[0], keepdims=True)),
        "Expand": lambda call, arrays: np.broadcast_to(
            arrays[0], np.broadcast_shapes(arrays[0].shape, call.ints(1))
        ),
    }
)
