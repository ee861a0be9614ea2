"""Operators that look up and write elements by position."""

from typing import Any

import numpy as np

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.converters.elementwise import truth
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


@converts("aten.embedding")
def _embedding(
    call: Call,
    weight: Value,
    indices: Item,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: Any = None,
) -> Value:
    if scale_grad_by_freq:
        raise UnsupportedError("an embedding whose gradient is divided by frequencies")
    if padding_idx < 0 and _counts_up(indices):  # a table of positions
        first = call.part(weight, 0, 0, call.result.elements // weight.type.shape[1])
        return call.reshape(first, call.result.shape)
    indices = call.value(indices)
    rows = call.emit("gather", weight, indices, axis=0)
    if padding_idx < 0:
        return rows
    padding = call.fill(padding_idx, indices.type.dtype)
    is_padding = call.emit("equal", indices, padding)
    is_padding = call.reshape(is_padding, (*indices.type.shape, 1))
    return call.emit("where", is_padding, call.emit("stop_gradient", rows), rows)


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
    if include_last_offset or padding_idx not in (None, -1):
        raise UnsupportedError("an embedding bag with a padding index or the end of the last bag")
    count, bags = indices.type.shape[0], call.result.shape[0]
    even = np.arange(bags) * (count // bags)
    if not isinstance(offsets, Constant) or not np.array_equal(offsets.array, even):
        raise UnsupportedError("bags of an embedding whose sizes differ or depend on data")
    if mode > 1 or scale_grad_by_freq or count % bags:
        raise UnsupportedError("an embedding bag of maxima or of gradients by frequency")
    rows = call.emit("gather", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = call.emit("mul", rows, call.reshape(per_sample_weights, (count, 1)))
    grouped = call.reshape(rows, (bags, count // bags, rows.type.shape[1]))
    operator = "reduce_mean" if mode else "reduce_sum"
    return [call.emit(operator, grouped, axis=(1,)), None, None, None]


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
    if used != list(range(used[0], used[-1] + 1)):
        raise UnsupportedError("positions in dimensions that are not next to each other")
    if len(used) == 1:
        axis = used[0]
        return call.emit("gather", x, positions(call, places[axis], x.type.shape[axis]), axis=axis)
    return _of_several(call, x, places, used)


def _dtype(item: Any) -> str:
    return item.dtype if isinstance(item, Constant) else str(item.type.dtype)


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


# Writes


@converts("aten.index_put", "aten.index_put_")
def _index_put(
    call: Call, x: Value, indices: Item, values: Value, accumulate: bool = False
) -> Value:
    places: list[Any] = list(indices)  # type: ignore[arg-type]
    if len(places) == 1 and _dtype(places[0]) == "bool":
        return _masked_put(call, x, call.value(places[0]), values, accumulate)
    if any(item is None for item in places) or any(_dtype(item) == "bool" for item in places):
        raise UnsupportedError("a write to positions in later dimensions")
    made = [positions(call, item, n) for item, n in zip(places, x.type.shape, strict=False)]
    shape = np.broadcast_shapes(*(value.type.shape for value in made))
    index = call.emit(
        "stack", *(call.cast(call.broadcast(v, shape), "int64") for v in made), axis=len(shape)
    )
    updates = call.broadcast(values, (*shape, *x.type.shape[len(places) :]))
    if not accumulate:
        return call.emit("scatter_nd_update", x, index, updates)
    return call.emit("add", x, call.emit("scatter_nd", index, updates, shape=x.type.shape))


def _masked_put(call: Call, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    if values.type.elements != 1 or accumulate:
        raise UnsupportedError("a write by a mask, whose shape depends on data,")
    mask = call.reshape(mask, (*mask.type.shape, *(1,) * (x.type.rank - mask.type.rank)))
    return call.emit("where", mask, call.reshape(values, (1,) * x.type.rank), x)


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
    return call.emit("scatter_elements", x, index, src, axis=dim % x.type.rank)


@converts("aten.index_add", "aten.scatter_add")
def _added(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Value | None = None,
    src: Value | None = None,
) -> Value:
    source = src if source is None else source
    assert source is not None
    axis = dim % x.type.rank
    if index.type.rank == 1 and axis == 0:
        rows = call.reshape(index, (index.type.shape[0], 1))
        total = call.emit("scatter_nd", rows, source, shape=x.type.shape)
        return call.emit("add", x, total)
    raise UnsupportedError("a sum of rows along a later dimension")


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


@converts("aten.masked_select", "aten.nonzero", "aten.unique")
def _by_data(call: Call, x: Value) -> Value:
    raise UnsupportedError("a result whose shape depends on data")


@converts("aten.isin")
def _isin(call: Call, elements: Value, test_elements: Value) -> Value:
    column = call.reshape(elements, (*elements.type.shape, 1))
    row = call.reshape(test_elements, (test_elements.type.elements,))
    equal = call.emit("equal", column, call.cast(row, elements.type.dtype))
    return call.emit("reduce_any", truth(call, equal), axis=-1)
