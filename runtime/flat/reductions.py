"""Reductions of one rank that are under way while it computes.

MPI moves messages only inside its calls, so between two nodes it is asked whether the oldest has
ended.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shardwright.ir.units import bytes_text
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.faults import STANDING
from shardwright.runtime.flat.buckets import Bucket
from shardwright.runtime.flat.calls import Call, Slots, is_alone
from shardwright.runtime.flat.rank_timeline import RunTimeline
from shardwright.runtime.instructions import Instruction
from shardwright.runtime.under_way import Request

Reducer = Callable[[Array], Request]


@runtime_checkable
class Starter(Protocol):
    """A communicator whose reductions run meanwhile."""

    def starts(self, operator: Communication, axes: tuple[str, ...]) -> bool:
        """Return whether an operator is a reduction that runs meanwhile."""

    def reducer(self, operator: Communication, axes: tuple[str, ...]) -> Reducer:
        """Return what starts to reduce a buffer, which holds the result when that has ended."""


class Reductions:
    """The buckets of a step, from their start to their end.

    Parameters
    ----------
    communicator : Communicator
        Starts them, if it is a `Starter`.
    slots : list of array
        The values of the step.
    """

    def __init__(self, communicator: Communicator, slots: Slots) -> None:
        self._starter = communicator if isinstance(communicator, Starter) else None
        self._slots = slots
        self._under_way: list[_Started] = []  # in the order of their starts
        self._buffers: dict[int, Any] = {}  # of buckets of several parts, until they start
        self.timeline: RunTimeline | None = None

    def started(self, program: Iterable[Instruction]) -> frozenset[str]:
        """Return the nodes whose reduction runs while the rank computes."""
        starter = self._starter
        if starter is None:
            return frozenset()
        return frozenset(
            item.node.name
            for item in program
            if isinstance(item.info, Communication) and starter.starts(item.info, item.axes)
        )

    def packing(self, bucket: Bucket, number: int, source: int, target: int, begin: int) -> Call:
        """Return the call that puts one part of a bucket into its buffer."""
        slots, buffers = self._slots, self._buffers

        def call() -> float:
            part = slots[source]
            buffer = buffers.get(number)
            if buffer is None:
                buffer = buffers[number] = np.empty(bucket.size, bucket.dtype)
            view = buffer[begin : begin + part.size].reshape(part.shape)
            view[...] = part
            slots[target] = view
            return 0.0

        return call

    def starting(self, bucket: Bucket, number: int) -> Call:
        """Return the call that starts to reduce a buffer."""
        start = self._starting(bucket, number)
        return lambda: start(self._buffers.pop(number))

    def starting_single(
        self, bucket: Bucket, number: int, source: int, target: int, dies: bool
    ) -> Call:
        """Return the call that starts to reduce a part: in its own buffer, if nobody reads it.

        Parameters
        ----------
        bucket : Bucket
            Has this part alone.
        number : int
            Number of the bucket.
        source, target : int
            The slots of the part and of the result.
        dies : bool
            Whether no node reads the part any more.
        """
        slots, start = self._slots, self._starting(bucket, number)

        def call() -> float:
            if not (dies and is_alone(slots, source)):
                slots[target] = np.array(slots[source], order="C")
            else:
                slots[target] = slots[source]
            return start(slots[target])

        return call

    def _starting(self, bucket: Bucket, number: int) -> Callable[[Array], float]:
        """Return what starts to reduce the buffer of a bucket."""
        assert self._starter is not None
        reduce = self._starter.reducer(bucket.operator, bucket.axes)

        def start(buffer: Array) -> float:
            begin = 0.0 if self.timeline is None else self.timeline.now
            self._under_way.append(_Started(number, reduce(buffer), bucket, begin))
            return 0.0

        return start

    def move(self) -> float:
        """Let MPI move messages on."""
        if self._under_way and self._under_way[0].request.Test():
            self._ended(self._under_way[0])
        return 0.0

    def waiting(self, number: int) -> Call:
        """Return the call that waits for a bucket."""

        def call() -> float:
            for started in self._under_way:
                if started.number == number:
                    STANDING.value = next(iter(started.bucket.offsets))
                    with STANDING.waiting("all_reduce"):
                        started.request.Wait()
                    self._ended(started)
                    break
            return 0.0

        return call

    def _ended(self, started: "_Started") -> None:
        self._under_way.remove(started)
        if self.timeline is not None:
            self.timeline.add("under way", _text(started.bucket), started.begin)

    def forget(self) -> None:
        """Forget what a failed step has started."""
        self._under_way.clear()
        self._buffers.clear()


class _Started(NamedTuple):
    number: int
    request: Request
    bucket: Bucket
    begin: float


def _text(bucket: Bucket) -> str:
    """Return the name of a bucket in a timeline: its first part, how many more, and its bytes."""
    first, more = next(iter(bucket.offsets)), len(bucket.offsets) - 1
    name = f"{first} and {more} more" if more else first
    return f"{bucket.operator.name} {name}, {bytes_text(bucket.size * bucket.dtype.itemsize)}"
