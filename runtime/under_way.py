"""Collectives that are under way while the program computes on.

A reduction starts where it stands in the program, and is awaited by the first node that reads its
result, or at the end of the step. Between nodes MPI gets the processor for a moment, without which
it moves nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator, Parts
from shardwright.runtime.faults import STANDING
from shardwright.runtime.flat.rank_timeline import RunTimeline


class Request(Protocol):
    """A collective that has started."""

    def Wait(self) -> object:  # noqa: N802
        """Wait for its end."""

    def Test(self) -> bool:  # noqa: N802
        """Move it on, and return whether it has ended."""


class UnderWay:
    """The collectives of a step that have started, by the values that they make.

    Parameters
    ----------
    communicator : Communicator
        The communicator; one without the method ``start`` starts nothing.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._begin = getattr(communicator, "start", None)
        self._requests: dict[str, tuple[Request, Mapping[int, Array]]] = {}
        self._begun: dict[str, float] = {}
        self.timeline: RunTimeline | None = None

    def start(
        self, name: str, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array] | None:
        """Start a collective; return the arrays that will hold its result, None if it cannot."""
        started = None if self._begin is None else self._begin(operator, axes, parts)
        if started is None:
            return None
        self.settle((name,))  # that of the pass before
        request, found = started
        self._requests[name] = request, parts  # which it reads until it ends
        if self.timeline is not None:
            self._begun[name] = self.timeline.now
        results: dict[int, Array] = found
        return results

    def settle(self, names: Iterable[str]) -> None:
        """Wait for values, and move the others on."""
        if not self._requests:
            return
        for name in names:
            started = self._requests.pop(name, None)
            if started is not None:
                self._wait(name, started[0])
        for request, _ in self._requests.values():
            request.Test()
            break  # one is enough: MPI moves all

    def _wait(self, name: str, request: Request) -> None:
        begin = 0.0 if self.timeline is None else self.timeline.now
        STANDING.value = name
        with STANDING.waiting("all_reduce"):
            request.Wait()
        if self.timeline is None:
            return
        self.timeline.add("wait", f"wait for {name}", begin)
        self.timeline.add("under way", name, self._begun.pop(name, begin))

    def settle_all(self) -> None:
        """Wait for all values."""
        self.settle(tuple(self._requests))
