"""The race of candidates for the least simulated step: which pipelines are emitted, and in order.

Emitting a program takes longer than planning its stages. So candidates are compared by the seconds
of their stage plans first, and emitted only if they can be faster than the best so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from shardwright.compiler.stages.candidates import Candidate, CandidateBuilder, StagePlans
from shardwright.compiler.stages.named import (
    NamedProblems,
    NamedStages,
    NamedStagesAtLevel,
    plans_by_stage,
)
from shardwright.ir.mesh import Mesh
from shardwright.planner.choice.cuts import Cut
from shardwright.planner.effort import GAIN, LARGE
from shardwright.planner.plan.stage_plans import StagePlan
from shardwright.search.budget_note import BudgetNote
from shardwright.solver.work import Budget

_NEAR = 1.25  # multiple of the least estimate up to which other ZeRO stages are tried
_OVERLAPPED = 0.95  # share of an estimate that concurrent communication may leave
_FEW, _MANY = 3, 12  # named plans that are emitted of a large and of a small program
_MOVES = 3  # most moves of a block to another stage


@dataclass(frozen=True, eq=False)
class _Entrant:
    """A named plan that may be emitted.

    Parameters
    ----------
    cut : tuple of int
        Its cut.
    plans : tuple of NamedStages
        The plans of each stage.
    estimate : float
        About how long it takes, if nothing overlaps within a stage.
    once : float
        The same of the best plan of equal degrees, which communicates once a step.
    """

    cut: Cut
    plans: tuple[NamedStages, ...]
    estimate: float
    once: float

    def least(self, ratio: float) -> float:
        """Return about how long it takes at least, by the ratio of a step to its estimate.

        What is gathered or reduced in every pass may be concurrent with computation; it takes
        about what the plan takes longer than the one that does so once.
        """
        least = (1 - GAIN) * self.estimate * (ratio or 1.0)
        if not self.plans[0].named.plan.zero_stage.reduced_in_passes:
            return least
        return min(least, max(_OVERLAPPED * self.once, self.estimate - self.once))


@dataclass(eq=False)
class Race:
    """The candidates so far.

    Parameters
    ----------
    builder : CandidateBuilder
        Emits pipelines.
    target : float
        Seconds of a step that is good enough.
    budget : Budget
        No other candidate is tried once it is spent.
    budget_note : BudgetNote
        Notes whether the budget left candidates out.
    best : Candidate or None
        The fastest that fits.
    plans : sequence of StagePlans, or None
        What each of its stages is planned by.
    """

    builder: CandidateBuilder
    target: float
    budget: Budget
    budget_note: BudgetNote = field(default_factory=BudgetNote)
    best: Candidate | None = None
    plans: Sequence[StagePlans] | None = None
    _entered: set[tuple[Cut, tuple[int, ...]]] = field(default_factory=set)
    _ratio: float = 0.0  # of the step of a named plan to its estimate

    @property
    def seconds(self) -> float:
        """The step of the best candidate; infinite without one."""
        return inf if self.best is None else self.best.step.seconds

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, and no better one is needed, or the budget is spent."""
        return self.best is not None and (self.seconds <= self.target or self.is_late)

    @property
    def is_late(self) -> bool:
        """Whether the budget is spent."""
        return self.budget_note.is_late(self.budget, "the comparison of pipelines")

    def enter(self, cut: Cut, plans: Sequence[StagePlans]) -> bool:
        """Emit a candidate whose program fits, unless the race is over; return whether it leads."""
        if (cut, _identity(plans)) in self._entered or self.is_over:
            return False
        self._entered.add((cut, _identity(plans)))
        found = self.builder.fitting(cut, plans)
        return found is not None and self.keep(found, plans)

    def keep(self, found: Candidate, plans: Sequence[StagePlans] | None = None) -> bool:
        """Keep a pipeline that fits if it leads; return whether it does."""
        if found.step.seconds >= self.seconds:
            return False
        self.best, self.plans = found, plans
        return True

    def enter_from_last(self, cut: Cut, plans: Sequence[StagePlans]) -> None:
        """Emit the candidate whose stages send what later ones prefer, where it is another one."""
        if self.is_over:
            return
        staged, other = self._staged(cut, plans), self._staged(cut, plans, from_last=True)
        if staged is None or other is None or self.builder.estimate(other) >= self.seconds:
            return
        decisions = [plan.decisions for plan in other]
        if all(
            one.decisions.stored == plan.stored for one, plan in zip(staged, decisions, strict=True)
        ):
            return
        found = self.builder.emitted(cut, decisions)
        if self.builder.fits(found):
            self.keep(found, plans)

    def enter_if_promising(self, cut: Cut, plans: Sequence[StagePlans]) -> bool:
        """Emit a candidate only if it can lead, by the seconds of its stage plans."""
        if (cut, _identity(plans)) in self._entered or self.is_over:
            return False
        if self.estimate(cut, plans) * _OVERLAPPED >= self.seconds:
            return False
        return self.enter(cut, plans)

    def estimate(self, cut: Cut, plans: Sequence[StagePlans]) -> float:
        """Return about how long a candidate takes; infinite if it does not fit."""
        staged = self._staged(cut, plans)
        return inf if staged is None else self.builder.estimate(staged)

    def _staged(
        self, cut: Cut, plans: Sequence[StagePlans], *, from_last: bool = False
    ) -> list[StagePlan] | None:
        builder = self.builder
        staged = builder.staged_from_last if from_last else builder.staged
        return staged(cut, plans, builder.memory_limits(cut, plans))

    # Named plans

    def enter_named(
        self, problems: Sequence[NamedProblems], mesh: Mesh, cuts: Sequence[Cut]
    ) -> None:
        """Emit the named plans that can lead.

        Parameters
        ----------
        problems : sequence of NamedProblems
            The problems of each stage, in which they are points.
        mesh : Mesh
            The mesh of a stage.
        cuts : sequence of tuple of int
            The cuts that are tried.
        """
        most = _FEW if len(problems[0].source.nodes) > LARGE else _MANY
        tried = 0
        for entrant in self._ranked([*plans_by_stage(problems, mesh)], cuts):
            if (self.best is not None and tried >= most) or self.is_over:
                return
            if entrant.least(self._ratio) < self.seconds:
                self._enter_levels(entrant)
                tried += 1

    def _ranked(
        self, degrees: Sequence[Sequence[tuple[NamedStages, ...]]], cuts: Sequence[Cut]
    ) -> list[_Entrant]:
        """Return the named plans, those of the least estimates first.

        Of plans of equal degrees, other ZeRO stages are only looked at where one is near.
        """
        first = [self._estimate_named(cuts[0], plans[0]) for plans in degrees]
        near = _NEAR * min(first, default=inf)
        found: dict[tuple[float, Cut], _Entrant] = {}
        for plans, estimate in zip(degrees, first, strict=True):
            for cut in cuts if estimate <= near and not self.is_over else ():
                estimates = [self._estimate_named(cut, one) for one in plans]
                for one, seconds in zip(plans, estimates, strict=True):
                    entrant = _Entrant(cut, one, seconds, min(estimates))
                    found.setdefault((seconds, cut), entrant)
        fitting = (one for one in found.values() if one.estimate < inf)
        return sorted(fitting, key=lambda one: one.estimate)

    def _estimate_named(self, cut: Cut, plans: tuple[NamedStages, ...]) -> float:
        if self.builder.schedule.chunks == 1:
            return self.estimate(cut, plans)
        return self.estimate(cut, _at_level(plans, plans[0].problems.levels[0]))

    def _enter_levels(self, entrant: _Entrant) -> None:
        """Emit a named plan with the least recomputation that fits.

        Chunks of a group share its memory, so the program alone tells what fits.
        """
        cut, plans = entrant.cut, entrant.plans
        if self.builder.schedule.chunks == 1:
            found = self.builder.fitting(cut, plans)
            if found is not None:
                self._ratio = self._ratio or found.step.seconds / entrant.estimate
                self.keep(found, plans)
            return
        for level in plans[0].problems.levels:
            staged = self._staged(cut, _at_level(plans, level))
            if staged is None or not self.builder.are_within(staged):
                continue
            found = self.builder.emitted(cut, [plan.decisions for plan in staged])
            if self.builder.fits(found):
                self.keep(found, _at_level(plans, level))
                return

    # Local improvement

    def improve(self) -> None:
        """Move blocks from the slowest stage of the best candidate to others, while it helps."""
        if self.best is None or self.plans is None:
            return
        for _ in range(_MOVES):
            moved = self._moved(self.best.cut, self.plans)
            if moved is None or not self.enter_if_promising(moved, self.plans):
                return

    def _moved(self, cut: Cut, plans: Sequence[StagePlans]) -> Cut | None:
        """Return the best cut by its estimate of those with a block less in the slowest stage."""
        staged = self._staged(cut, plans)
        if staged is None:
            return None
        seconds = [plan.step_seconds for plan in staged]
        slowest, fastest = seconds.index(max(seconds)), seconds.index(min(seconds))
        cuts = {_with_moved_block(cut, slowest, to) for to in (slowest - 1, slowest + 1, fastest)}
        found = {other: self.estimate(other, plans) for other in cuts if other is not None}
        best = min(found, key=lambda other: found[other], default=None)
        return best if best is not None and found[best] < self.builder.estimate(staged) else None


def _identity(plans: Sequence[StagePlans]) -> tuple[int, ...]:
    return tuple(map(id, plans))


def _at_level(
    plans: Sequence[NamedStages], level: frozenset[str]
) -> tuple[NamedStagesAtLevel, ...]:
    """Return the plans of each stage that recompute some operators."""
    return tuple(one.at_level(level) for one in plans)


def _with_moved_block(cut: Cut, source: int, target: int) -> Cut | None:
    """Return a cut in which a stage has a block less, and another one more; None without one."""
    last = len(cut) - 2
    if not 0 <= target <= last or target == source or cut[source + 1] - cut[source] < 2:
        return None
    moved = list(cut)
    for stage in range(source, target):
        moved[stage + 1] -= 1
    for stage in range(target, source):
        moved[stage + 1] += 1
    return tuple(moved)
