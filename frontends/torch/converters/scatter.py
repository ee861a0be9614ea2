"""Operators that write elements by position."""

from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.indexing import (
    dtype_of_item,
    in_front,
    places_in_memory,
    positions,
)
from shardwright.ir.graph import Value
from shardwright.operators.indexing.scatter import emit_scatter_elements_add


@converts("aten.index_put", "aten.index_put_")
def _index_put(
    call: Call, x: Value, indices: Item, values: Value, accumulate: bool = False
) -> Value:
    places: list[Any] = list(indices)  # type: ignore[arg-type]
    if len(places) == 1 and dtype_of_item(places[0]) == "bool":
        return _masked_put(call, x, call.value(places[0]), values, accumulate)
    used = [d for d, item in enumerate(places) if item is not None]
    if any(dtype_of_item(places[d]) == "bool" for d in used):
        raise UnsupportedError(
            "a write by a mask in several dimensions, whose shape depends on data,"
        )
    if used != list(range(len(used))):
        return _put_later(call, x, places, used, values, accumulate)
    places = places[: len(used)]
    made = [positions(call, item, n) for item, n in zip(places, x.type.shape, strict=False)]
    shape = np.broadcast_shapes(*(value.type.shape for value in made))
    index = call.emit(
        "stack", *(call.cast(call.broadcast(v, shape), "int64") for v in made), axis=len(shape)
    )
    updates = call.broadcast(values, (*shape, *x.type.shape[len(places) :]))
    if not accumulate:
        return call.emit("scatter_nd_update", x, index, updates)
    return call.emit("add", x, call.emit("scatter_nd", index, updates, shape=x.type.shape))


def _put_later(
    call: Call, x: Value, places: list[Any], used: list[int], values: Value, accumulate: bool
) -> Value:
    """Write to positions of dimensions that do not all come first."""
    order = [*used, *(d for d in range(x.type.rank) if d not in used)]
    moved, fronted = in_front(call, x, places, used)
    shapes = [item.shape if isinstance(item, Constant) else item.type.shape for item in fronted]
    index = len(np.broadcast_shapes(*shapes))
    rest = x.type.rank - len(used)
    if used == list(range(used[0], used[-1] + 1)):  # the positions of values stand in their place
        values = call.reshape(values, (1,) * (index + rest - values.type.rank) + values.type.shape)
        before = range(used[0])
        inner = range(used[0], used[0] + index)
        values = call.transpose(values, [*inner, *before, *range(used[0] + index, index + rest)])
    found = _index_put(call, moved, fronted, values, accumulate)
    return call.transpose(found, np.argsort(order).tolist())


def _masked_put(call: Call, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """Write to every place of a mask over the first dimensions: the same values, or one by one."""
    rest = x.type.rank - mask.type.rank
    own = values.type.shape
    if len(own) == rest + 1 and own[0] > 1 and not accumulate:
        values = call.broadcast(values, (own[0], *x.type.shape[mask.type.rank :]))
        return _masked_scatter(
            call, x, call.reshape(mask, (*mask.type.shape, *(1,) * rest)), values
        )
    if len(own) > rest and own[: len(own) - rest] != (1,):
        raise UnsupportedError("a write by a mask, whose shape depends on data,")
    own = own[max(len(own) - rest, 0) :]
    values = call.reshape(values, (1,) * (x.type.rank - len(own)) + own)
    values = call.emit("add", x, values) if accumulate else values
    return call.emit("where", call.reshape(mask, (*mask.type.shape, *(1,) * rest)), values, x)


@converts("aten.put")
def _put(call: Call, x: Value, index: Item, source: Value, accumulate: bool = False) -> Value:
    """Write to positions in the order of all elements."""
    size = x.type.elements
    places = call.reshape(positions(call, index, size), (source.type.elements, 1))
    flat = call.reshape(x, (size,))
    updates = call.reshape(source, (source.type.elements,))
    if accumulate:
        total = call.emit("scatter_nd", places, updates, shape=(size,))
        written = call.emit("add", flat, total)
    else:
        written = call.emit("scatter_nd_update", flat, places, updates)
    return call.reshape(written, x.type.shape)


@converts("aten.diagonal_scatter")
def _diagonal(
    call: Call, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    rank, count = x.type.rank, src.type.shape[-1]
    used = [dim1 % rank, dim2 % rank]
    begins = (max(-offset, 0), max(offset, 0))
    places = [Constant(begin + np.arange(count), "int64") for begin in begins]
    order = [*used, *(d for d in range(rank) if d not in used)]
    values = call.transpose(src, [rank - 2, *range(rank - 2)])
    written = _index_put(call, call.transpose(x, order), places, values)
    return call.transpose(written, np.argsort(order).tolist())


@converts("aten.as_strided_scatter")
def _strided(
    call: Call, x: Value, src: Value, size: Any, stride: Any, storage_offset: int | None = None
) -> Value:
    """Write to elements by their places in memory."""
    strides, begin = call.memory
    first = 0 if storage_offset is None else storage_offset - begin
    held = places_in_memory(x.type.shape, strides).reshape(-1)
    wanted = first + places_in_memory(size, stride).reshape(-1)
    order = np.argsort(held)
    found = order[np.searchsorted(held[order], wanted).clip(0, held.size - 1)]
    if (held[found] != wanted).any() or np.unique(wanted).size != wanted.size:
        raise UnsupportedError("a write by strides to elements that its tensor has not once each")
    return _put(call, x, Constant(found, "int64"), src)


@converts("aten.scatter", "aten.scatter_")
def _scatter(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    src: Value | None = None,
    value: Operand | None = None,
) -> Value:
    if src is None:
        assert value is not None
        src = call.broadcast(call.operand(value, x.type.dtype), index.type.shape)
    axis = dim % x.type.rank
    part, src = _aligned(call, x, index, src, axis)
    written = call.emit("scatter_elements", part, index, src, axis=axis)
    return _put_back(call, x, written, axis)


@converts("aten.index_add", "aten.scatter_add")
def _added(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Value | None = None,
    src: Value | None = None,
    alpha: float = 1,
) -> Value:
    source = src if source is None else source
    assert source is not None
    axis = dim % x.type.rank
    if call.operator.startswith("aten.index_add"):
        return _rows_added(call, x, axis, index, call.scaled(source, alpha))
    x_part, source = _aligned(call, x, index, source, axis)
    total = emit_scatter_elements_add(call.build, x_part, index, source, axis)
    return _put_back(call, x, total, axis)


def _rows_added(call: Call, x: Value, axis: int, index: Value, source: Value) -> Value:
    """Add slices at positions along a dimension."""
    order = [axis, *(d for d in range(x.type.rank) if d != axis)]
    rows = call.reshape(index, (index.type.elements, 1))
    shape = tuple(x.type.shape[d] for d in order)
    total = call.emit("scatter_nd", rows, call.transpose(source, order), shape=shape)
    return call.emit("add", x, call.transpose(total, np.argsort(order).tolist()))


def _aligned(call: Call, x: Value, index: Value, source: Value, axis: int) -> tuple[Value, Value]:
    """Return the part of a tensor, and of what is written, that positions are given for."""
    for d, n in enumerate(index.type.shape):
        source = call.part(source, d, 0, n)
        if d != axis:
            x = call.part(x, d, 0, n)
    return x, source


def _put_back(call: Call, x: Value, written: Value, axis: int) -> Value:
    """Return a tensor whose first part has been written."""
    for d in reversed(range(x.type.rank)):
        part, size = written.type.shape[d], x.type.shape[d]
        if part < size:
            rest = x
            for outer in range(d):
                rest = call.part(rest, outer, 0, written.type.shape[outer])
            rest = call.part(rest, d, part, size - part)
            written = call.emit("concat", written, rest, axis=d)
    return written


_SEGMENTS = {
    "amax": ("unsorted_segment_max", "maximum"),
    "amin": ("unsorted_segment_min", "minimum"),
}


@converts("aten.scatter_reduce")
def _scatter_reduce(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    """Combine elements at positions; those of `x` count where nothing is written, or always."""
    axis = dim % x.type.rank
    part, src = _aligned(call, x, index, src, axis)
    ones = call.fill(1, x.type.dtype, index.type.shape)
    zeros = call.fill(0, x.type.dtype, part.type.shape)
    counts = emit_scatter_elements_add(call.build, zeros, index, ones, axis)
    is_written = call.emit("greater", counts, call.fill(0, x.type.dtype))
    if reduce in _SEGMENTS:
        found = _extreme_at(call, part, index, src, axis, reduce, include_self)
        found = call.emit("where", is_written, found, part)
        if x.type.is_float:
            found = _shared(
                call, found, part, index, src, axis, None if include_self else is_written
            )
        return _put_back(call, x, found, axis)
    if reduce == "prod":
        found = _product_at(call, part, index, src, axis)
        own = (
            part
            if include_self
            else call.emit("where", is_written, call.fill(1, x.type.dtype), part)
        )
        return _put_back(call, x, call.emit("mul", own, found), axis)
    own = part if include_self else zeros
    found = emit_scatter_elements_add(call.build, own, index, src, axis)
    if reduce == "mean":
        counts = call.shifted(counts, 1) if include_self else counts
        least = call.emit("maximum", counts, call.fill(1, x.type.dtype))
        found = call.emit("div", found, least)
    return _put_back(call, x, call.emit("where", is_written, found, part), axis)


@converts("aten.index_reduce")
def _index_reduce(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    axis, shape = dim % x.type.rank, source.type.shape
    column = [shape[axis] if d == axis else 1 for d in range(x.type.rank)]
    places = call.broadcast(call.reshape(index, column), shape)
    return _scatter_reduce(call, x, axis, places, source, reduce, include_self)


def _product_at(call: Call, x: Value, index: Value, src: Value, axis: int) -> Value:
    """Return products of elements at positions, one where there are none.

    Every element of `x` is given all elements that are written along its dimension, those of other
    positions as ones: there is no other way by which products of zeros have gradients.
    """
    rank, size = x.type.rank, x.type.shape[axis]
    shape = (*index.type.shape[: axis + 1], 1, *index.type.shape[axis + 1 :])
    row = np.arange(size).reshape(size, *(1,) * (rank - axis - 1))
    places = call.reshape(index, shape)
    is_there = call.emit("equal", places, call.like(row, places))
    factors = call.emit("where", is_there, call.reshape(src, shape), call.fill(1, x.type.dtype))
    return call.emit("reduce_prod", factors, axis=(axis,))


def _extreme_at(
    call: Call, x: Value, index: Value, src: Value, axis: int, reduce: str, include_self: bool
) -> Value:
    """Return extrema of elements at positions, each column with segments of its own."""
    order = [axis, *(d for d in range(x.type.rank) if d != axis)]
    shape = tuple(x.type.shape[d] for d in order)
    columns = prod(shape[1:])
    place = call.scaled(call.transpose(index, order), columns)
    column = np.arange(columns).reshape(shape[1:])
    place = call.emit("add", place, call.like(column, place))
    flat = call.reshape(place, (place.type.elements,))
    updates = call.reshape(call.transpose(src, order), flat.type.shape)
    operator, combine = _SEGMENTS[reduce]
    found = call.emit(operator, updates, flat, segments=prod(shape))
    found = call.transpose(call.reshape(found, shape), np.argsort(order).tolist())
    return call.emit(combine, found, x) if include_self else found


def _shared(
    call: Call, value: Value, x: Value, index: Value, src: Value, axis: int, hidden: Value | None
) -> Value:
    """Return extrema at positions whose gradient is shared by all elements that are equal.

    As in PyTorch, an element of `x` that is `hidden` counts among them, but has no gradient.
    """
    dtype = x.type.dtype
    value = call.emit("stop_gradient", value)
    own = call.cast(call.emit("equal", x, value), dtype)
    written = call.emit("equal", src, call.emit("gather_elements", value, index, axis=axis))
    written = call.cast(written, dtype)
    count = emit_scatter_elements_add(call.build, own, index, written, axis)
    # Products, not masks: where an extremum is no number, none is equal and the share is infinite.
    first, second = call.emit("mul", x, own), call.emit("mul", src, written)
    if hidden is not None:
        first = call.emit("mask", first, call.emit("logical_not", hidden))
    total = emit_scatter_elements_add(call.build, first, index, second, axis)
    return call.emit("with_gradient_of", value, call.emit("div", total, count))


@converts("aten.masked_scatter")
def _masked_scatter(call: Call, x: Value, mask: Value, source: Item) -> Value:
    """Write the elements of `source` in order where a mask is true, none if it has none."""
    if isinstance(source, Constant) and not source.size:
        return x
    source = call.value(source)
    mask = call.broadcast(mask, x.type.shape)
    flat = call.cast(call.reshape(mask, (mask.type.elements,)), "int64")
    place = call.shifted(call.emit("cumsum", flat, axis=0), -1)
    last = call.fill(source.type.elements - 1, "int64")
    place = call.emit("minimum", call.emit("maximum", place, call.fill(0, "int64")), last)
    elements = call.reshape(source, (source.type.elements,))
    written = call.reshape(call.emit("gather", elements, place, axis=0), x.type.shape)
    return call.emit("where", mask, written, x)
