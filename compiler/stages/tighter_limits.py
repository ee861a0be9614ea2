"""Pipelines of stages within ever tighter memory limits, where the gap to the bound stays wide.

The lower bound of all plans within a limit rises as the limit falls. Once it is at the step of the
fastest plan, no plan within less memory is faster. So the plans that a smaller limit of the user
would give are candidates within a larger one, too: more memory does not make the plan slower.

Pipelines are planned for every smaller limit as for one of the user: the stages within it, and
where the program of a device group exceeds it, its stages within less. That gives other pipelines
only below the memory of plans and programs that fit, so these are the limits that are tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

import numpy as np

from shardwright.compiler.stages.race import Race
from shardwright.compiler.stages.stage_bounds import CutBounds
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.decisions import Decisions
from shardwright.planner.choice.cuts import Cut
from shardwright.planner.effort import FRONTIER, SMALL
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.plan.stage_plans import StagePlan
from shardwright.planner.whole.plan import is_near

_SHARE = 1 / 4  # share of the remaining budget for searches within tighter limits
_TIGHTENINGS = 20  # tighter limits that are tried for device groups that exceed their memory
_Staging = Callable[[Cut, Sequence[StageProblems], Sequence[float]], list[StagePlan] | None]


@dataclass(frozen=True)
class _Emitted:
    """The decisions of the stages of a pipeline, and the memory of each device group."""

    stages: list[Decisions]
    group_bytes: Sequence[float]


@dataclass(eq=False)
class PipelineFrontier:
    """The pipelines of some cuts whose stages are planned within ever tighter limits.

    Parameters
    ----------
    race : Race
        Gets the pipelines.
    bounds : CutBounds
        Bounds of the stages.
    cuts : sequence of tuple of int
        The cuts.
    kinds : sequence of sequence of StageProblems
        The problems by which stages are planned, those of each stage.
    """

    race: Race
    bounds: CutBounds
    cuts: Sequence[Cut]
    kinds: Sequence[Sequence[StageProblems]]
    _emitted: dict[Cut, list[_Emitted]] = field(default_factory=dict)

    def enter(self) -> None:
        """Let pipelines race, until none of their cuts within less memory is faster."""
        race, note = self.race, self.race.budget_note
        limits, budget = race.builder.limits, race.budget.share(_SHARE)
        for cut in self.cuts if self._is_small else ():
            limit = limits.limit_bytes
            for _ in range(FRONTIER):
                if race.is_over or note.is_late(budget, "cuts within less memory"):
                    return
                bound = self.bounds.within(limit).of(cut)
                if bound == inf:
                    break
                taken = self._enter_within(cut, limit)
                if is_near(race.seconds, bound, limits.gap):
                    break
                limit = float(np.nextafter(taken, 0.0))

    @property
    def _is_small(self) -> bool:
        """Whether the problems of the stages of all cuts together are small."""
        stages = len(self.cuts) * self.race.builder.schedule.stages
        kinds = (max(one.options for one in plans) for plans in self.kinds)
        return all(stages * options <= SMALL for options in kinds)

    def _enter_within(self, cut: Cut, limit: float) -> float:
        """Let the pipelines of a cut race that are planned within a limit.

        Returns the most that one takes, by the account of the search or by its program.
        """
        builder, taken = self.race.builder, [0.0]
        ways: tuple[_Staging, ...] = builder.staged, builder.staged_from_last
        for plans, staging in product(self.kinds, ways):
            for staged, groups in self._planned(cut, plans, staging, limit):
                counted = builder.schedule.by_group([plan.memory_bytes for plan in staged])
                taken += (*counted, *groups)
        return max(bytes_ for bytes_ in taken if bytes_ <= limit)

    def _planned(
        self, cut: Cut, plans: Sequence[StageProblems], staging: _Staging, limit: float
    ) -> Iterator[tuple[list[StagePlan], Sequence[float]]]:
        """Yield the stages of pipelines until one is within a limit, with the memory of groups."""
        limits = self.race.builder.memory_limits(cut, plans, limit)
        for _ in range(_TIGHTENINGS):
            staged = staging(cut, plans, limits)
            if staged is None:
                return
            groups = self._group_bytes(cut, [plan.decisions for plan in staged], plans)
            yield staged, groups
            most = [min(limit, own) for own in self.race.builder.group_limits]
            if all(taken <= own for taken, own in zip(groups, most, strict=True)):
                return
            for stage, plan in enumerate(staged):
                group = self.race.builder.schedule.group_of(stage)
                if groups[group] > most[group]:
                    limits[stage] = float(np.nextafter(plan.memory_bytes, 0.0))

    def _group_bytes(
        self, cut: Cut, stages: list[Decisions], plans: Sequence[StageProblems]
    ) -> Sequence[float]:
        """Return the memory of each group of a pipeline, which races where it is another one."""
        emitted, builder = self._emitted.setdefault(cut, []), self.race.builder
        for one in emitted:
            if one.stages == stages:
                return one.group_bytes
        found = builder.emitted(cut, stages)
        emitted.append(_Emitted(stages, peak_memory(found.program).by_group))
        if builder.fits(found):
            self.race.keep(found, plans)
        return emitted[-1].group_bytes
