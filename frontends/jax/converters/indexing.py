"""Primitives that look up and write elements by position: gather, scatter, dynamic slices."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.jax.converters.positions import (
    columns_of,
    limited_to,
    mode_of,
    positions_inside,
)
from shardwright.frontends.jax.converters.shape import sliced, transposed
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array


@converts("gather")
def _gather(call: Call) -> Value:
    numbers = call.params["dimension_numbers"]
    x = call.at(0)
    sizes = tuple(map(int, call.params["slice_sizes"]))
    mapped = tuple(map(int, numbers.start_index_map))
    batch = tuple(map(int, numbers.operand_batching_dims))
    for d, n in enumerate(sizes):
        if d not in mapped and d not in batch and n != x.type.shape[d]:
            x = call.part(x, d, 0, n)
    places = positions_inside(call, x, [x.type.shape[d] - sizes[d] for d in mapped])
    columns = places.columns
    # A slice of a whole dimension can only begin at zero.
    partial = [i for i, d in enumerate(mapped) if sizes[d] != x.type.shape[d]] or [0]
    mapped, columns = tuple(mapped[i] for i in partial), [columns[i] for i in partial]
    if all(isinstance(c, int) for c in columns) and not batch and _is_single(call):
        found = _slice_at(call, x, mapped, columns, sizes)
        found = call.reshape(_without(call, found, numbers.collapsed_slice_dims), call.result.shape)
    elif any(sizes[d] != 1 for d in mapped):
        found = _runs(call, x, mapped, columns, sizes)
    else:
        outside = _outside(call)
        if places.inside is not None and outside and not batch and len(mapped) == 1:
            index = _marked(call, places.inside, columns[0])
            found = _taken(call, x, mapped[0], index, outside=outside)
            return _placed(call, found, sizes)
        found = _placed(call, _looked_up(call, x, mapped, batch, columns), sizes)
    return found if places.inside is None else _chosen(call, found, places.inside)


def _outside(call: Call) -> str | None:
    """Return what the operator `gather` calls the value of a slice that was out of range."""
    if not call.result.is_float:
        return None
    if mode_of(call) == "promise":
        return "constant"
    fill = call.params["fill_value"]
    if fill is None or fill != fill:
        return "nan"
    return "zero" if fill == 0 else None


def _marked(call: Call, inside: Value, column: Any) -> Value:
    """Return positions, -1 - p in place of p where it was out of range."""
    place = _as_value(call, column, _outer(call))
    if place.type.dtype.startswith("uint"):
        place = call.cast(place, "int64")
    negative = call.emit("sub", call.fill(-1, place.type.dtype), place)
    return call.emit("where", inside, place, negative)


def _chosen(call: Call, found: Value, inside: Value) -> Value:
    """Return slices, with what JAX gives in place of those that were out of range."""
    placed = found.type.shape
    if inside.type.elements == found.type.elements:  # in the shape of the lookup itself
        found = call.views.get(found.name, found)
        test = call.reshape(inside, found.type.shape)
    else:
        offset = tuple(map(int, call.params["dimension_numbers"].offset_dims))
        shape = [1 if d in offset else n for d, n in enumerate(placed)]
        test = call.broadcast(call.reshape(inside, shape), placed)
    is_promised = mode_of(call) == "promise"
    other = call.emit("stop_gradient", found) if is_promised else _filling(call, found.type.dtype)
    return call.reshape(call.emit("where", test, found, other), placed)


def _filling(call: Call, dtype: str) -> Value:
    """Return what JAX fills in for a slice that was out of range, a scalar."""
    fill = call.params["fill_value"]
    if _outside(call) == "nan":  # a lookup gives one; a constant of the program cannot be nan
        nothing, before = call.fill(0, dtype, (1,)), call.fill(-1, "int64")
        return call.emit("gather", nothing, before, axis=0, outside="nan")
    if fill is None and dtype != "bool":  # the least, of unsigned ones the greatest
        kind = np.iinfo(numpy_dtype(dtype))
        fill = kind.min or kind.max
    return call.fill(True if fill is None else np.asarray(fill).item(), dtype)


def _is_single(call: Call) -> bool:
    """Return whether one slice is looked up."""
    return int(np.prod(_outer(call), dtype=np.int64)) == 1


def _written_at(call: Call, most: list[int]) -> list[Any]:
    """Return the positions of a write; those that are out of range are dropped by the operator."""
    clipped, known = mode_of(call) == "clip", call.known(1)
    if clipped:
        return positions_inside(call, call.at(0), most).columns
    if known is None:
        return columns_of(call, len(most))
    lines = [known[..., i] for i in range(len(most))]
    return [int(line.ravel()[0]) if line.size == 1 else line for line in lines]


def _slice_at(call: Call, x: Value, mapped: Any, columns: Any, sizes: Any) -> Value:
    begin = [0] * x.type.rank
    for d, column in zip(mapped, columns, strict=True):
        begin[d] = column
    return sliced(call, x, begin, sizes)


def _without(call: Call, x: Value, dims: Any) -> Value:
    shape = [n for d, n in enumerate(x.type.shape) if d not in tuple(dims)]
    return call.reshape(x, shape)


def _outer(call: Call) -> tuple[int, ...]:
    """Return the shape of the positions."""
    item: Any = call.operands[1]
    shape = item.type.shape if isinstance(item, Value) else item.shape
    return tuple(int(n) for n in shape[:-1])


def _as_value(call: Call, column: Any, shape: tuple[int, ...]) -> Value:
    """Return positions along a dimension as a value of a shape."""
    if isinstance(column, (int, np.ndarray)):
        return call.constant(np.broadcast_to(np.asarray(column), shape), "int64")
    return call.broadcast(column, shape)


def _looked_up(call: Call, x: Value, mapped: Any, batch: Any, columns: list[Any]) -> Value:
    """Return ``[positions..., dimensions that are not looked up...]``."""
    outer = _outer(call)
    if not batch and len(mapped) == 1:
        return _taken(call, x, mapped[0], _as_value(call, columns[0], outer))
    along = tuple(map(int, call.params["dimension_numbers"].start_indices_batching_dims))
    if batch and len(mapped) == 1 and len(batch) == x.type.rank - 1:
        return _along(call, x, mapped[0], batch, along, columns[0])
    tuples = {d: _as_value(call, c, outer) for d, c in zip(mapped, columns, strict=True)}
    for d, at in zip(batch, along, strict=True):
        tuples[d] = call.constant(_count(outer, at), "int64")
    return call.emit("gather_nd", *_by_tuples(call, x, tuples))


def _taken(call: Call, x: Value, axis: int, index: Value, **how: Any) -> Value:
    """Return slices along one dimension, with the positions in front."""
    if not axis:
        return call.emit("gather", x, index, axis=0, **how)
    found, count = call.emit("gather", x, index, axis=axis, **how), index.type.rank
    # The positions took the place of the axis.
    order = [*range(axis, axis + count), *range(axis), *range(axis + count, found.type.rank)]
    return transposed(call, found, order)


def _count(shape: tuple[int, ...], at: int) -> Array:
    """Return the position of each element along a dimension."""
    line = np.arange(shape[at]).reshape([-1 if d == at else 1 for d in range(len(shape))])
    return np.broadcast_to(line, shape)


def _by_tuples(call: Call, x: Value, tuples: dict[int, Value]) -> tuple[Value, Value]:
    """Return a tensor whose first dimensions are looked up, and the positions as tuples."""
    used = sorted(tuples)
    rest = [d for d in range(x.type.rank) if d not in tuples]
    columns = [call.cast(tuples[d], "int64") for d in used]
    index = call.emit("stack", *columns, axis=columns[0].type.rank)
    return transposed(call, x, [*used, *rest]), index


def _along(call: Call, x: Value, axis: int, batch: Any, along: Any, column: Any) -> Value:
    """Return elements along one dimension, the others being in step with the positions."""
    outer = _outer(call)
    index = _as_value(call, column, outer)
    others = [d for d in range(len(outer)) if d not in along]
    turned = transposed(call, x, [*batch, axis])
    order = [*along, *others]
    count = int(np.prod([outer[d] for d in others], dtype=np.int64))
    lead = turned.type.shape[:-1]
    places = call.reshape(transposed(call, index, order), (*lead, count))
    if count == 1:
        found = call.emit("pick", turned, call.reshape(places, lead))
    else:
        found = call.emit("gather_elements", turned, places, axis=len(lead))
    found = call.reshape(found, tuple(outer[d] for d in order))
    return transposed(call, found, [order.index(d) for d in range(len(outer))])


def _placed(call: Call, found: Value, sizes: tuple[int, ...]) -> Value:
    """Return looked-up slices with their dimensions where the result has them."""
    numbers = call.params["dimension_numbers"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    outer = _outer(call)
    offset = tuple(map(int, numbers.offset_dims))
    kept = [d for d in range(len(sizes)) if d not in gone]
    # First the positions, then the window with its dimensions of one element.
    found = call.reshape(found, (*outer, *(sizes[d] for d in kept)))
    rank = found.type.rank
    places = [d for d in range(rank) if d not in offset]
    where = {p: i for i, p in enumerate(places)}
    where.update({p: len(outer) + i for i, p in enumerate(offset)})
    return transposed(call, found, [where[d] for d in range(rank)])


def _runs(call: Call, x: Value, mapped: Any, columns: list[Any], sizes: Any) -> Value:
    """Return one run of elements that begins at a computed position."""
    wide = [d for d in mapped if sizes[d] != x.type.shape[d]]
    if (
        len(wide) > 1
        or not _is_single(call)
        or call.params["dimension_numbers"].operand_batching_dims
    ):
        raise UnsupportedError("a gather of slices of several elements at computed positions")
    found = x
    for d, column in zip(mapped, columns, strict=True):
        found = _run(call, found, d, column, sizes[d])
    numbers = call.params["dimension_numbers"]
    return call.reshape(_without(call, found, numbers.collapsed_slice_dims), call.result.shape)


def _run(call: Call, x: Value, axis: int, begin: Any, size: int) -> Value:
    """Return a run of elements along one dimension."""
    if size == x.type.shape[axis]:
        return x
    if isinstance(begin, (int, np.ndarray)):
        return call.part(x, axis, int(np.asarray(begin).ravel()[0]), size)
    dtype = begin.type.dtype
    index = call.emit("add", call.reshape(begin, (1,)), call.constant(np.arange(size), dtype))
    return call.emit("gather", x, index, axis=axis)


@converts("dynamic_slice")
def _dynamic_slice(call: Call) -> Value:
    x, sizes = call.at(0), tuple(map(int, call.params["slice_sizes"]))
    for axis, size in enumerate(sizes):
        most = x.type.shape[axis] - size
        number = call.number(axis + 1)
        if number is not None:
            x = call.part(x, axis, min(max(int(number), 0), most), size)
        elif most:
            x = _run(call, x, axis, limited_to(call, call.at(axis + 1), most)[0], size)
    return x


@converts("dynamic_update_slice")
def _dynamic_update(call: Call) -> Value:
    x, update = call.at(0), call.at(1)
    shape, size = x.type.shape, update.type.shape
    if shape == size:
        return update
    begins = [call.number(2 + d) for d in range(len(shape))]
    computed = [d for d, begin in enumerate(begins) if begin is None and size[d] != shape[d]]
    if computed:
        return _update_rows(call, x, update, computed, begins)
    limits = [min(max(int(b or 0), 0), n - s) for b, n, s in zip(begins, shape, size, strict=True)]
    after = tuple(n - b - s for n, b, s in zip(shape, limits, size, strict=True))
    inside = np.zeros(shape, bool)
    inside[tuple(slice(b, b + s) for b, s in zip(limits, size, strict=True))] = True
    wide = call.emit("pad", update, before=tuple(limits), after=after)
    return call.emit("where", call.constant(inside, "bool"), wide, x)


def _update_rows(call: Call, x: Value, update: Value, computed: list[int], begins: Any) -> Value:
    """Return a tensor with a run along one dimension written at a computed position."""
    axis, shape, size = computed[0], x.type.shape, update.type.shape
    if len(computed) > 1 or any(size[d] != shape[d] for d in range(len(shape)) if d != axis):
        raise UnsupportedError("an update at computed positions of several dimensions")
    most = shape[axis] - size[axis]
    begin = call.reshape(limited_to(call, call.at(2 + axis), most)[0], (1,))
    index = call.emit("add", begin, call.constant(np.arange(size[axis]), begin.type.dtype))
    order = [axis, *(d for d in range(len(shape)) if d != axis)]
    turned = [transposed(call, value, order) for value in (x, update)]
    rows = call.reshape(index, (size[axis], 1))
    found = call.emit("scatter_nd_update", turned[0], rows, turned[1])
    return transposed(call, found, [order.index(d) for d in range(len(shape))])


# Writes

_WRITES = {
    "scatter": "scatter_nd_update",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "mul",
    "scatter_mul": "mul",
    "scatter-max": "scatter_nd_max",
    "scatter_max": "scatter_nd_max",
    "scatter-min": "scatter_nd_min",
    "scatter_min": "scatter_nd_min",
}


@converts(*_WRITES)
def _scatter(call: Call) -> Value:
    numbers = call.params["dimension_numbers"]
    x, updates = call.at(0), call.at(2)
    mapped = tuple(map(int, numbers.scatter_dims_to_operand_dims))
    inserted = set(numbers.inserted_window_dims)
    batch = tuple(map(int, numbers.operand_batching_dims))
    window = tuple(map(int, numbers.update_window_dims))
    kept = [d for d in range(x.type.rank) if d not in inserted and d not in batch]
    single = _window_written(call, x, updates, kept, mapped)
    if single is not None:
        return single
    sizes = dict(zip(kept, (updates.type.shape[d] for d in window), strict=True))
    if any(sizes.get(d, 1) != 1 for d in mapped) or any(
        n != x.type.shape[d] for d, n in sizes.items() if d not in mapped
    ):
        raise UnsupportedError("a scatter of slices of several elements along its positions")
    outer = _outer(call)
    columns = _written_at(call, [x.type.shape[d] - 1 for d in mapped])
    if not outer:
        outer = (1,)
        columns = [call.reshape(c, outer) if isinstance(c, Value) else c for c in columns]
    tuples = {d: _as_value(call, c, outer) for d, c in zip(mapped, columns, strict=True)}
    for d, at in zip(batch, numbers.scatter_indices_batching_dims, strict=True):
        tuples[d] = call.constant(_count(outer, int(at)), "int64")
    places = [d for d in range(updates.type.rank) if d not in window]
    moved = transposed(call, updates, [*places, *window])
    rest = [d for d in range(x.type.rank) if d not in tuples]
    moved = call.reshape(moved, (*outer, *(x.type.shape[d] for d in rest)))
    turned, index = _by_tuples(call, x, tuples)
    operator = _WRITES[call.primitive]
    if operator == "mul":
        if not call.params["unique_indices"] and not _differ(call.known(1)):
            raise UnsupportedError("a scatter of factors to positions that may be equal")
        ones = call.fill(1, turned.type.dtype, turned.type.shape)
        factors = call.emit("scatter_nd_update", ones, index, moved)
        found = call.emit("mul", turned, factors)
    elif operator == "add":
        total = call.emit("scatter_nd", index, moved, shape=turned.type.shape)
        found = call.emit("add", turned, total)
    else:
        found = call.emit(operator, turned, index, moved)
    order = [*sorted(tuples), *rest]
    return transposed(call, found, [order.index(d) for d in range(x.type.rank)])


def _differ(positions: Any) -> bool:
    """Return whether positions are known, and no two are equal."""
    if positions is None:
        return False
    rows = positions.reshape(-1, positions.shape[-1])
    return len(np.unique(rows, axis=0)) == len(rows)


def _window_written(
    call: Call, x: Value, updates: Value, kept: list[int], mapped: tuple[int, ...]
) -> Value | None:
    """Return a tensor with one block at a known place written or added to."""
    known = call.known(1)
    operator = _WRITES[call.primitive]
    blocks = ("add", "mul", "scatter_nd_update")
    if known is None or known.size != len(mapped) or operator not in blocks:
        return None
    window = call.params["dimension_numbers"].update_window_dims
    shape, size, begin = x.type.shape, [1] * x.type.rank, [0] * x.type.rank
    for d, position in zip(kept, window, strict=True):
        size[d] = updates.type.shape[position]
    for d, number in zip(mapped, known.ravel(), strict=True):
        most = shape[d] - size[d]
        begin[d] = min(max(int(number), 0), most)
        if begin[d] != number and mode_of(call) != "clip":
            return x  # nothing is written
    ends = [n - b - s for n, b, s in zip(shape, begin, size, strict=True)]
    block = call.reshape(updates, size)
    around = 1.0 if operator == "mul" else 0.0
    wide = call.emit("pad", block, before=tuple(begin), after=tuple(ends), value=around)
    if operator in ("add", "mul"):
        return call.emit(operator, x, wide)
    inside = np.zeros(shape, bool)
    inside[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))] = True
    return call.emit("where", call.constant(inside, "bool"), wide, x)
