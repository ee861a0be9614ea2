"""Buffers of one call of MPI, for every element type."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from shardwright.operators.communication.collectives import REDUCTIONS, Communication
from shardwright.operators.communication.rings import Message
from shardwright.operators.info import Array
from shardwright.runtime.messages import decoded, encoded, gathered_from_all, received, sent

Exchange = Callable[[Array], Array]  # of this rank's part, C-contiguous

# Element types that MPI knows and reduces, by their characters.
_NATIVE = frozenset(np.dtype(t).char for t in (np.float32, np.float64, np.int32, np.int64))
_FAR = 256  # bytes behind the part, in a page of its own, from which a result does not delay copies
_LARGE = 2**16  # elements, from which copies take longer than to look where they lie
_MAY_BE_UNEVEN = ("all_gather", "all_to_all", "reduce_scatter")  # where layouts split unevenly


def sent_to_all(group: Any, messages: Mapping[int, Message], tag: int) -> list[tuple[Any, Array]]:
    """Start to send the messages of one exchange; return requests, and the buffers they need."""
    return [
        request
        for target, message in messages.items()
        for request in sent(group, encoded(message), target, tag)
    ]


def received_from(group: Any, sources: Sequence[int], tag: int) -> dict[int, Message]:
    """Wait for the message of each source in one exchange."""
    return {source: decoded(received(group, source, tag)) for source in sources}


def parts_of_all(group: Any, part: Array | None) -> list[Any]:
    """Return the parts of all members, of any shapes and element types."""
    return [decoded(message) for message in gathered_from_all(group, encoded(part))]


def neighbours(group: Any) -> list[int]:
    """Return the members before and after: no halo reaches further."""
    return [member for member in (group.rank - 1, group.rank + 1) if 0 <= member < group.size]


def is_native(array: Array) -> bool:
    """Return whether MPI knows the element type."""
    return array.dtype.char in _NATIVE


def buffer_of(array: Array) -> Array:
    """Return a contiguous array, as bytes where MPI does not know its element type; no copy."""
    return array if array.dtype.char in _NATIVE else array.reshape(-1).view(np.uint8)


def new_results(mpi: Any, shape: tuple[int, ...]) -> Exchange:
    """Return what makes the array for the result of a call, apart from the part that is sent.

    A processor compares addresses by their last 12 bits first. Where a result begins up to some
    cache lines behind the part in that sense, each load of a copy seems to read what has just been
    stored, and waits: all-reduces and all-gathers take 5 to 30 % longer, twice as long at 8 bytes.
    The C library's blocks of one size lie 16, 32, 48, ... bytes apart in that sense.
    """
    empty, size = np.empty, math.prod(shape)

    def plain(part: Array) -> Array:
        return empty(shape, part.dtype)

    def apart(part: Array) -> Array:
        result = empty(shape, part.dtype)
        if part.dtype.char not in _NATIVE or (address(result) - address(part)) % 4096 >= _FAR:
            return result
        del result  # the next one may take its place
        spare = _FAR // part.itemsize
        room = empty(size + spare, part.dtype)
        start = spare if (address(room) - address(part)) % 4096 < _FAR else 0
        return room[start : start + size].reshape(shape)

    if size < _LARGE or not hasattr(mpi, "Get_address"):
        return plain
    address = mpi.Get_address
    return apart


def is_even(group: Any, operator: Communication, shape: tuple[int, ...], known: bool) -> bool:
    """Return whether all members send pieces of one size; `known`: they hold equal shapes."""
    if operator.name not in _MAY_BE_UNEVEN:
        return True
    scatters = operator.name == "reduce_scatter"
    cut = operator.attributes.get("dimension" if scatters else "split_dimension")
    divides = cut is None or shape[cut] % group.size == 0
    if known:
        return divides
    messages = gathered_from_all(group, encoded((shape, divides)))
    return all(decoded(message) == (shape, True) for message in messages)


def gathered_at(group: Any, part: Array, root: int) -> Array:
    """Return the parts of all members, stacked; zeros but at the root."""
    parts = np.zeros((group.size, *part.shape), part.dtype)
    group.Gather(buffer_of(part), buffer_of(parts), root=root)
    return parts


def gathering(mpi: Any, group: Any, shape: tuple[int, ...]) -> Exchange:
    """Return what gathers parts of one shape, one after another along the first dimension.

    What does not change from call to call is made once: a call takes no longer than MPI's own.
    """
    gather, new = group.Allgather, new_results(mpi, (group.size * shape[0], *shape[1:]))

    def gathered(part: Array) -> Array:
        parts = new(part)
        if part.dtype.char in _NATIVE:
            gather(part, parts)
        else:
            gather(buffer_of(part), buffer_of(parts))
        return parts

    return gathered


def reducing(group: Any, operation: Any, in_order: Exchange, new: Exchange) -> Exchange:
    """Return what reduces parts in MPI's own order, and in that of the members what MPI does not.

    As in `gathering`, what does not change from call to call is made once.
    """
    reduce_all = group.Allreduce

    def reduction(part: Array) -> Array:
        if part.dtype.char not in _NATIVE:
            return in_order(part)
        result = new(part)
        reduce_all(part, result, operation)
        return result

    return reduction


def exchanging(mpi: Any, group: Any, shape: tuple[int, ...]) -> Exchange:
    """Return what sends the i-th of stacked pieces to the i-th member; what came is stacked, too.

    `shape` is that of the stack. What does not change from call to call is made once.
    """
    exchange, new = group.Alltoall, new_results(mpi, shape)

    def exchanged(pieces: Array) -> Array:
        received = new(pieces)
        exchange(buffer_of(pieces), buffer_of(received))
        return received

    return exchanged


def stacked(part: Array, count: int, dimension: int) -> Array:
    """Return equal pieces along a dimension, stacked; one copy, along the first dimension none."""
    shape = stacked_shape(part.shape, count, dimension)
    before, behind = math.prod(shape[1 : dimension + 1]), math.prod(shape[dimension + 1 :])
    found = part.reshape(before, count, behind).swapaxes(0, 1)
    return np.ascontiguousarray(found).reshape(shape)


def stacked_shape(shape: tuple[int, ...], count: int, dimension: int) -> tuple[int, ...]:
    """Return the shape of the stack of equal pieces of a part along a dimension."""
    return (count, *shape[:dimension], shape[dimension] // count, *shape[dimension + 1 :])


def joined(parts: Array, dimension: int) -> Array:
    """Return stacked parts, one after another along a dimension; along the first without a copy."""
    if not dimension:
        return parts.reshape(len(parts) * parts.shape[1], *parts.shape[2:])
    return np.concatenate(parts, axis=dimension)


def reduced(parts: Array, kind: str) -> Array:
    """Return the reduction of stacked parts, in their order."""
    result: Array = reduce(REDUCTIONS[kind], parts)
    return result


def scattering(
    mpi: Any, group: Any, shape: tuple[int, ...], dimension: int, kind: str, operation: Any
) -> Exchange:
    """Return what reduces parts of one shape, of which every member keeps an equal piece.

    They are reduced in the order of the members, unless there is an operation of MPI that does not
    have to keep it.
    """
    exchange = exchanging(mpi, group, stacked_shape(shape, group.size, dimension))

    def scattered(part: Array) -> Array:
        pieces = stacked(part, group.size, dimension)
        if operation is None or not is_native(part):
            return reduced(exchange(pieces), kind)
        result = np.empty_like(pieces[0])
        group.Reduce_scatter_block(pieces, result, op=operation)
        return result

    return scattered
