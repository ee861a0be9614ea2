"""A reduction that adds the members of a group in their order, while they compute.

Every member receives one piece of the buffer from all others, reduces it in the order of the
members, and sends it to all others. So every member has the same bits, those of the reduction in
one process, and sends as much as in a ring. Messages have tags of their own: which of two
reductions goes on first may differ between members.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwright.operators.communication.collectives import REDUCTIONS
from shardwright.operators.info import Array


class OrderedReduction:
    """The reduction of a buffer in place; a request, as MPI's are.

    Parameters
    ----------
    group : communicator
        The members.
    request : type
        MPI's class of requests.
    buffer : array
        The part of this member, contiguous; the result when the request has ended.
    kind : str
        How the parts are reduced.
    tag : int
        Tells its messages from those of other reductions that are under way; it uses this one and
        the next.
    """

    def __init__(self, group: Any, request: Any, buffer: Array, kind: str, tag: int) -> None:
        self._group, self._request, self._kind, self._tag = group, request, kind, tag
        flat = buffer.reshape(-1)
        bounds = [flat.size * i // group.size for i in range(group.size + 1)]
        self._pieces = [flat[a:b] for a, b in pairwise(bounds)]
        own = self._pieces[group.rank]
        self._others = [i for i in range(group.size) if i != group.rank]
        self._received = {i: np.empty_like(own) for i in self._others}
        self._is_reduced = False
        self._open = self._exchange(
            [self._received[i] for i in self._others],
            [self._pieces[i] for i in self._others],
            tag,
        )

    def _exchange(self, into: Sequence[Array], out: Sequence[Array], tag: int) -> list[Any]:
        """Start to receive from all other members, and to send to them."""
        receives = [
            self._group.Irecv(_bytes(array), source=i, tag=tag)
            for i, array in zip(self._others, into, strict=True)
        ]
        return receives + [
            self._group.Isend(_bytes(array), dest=i, tag=tag)
            for i, array in zip(self._others, out, strict=True)
        ]

    def Test(self) -> bool:  # noqa: N802 - as MPI's requests
        """Move it on, and return whether it has ended."""
        if not self._request.Testall(self._open):
            return False
        if self._is_reduced:
            return True
        self._reduce()
        return False

    def Wait(self) -> None:  # noqa: N802 - as MPI's requests
        """Wait for its end."""
        self._request.Waitall(self._open)
        if not self._is_reduced:
            self._reduce()
            self._request.Waitall(self._open)

    def _reduce(self) -> None:
        """Reduce the own piece, and start to pass it round."""
        operation, me = REDUCTIONS[self._kind], self._group.rank
        own = self._pieces[me]
        self._received[me] = own
        total = operation(self._received[0], self._received[1])
        for i in range(2, self._group.size):
            operation(total, self._received[i], out=total)
        own[...] = total
        self._received.clear()
        self._is_reduced = True
        pieces = [self._pieces[i] for i in self._others]
        self._open = self._exchange(pieces, [own] * len(pieces), self._tag + 1)


def _bytes(array: Array) -> Array:
    return array.view(np.uint8)
