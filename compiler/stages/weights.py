"""The weights by which the stages of a pipeline are bounded, in each kind of segment.

The segments of a device group do not overlap, so each kind (before the loop over micro-batches,
forward, backward, after it) has weights of its own (`cost_model.weighted.intervals`). Any weights
give a bound. Those are taken, of some that are tried, by which the most frequent block takes
longest: in the passes over micro-batches, with equal weights and then in each kind of segment by
itself; and for bounds of the passes with what is done once, in all of that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, ResourceWeights

Shares = tuple[float, ...]
"""The weights of the links of each level, innermost first; the rest is that of computation."""

_LOOP = (1, 2)  # the kinds of segments: forward, backward
_EVERY = (0, 1, 2, 3)
_TRIED = (0.02, 0.05, 0.1, 0.2, 0.4)
_MORE = 1.1  # of what a pass would have to cost
_ALONE = 1 - 1e-6  # the weight of the links of a level that is nearly all


@dataclass
class SegmentWeights:
    """The choice of weights.

    Parameters
    ----------
    levels : int
        Number of levels of the cluster.
    used : sequence of int
        The levels whose links a stage uses.
    pass_seconds, step_seconds : callable
        Return a bound by some weights of a pass over one micro-batch of the most frequent block,
        and of all passes and what is done once.
    passes : int
        Number of micro-batches.
    divides : bool
        Whether the kinds of segments have weights of their own: they do not without a loop.
    is_late : callable
        Returns whether nothing is left to try other weights.
    """

    levels: int
    used: Sequence[int]
    pass_seconds: Callable[[ResourceWeights], float]
    step_seconds: Callable[[ResourceWeights], float]
    passes: int
    divides: bool
    is_late: Callable[[], bool] = lambda: False
    _rows: list[Shares] = field(default_factory=list)
    _highest: float | None = None

    def best(self) -> tuple[ResourceWeights, ResourceWeights]:
        """Return the weights for passes alone, and for passes with what is done once."""
        self._rows = [(0.0,) * self.levels] * 4
        for level in self.used:
            self._take_best(self.pass_seconds, self._more(_EVERY, level))
        if self.divides:
            for kind in reversed(_LOOP):
                for level in self.used:
                    self._take_best(self.pass_seconds, self._more((kind,), level))
        of_passes = _weights(self._rows)
        if self.divides:
            self._highest = None
            for level in self.used:
                self._take_best(self.step_seconds, [self._once(level)])
        return of_passes, _weights(self._rows)

    def _take_best(
        self, seconds: Callable[[ResourceWeights], float], tried: Iterable[list[Shares]]
    ) -> None:
        """Take some shares one after the other as long as the bound rises: it is concave."""
        for rows in tried:
            if self.is_late():
                break
            if self._highest is None:
                self._highest = seconds(_weights(self._rows))
            height = seconds(_weights(rows))
            if height <= self._highest:
                break
            self._highest, self._rows = height, rows

    def _more(self, kinds: Sequence[int], level: int) -> list[list[Shares]]:
        """Return greater shares of the links of a level in the segments of some kinds."""
        found = []
        for share in _TRIED:
            rows = [_with(row, level, share) if i in kinds else row for i, row in self._numbered]
            if share > self._rows[kinds[0]][level] and all(sum(row) < 1 for row in rows):
                found.append(rows)
        return found

    def _once(self, level: int) -> list[Shares]:
        """Return shares by which what is done once takes the links of a level alone.

        To do it in every pass instead must cost as much.
        """
        least = _MORE / self.passes
        alone = _with((0.0,) * self.levels, level, _ALONE)
        rows = [
            _with(row, level, max(row[level], least)) if i in _LOOP else alone
            for i, row in self._numbered
        ]
        return rows if all(sum(row) < 1 for row in rows) else self._rows

    @property
    def _numbered(self) -> list[tuple[int, Shares]]:
        return list(enumerate(self._rows))


def _with(shares: Shares, level: int, share: float) -> Shares:
    return (*shares[:level], share, *shares[level + 1 :])


def _weights(rows: Sequence[Shares]) -> ResourceWeights:
    """Return the weights of shares in each kind of segment."""
    found = []
    for row in rows:
        levels = tuple(max(share, LEAST_WEIGHT) for share in row)
        found.append(ResourceWeights(1 - sum(levels), levels))
    first, *later = found
    return first if all(one == first for one in later) else replace(first, later=tuple(later))
