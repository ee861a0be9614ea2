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
        results: dict[int, Array] = found
        return results

    def settle(self, names: Iterable[str]) -> None:
        """Wait for values, and move the others on."""
        if not self._requests:
            return
        for name in names:
            started = self._requests.pop(name, None)
            if started is not None:
                STANDING.value = name
                with STANDING.waiting("all_reduce"):
                    started[0].Wait()
        for request, _ in self._requests.values():
            request.Test()
            break  # one is enough: MPI moves all

    def settle_all(self) -> None:
        """Wait for all values."""
        self.settle(tuple(self._requests))
