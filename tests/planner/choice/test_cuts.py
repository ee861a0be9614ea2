"""Cuts of least cost, and the bound over all cuts by paths, against all cuts."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.planner.choice.cuts import (
    Cut,
    PathCounts,
    least_longest_path,
    least_maximum,
    least_sum,
)

Floats = NDArray[np.float64]


def random_costs(random: np.random.Generator) -> Floats:
    stages, blocks = int(random.integers(1, 5)), int(random.integers(4, 8))
    costs = random.random((stages, blocks + 1, blocks + 1))
    totals = np.cumsum(random.random(blocks + 1))
    costs = 0.2 * costs + totals[None, None, :] - totals[None, :, None]
    costs[random.random(costs.shape) < 0.1] = np.inf
    costs[:, *np.tril_indices(blocks + 1)] = np.inf
    return costs


def length(path: PathCounts, cut: Cut, seconds: list[float]) -> float:
    late = sum(float(path.arrivals[s, cut[s]]) for s in range(len(seconds)))
    return float(np.dot(path.stages, seconds)) + late


def all_cuts(costs: Floats) -> Iterator[tuple[Cut, list[float]]]:
    stages, size, _ = costs.shape
    for inner in combinations(range(1, size - 1), stages - 1):
        cut = (0, *inner, size - 1)
        yield cut, [float(costs[s, i, j]) for s, (i, j) in enumerate(pairwise(cut))]


@pytest.mark.parametrize("seed", range(60))
def test_least_cuts(seed: int) -> None:
    costs = random_costs(np.random.default_rng(seed))
    cuts = dict(all_cuts(costs))
    for found, measure in ((least_sum(costs), sum), (least_maximum(costs), max)):
        best = min(map(measure, cuts.values()))
        assert found.value == pytest.approx(best)
        assert (found.cut is None) == np.isinf(best)
        if found.cut is not None:
            assert measure(cuts[found.cut]) == pytest.approx(best)


def test_the_bound_by_paths_is_below_all_cuts_and_near_the_best() -> None:
    gaps = []
    for seed in range(80):
        random = np.random.default_rng(seed)
        costs, passes = random_costs(random), int(random.integers(2, 9))
        stages = len(costs)
        counts = [np.array([1.0] * s + [passes] + [0.0] * (stages - s - 1)) for s in range(stages)]
        counts += [random.integers(0, passes, stages).astype(float) for _ in range(2)]
        late = random.random((stages, costs.shape[1])) * int(random.integers(2))
        paths = [PathCounts(count, count[:, None] * late) for count in counts]
        steps = [
            max(passes * max(seconds), *(length(path, cut, seconds) for path in paths))
            for cut, seconds in all_cuts(costs)
            if max(seconds) < np.inf
        ]
        found = least_longest_path(costs, paths, passes)
        best = min(steps, default=np.inf)
        assert found.value <= best * (1 + 1e-9)
        moments = iter((False, True))  # the second time that it asks, no time is left
        early = least_longest_path(costs, paths, passes, lambda: next(moments)).value  # noqa: B023
        assert early <= found.value
        assert not np.isfinite(best) or early >= passes * least_maximum(costs).value
        if np.isfinite(best):
            gaps.append(1 - found.value / best)
    assert len(gaps) > 40
    assert np.mean(gaps) < 0.03
