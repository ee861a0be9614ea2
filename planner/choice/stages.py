"""The blocks of a program in stages: where it is cut, and how many blocks have which plan.

A stage has the plans of its blocks on the mesh of one device group. As many micro-batches are in
flight on it as the schedule says, and their saved tensors are held in each; the stages of one
group share its memory. Where blocks repeat, what a stage takes depends on how many of each kind it
has alone, so a dynamic program finds the cut whose stages are most equal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwright.dataflow.schedule_paths import segment_seconds, simulate_schedule
from shardwright.dataflow.schedules import Schedule, most_in_flight
from shardwright.planner.choice.counts import Choice, Counts
from shardwright.planner.choice.cuts import Cut, least_sum
from shardwright.planner.fronts.front import BlockPlan
from shardwright.planner.fronts.kept import fronts_of
from shardwright.planner.fronts.site import Site

Floats = NDArray[np.float64]
_WIDEST = 2  # most blocks of a stage, as a multiple of the mean


@dataclass(frozen=True)
class Part:
    """The blocks of one kind in one stage.

    Parameters
    ----------
    kind : int
        The kind.
    places : tuple of int
        The blocks.
    stage : int
        The stage.
    """

    kind: int
    places: tuple[int, ...]
    stage: int


@dataclass(frozen=True)
class StagedChoice:
    """The plans of all blocks.

    Parameters
    ----------
    parts : tuple of tuple of Part
        The blocks of each device group.
    groups : tuple of Choice
        The plans of these, part by part.
    seconds : float
        About how long the step takes; in one stage the load of the busiest resource.
    """

    parts: tuple[tuple[Part, ...], ...]
    groups: tuple[Choice, ...]
    seconds: float

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """What is equal for equal choices."""
        every = (run for group in self.groups for runs in group.runs for run in runs)
        return tuple((id(run.plan), run.count) for run in every)

    @property
    def gathered_bytes(self) -> float:
        """Bytes of the largest parameter that is gathered."""
        every = (run for group in self.groups for runs in group.runs for run in runs)
        return max(run.plan.gathered_bytes for run in every)

    @property
    def can_spread(self) -> bool:
        """Whether links bind one stage in which equal blocks have several plans."""
        if len(self.groups) > 1:
            return False
        (group,) = self.groups
        return group.links_bind and any(len(runs) > 1 for runs in group.runs)


@dataclass(eq=False)
class StagedBlocks:
    """The blocks of a site in the stages of a schedule.

    Parameters
    ----------
    site : Site
        The blocks, on the mesh of a device group.
    schedule : Schedule
        The schedule.
    given : tuple of int, optional
        The blocks at which stages begin, and the end; by default those of about equal stages.
    """

    site: Site
    schedule: Schedule
    given: Cut | None = None
    _plans: dict[tuple[int, int], tuple[BlockPlan, ...]] = field(default_factory=dict)
    _known: dict[object, float] = field(default_factory=dict)

    def cut_at(self, cut: Cut) -> "StagedBlocks":
        """Return the same blocks in other stages."""
        return replace(self, given=cut)

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """The micro-batches in flight on each stage."""
        return most_in_flight(self.schedule)

    @cached_property
    def cut(self) -> Cut | None:
        """The blocks at which stages begin, and the end; None where no cut fits."""
        stages, blocks = self.schedule.stages, len(self.site.blocks)
        if stages == 1:
            return 0, blocks
        if self.given is not None:
            return self.given
        widest = _WIDEST * -(-blocks // stages)
        costs = np.full((stages, blocks + 1, blocks + 1), np.inf)
        for stage in range(stages):
            for begin in range(blocks):
                for end in range(begin + 1, min(begin + widest, blocks) + 1):
                    costs[stage, begin, end] = self._seconds(stage, begin, end)
        return least_sum(np.square(costs)).cut

    def best(
        self, ahead: float, limits: Sequence[float], most_bytes: float = np.inf
    ) -> StagedChoice | None:
        """Return the choice of the least seconds; None where none fits.

        Parameters
        ----------
        ahead : float
            How often the largest parameter that is gathered must fit beside all that is held.
        limits : sequence of float
            Bytes that each device group may take.
        most_bytes : float
            Bytes of the largest parameter that is gathered, at most.
        """
        if self.cut is None:
            return None
        found: dict[object, Choice | None] = {}
        groups = []
        for parts, limit in zip(self._parts, limits, strict=True):
            key = *((p.kind, len(p.places), self.in_flight[p.stage]) for p in parts), limit
            if key not in found:
                found[key] = self._counts(parts, limit).best(ahead, most_bytes)
            choice = found[key]
            if choice is None:
                return None
            groups.append(choice)
        return StagedChoice(self._parts, tuple(groups), self._step(groups))

    @property
    def gathers(self) -> list[float]:
        """The sizes of gathers that plans in one stage can be restricted to."""
        (parts,) = self._parts
        return self._counts(parts, inf).gathers

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each device group, in the order of the program."""
        assert self.cut is not None
        found: list[list[Part]] = [[] for _ in range(self.schedule.groups)]
        for stage, (begin, end) in enumerate(pairwise(self.cut)):
            found[self.schedule.group_of(stage)] += self._parts_of(stage, begin, end)
        return tuple(map(tuple, found))

    def _parts_of(self, stage: int, begin: int, end: int) -> list[Part]:
        places: dict[int, list[int]] = {}
        for block in range(begin, end):
            places.setdefault(self._kind_of[block], []).append(block)
        return [Part(kind, tuple(blocks), stage) for kind, blocks in places.items()]

    @cached_property
    def _kind_of(self) -> dict[int, int]:
        """The kind of each block."""
        return {b: number for number, kind in enumerate(self.site.kinds) for b in kind.places}

    def _counts(self, parts: Sequence[Part], limit: float) -> Counts:
        return Counts(
            [len(part.places) for part in parts],
            [self._front(part.kind, self.in_flight[part.stage]) for part in parts],
            [(part.places[0], part.places[-1]) for part in parts],
            limit,
        )

    def _front(self, kind: int, in_flight: int) -> tuple[BlockPlan, ...]:
        """Return the plans of a kind with some micro-batches in flight."""
        if (kind, in_flight) not in self._plans:
            plans = self._fronts[kind]
            alone = (replace(p, seconds=self._with_exposed(p.seconds)) for p in plans)
            self._plans[kind, in_flight] = tuple(plan.with_in_flight(in_flight) for plan in alone)
        return self._plans[kind, in_flight]

    def _with_exposed(self, seconds: Floats) -> Floats:
        """Return the seconds of a block by resource, and with those for which it waits in a stage.

        A stage begins with a gather that nothing hides, and ends with a reduction: of about as many
        blocks as it has, those of one wait.
        """
        if self.schedule.stages == 1:
            return seconds
        blocks = len(self.site.blocks) / self.schedule.stages
        (whole,) = seconds  # of no halves
        return np.append(whole, whole[0] + whole[1:].sum() / blocks)[None]

    @cached_property
    def _fronts(self) -> list[tuple[BlockPlan, ...]]:
        return fronts_of(self.site, max(self.in_flight))

    def _seconds(self, stage: int, begin: int, end: int) -> float:
        """Return a bound of the seconds of a stage, whose group gives it an equal share of memory.

        Parts of blocks may have plans of their own here.
        """
        numbers = Counter(self._kind_of[block] for block in range(begin, end))
        key = tuple(numbers.items()), self.in_flight[stage]
        if key not in self._known:
            limit = self.site.limits.limit_bytes / self.schedule.chunks
            counts = self._counts(self._parts_of(stage, begin, end), limit)
            self._known[key] = counts.least_seconds()
        return self._known[key]

    def _step(self, groups: Sequence[Choice]) -> float:
        """Return the step of the schedule whose stages take the loads of their plans."""
        if self.schedule.stages == 1:
            return groups[0].seconds
        resources = len(self.site.matrix)
        loads = np.zeros((self.schedule.stages, resources + 1))
        for parts, choice in zip(self._parts, groups, strict=True):
            for part, runs in zip(parts, choice.runs, strict=True):
                loads[part.stage] += np.sum(
                    [run.count * run.plan.seconds[0] for run in runs], axis=0
                )
        passes = loads[:, :-1].max(axis=1) / self.schedule.micro_batches
        durations = segment_seconds(self.schedule, passes.tolist())
        return simulate_schedule(self.schedule, durations).step_seconds
