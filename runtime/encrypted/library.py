"""Groups, requests and constants with the names of mpi4py, over encrypted connections.

Reductions add in the order of the members, whatever is asked. Collectives are messages between
their members; all of a group call them in one order, so the n-th calls of all belong together.
"""

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from shardwright.operators.communication.collectives import REDUCTIONS
from shardwright.operators.info import Array
from shardwright.runtime.encrypted.links import Links, pause

_COLLECTIVE = 2**40  # tags from here on are those of collectives


class Request:
    """Something that is under way: it ends when its last step is done.

    Parameters
    ----------
    is_ready : callable
        Whether the end needs no waiting any more.
    end : callable
        Waits, and does what is left; returns the result.
    """

    def __init__(self, is_ready: Callable[[], bool], end: Callable[[], Any]) -> None:
        self._is_ready, self._end = is_ready, end
        self._is_done, self._result = False, None

    def wait(self) -> Any:
        """Wait for the end, and return the object that came."""
        if not self._is_done:
            self._result, self._is_done = self._end(), True
        return self._result

    def Wait(self) -> None:  # noqa: N802 - as MPI's requests
        """Wait for the end."""
        self.wait()

    def Test(self) -> bool:  # noqa: N802 - as MPI's requests
        """Return whether it has ended, and end it if it can."""
        if not self._is_done and self._is_ready():
            self.wait()
        if not self._is_done:
            pause()
        return self._is_done

    @staticmethod
    def Waitall(requests: Sequence["Request"]) -> None:  # noqa: N802 - as MPI's
        """Wait for the end of all."""
        for request in requests:
            request.wait()

    waitall = Waitall

    @staticmethod
    def Testall(requests: Sequence["Request"]) -> bool:  # noqa: N802 - as MPI's
        """Return whether all have ended."""
        return all([request.Test() for request in requests])


def _ended() -> Request:
    return Request(lambda: True, lambda: None)


class Status:
    """Who has sent the message that was looked for."""

    source = -1


class Members(tuple[int, ...]):
    """The numbers of the processes of a group, in order."""

    def Incl(self, places: Sequence[int]) -> "Members":  # noqa: N802 - as MPI's
        """Return some of them, by their places."""
        return Members(self[place] for place in places)


class Group:
    """Processes that send messages to each other; the communicator of MPI.

    Parameters
    ----------
    links : Links
        The connections.
    members : Members
        The processes.
    name : str
        Tells its messages from those of other groups; equal in all members.
    leave : callable, optional
        Runs before this process is ended.
    """

    def __init__(
        self,
        links: Links,
        members: Members,
        name: str = "world",
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._links, self._members, self._name = links, members, name
        self._leave, self._numbers = leave, dict[Members, int]()
        self._key = int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "little")
        self.size, self.rank = len(members), members.index(links.rank)
        self._calls = self._made = 0

    def Get_attr(self, _: object) -> int:  # noqa: N802 - as MPI's
        """Return the greatest tag."""
        return _COLLECTIVE - 1

    def Get_group(self) -> Members:  # noqa: N802 - as MPI's
        """Return the members."""
        return self._members

    def Create_group(self, members: Members) -> "Group":  # noqa: N802 - as MPI's
        """Return the group of some members, which all make it."""
        number = self._numbers[members] = self._numbers.get(members, 0) + 1
        return Group(self._links, members, f"{self._name}/{list(members)}.{number}")

    def Dup(self) -> "Group":  # noqa: N802 - as MPI's
        """Return a group of the same members, with messages of its own."""
        self._made += 1
        return Group(self._links, self._members, f"{self._name}+{self._made}")

    def Abort(self, code: int) -> None:  # noqa: N802 - as MPI's
        """End this process; the others end when they wait for it."""
        if self._leave is not None:
            self._leave()
        os._exit(code)

    # Messages

    def _send(self, data: Array | bytes, target: int, tag: int) -> None:
        view = data if isinstance(data, bytes) else _bytes(data).data
        self._links.send(self._members[target], self._key, tag, view)

    def _take(self, source: int, tag: int) -> bytearray:
        return self._links.receive(self._members[source], self._key, tag)

    def _has(self, source: int, tag: int) -> bool:
        return self._links.has(self._members[source], self._key, tag)

    def _into(self, buffer: Array, source: int, tag: int) -> None:
        _fill(buffer, self._take(source, tag))

    def Isend(self, buffer: Array, dest: int, tag: int = 0) -> Request:  # noqa: N802
        """Send a buffer."""
        self._send(buffer, dest, tag)
        return _ended()

    def Irecv(self, buffer: Array, source: int, tag: int = 0) -> Request:  # noqa: N802
        """Receive into a buffer, later."""
        return Request(lambda: self._has(source, tag), lambda: self._into(buffer, source, tag))

    def Recv(self, buffer: Array, source: int, tag: int = 0) -> None:  # noqa: N802
        """Receive into a buffer."""
        self._into(buffer, source, tag)

    def iprobe(self, status: Status) -> bool:
        """Return whether a message of any process is there; the status names it."""
        for source in range(self.size):
            if source != self.rank and self._links.holds(self._members[source], self._key, 0):
                status.source = source
                return True
        return False

    # Collectives

    def _tag(self) -> int:
        self._calls += 1
        return _COLLECTIVE + self._calls

    def Allgather(self, part: Array, parts: Array) -> None:  # noqa: N802 - as MPI's
        """Give every member the parts of all."""
        self._exchange([part] * self.size, np.split(parts, self.size))

    def Alltoall(self, pieces: Array, received: Array) -> None:  # noqa: N802 - as MPI's
        """Send the n-th piece to the n-th member."""
        self._exchange(np.split(pieces, self.size), np.split(received, self.size))

    def Alltoallv(self, out: Sequence[Any], into: Sequence[Any]) -> None:  # noqa: N802
        """Send runs of bytes to the members."""
        cuts = [
            np.split(_bytes(buffer), np.cumsum(lengths))[: self.size]
            for buffer, lengths, _ in (out, into)
        ]
        self._exchange(*cuts)

    def _exchange(self, out: Sequence[Array], into: Sequence[Array]) -> None:
        tag = self._tag()
        for target, piece in enumerate(out):
            self._send(piece, target, tag)
        for source, place in enumerate(into):
            self._into(place, source, tag)

    def Bcast(self, buffer: Array, root: int = 0) -> None:  # noqa: N802 - as MPI's
        """Give every member the buffer of one."""
        self.Ibcast(buffer, root).wait()

    def Ibcast(self, buffer: Array, root: int = 0) -> Request:  # noqa: N802 - as MPI's
        """Start to give every member the buffer of one."""
        tag = self._tag()
        if self.rank != root:
            return Request(lambda: self._has(root, tag), lambda: self._into(buffer, root, tag))
        for target in range(self.size):
            if target != root:
                self._send(buffer, target, tag)
        return _ended()

    def Gather(self, part: Array, parts: Array, root: int = 0) -> None:  # noqa: N802
        """Give one member the parts of all."""
        tag = self._tag()
        self._send(part, root, tag)
        if self.rank == root:
            for source, place in enumerate(np.split(parts, self.size)):
                self._into(place, source, tag)

    def Scatter(self, pieces: Array, part: Array, root: int = 0) -> None:  # noqa: N802
        """Give every member its piece of one member's."""
        tag = self._tag()
        if self.rank == root:
            for target, piece in enumerate(np.split(pieces, self.size)):
                self._send(piece, target, tag)
        self._into(part, root, tag)

    def Barrier(self) -> None:  # noqa: N802 - as MPI's
        """Wait for all members."""
        self.Allgather(np.zeros(1, np.uint8), np.empty(self.size, np.uint8))

    def Allreduce(self, part: Array, result: Array, op: str) -> None:  # noqa: N802
        """Reduce the parts of all members, in their order."""
        self.Iallreduce(part, result, op).wait()

    def Iallreduce(self, part: Array, result: Array, op: str) -> Request:  # noqa: N802
        """Start to reduce the parts of all members, in their order."""
        tag, buffer = self._tag(), result if part is IN_PLACE else part
        for target in range(self.size):
            self._send(buffer, target, tag)

        def end() -> None:
            for source in range(self.size):
                other = np.empty_like(result)
                self._into(other, source, tag)
                if source:
                    REDUCTIONS[op](result, other, out=result)
                else:
                    result[...] = other

        return Request(lambda: all(self._has(i, tag) for i in range(self.size)), end)


IN_PLACE: Any = object()


class Library:
    """What a process asks of MPI, by mpi4py's names.

    Parameters
    ----------
    links : Links
        The connections of this process.
    leave : callable
        Runs before this process is ended early.
    """

    IN_PLACE, TAG_UB, BYTE = IN_PLACE, 0, 1
    SUM, MAX, MIN, PROD = "sum", "max", "min", "prod"
    Request, Status = Request, Status
    adds_in_order = True

    def __init__(self, links: Links, leave: Callable[[], None]) -> None:
        self.COMM_WORLD = Group(links, Members(range(links.size)), leave=leave)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _fill(buffer: Array, data: bytearray) -> None:
    flat = buffer.reshape(-1).view(np.uint8)
    if flat.size != len(data):
        raise ValueError(f"a message has {len(data)} bytes, expected {flat.size}")
    flat[...] = np.frombuffer(data, np.uint8)
