"""Buckets: reductions that run as one, in place.

A large part is reduced in the buffer it was computed in. Small ones wait for each other in one
flat buffer, since a message costs more than their bytes do.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod

import numpy as np

from shardwright.operators.communication.collectives import Communication
from shardwright.runtime.instructions import Instruction

SMALL = 2**16  # bytes; from here on the bandwidth decides, not the latency


@dataclass
class Bucket:
    """Reductions that start together, at the last of them.

    Parameters
    ----------
    operator : Communication
        The reduction; that of the first part.
    axes : tuple of str
        Mesh axes of the groups.
    dtype : dtype
        The element type of all parts.
    offsets : mapping of str to int
        Where each part begins, in elements, by the name of the result.
    size : int
        Number of elements of all.
    first, last : int
        Positions of the first and the last part in the program.
    """

    operator: Communication
    axes: tuple[str, ...]
    dtype: "np.dtype[np.generic]"
    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0
    first: int = 0
    last: int = 0

    @property
    def is_single(self) -> bool:
        """Whether it has one part, which is reduced where it is."""
        return len(self.offsets) == 1


def plan_buckets(
    program: Sequence[Instruction], started: Set[str], rank: int
) -> Mapping[str, Bucket]:
    """Return the bucket of each reduction that starts, by the name of its result.

    Parameters
    ----------
    program : sequence of Instruction
        The nodes in the order in which they run.
    started : set of str
        The nodes that start a reduction.
    rank : int
        The rank that runs them.
    """
    read = first_readers(program)
    found: dict[str, Bucket] = {}
    pending: dict[Hashable, tuple[Bucket, int]] = {}  # and the first position that reads a part
    for position, item in enumerate(program):
        if item.node.name not in started:
            continue
        assert isinstance(item.info, Communication)
        local = item.results[0]
        elements = prod(local.shapes[rank])
        reader = read.get(local.name, len(program))
        kind = item.info.attributes["reduction"]
        key = item.axes, item.info.groups, kind, local.dtype
        is_small = elements * local.dtype.itemsize < SMALL
        bucket, soonest = pending.pop(key, (None, 0)) if is_small else (None, 0)
        if bucket is None or soonest <= position:
            bucket, soonest = Bucket(item.info, item.axes, local.dtype, first=position), reader
        bucket.offsets[local.name], bucket.last = bucket.size, position
        bucket.size += elements
        found[local.name] = bucket
        if is_small and bucket.size * local.dtype.itemsize < SMALL:
            pending[key] = bucket, min(soonest, reader)
    return found


def first_readers(program: Sequence[Instruction]) -> dict[str, int]:
    """Return for each value the position of the first node that reads it."""
    read: dict[str, int] = {}
    for position, item in enumerate(program):
        for name in item.node.operands:
            read.setdefault(name, position)
    return read
