"""The bound on the steps of a pipeline over all cuts, and the cuts that come near it.

Stages are priced lazily: first from below by their blocks alone, then exactly where the best cut so
far needs them, until all of its stages are exact. The bound covers cuts between the blocks.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.pipelines.mixed import GroupClusters
from shardwright.dataflow.schedule_paths import (
    Path,
    SimulatedSchedule,
    Transfer,
    segment_seconds,
    simulate_schedule,
)
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Schedule,
    most_in_flight,
)
from shardwright.planner.bounds.schedule_bounds import bounding_paths
from shardwright.planner.choice.cuts import (
    Cut,
    LeastCut,
    PathCounts,
    least_longest_path,
    least_maximum,
    least_sum,
)
from shardwright.planner.effort import RISE
from shardwright.planner.fronts.problem import MANY, ONE, StageProblems
from shardwright.search.budget_note import FOR_A_BOUND
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
_ROUNDS = 4  # rounds, each of which adds the critical path of the best cut


@dataclass
class CutBounds:
    """Lower bounds of the stages of a pipeline by their blocks.

    Parameters
    ----------
    problems : sequence of StageProblems
        The stage problems of each stage: those of its part of the cluster.
    schedule : Schedule
        The schedule.
    groups : GroupClusters
        The cluster of each device group.
    once : sequence of StageProblems, optional
        Those whose bounds of passes with what is done once are taken, if others.
    budget : Budget
        What pricing stages exactly may spend.
    """

    problems: Sequence[StageProblems]
    schedule: Schedule
    groups: GroupClusters
    once: Sequence[StageProblems] | None = None
    budget: Budget = field(default_factory=Budget)
    met: dict[Cut, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = self.problems[0].blocks
        self.passes = stage_sums(self.problems, lambda one, block: one.floor(block).pass_seconds)
        self.steps = stage_sums(self.problems, lambda one, block: one.floor(block).step_seconds)
        if self.once is not None:
            steps = stage_sums(self.once, StageProblems.step_floor)
            self.steps = np.maximum(self.steps, steps)
        self.constants = np.array([one.constant for one in self.problems])
        self.ends: dict[tuple[int, float], Floats] = {}
        self.exact = np.zeros(self.passes.shape, dtype=bool)

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """The micro-batches in flight at the peak of each stage."""
        return most_in_flight(self.schedule)

    def bound(self) -> LeastCut:
        """Return the bound over all cuts, with a cut that comes near; infinite if none fits.

        One micro-batch is no loop: a stage that needs nothing of the one before need not wait for
        it, and only what each device group runs bounds the step.
        """
        if self.schedule.micro_batches == 1:
            return self._refined([])
        paths = [self._counts(path) for path in bounding_paths(self.schedule)]
        if self.schedule.chunks > 1:
            groups = [self._of_group(group) for group in range(self.schedule.groups)]
            mean = np.mean(groups, axis=0)
            paths.append(PathCounts(mean, np.zeros(self.passes.shape[:2]), self._ends(mean)))
        best = self._refined(paths)
        for _ in range(_ROUNDS):
            if best.cut is None:
                return best
            path = self._critical(best.cut)
            if self._length(path, best.cut) <= best.value * (1 + RISE):
                break
            paths.append(path)
            found = self._refined(paths)
            best = max(best, found, key=lambda one: one.value)
        return best

    def within(self, memory_limit: float) -> "CutBounds":
        """Return the bounds within another memory limit, in bytes."""
        once = None if self.once is None else within(self.once, memory_limit)
        return replace(self, problems=within(self.problems, memory_limit), once=once, met={})

    def of(self, cut: Cut) -> float:
        """Return a bound on the steps of the pipelines of a cut; infinite if none fits."""
        self._price(cut)
        stages = enumerate(pairwise(cut))
        bound = max(float(self.steps[s, i, j] + self.constants[s]) for s, (i, j) in stages)
        if bound == inf or self.schedule.micro_batches == 1:
            return bound
        paths = [*(self._counts(path) for path in bounding_paths(self.schedule))]
        paths.append(self._critical(cut))
        return max(bound, *(self._length(path, cut) for path in paths))

    def rounding(self, step_seconds: float) -> float:
        """Return what the bound is too high by at most, for plans that take no longer than that."""
        counts = 2 * (self.schedule.micro_batches + self.schedule.stages)
        return counts * step_seconds / MANY + step_seconds * (ONE - 1)

    @property
    def _is_late(self) -> bool:
        first = self.problems[0]
        budget = min(first.budget, self.budget, key=lambda one: one.left)
        return first.budget_note.is_late(budget, FOR_A_BOUND)

    def balanced(self) -> Cut | None:
        """Return the cut whose stages are most equal."""
        return least_sum(np.square(self.passes)).cut

    def estimate(self, cut: Cut) -> float:
        """Return about how long the step of a cut takes, with stages that take their bounds."""
        self._price(cut)
        step = self._simulated(cut).step_seconds
        pairs = list(enumerate(pairwise(cut)))
        total = max(float(self.steps[s, i, j]) for s, (i, j) in pairs)
        return max(step, total) if np.isfinite(total) else np.inf

    # Paths

    def _counts(self, path: Path) -> PathCounts:
        """Return how often a path passes each stage in all parts of a pass, and its transfers."""
        schedule = self.schedule
        counts = [
            min(path.segments.get((stage, part), 0) for part in schedule.parts)
            for stage in range(schedule.stages)
        ]
        arrivals = np.zeros(self.passes.shape[:2])
        for stage in range(1, schedule.stages):
            there, back = (path.transfers.get(pair, 0) for pair in _neighbours(stage))
            arrivals[stage] = there * self._delays[stage][0] + back * self._delays[stage][1]
        passed = np.array(counts, dtype=float)
        return PathCounts(passed, arrivals, self._ends(passed))

    def _ends(self, counts: Floats) -> dict[int, Floats]:
        """Return bounds of what a path passes of the stages of the first group, by their blocks.

        The path begins there, and ends there where backward passes end: what the group does once
        adds to it.
        """
        schedule, found = self.schedule, dict[int, Floats]()
        if WEIGHTS in schedule.parts or counts[0] < 1:
            return found
        for stage in schedule.stages_on(0):
            if counts[stage] >= 1:
                found[stage] = self._with_once(stage, float(counts[stage]))
        found[0] = found[0] + self.constants[0]
        return found

    def _with_once(self, stage: int, count: float) -> Floats:
        """Return bounds of some passes of a stage and of what it does once, by its blocks."""
        if count == self.schedule.micro_batches:
            return self.steps[stage]
        count = max(count, ONE)
        if (stage, count) not in self.ends:
            problems = (self.once or self.problems)[stage]
            floors = [problems.floor_of(block, count) for block in range(len(self.blocks))]
            self.ends[stage, count] = block_sums(floors, 1)[0]
            for begin, end in np.argwhere(self.exact[stage]).tolist():
                self._price_once(stage, count, begin, end)
        return self.ends[stage, count]

    def _price_once(self, stage: int, count: float, begin: int, end: int) -> None:
        """Price a stage exactly, with what it does once."""
        bounds, in_flight = self.ends[stage, count], self.in_flight[stage]
        found = (self.once or self.problems)[stage].seconds_within(begin, end, in_flight, count)
        bounds[begin, end] = max(bounds[begin, end], found)

    @cached_property
    def _delays(self) -> list[Floats]:
        """The least seconds of the transfers to each stage, by its first block; then back."""
        known: dict[Hashable, Floats] = {}
        found = []
        for stage in range(self.schedule.stages):
            pair = self.groups.sending(stage - 1, stage), self.groups.sending(stage, stage - 1)
            if pair not in known:
                known[pair] = self.problems[stage].delays(*pair)
            found.append(known[pair])
        return found

    def _of_group(self, group: int) -> Floats:
        """Return the path through all passes of a device group, and before it to its first.

        Where gradients of weights may come last, stages before it are passed forward alone.
        """
        schedule = self.schedule
        counts = np.zeros(schedule.stages)
        counts[[*schedule.stages_on(group)]] = schedule.micro_batches
        counts[:group] += WEIGHTS not in schedule.parts
        return counts

    def _critical(self, cut: Cut) -> PathCounts:
        """Return the counts of the critical path of a cut whose stages take their bounds."""
        return self._counts(self._simulated(cut).path)

    def _simulated(self, cut: Cut) -> SimulatedSchedule:
        delays: dict[Transfer, float] = {}
        for stage in range(1, self.schedule.stages):
            for transfer, seconds in zip(_neighbours(stage), self._delays[stage], strict=True):
                delays[transfer] = float(seconds[cut[stage]])
        passes = [float(self.passes[s, i, j]) for s, (i, j) in enumerate(pairwise(cut))]
        return simulate_schedule(self.schedule, segment_seconds(self.schedule, passes), delays)

    def _length(self, path: PathCounts, cut: Cut) -> float:
        costs = path.seconds(self.passes)
        return float(sum(costs[s, i, j] for s, (i, j) in enumerate(pairwise(cut))))

    # Refinement

    def _refined(self, paths: Sequence[PathCounts]) -> LeastCut:
        """Return the bound by some paths, with the stages of its cut priced exactly."""
        while True:
            best = self._least(paths)
            if best.cut is None:
                return best
            self.met[best.cut] = None
            if not self._price(best.cut):
                return best

    def _least(self, paths: Sequence[PathCounts]) -> LeastCut:
        groups, chunks = self.schedule.groups, self.schedule.chunks
        passes = self.schedule.micro_batches
        paths = [replace(path, ends=self._ends(path.stages)) for path in paths]
        found = []
        if paths:
            found.append(least_longest_path(self.passes, paths, passes, lambda: self._is_late))
        found.append(least_maximum(self.steps + self.constants[:, None, None]))
        if chunks > 1:
            total = least_sum(self.steps)
            found.append(LeastCut(total.value / groups + min(self.constants), total.cut))
        return max(found, key=lambda one: one.value)

    def _price(self, cut: Cut) -> bool:
        """Price the stages of a cut exactly; return whether any was not."""
        new = False
        for stage, (begin, end) in enumerate(pairwise(cut)):
            if not self.exact[stage, begin, end] and not self._is_late:
                self._price_stage(stage, begin, end)
                new = True
        return new

    def _price_stage(self, stage: int, begin: int, end: int) -> None:
        """Price a stage, and all equal stretches in this stage."""
        blocks, problems = self.blocks, self.problems[stage]
        found = problems.bound(begin, end, self.in_flight[stage])
        step = found.step_seconds
        if self.once is not None:
            step = max(step, self.once[stage].bound(begin, end, self.in_flight[stage]).step_seconds)
        key, length = blocks.key(begin, end), end - begin
        for first in range(len(blocks) - length + 1):
            at = stage, first, first + length
            if blocks.key(first, first + length) == key:
                self.passes[at] = max(self.passes[at], found.pass_seconds)
                self.steps[at] = max(self.steps[at], step)
                self.exact[at] = True
                for of, count in self.ends:
                    if of == stage:
                        self._price_once(stage, count, first, first + length)


def _neighbours(stage: int) -> tuple[Transfer, Transfer]:
    """Return the transfers between a stage and the one before, there and back."""
    before = stage - 1
    return ((before, FORWARD), (stage, FORWARD)), ((stage, BACKWARD), (before, BACKWARD))


def within(problems: Sequence[StageProblems], memory_limit: float) -> list[StageProblems]:
    """Return the problems of stages within no more memory, the same ones of equal parts."""
    found = {id(one): one.within(memory_limit) for one in problems}
    return [found[id(one)] for one in problems]


def stage_sums(
    problems: Sequence[StageProblems], seconds: Callable[[StageProblems, int], float]
) -> Floats:
    """Return the sums of seconds over blocks from each to before each, for every stage."""
    known: dict[int, Floats] = {}
    for one in problems:
        if id(one) not in known:
            floors = [seconds(one, block) for block in range(len(one.blocks))]
            known[id(one)] = block_sums(floors, 1)
    return np.concatenate([known[id(one)] for one in problems])


def block_sums(seconds: Sequence[float], stages: int) -> Floats:
    """Return the sums over blocks from each to before each, for every stage."""
    totals = np.array([0.0, *np.cumsum(seconds)])
    sums = totals[None, :] - totals[:, None]
    sums[np.tril_indices(len(totals))] = np.inf  # every stage has a block
    return np.tile(sums, (stages, 1, 1))
