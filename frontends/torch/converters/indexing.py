"""Operators that look up and write elements by position."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.converters.elementwise import common_dtype
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value
from shardwright.operators.indexing.scatter import emit_scatter_elements_add


def positions(call: Call, item: Item, size: int) -> Value:
    """Return positions along a dimension of `size`, counted from the front."""
    if isinstance(item, Constant):
        array = item.array.astype(np.int64)
        return call.constant(np.where(array < 0, array + size, array), "int64")
    index = call.value(item)
    return call.emit("mod", index, call.fill(size, index.type.dtype))


@converts("aten.index_select")
def _index_select(call: Call, x: Value, dim: int, index: Value) -> Value:
    flat = call.reshape(index, (index.type.elements,))
    return call.emit("gather", x, flat, axis=dim % x.type.rank)


@converts("aten.gather")
def _gather(call: Call, x: Value, dim: int, index: Value, sparse_grad: Any = None) -> Value:
    axis = dim % x.type.rank
    for d, (n, size) in enumerate(zip(index.type.shape, x.type.shape, strict=True)):
        if d != axis and n != size:
            x = call.part(x, d, 0, n)
    return call.emit("gather_elements", x, index, axis=axis)


@converts("aten.index")
def _index(call: Call, x: Value, indices: Item) -> Value:
    places: list[Any] = list(indices)  # type: ignore[arg-type]
    used = [d for d, item in enumerate(places) if item is not None]
    if any(_dtype(places[d]) == "bool" for d in used):
        raise UnsupportedError("a selection by a mask, whose shape depends on data,")
    if used != list(range(used[0], used[-1] + 1)):  # their dimensions come first
        x, places = _in_front(call, x, places, used)
        used = list(range(len(used)))
    if _are_all_in_order([places[d] for d in used], [x.type.shape[d] for d in used]):
        return call.reshape(x, call.result.shape)
    if len(used) == 1:
        axis = used[0]
        return call.emit("gather", x, positions(call, places[axis], x.type.shape[axis]), axis=axis)
    return _of_several(call, x, places, used)


def _are_all_in_order(places: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Return whether positions in dimensions are known, and each element is looked up in turn."""
    if not all(isinstance(item, Constant) and not item.is_absent for item in places):
        return False
    shape = np.broadcast_shapes(*(item.shape for item in places))
    if prod(shape) != prod(sizes):
        return False
    for d, (item, size) in enumerate(zip(places, sizes, strict=True)):
        place = np.broadcast_to(item.array, shape).reshape(*sizes)
        place = np.where(place < 0, place + size, place)
        if (np.moveaxis(place, d, -1) != np.arange(size)).any():
            return False
    return True


def _dtype(item: Any) -> str:
    return item.dtype if isinstance(item, Constant) else str(item.type.dtype)


def _in_front(call: Call, x: Value, places: list[Any], used: list[int]) -> tuple[Value, list[Any]]:
    """Return a tensor with the dimensions that are looked up in front, and their positions."""
    rest = [d for d in range(x.type.rank) if d not in used]
    return call.transpose(x, [*used, *rest]), [places[d] for d in used]


def _of_several(call: Call, x: Value, places: list[Any], used: list[int]) -> Value:
    """Return slices at tuples of positions in neighbouring dimensions."""
    first, count = used[0], len(used)
    order = [*used, *(d for d in range(x.type.rank) if d not in used)]
    made = [positions(call, places[d], x.type.shape[d]) for d in used]
    shape = np.broadcast_shapes(*(value.type.shape for value in made))
    made = [call.cast(call.broadcast(value, shape), "int64") for value in made]
    index = call.emit("stack", *made, axis=len(shape))
    found = call.emit("gather_nd", call.transpose(x, order), index)
    rank = len(shape)
    back = [*range(rank, rank + first), *range(rank), *range(rank + first, found.type.rank)]
    assert count > 1
    return call.transpose(found, back)


@converts("aten.as_strided")
def _as_strided(
    call: Call, x: Value, size: Any, stride: Any, storage_offset: int | None = None
) -> Value:
    """Look up elements by their places in memory; dimensions that stay in front are kept."""
    strides, begin = call.memory
    shape, first = x.type.shape, 0 if storage_offset is None else storage_offset - begin
    pairs = zip(zip(size, stride, strict=True), zip(shape, strides, strict=True), strict=False)
    kept = next(
        (d for d, (new, old) in enumerate(pairs) if new != old), min(len(size), x.type.rank)
    )
    for front in range(kept, -1, -1):
        held = _places(shape[front:], strides[front:]).reshape(-1)
        wanted = first + _places(size[front:], stride[front:])
        order = np.argsort(held)
        found = order[np.searchsorted(held[order], wanted).clip(0, held.size - 1)]
        if (held[found] == wanted).all():
            flat = call.reshape(x, (*shape[:front], held.size))
            return call.emit("gather", flat, call.constant(found, "int64"), axis=front)
    raise UnsupportedError("`as_strided` of elements of memory that its tensor does not have")


def _places(sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the places in memory of all elements."""
    place = np.zeros(tuple(sizes), np.int64)
    for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        place += (np.arange(size) * stride).reshape(size, *(1,) * (len(sizes) - d - 1))
    return place


# Writes


@converts("aten.index_put", "aten.index_put_")
def _index_put(
    call: Call, x: Value, indices: Item, values: Value, accumulate: bool = False
) -> Value:
    places: list[Any] = list(indices)  # type: ignore[arg-type]
    if len(places) == 1 and _dtype(places[0]) == "bool":
        return _masked_put(call, x, call.value(places[0]), values, accumulate)
    used = [d for d, item in enumerate(places) if item is not None]
    if any(_dtype(places[d]) == "bool" for d in used):
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
    moved, fronted = _in_front(call, x, places, used)
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
    if reduce in ("sum", "mean"):
        own = part if include_self else zeros
        found = emit_scatter_elements_add(call.build, own, index, src, axis)
        if reduce == "mean":
            counts = call.shifted(counts, 1) if include_self else counts
            least = call.emit("maximum", counts, call.fill(1, x.type.dtype))
            found = call.emit("div", found, least)
    else:
        raise UnsupportedError(f"a scatter that reduces by `{reduce}`")
    return _put_back(call, x, call.emit("where", is_written, found, part), axis)


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


@converts("aten.one_hot")
def _one_hot(call: Call, x: Value, num_classes: int = -1) -> Value:
    if num_classes < 0:
        raise UnsupportedError("one-hot vectors whose number depends on data")
    return call.emit("one_hot", x, depth=num_classes, dtype="int64")


@converts("aten.bucketize")
def _bucketize(call: Call, x: Value, boundaries: Value, right: bool = False) -> Value:
    column = call.reshape(x, (*x.type.shape, 1))
    test = "greater_equal" if right else "greater"
    over = call.emit(test, column, boundaries)
    return call.emit("reduce_sum", call.cast(over, "int64"), axis=-1)


@converts("aten.nonzero", "aten.unique")
def _by_data(call: Call, x: Value) -> Value:
    raise UnsupportedError("a result whose shape depends on data")


@converts("aten.isin")
def _isin(call: Call, elements: Value, test_elements: Value) -> Value:
    column = call.reshape(elements, (*elements.type.shape, 1))
    row = call.reshape(test_elements, (test_elements.type.elements,))
    dtype = common_dtype(elements, test_elements)
    equal = call.emit("equal", call.cast(column, dtype), call.cast(row, dtype))
    return call.emit("reduce_any", equal, axis=-1)
