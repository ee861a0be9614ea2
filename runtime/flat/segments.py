"""The parts of a program that run one after the other: before, in and after its loop.

Reductions that start in a part end in it, in a loop in the same pass.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from shardwright.ir.liveness import Loop
from shardwright.runtime.flat.buckets import Bucket, plan_buckets
from shardwright.runtime.flat.order import in_order_of_arrival, with_late_nodes_last
from shardwright.runtime.instructions import Instruction


class Segment(NamedTuple):
    """Nodes that run one after the other.

    Parameters
    ----------
    program : tuple of Instruction
        The nodes in the order in which they run.
    first : int
        Position of the first one in the whole program.
    buckets : mapping of str to Bucket
        The bucket of each reduction that starts; positions are those in this part.
    loop : Loop, optional
        The loop whose passes run the nodes; None if they run once.
    """

    program: tuple[Instruction, ...]
    first: int
    buckets: Mapping[str, Bucket]
    loop: Loop | None

    @property
    def passes(self) -> range:
        """The passes that run it."""
        return range(1 if self.loop is None else self.loop.passes)


def segments_of(
    program: Sequence[Instruction], loop: Loop | None, started: Set[str], rank: int
) -> Iterator[Segment]:
    """Yield the parts of a program.

    Parameters
    ----------
    program : sequence of Instruction
        Its nodes.
    loop : Loop, optional
        Its loop.
    started : set of str
        The nodes that start a reduction, which ends later.
    rank : int
        The rank that runs them.
    """
    inner = (loop.start, loop.stop) if loop is not None else ()
    for begin, end in pairwise((0, *inner, len(program))):
        part = with_late_nodes_last(program[begin:end], started)
        buckets = plan_buckets(part, started, rank)
        starts = {name: bucket.last for name, bucket in buckets.items()}
        own = loop if inner == (begin, end) else None
        yield Segment(in_order_of_arrival(part, starts), begin, buckets, own)
