"""Operators that write into a tensor by position."""

from math import prod

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.onnx.converters.indexing import front, nd_positions, positions
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.indexing.scatter import emit_scatter_elements_add, emit_scatter_nd_add
from shardwright.operators.rule import dimension

# For each reduction: the operator over the updates of a row, and the one with the old value.
_EXTREMES = {
    "max": ("unsorted_segment_max", "maximum"),
    "min": ("unsorted_segment_min", "minimum"),
}


@converts("ScatterElements")
def _scatter_elements(call: Call) -> Value:
    x, updates, how = call.value(0), call.value(2), call.attribute("reduction", "none")
    axis = dimension(call.attribute("axis", 0), x.type.rank)
    index = positions(call, 1, x.type.shape[axis])
    others = [i for i in range(x.type.rank) if i != axis]
    if how in ("none", "add") and any(x.type.shape[i] != index.type.shape[i] for i in others):
        raise UnsupportedError("updates that are smaller than the tensor outside the axis")
    if how == "none":
        return call.emit("scatter_elements", x, index, updates, axis=axis)
    if how == "add":
        return emit_scatter_elements_add(call.importer.build, x, index, updates, axis)
    order = (axis, *others)
    found = _combined_columns(
        call, call.transpose(x, order), index, call.transpose(updates, order), order
    )
    return call.transpose(found, np.argsort(order).tolist())


def _combined_columns(
    call: Call, x: Value, index: Value, updates: Value, order: tuple[int, ...]
) -> Value:
    """Combine the columns of tensors ``[row, ...]`` at rows that differ by column."""
    how, shape = call.attribute("reduction"), x.type.shape
    row = _row_of_each(call, order[0])
    if row is not None and updates.type.shape[1:] == shape[1:]:
        return _combined(call, x, front(call, row, shape[0]), updates, how)
    index = call.transpose(index, order)
    column = np.arange(prod(shape[1:])).reshape(shape[1:])
    column = column[tuple(slice(n) for n in index.type.shape[1:])]
    row = call.emit("mul", index, call.like(prod(shape[1:]), index))
    place = call.reshape(call.emit("add", row, call.like(column, index)), (-1,))
    flat = call.reshape(x, (prod(shape),))
    found = _combined(call, flat, place, call.reshape(updates, place.type.shape), how)
    return call.reshape(found, shape)


def _row_of_each(call: Call, axis: int) -> Value | None:
    """Return the positions along the axis, if they are equal along all other dimensions."""
    index = call.item(1)
    if not isinstance(index, Value):
        return None
    graph = call.importer.build.graph("so_far", (index.name,))
    made = graph.producers.get(index.name)
    if made is None or made.operator != "broadcast_to":
        return None
    source = graph.values[made.operands[0]]
    sizes = (1,) * (call.type(1).rank - source.type.rank) + source.type.shape
    if prod(sizes) != sizes[axis] or sizes[axis] != call.shape(1)[axis]:
        return None
    return call.reshape(source, (sizes[axis],))


def _combined(call: Call, x: Value, place: Value, updates: Value, how: str) -> Value:
    """Combine the rows of a tensor with the rows of updates, by position."""
    if how in _EXTREMES:
        ours, combine = _EXTREMES[how]
        found = call.emit(ours, updates, place, segments=x.type.shape[0])
        return call.emit(combine, x, found)
    if how != "mul":
        raise UnsupportedError(f"the reduction `{how}`")
    marks = call.emit("one_hot", place, depth=x.type.shape[0], dtype="int32")
    chosen = call.emit("equal", marks, call.like(1, marks))
    ones = (1,) * (updates.type.rank - 1)
    chosen = call.reshape(chosen, (*chosen.type.shape, *ones))
    terms = call.reshape(updates, (updates.type.shape[0], 1, *updates.type.shape[1:]))
    terms = call.emit("where", chosen, terms, call.like(1, updates))
    return call.emit("mul", x, call.emit("reduce_prod", terms, axis=0))


@converts("ScatterND")
def _scatter_nd(call: Call) -> Value:
    x, updates, how = call.value(0), call.value(2), call.attribute("reduction", "none")
    depth = call.shape(1)[-1]
    sizes, rest = x.type.shape[:depth], x.type.shape[depth:]
    index = nd_positions(call, 1, sizes)
    if how == "none":
        return call.emit("scatter_nd_update", x, index, updates)
    if how == "add":
        return emit_scatter_nd_add(call.importer.build, x, index, updates)
    strides = [prod(sizes[i + 1 :]) for i in range(depth)]
    place = call.emit("reduce_sum", call.emit("mul", index, call.like(strides, index)), axis=-1)
    place = call.reshape(place, (prod(place.type.shape),))
    rows = call.reshape(updates, (*place.type.shape, *rest))
    found = _combined(call, call.reshape(x, (prod(sizes), *rest)), place, rows, how)
    return call.reshape(found, x.type.shape)


@converts("TensorScatter")
def _tensor_scatter(call: Call) -> Value:
    x, update = call.value(0), call.value(1)
    axis = dimension(call.attribute("axis", -2), x.type.rank)
    count, size = update.type.shape[axis], x.type.shape[axis]
    start = call.value(2) if call.has(2) else call.constant(np.zeros(x.type.shape[0]), "int64")
    start = call.reshape(start, [-1 if i == 0 else 1 for i in range(x.type.rank)])
    steps = np.arange(count).reshape(tuple(count if i == axis else 1 for i in range(x.type.rank)))
    place = call.emit("add", start, call.like(steps, start))
    if call.attribute("mode", "linear") == "circular":
        place = front(call, place, size)
    place = call.emit("broadcast_to", place, shape=update.type.shape)
    return call.emit("scatter_elements", x, place, update, axis=axis)
