"""Buffers of one call of MPI, for every element type."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from shardwright.operators.communication.collectives import REDUCTIONS, Communication
from shardwright.operators.communication.rings import Message
from shardwright.operators.info import Array

Exchange = Callable[[Array], Array]  # of this rank's part, C-contiguous

# Element types that MPI knows and reduces, by their characters.
_NATIVE = frozenset(np.dtype(t).char for t in (np.float32, np.float64, np.int32, np.int64))
_MAY_BE_UNEVEN = ("all_gather", "all_to_all", "reduce_scatter")  # where layouts split unevenly


def received_from(group: Any, sources: Sequence[int], tag: int) -> dict[int, Message]:
    """Wait for the message of each source in one exchange."""
    return {source: group.recv(source=source, tag=tag) for source in sources}


def neighbours(group: Any) -> list[int]:
    """Return the members before and after: no halo reaches further."""
    return [member for member in (group.rank - 1, group.rank + 1) if 0 <= member < group.size]


def is_native(array: Array) -> bool:
    """Return whether MPI knows the element type."""
    return array.dtype.char in _NATIVE


def buffer_of(array: Array) -> Array:
    """Return a contiguous array, as bytes where MPI does not know its element type; no copy."""
    return array if array.dtype.char in _NATIVE else array.reshape(-1).view(np.uint8)


def is_even(group: Any, operator: Communication, shape: tuple[int, ...], known: bool) -> bool:
    """Return whether all members send pieces of one size; `known`: they hold equal shapes."""
    if operator.name not in _MAY_BE_UNEVEN:
        return True
    scatters = operator.name == "reduce_scatter"
    cut = operator.attributes.get("dimension" if scatters else "split_dimension")
    divides = cut is None or shape[cut] % group.size == 0
    if known:
        return divides
    return all(other == (shape, True) for other in group.allgather((shape, divides)))


def gathered_at(group: Any, part: Array, root: int) -> Array:
    """Return the parts of all members, stacked; zeros but at the root."""
    parts = np.zeros((group.size, *part.shape), part.dtype)
    group.Gather(buffer_of(part), buffer_of(parts), root=root)
    return parts


def gathering(group: Any, shape: tuple[int, ...]) -> Exchange:
    """Return what gathers parts of one shape, one after another along the first dimension.

    What does not change from call to call is made once: a call takes no longer than MPI's own.
    """
    gather, empty, whole = group.Allgather, np.empty, (group.size * shape[0], *shape[1:])

    def gathered(part: Array) -> Array:
        parts = empty(whole, part.dtype)
        if part.dtype.char in _NATIVE:
            gather(part, parts)
        else:
            gather(buffer_of(part), buffer_of(parts))
        return parts

    return gathered


def exchanged(group: Any, pieces: Array) -> Array:
    """Send the i-th piece to the i-th member; return what came from each, stacked."""
    received = np.empty_like(pieces)
    group.Alltoall(buffer_of(pieces), buffer_of(received))
    return received


def reduced(parts: Array, kind: str) -> Array:
    """Return the reduction of stacked parts, in their order."""
    result: Array = reduce(REDUCTIONS[kind], parts)
    return result
