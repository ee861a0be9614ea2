"""Operators that look up, write, order and mark elements by position."""

from collections.abc import Callable
from math import prod

import numpy as np

from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.onnx.converters.shape import cut, join, take
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension

# Positions


def positions(call: Call, place: int, size: int) -> Value:
    """Return positions along a dimension of `size`, counted from the front."""
    item = call.item(place)
    if isinstance(item, Constant):
        array = item.array.astype(np.int64)
        return call.constant(np.where(array < 0, array + size, array), "int64")
    return front(call, call.value(place), size)


def front(call: Call, index: Value, size: int) -> Value:
    """Return positions counted from the front; negative ones count from the back."""
    return call.emit("mod", index, call.like(size, index))


def nd_positions(call: Call, place: int, sizes: tuple[int, ...]) -> Value:
    """Return tuples of positions into dimensions of some sizes, counted from the front."""
    item = call.item(place)
    bounds = np.asarray(sizes, np.int64)
    if isinstance(item, Constant):
        return call.constant(np.mod(item.array.astype(np.int64), bounds), "int64")
    index = call.value(place)
    return call.emit("mod", index, call.like(bounds, index))


@converts("Gather")
def _gather(call: Call) -> Value:
    axis = dimension(call.attribute("axis", 0), len(call.shape(0)))
    index = positions(call, 1, call.shape(0)[axis])
    return call.emit("gather", call.value(0), index, axis=axis)


@converts("GatherElements")
def _gather_elements(call: Call) -> Value:
    x, axis = call.value(0), dimension(call.attribute("axis", 0), len(call.shape(0)))
    index = positions(call, 1, x.type.shape[axis])
    x = _along(call, x, axis, index.type.shape)
    return call.emit("gather_elements", x, index, axis=axis)


def _along(call: Call, x: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """Return the part of a value that aligns with positions of a smaller shape."""
    end = [n if i == axis else shape[i] for i, n in enumerate(x.type.shape)]
    return cut(call, x, (0,) * x.type.rank, end)


@converts("GatherND")
def _gather_nd(call: Call) -> Value:
    x, batch = call.value(0), call.attribute("batch_dims", 0)
    index_shape = call.shape(1)
    depth = index_shape[-1]
    index = nd_positions(call, 1, x.type.shape[batch : batch + depth])
    if not batch:
        return call.emit("gather_nd", x, index)
    grid = np.indices(index_shape[:-1])[:batch]
    leading = call.constant(np.moveaxis(grid, 0, -1), index.type.dtype)
    return call.emit("gather_nd", x, call.emit("concat", leading, index, axis=-1))


# Order


@converts("TopK")
def _top_k(call: Call) -> list[Item | Array]:
    x, k = call.value(0), int(call.array(1).ravel()[0])
    largest = bool(call.attribute("largest", 1))
    found = call.emit_all("top_k", x, k=k, axis=call.attribute("axis", -1), largest=largest)
    return list(found)


def _extreme(ours: str) -> Callable[[Call], Value]:
    def convert(call: Call) -> Value:
        x, keep = call.value(0), bool(call.attribute("keepdims", 1))
        axis = dimension(call.attribute("axis", 0), x.type.rank)
        if not call.attribute("select_last_index", 0):
            return call.emit(ours, x, axis=axis, keep_dims=keep)
        last = call.constant(x.type.shape[axis] - 1, "int64")
        from_back = call.emit(ours, call.emit("reverse", x, axis=axis), axis=axis, keep_dims=keep)
        return call.emit("sub", last, from_back)

    return convert


converts("ArgMax")(_extreme("argmax"))
converts("ArgMin")(_extreme("argmin"))


@converts("Hardmax")
def _hardmax(call: Call) -> Value:
    x = call.value(0)
    shape = x.type.shape
    if call.opset >= 13:
        return _largest_marked(call, x, dimension(call.attribute("axis", -1), len(shape)))
    # Before, all dimensions from the axis on were one.
    axis = dimension(call.attribute("axis", 1), len(shape))
    flat = call.reshape(x, (*shape[:axis], prod(shape[axis:])))
    return call.reshape(_largest_marked(call, flat, axis), shape)


def _largest_marked(call: Call, x: Value, axis: int) -> Value:
    """Return ones at the first maximum along a dimension, and zeros elsewhere."""
    first = call.emit("argmax", x, axis=axis, keep_dims=False)
    marks = call.emit("one_hot", first, depth=x.type.shape[axis], dtype=x.type.dtype)
    return _with_last_at(call, marks, axis)


def _with_last_at(call: Call, x: Value, axis: int) -> Value:
    """Return a value with its last dimension moved to `axis`."""
    order = list(range(x.type.rank - 1))
    order.insert(axis, x.type.rank - 1)
    return call.transpose(x, order)


@converts("OneHot")
def _one_hot(call: Call) -> Value:
    depth = int(call.array(1).ravel()[0])
    index = call.cast(call.value(0), "int64")
    # Positions outside -depth to depth - 1 stay outside.
    negative = call.emit("less", index, call.like(0, index))
    index = call.emit("where", negative, call.emit("add_scalar", index, value=depth), index)
    marks = call.emit("one_hot", index, depth=depth, dtype="int32")
    on = call.emit("equal", marks, call.like(1, marks))
    axis = dimension(call.attribute("axis", -1), marks.type.rank)
    on = _with_last_at(call, on, axis)
    off_value, on_value = (
        call.reshape(take(call, call.value(2), np.array([i]), 0), ()) for i in (0, 1)
    )
    return call.emit("where", on, on_value, off_value)


# Selection by position


@converts("Trilu")
def _trilu(call: Call) -> Value:
    diagonal = int(call.array(1).ravel()[0]) if call.has(1) else 0
    ours = "triu" if call.attribute("upper", 1) else "tril"
    return call.emit(ours, call.value(0), diagonal=diagonal)


@converts("CumSum")
def _cumsum(call: Call) -> Value:
    return call.emit(
        "cumsum",
        call.value(0),
        axis=int(call.array(1).ravel()[0]),
        exclusive=bool(call.attribute("exclusive", 0)),
        reverse=bool(call.attribute("reverse", 0)),
    )


@converts("CumProd")
def _cumprod(call: Call) -> Value:
    x = call.value(0)
    axis = dimension(int(call.array(1).ravel()[0]), x.type.rank)
    size = x.type.shape[axis]
    order = range(size - 1, -1, -1) if call.attribute("reverse", 0) else range(size)
    slices = {i: take(call, x, np.array([i]), axis) for i in range(size)}
    found, total = {}, call.emit("ones_like", slices[0])
    for i in order:
        before = total
        total = call.emit("mul", total, slices[i])
        found[i] = before if call.attribute("exclusive", 0) else total
    return join(call, [found[i] for i in range(size)], axis)


@converts("ReverseSequence")
def _reverse_sequence(call: Call) -> Value:
    x = call.value(0)
    batch, time = call.attribute("batch_axis", 1), call.attribute("time_axis", 0)
    lengths = call.cast(call.value(1), "int64")
    rank, size = x.type.rank, x.type.shape[time]
    shape = tuple(-1 if i == batch else 1 for i in range(rank))
    along = np.arange(size).reshape(tuple(size if i == time else 1 for i in range(rank)))
    steps, lengths = call.like(along, lengths), call.reshape(lengths, shape)
    turned = call.emit("add_scalar", call.emit("sub", lengths, steps), value=-1)
    inside = call.emit("less", steps, lengths)
    place = call.emit("where", inside, turned, steps)
    place = call.emit("broadcast_to", place, shape=x.type.shape)
    return call.emit("gather_elements", x, place, axis=time)


@converts("Compress")
def _compress(call: Call) -> Value:
    x, axis = call.value(0), call.attribute("axis")
    if axis is None:
        x, axis = call.reshape(x, (prod(x.type.shape),)), 0
    chosen = np.flatnonzero(call.array(1))
    return take(call, x, chosen, dimension(axis, x.type.rank))


@converts("NonZero")
def _non_zero(call: Call) -> Array:
    return np.asarray(np.nonzero(np.atleast_1d(call.array(0))), np.int64)


@converts("Unique")
def _unique(call: Call) -> list[Item | Array]:
    x, axis = call.array(0), call.attribute("axis")
    found = np.unique(x, True, True, True, axis=axis)
    values, first, inverse, counts = found
    if not call.attribute("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, axis or 0)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    rest = (part.reshape(-1).astype(np.int64) for part in (first, inverse, counts))
    return [call.importer.item(values, call.dtype(0)), *rest]


@converts("DepthToSpace")
def _depth_to_space(call: Call) -> Value:
    mode = call.attribute("mode", "DCR")
    return call.emit("depth_to_space", call.value(0), block=call.attribute("blocksize"), mode=mode)


@converts("SpaceToDepth")
def _space_to_depth(call: Call) -> Value:
    mode = call.attribute("mode", "DCR")
    return call.emit("space_to_depth", call.value(0), block=call.attribute("blocksize"), mode=mode)
