"""Branches, loops, sequences and optionals, all resolved at import."""

from collections.abc import Sequence

import numpy as np

from shardwright.frontends.common.errors import MOST_REPEATED, NeedsConstantError, UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.onnx.converters.shape import cut, parts_of, squeezed
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension

# Branches


@converts("If")
def _if(call: Call) -> list[Item | Array]:
    branches = [call.attribute("then_branch"), call.attribute("else_branch")]
    if call.known(0):
        taken = branches[0] if call.number(0) else branches[1]
        return list(call.importer.branch(taken, call.scope))
    # Both are computed, and one is chosen: what a branch does has no other effect.
    made = [call.importer.branch(branch, call.scope) for branch in branches]
    condition = call.reshape(call.value(0), ())
    found: list[Item | Array] = []
    for one, other in zip(*made, strict=True):
        a, b = call.importer.value(one), call.importer.value(other)
        if a.type != b.type:
            raise UnsupportedError(f"a branch that is of type {a.type} or {b.type}")
        found.append(call.emit("where", condition, a, b))
    return found


# Loops


@converts("Loop")
def _loop(call: Call) -> list[Item | Array]:
    body = call.attribute("body")
    trips = int(call.number(0)) if call.has(0) else MOST_REPEATED
    going: Item = call.items[1] if call.has(1) else Constant(np.array(True), "bool")
    carried = list(call.items[2:])
    collected: list[list[Item]] = [[] for _ in body.output[1 + len(carried) :]]
    for trip in range(trips):
        if not _goes_on(call, going):
            break
        if trip == MOST_REPEATED - 1:
            raise UnsupportedError(f"a loop of more than {MOST_REPEATED} iterations")
        counter = Constant(np.array(trip), "int64")
        going, *rest = call.importer.branch(body, call.scope, [counter, going, *carried])
        carried = rest[: len(carried)]
        for items, item in zip(collected, rest[len(carried) :], strict=True):
            items.append(item)
    stacked = [stack(call, items, 0) for items in collected]
    return [*carried, *stacked]


def _goes_on(call: Call, going: Item) -> bool:
    if isinstance(going, Constant):
        return bool(going.array.reshape(()))
    if going is call.items[1]:
        raise NeedsConstantError(call.names[1])
    raise UnsupportedError("a loop whose end depends on data")


@converts("Scan")
def _scan(call: Call) -> list[Item | Array]:
    body, count = call.attribute("body"), call.attribute("num_scan_inputs")
    states, scanned = list(call.items[:-count]), call.items[-count:]
    outputs = len(body.output) - len(states)
    axes = [
        dimension(axis, len(call.shape(len(states) + i)))
        for i, axis in enumerate(call.attribute("scan_input_axes", (0,) * count))
    ]
    length = call.shape(len(states))[axes[0]]
    backwards = call.attribute("scan_input_directions", (0,) * count)
    collected: list[list[Item]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices = [
            at(call, item, length - 1 - step if back else step, axis)
            for item, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        made = call.importer.branch(body, call.scope, [*states, *slices])
        states = list(made[: len(states)])
        for items, item in zip(collected, made[len(states) :], strict=True):
            items.append(item)
    turned = call.attribute("scan_output_directions", (0,) * outputs)
    places = call.attribute("scan_output_axes", (0,) * outputs)
    ordered = [items[::-1] if t else items for items, t in zip(collected, turned, strict=True)]
    stacked = [stack(call, items, axis) for items, axis in zip(ordered, places, strict=True)]
    return [*states, *stacked]


def at(call: Call, item: Item, place: int, axis: int) -> Item:
    """Return the slice at a position along a dimension, which is dropped."""
    if isinstance(item, Constant):
        return Constant(np.take(item.array, place, axis), item.dtype)
    x = call.importer.value(item)
    begin, end = [0] * x.type.rank, list(x.type.shape)
    begin[axis], end[axis] = place, place + 1
    return call.reshape(cut(call, x, begin, end), squeezed(x.type.shape, [axis]))


def stack(call: Call, items: Sequence[Item], axis: int) -> Item:
    """Stack items along a new dimension."""
    if not items:
        raise UnsupportedError("a loop without iterations that collects results")
    constants = [item for item in items if isinstance(item, Constant)]
    if len(constants) == len(items):
        return Constant(np.stack([c.array for c in constants], axis), constants[0].dtype)
    return call.emit("stack", *(call.importer.value(item) for item in items), axis=axis)


# Sequences


def _sequence(call: Call, position: int) -> tuple[Item, ...]:
    item = call.item(position)
    if not isinstance(item, tuple):
        raise UnsupportedError("a tensor where a sequence is expected")
    return item


def _place(call: Call, position: int, length: int) -> int:
    return int(call.number(position)) % length if length else 0


@converts("SequenceConstruct")
def _construct(call: Call) -> Item:
    return tuple(call.items)


@converts("SequenceEmpty")
def _empty(call: Call) -> Item:
    return ()


@converts("SequenceLength")
def _length(call: Call) -> Array:
    return np.asarray(len(_sequence(call, 0)), np.int64)


@converts("SequenceAt")
def _at(call: Call) -> Item:
    sequence = _sequence(call, 0)
    return sequence[_place(call, 1, len(sequence))]


@converts("SequenceInsert")
def _insert(call: Call) -> Item:
    sequence = list(_sequence(call, 0))
    place = int(call.number(2)) if call.has(2) else len(sequence)
    sequence.insert(place, call.item(1))
    return tuple(sequence)


@converts("SequenceErase")
def _erase(call: Call) -> Item:
    sequence = list(_sequence(call, 0))
    del sequence[_place(call, 1, len(sequence)) if call.has(1) else -1]
    return tuple(sequence)


@converts("ConcatFromSequence")
def _concat_from_sequence(call: Call) -> Item:
    items, axis = _sequence(call, 0), call.attribute("axis")
    if call.attribute("new_axis", 0):
        return stack(call, items, axis)
    return call.run("Concat", *items, axis=axis)


@converts("SplitToSequence")
def _split_to_sequence(call: Call) -> Item:
    x, shape = call.value(0), call.shape(0)
    axis = dimension(call.attribute("axis", 0), len(shape))
    sizes: tuple[int, ...] = (1,) * shape[axis]
    if call.has(1):
        given = call.ints(1)
        sizes = given
        if not call.shape(1):
            whole, rest = divmod(shape[axis], given[0])
            sizes = (given[0],) * whole + ((rest,) if rest else ())
    parts = parts_of(call, x, axis, sizes)
    if call.has(1) or call.attribute("keepdims", 1):
        return parts
    values = [call.importer.value(part) for part in parts]
    return tuple(call.reshape(v, squeezed(v.type.shape, [axis])) for v in values)


# Optionals


@converts("Optional", "OptionalGetElement")
def _same(call: Call) -> Item:
    return call.items[0] if call.items else None


@converts("OptionalHasElement")
def _has_element(call: Call) -> Array:
    return np.asarray(bool(call.items) and call.items[0] is not None)
