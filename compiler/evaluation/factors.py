"""Figures of a cluster that are other than said."""

from dataclasses import dataclass

from shardwright.compiler.evaluation.parts import Times


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

    def seconds(self, times: Times) -> float:
        """Return the seconds of a pass, forward or backward."""
        links = (self.of_level(level) * one for level, one in enumerate(times.links))
        return self.compute * times.compute + sum(links)


AS_SAID = Factors()
