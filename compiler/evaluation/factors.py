"""Figures of a cluster that are other than said."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from shardwright.compiler.evaluation.times import Times


@dataclass(frozen=True)
class Factors:
    """Factors on the seconds that the figures of a cluster say.

    Parameters
    ----------
    compute : float
        On the seconds of operators.
    links : tuple of float
        On the seconds of communication by each level of the cluster; 1 for levels beyond them.
    exposed : float, optional
        Share of the communication that overlaps computation, as said, for which computation waits.
    """

    compute: float = 1.0
    links: tuple[float, ...] = ()
    exposed: float | None = None

    def of_level(self, level: int) -> float:
        """Return the factor of a level."""
        return self.links[level] if level < len(self.links) else 1.0

    def on_level(self, times: Times, level: int) -> float:
        """Return the seconds of a pass at a level, at least.

        What is sent there may be sent over levels inside of it, too; of a ring, nothing may be left
        to wait for on faster links.
        """
        sent, factor = times.links[level], self._least_of(level)
        found = self.compute * sent.started + factor * sent.moved
        return found + self.compute * sent.rings if factor >= self.compute else found

    def computing(self, times: Times) -> float:
        """Return the seconds of a pass in operators, and what is told as a part of them."""
        if not times.merged:
            return self.compute * times.compute
        least = self._least_of(len(times.links) - 1)
        return self.compute * times.compute + least * times.merged

    def _least_of(self, level: int) -> float:
        """Return the least factor of a level and those inside of it."""
        if level < len(self._least):
            return self._least[level]
        return min((1.0, *self._least[-1:]))

    @cached_property
    def _least(self) -> tuple[float, ...]:
        return tuple(accumulate(self.links, min))

    def seconds(self, times: Times) -> float:
        """Return the seconds of a pass, forward or backward."""
        levels = range(len(times.links))
        return self.computing(times) + sum(self.on_level(times, level) for level in levels)

    def launching(self, times: Times) -> float:
        """Return the seconds in which the host launches a pass.

        Other figures than said are relative to those of operators.
        """
        return self.compute * times.host


AS_SAID = Factors()
