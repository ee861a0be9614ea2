"""Rows of tables that are looked up, and bags of them."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value

_MEAN, _MAX = 1, 2  # PyTorch's numbers of modes; 0 is the sum


@converts("aten.embedding")
def _embedding(
    call: Call,
    weight: Value,
    indices: Item,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: Any = None,
) -> Value:
    if padding_idx < 0 and _counts_up(indices):  # a table of positions, each once
        first = call.part(weight, 0, 0, call.result.elements // weight.type.shape[1])
        return call.reshape(first, call.result.shape)
    indices = call.value(indices)
    rows = call.emit("gather", weight, indices, axis=0)
    if scale_grad_by_freq:
        count = call.reshape(_frequencies(call, weight, indices), (*indices.type.shape, 1))
        rows = call.emit("with_gradient_of", rows, call.emit("div", rows, count))
    if padding_idx < 0:
        return rows
    padding = call.fill(padding_idx, indices.type.dtype)
    is_padding = call.emit("equal", indices, padding)
    is_padding = call.reshape(is_padding, (*indices.type.shape, 1))
    return call.emit("where", is_padding, call.emit("stop_gradient", rows), rows)


def _frequencies(call: Call, weight: Value, indices: Value) -> Value:
    """Return how often each row of a table is looked up."""
    flat, kind = call.reshape(indices, (indices.type.elements,)), weight.type.dtype
    ones = call.fill(1, kind, flat.type.shape)
    column = call.reshape(flat, (*flat.type.shape, 1))
    total = call.emit("scatter_nd", column, ones, shape=weight.type.shape[:1])
    return call.emit("gather", total, flat, axis=0)


def _counts_up(item: Item) -> bool:
    """Return whether indices are known and 0, 1, 2, ..."""
    if not isinstance(item, Constant) or item.is_absent:
        return False
    flat = item.array.reshape(-1)
    return bool(np.array_equal(flat, np.arange(flat.size)))


@converts("aten.embedding_bag", "aten._embedding_bag")
def _embedding_bag(
    call: Call,
    weight: Value,
    indices: Value,
    offsets: Item,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: Any = None,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[Value | None]:
    if scale_grad_by_freq:
        raise UnsupportedError("an embedding bag whose gradient is divided by frequencies")
    count, bags = indices.type.shape[0], call.result.shape[0]
    rows = call.emit("gather", weight, indices, axis=0)
    kept = None
    if padding_idx is not None and padding_idx != -1:
        padding = call.fill(padding_idx % weight.type.shape[0], indices.type.dtype)
        kept = call.emit("not_equal", indices, padding)
    if per_sample_weights is not None:
        rows = call.emit("mul", rows, call.reshape(per_sample_weights, (count, 1)))
    if kept is None and mode != _MAX and _are_even(offsets, count, bags):
        grouped = call.reshape(rows, (bags, count // bags, rows.type.shape[1]))
        operator = "reduce_mean" if mode == _MEAN else "reduce_sum"
        return [call.emit(operator, grouped, axis=(1,)), None, None, None]
    bag = _bags(call, offsets, count)
    if mode == _MAX:
        found = _largest(call, rows, bag, kept, bags)
    else:
        found = _summed(call, rows, bag, kept, bags)
    if mode == _MEAN:
        ones = call.fill(1, rows.type.dtype, (count, 1))
        sizes = _summed(call, ones, bag, kept, bags)
        found = call.emit("div", found, call.emit("maximum", sizes, call.fill(1, rows.type.dtype)))
    return [found, None, None, None]


def _are_even(offsets: Item, count: int, bags: int) -> bool:
    """Return whether bags are known to have the same number of rows."""
    if count % bags or not isinstance(offsets, Constant):
        return False
    return np.array_equal(offsets.array[:bags], np.arange(bags) * (count // bags)) and bool(
        (offsets.array[bags:] == count).all()
    )


def _bags(call: Call, offsets: Item, count: int) -> Value:
    """Return the bag ``[row]`` of each row: how many bags begin at it or before, less one."""
    if isinstance(offsets, Constant) and not offsets.is_absent:
        bag = np.searchsorted(offsets.array, np.arange(count), side="right") - 1
        return call.constant(bag, "int64")
    begins = call.value(offsets)
    ones = call.fill(1, "int64", begins.type.shape)
    place = call.reshape(call.cast(begins, "int64"), (*begins.type.shape, 1))
    marks = call.emit("scatter_nd", place, ones, shape=(count + 1,))
    begun = call.emit("cumsum", marks, axis=0)
    return call.shifted(call.part(begun, 0, 0, count), -1)


def _summed(call: Call, rows: Value, bag: Value, kept: Value | None, bags: int) -> Value:
    """Return the sums of the rows of each bag; rows behind the last one are left out."""
    if kept is not None:
        rows = call.emit("mask", rows, call.reshape(kept, (*kept.type.shape, 1)))
    place = call.reshape(bag, (*bag.type.shape, 1))
    total = call.emit("scatter_nd", place, rows, shape=(bags + 1, rows.type.shape[1]))
    return call.part(total, 0, 0, bags)


def _largest(call: Call, rows: Value, bag: Value, kept: Value | None, bags: int) -> Value:
    """Return the maxima of bags, of equal ones the first; zero for an empty bag."""
    count = rows.type.shape[0]
    values = call.emit("stop_gradient", rows)
    if kept is not None:
        mask = call.reshape(kept, (count, 1))
        values = call.emit("where", mask, values, call.fill(float("-inf"), rows.type.dtype))
    best = call.emit("unsorted_segment_max", values, bag, segments=bags + 1)
    is_best = call.emit("equal", values, call.emit("gather", best, bag, axis=0))
    if kept is not None:
        is_best = call.emit("logical_and", is_best, mask)
    place = call.constant(np.arange(count)[:, None], "int64")
    place = call.emit("where", is_best, place, call.fill(count, "int64"))
    first = call.emit("unsorted_segment_min", place, bag, segments=bags + 1)
    first = call.part(first, 0, 0, bags)
    is_full = call.emit("less", first, call.fill(count, "int64"))
    first = call.emit("minimum", first, call.fill(count - 1, "int64"))
    return call.emit("mask", call.emit("gather_elements", rows, first, axis=0), is_full)
