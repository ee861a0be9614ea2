"""Counts of plans of equal blocks, against all counts of small random fronts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from shardwright.ir.decisions import Decisions
from shardwright.ir.mesh import Mesh
from shardwright.planner.choice.counts import Choice, Counts
from shardwright.planner.fronts.front import BlockPlan
from shardwright.solver.linear_program import least_mixture
from tests.extent import long_after

NOTHING = Decisions(Mesh(()), {}, {})
AHEAD = 1.5
SPANS = [(0, 0), (1, 6), (7, 7)]


def drawn(seed: int) -> Counts:
    """Return a layer of several plans, between two ends."""
    draw = np.random.default_rng(seed)

    def plan() -> BlockPlan:
        seconds = draw.uniform(1, 2, size=(1 + seed % 2, 2))  # of a step, or of both halves
        held = float(draw.uniform(1, 4))
        own, after, gathered = (float(draw.uniform(0, each)) for each in (1, 4, 1))
        return BlockPlan(NOTHING, seconds, held, own, after, gathered)

    fronts = [[plan() for _ in range(count)] for count in (2, 4, 2)]
    return Counts([1, 6, 1], fronts, SPANS, float(draw.uniform(16, 30)))


def every_count(size: int, total: int) -> Iterator[tuple[int, ...]]:
    if size == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in every_count(size - 1, total - first))


def figures(kinds: Sequence[Sequence[tuple[BlockPlan, int]]]) -> tuple[float, float]:
    """Return the seconds of the busiest resource, and the bytes with gathers ahead."""
    taken = [(plan, number) for kind in kinds for plan, number in kind if number]
    loads = sum(number * plan.seconds for plan, number in taken)
    moments = [sum(number * plan.after_bytes for plan, number in taken)]
    for place, kind in enumerate(kinds):  # in the backward pass of its last block
        own = sum(number * plan.own_bytes for plan, number in kind) / sum(n for _, n in kind)
        before = sum(n * plan.held_bytes for one in kinds[: place + 1] for plan, n in one)
        after = sum(n * plan.after_bytes for one in kinds[place + 1 :] for plan, n in one)
        moments.append(own + before + after)
    length = float(np.max(loads, axis=1).sum())
    return length, max(moments) + AHEAD * max(p.gathered_bytes for p, _ in taken)


def least_of_all(counts: Counts, sizes: int) -> float:
    """Return the least seconds of all counts of at most so many plans of a layer that fit."""
    found = inf
    before, layers, ends = counts.fronts
    for first, end, number in product(before, ends, every_count(len(layers), 6)):
        if np.count_nonzero(number) > sizes:
            continue
        seconds, held = figures([[(first, 1)], [*zip(layers, number, strict=True)], [(end, 1)]])
        found = min(found, seconds) if held <= counts.limit_bytes else found
    return found


def taken_of(choice: Choice) -> list[list[tuple[BlockPlan, int]]]:
    return [[(run.plan, run.count) for run in runs] for runs in choice.runs]


@pytest.mark.parametrize("seed", long_after(20, range(60)))
def test_a_choice_fits_and_no_counts_are_much_better(seed: int) -> None:
    counts = drawn(seed)
    choice, least = counts.best(AHEAD), least_of_all(counts, 4)
    if choice is None:
        # Whole blocks may fit where none was found: of few blocks, those of the least memory do.
        assert least == inf or least_of_all(counts, 1) == inf
        return
    seconds, held = figures(taken_of(choice))
    assert seconds == pytest.approx(choice.seconds)
    assert held <= counts.limit_bytes * (1 + 2e-6)
    assert [sum(run.count for run in runs) for runs in choice.runs] == counts.counts
    assert least * (1 - 1e-9) <= seconds <= 1.1 * least  # of six blocks


@pytest.mark.parametrize("seed", range(20))
def test_equal_layers_have_one_plan_where_another_gains_little(seed: int) -> None:
    counts = drawn(seed)
    choice, uniform = counts.best(AHEAD), least_of_all(counts, 1)
    if choice is not None and uniform <= 1.001 * least_of_all(counts, 4):
        assert len(choice.runs[1]) == 1


def test_with_plenty_of_memory_the_fastest_plans_are_taken() -> None:
    counts = drawn(0)
    tiny = np.array([1.0, 1e-20])  # of links that a plan does not use
    fronts = [[replace(plan, seconds=plan.seconds * tiny) for plan in f] for f in counts.fronts]
    choice = Counts(counts.counts, fronts, SPANS, inf).best(AHEAD)
    assert choice is not None
    least = [min(plan.seconds[0, 0] for plan in front) for front in fronts]
    assert choice.seconds == pytest.approx(np.dot(least, counts.counts))
    assert not choice.links_bind


def test_where_nothing_fits_there_is_no_choice() -> None:
    counts = drawn(0)
    assert Counts(counts.counts, counts.fronts, SPANS, 3.0).best(AHEAD) is None


@pytest.mark.parametrize("seed", range(20))
def test_bounds_by_prices_hold_for_single_options(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups = int(draw.integers(1, 4))
    counts = draw.integers(1, 6, groups).tolist()
    sizes = draw.integers(1, 6, groups).tolist()
    intervals = 1 + seed % 2
    loads = [draw.uniform(0, 1, (size, intervals, 2)) for size in sizes]
    held = [draw.uniform(0, 1, (size, 3)) for size in sizes]
    limits = draw.uniform(0.3, 0.8, 3) * sum(counts)
    limits[int(draw.integers(3))] = np.inf
    free = least_mixture(counts, loads, held, limits)
    if free.load == np.inf:
        assert free.bound == 0.0
        return
    assert [taken.sum() for taken in free.taken] == pytest.approx(counts)
    assert free.bound == pytest.approx(free.load)  # the prices are the best ones
    for group in range(groups):
        for option in range(sizes[group]):
            one = [[option] if i == group else slice(None) for i in range(groups)]
            alone = least_mixture(
                counts,
                [load[rows] for load, rows in zip(loads, one, strict=True)],
                [each[rows] for each, rows in zip(held, one, strict=True)],
                limits,
            )
            bound = free.bound + free.dearer[group][option]
            assert bound <= alone.load * (1 + 1e-9)
