"""Weights of the links in both halves of a step without micro-batches, for bounds of blocks.

Where links bind the forward pass and computation the backward pass, or one level the one and
another the other, the same weights for all of the step prove little: the step takes at least the
load of the links forward *and* that of the compute stream backward. So the shares of the links that
are best for the whole step are raised and lowered in each half, one after the other, as long as the
bound rises. Any shares give a bound (`cost_model.weighted.intervals`).

Of Mixtral 8x7B on 8 x 8 H100 one share for both halves proves 0.434 s, 0.20; 0.30 forward and 0.13
backward 0.443 s. The best weights of all (by cutting planes, for four times the work) prove 0.4438.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from shardwright.cost_model.weighted.intervals import ResourceWeights

Shares = tuple[float, ...]
"""The weights of the links of each level, innermost first; the rest is that of computation."""

_FACTORS = (1.5, 1.2)  # factors by which a share is changed, in turn; 1.2 alone takes longer
_LEAST_SHARE = 1e-3  # share below which the links of a level do not count


@dataclass
class HalfWeights:
    """The choice of the weights.

    Parameters
    ----------
    first : ResourceWeights
        The weights of the whole step that are best, of one interval.
    height : float
        The bound by these.
    used : sequence of int
        The levels whose links the mesh uses.
    seconds : callable
        Returns a bound by some weights.
    is_late : callable
        Returns whether nothing is left to try other weights.
    """

    first: ResourceWeights
    height: float
    used: Sequence[int]
    seconds: Callable[[ResourceWeights], float]
    is_late: Callable[[], bool] = lambda: False

    def best(self) -> ResourceWeights:
        """Return the weights of the highest bound; the first ones where no others raise it."""
        rows = [self.first.levels, self.first.levels]
        for factor, half, level in product(_FACTORS, (0, 1), self.used):
            for times in (factor, 1 / factor):
                raised = False
                while rows[half][level] > _LEAST_SHARE and not self.is_late():
                    tried = [*rows]
                    tried[half] = _times(rows[half], level, times)
                    height = self.seconds(_weights(tried)) if sum(tried[half]) < 1 else 0.0
                    if height <= self.height:
                        break
                    self.height, rows, raised = height, tried, True
                if raised:
                    break
        return self.first if rows[0] == rows[1] else _weights(rows)


def _times(shares: Shares, level: int, times: float) -> Shares:
    return (*shares[:level], times * shares[level], *shares[level + 1 :])


def _weights(rows: Sequence[Shares]) -> ResourceWeights:
    """Return the weights of shares in both halves."""
    first, later = (ResourceWeights(1 - sum(row), row) for row in rows)
    return replace(first, later=(later,))
