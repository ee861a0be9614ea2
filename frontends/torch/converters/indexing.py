"""Operators that look up elements by position, and find positions of elements."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.elementwise import common_dtype
from shardwright.ir.graph import Value


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
    if any(dtype_of_item(places[d]) == "bool" for d in used):
        raise UnsupportedError("a selection by a mask, whose shape depends on data,")
    if used != list(range(used[0], used[-1] + 1)):  # their dimensions come first
        x, places = in_front(call, x, places, used)
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


def dtype_of_item(item: Any) -> str:
    """Return the element type of a tensor or a constant."""
    return item.dtype if isinstance(item, Constant) else str(item.type.dtype)


def in_front(call: Call, x: Value, places: list[Any], used: list[int]) -> tuple[Value, list[Any]]:
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
        held = places_in_memory(shape[front:], strides[front:]).reshape(-1)
        wanted = first + places_in_memory(size[front:], stride[front:])
        order = np.argsort(held)
        found = order[np.searchsorted(held[order], wanted).clip(0, held.size - 1)]
        if (held[found] == wanted).all():
            flat = call.reshape(x, (*shape[:front], held.size))
            return call.emit("gather", flat, call.constant(found, "int64"), axis=front)
    raise UnsupportedError("`as_strided` of elements of memory that its tensor does not have")


def places_in_memory(sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the places in memory of all elements."""
    place = np.zeros(tuple(sizes), np.int64)
    for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        place += (np.arange(size) * stride).reshape(size, *(1,) * (len(sizes) - d - 1))
    return place


@converts("aten.one_hot")
def _one_hot(call: Call, x: Value, num_classes: int = -1) -> Value:
    if num_classes < 0:
        raise UnsupportedError("one-hot vectors whose number depends on data")
    return call.emit("one_hot", x, depth=num_classes, dtype="int64")


@converts("aten.bucketize")
def _bucketize(
    call: Call, x: Operand, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    return _insertion(call, boundaries, call.operand(x, boundaries.type.dtype), right)


@converts("aten.searchsorted")
def _searchsorted(
    call: Call,
    sorted_sequence: Value,
    x: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Value:
    found = call.operand(x, sorted_sequence.type.dtype)
    return _insertion(call, sorted_sequence, found, right or side == "right")


def _insertion(call: Call, bounds: Value, x: Value, right: bool) -> Value:
    """Return how many bounds are below elements, or not over them; all of them below NaN."""
    kind = common_dtype(bounds, x)
    bounds, x = call.cast(bounds, kind), call.cast(x, kind)
    column = call.reshape(x, (*x.type.shape, 1))
    shape = bounds.type.shape
    row = call.reshape(bounds, (*shape[:-1], 1, shape[-1])) if len(shape) > 1 else bounds
    over = call.emit("greater" if right else "greater_equal", row, column)
    below = call.cast(call.emit("logical_not", over), call.result.dtype)
    return call.emit("reduce_sum", below, axis=-1)


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
