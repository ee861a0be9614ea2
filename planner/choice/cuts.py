"""Cuts of a pipeline: which blocks each stage runs, with a bound over all cuts.

Given are lower bounds T[s, i, j] of the seconds of one pass of stage s over one micro-batch,
forward and backward, if it runs the blocks from i to before j. Every path through the graph of a
schedule passes stage s some times w[s], so the step of every plan is at least

    min over cuts of max over paths w of sum over s of w[s] T[s, cut]

and the transfers that the path passes take time, too. The maximum is not taken out of the minimum,
or mixtures of cuts would bound less. Cuts are grouped by their slowest stage: with a cap x on all
stages and stage s the one that is as slow as that,

    min over (x, s) of max over w of min over cuts of sum over s of w[s] T[s, cut]

is at most the above, and the inner minimum is a dynamic program over stages and blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.rounding import OF_SUM
from shardwright.planner.effort import GAIN

Floats = NDArray[np.float64]
Cut = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PathCounts:
    """What a path through the graph of a schedule passes.

    Parameters
    ----------
    stages : array of shape (stages,)
        How often it passes each stage, forward and backward.
    arrivals : array of shape (stages, blocks + 1)
        Seconds of the transfers to each stage and back that it passes, by the stage's first block.
    ends : mapping of int to (array of shape (blocks + 1, blocks + 1))
        For stages of the device group with which the path begins and ends, lower bounds of what it
        passes of them, with what they do before and after the loop, by their blocks.
    """

    stages: Floats
    arrivals: Floats
    ends: Mapping[int, Floats] = field(default_factory=dict)

    def seconds(self, seconds: Floats) -> Floats:
        """Return what each stage adds to the path, by its blocks."""
        known = np.isfinite(seconds)
        passed = np.where(known, seconds, 0.0) * self.stages[:, None, None]
        found: Floats = np.where(known, passed + self.arrivals[:, :, None], np.inf)
        for stage, bounds in self.ends.items():
            once = np.where(known[stage], bounds + self.arrivals[stage][:, None], np.inf)
            found[stage] = np.maximum(found[stage], once)
        return found


@dataclass(frozen=True)
class LeastCut:
    """The least value over all cuts.

    Parameters
    ----------
    value : float
        The value; infinite where there is no cut.
    cut : tuple of int, optional
        A cut that attains it, or comes near: the blocks at which stages begin, and the end.
    """

    value: float
    cut: Cut | None = None


def least_sum(costs: Floats) -> LeastCut:
    """Return the cut of the least sum over stages.

    Parameters
    ----------
    costs : array of shape (stages, blocks + 1, blocks + 1)
        The cost of each stage by its first block and the one after its last.
    """
    ahead = _forward(costs)
    if not np.isfinite(ahead[-1, -1]):
        return LeastCut(np.inf)
    return LeastCut(float(ahead[-1, -1]), _traced(ahead, costs, len(costs), costs.shape[1] - 1))


def least_maximum(costs: Floats) -> LeastCut:
    """Return the cut of the least maximum over stages."""
    stages, size, _ = costs.shape
    ahead = np.full((stages + 1, size), np.inf)
    ahead[0, 0] = -np.inf
    for stage in range(stages):
        ahead[stage + 1] = np.maximum(ahead[stage][:, None], costs[stage]).min(axis=0)
    cut, at = [size - 1], size - 1
    if not ahead[stages, at] < np.inf:
        return LeastCut(np.inf)
    for stage in reversed(range(stages)):
        at = int(np.maximum(ahead[stage], costs[stage][:, at]).argmin())
        cut.append(at)
    return LeastCut(float(ahead[stages, -1]), tuple(reversed(cut)))


def least_longest_path(
    seconds: Floats,
    paths: Sequence[PathCounts],
    least_passes: int,
    is_late: Callable[[], bool] = lambda: False,
) -> LeastCut:
    """Return the bound over all cuts by paths, with a cut that comes near.

    Cuts are bounded by their slowest stage, the fastest of these first. Once nothing is left, all
    others are bounded by the passes of that stage alone.

    Parameters
    ----------
    seconds : array of shape (stages, blocks + 1, blocks + 1)
        Lower bounds of a pass of each stage by its blocks; infinite for what it cannot run.
    paths : sequence of PathCounts
        The paths.
    least_passes : int
        How often every stage runs, one pass after the other.
    is_late : callable, optional
        Whether nothing is left of the budget.
    """
    best = LeastCut(np.inf)
    low = least_maximum(seconds).value
    values = np.unique(seconds[np.isfinite(seconds)])
    while low < np.inf and least_passes * low < best.value:
        if is_late():
            return replace(best, value=least_passes * low)
        found = _of_slowest(seconds, paths, low, low * (1 + GAIN))
        found = LeastCut(max(found.value, least_passes * low), found.cut)
        best = min(best, found, key=lambda one: one.value)
        above = values[values > low * (1 + GAIN)]
        low = float(above[0]) if len(above) else np.inf
    return best


def _of_slowest(seconds: Floats, paths: Sequence[PathCounts], low: float, high: float) -> LeastCut:
    """Return the bound over cuts whose slowest stage takes from `low` to `high`."""
    allowed = np.where(seconds <= high * (1 + OF_SUM), seconds, np.inf)
    slowest = np.where(allowed >= low * (1 - OF_SUM), allowed, np.inf)
    values = np.array([_through(path, allowed, slowest) for path in paths])
    longest = values.max(axis=0)
    stage = int(longest.argmin())
    if not np.isfinite(longest[stage]):
        return LeastCut(np.inf)
    path = paths[int(values[:, stage].argmax())]
    forced = allowed.copy()
    forced[stage] = slowest[stage]
    return LeastCut(float(longest[stage]), least_sum(path.seconds(forced)).cut)


def _through(path: PathCounts, allowed: Floats, slowest: Floats) -> Floats:
    """Return for each stage the least sum along a path of cuts in which it is the slowest."""
    costs = path.seconds(allowed)
    ahead, behind = _forward(costs), _backward(costs)
    forced = path.seconds(slowest)
    sums = ahead[:-1, :, None] + forced + behind[1:, None, :]
    found: Floats = sums.min(axis=(1, 2))
    return found


def _forward(costs: Floats) -> Floats:
    """Return the least sum of the first stages up to each block."""
    stages, size, _ = costs.shape
    ahead = np.full((stages + 1, size), np.inf)
    ahead[0, 0] = 0.0
    for stage in range(stages):
        ahead[stage + 1] = (ahead[stage][:, None] + costs[stage]).min(axis=0)
    return ahead


def _backward(costs: Floats) -> Floats:
    """Return the least sum of the stages from each on, from each block."""
    stages, size, _ = costs.shape
    behind = np.full((stages + 1, size), np.inf)
    behind[stages, -1] = 0.0
    for stage in reversed(range(stages)):
        behind[stage] = (costs[stage] + behind[stage + 1][None, :]).min(axis=1)
    return behind


def _traced(ahead: Floats, costs: Floats, stages: int, end: int) -> Cut:
    cut, at = [end], end
    for stage in reversed(range(stages)):
        at = int((ahead[stage] + costs[stage][:, at]).argmin())
        cut.append(at)
    return tuple(reversed(cut))
