"""What a pass over a part of a model takes, by what its seconds depend on."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from typing import NamedTuple


class Sent(NamedTuple):
    """Seconds of the communication over a level of the cluster for which a pass waits.

    Parameters
    ----------
    started : float
        What does not depend on the links: launches, ranks that wait for the last one, and what
        rings compute.
    moved : float
        What is in proportion to the seconds that links take for a message.
    rings : float
        Of rings what their computation does not hide: all of it where links are slower than said,
        and where they are faster maybe nothing.
    """

    started: float = 0.0
    moved: float = 0.0
    rings: float = 0.0


@dataclass(frozen=True)
class Times:
    """What a pass over a part runs in line, forward or backward.

    Parameters
    ----------
    compute : float
        Seconds in which operators run, but rings.
    merged : float
        Seconds of communication that are told as a part of an operator.
    links : tuple of Sent
        What it waits for at each level of the cluster.
    host : float
        Seconds in which the host of a training software launches it.
    """

    compute: float
    merged: float
    links: tuple[Sent, ...]
    host: float

    def least(self, other: "Times") -> "Times":
        """Return the smaller ones of both."""
        return self._with(min, other)

    def times(self, factor: float) -> "Times":
        """Return what takes so many times as long."""
        return self._with(lambda one, _: factor * one, self)

    def then(self, other: "Times") -> "Times":
        """Return what both run, one after the other."""
        return self._with(add, other)

    def _with(self, combine: Callable[[float, float], float], other: "Times") -> "Times":
        pairs = zip(self.links, other.links, strict=True)
        links = tuple(Sent(*map(combine, one, two)) for one, two in pairs)
        own = (self.compute, self.merged, self.host), (other.compute, other.merged, other.host)
        compute, merged, host = map(combine, *own)
        return Times(compute, merged, links, host)
