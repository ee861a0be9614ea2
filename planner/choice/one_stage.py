"""The plan of a program of repeated blocks in one stage.

The fronts of its kinds of blocks are searched alone, and counts of their plans fill the memory. How
much of it must be left for parameters that are gathered ahead only the simulated step tells: where
it is short, gathers are no longer hidden, and the step may take twice as long. So the first plan
leaves about one gather; further ones leave more, as long as the step becomes shorter.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from shardwright.cost_model.events import Timeline
from shardwright.cost_model.timeline import simulate
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import NotFoundError
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.choice.counts import Choice, Counts, Run
from shardwright.planner.evaluation.programs import EmittedPlan, Programs
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.fronts.front import BlockPlan
from shardwright.planner.fronts.kept import fronts_of
from shardwright.planner.fronts.site import Site
from shardwright.planner.plan.assembly import assembled
from shardwright.planner.plan.stage_plans import renamed

_AHEAD = (1.2, 1.7, 2.4, 3.4, 4.8)
"""How often the largest gather fits beside what is held, in the plans that are tried in turn.

Llama 3 70B on 64 H100 is fastest by 1.7 on a mesh of 8 x 8 and by 4.8 on 8 x 2 x 4, Megatron 530B
on 280 A100 by 3.4, GPT-3 175B on 64 by 2, between two of them."""
_HALVINGS = 1  # of the distance to the room before the best one
_CORRECTIONS = 4  # of what programs take beyond the limit, where none fits
_GAIN = 1e-3  # of the best step, that a plan must be able to gain


Order = Callable[[Sequence[Run]], list[BlockPlan]]


def _in_runs(runs: Sequence[Run]) -> list[BlockPlan]:
    """Return the plans of equal blocks one run after the other, those that hold least first.

    Their backward passes come last, when others hold nothing any more.
    """
    return [run.plan for run in runs for _ in range(run.count)]


def _spread(runs: Sequence[Run]) -> list[BlockPlan]:
    """Return the plans of equal blocks spread evenly, so that no part of the step has one alone."""
    places = [((i + 0.5) / run.count, n) for n, run in enumerate(runs) for i in range(run.count)]
    return [runs[number].plan for _, number in sorted(places)]


@dataclass(frozen=True)
class Step:
    """A whole plan that was emitted.

    Parameters
    ----------
    choice : Choice
        The counts of the plans of blocks.
    emitted : EmittedPlan
        Its program.
    timeline : Timeline
        The overlapped step of that, within the memory limit.
    """

    choice: Choice
    emitted: EmittedPlan
    timeline: Timeline

    @property
    def seconds(self) -> float:
        """The overlapped step."""
        return self.timeline.step_seconds


@dataclass
class OneStage:
    """Plans the blocks of one site.

    Parameters
    ----------
    site : Site
        The blocks.
    steps : list of Step
        The plans that were emitted.
    """

    site: Site
    steps: list[Step] = field(default_factory=list)
    _tried: set[Hashable] = field(default_factory=set)
    _programs: Programs = field(default_factory=Programs)

    def best(self) -> Step:
        """Return the plan of the shortest step that was found.

        Raises
        ------
        NotFoundError
            If none fits.
        """
        self._leave_room()
        if self._fastest is None:
            self._leave_excess()
        if self._fastest is None:
            raise NotFoundError(
                "no plan of blocks was found that fits within the memory limit",
                hint="allow more memory",
            )
        return self._fastest

    def _leave_room(self) -> None:
        """Try plans that leave ever more room, as long as they may be faster."""
        before, low, high = 0.0, 0.0, 0.0
        for ahead in _AHEAD:
            choice = self._counts.best(ahead)
            if choice is None or choice.seconds >= self._worthwhile:
                break
            if self._is_shorter(choice):
                low, high = before, ahead
            before = ahead
        for _ in range(_HALVINGS if low else 0):
            middle = (low * high) ** 0.5
            choice = self._counts.best(middle)
            if choice is not None and choice.seconds < self._worthwhile:
                low, high = (low, middle) if self._is_shorter(choice) else (middle, high)

    def _leave_excess(self) -> None:
        """Try plans that leave what their programs take beyond the limit: buffers, mostly."""
        limit, counts = self.site.limits.limit_bytes, self._counts
        for _ in range(_CORRECTIONS):
            excess = self.steps[-1].timeline.peak_bytes - limit if self.steps else 0.0
            counts = replace(counts, limit_bytes=counts.limit_bytes - excess)
            choice = counts.best(0.0)
            if choice is None or self._is_shorter(choice):
                return

    @property
    def _fastest(self) -> Step | None:
        limit = self.site.limits.limit_bytes
        fitting = [step for step in self.steps if step.timeline.peak_bytes <= limit]
        return min(fitting, key=lambda step: step.seconds, default=None)

    @property
    def _worthwhile(self) -> float:
        """The load below which a plan may be faster by more than a little."""
        return inf if self._fastest is None else (1 - _GAIN) * self._fastest.seconds

    @cached_property
    def _counts(self) -> Counts:
        kinds = self.site.kinds
        return Counts(
            [len(kind.places) for kind in kinds],
            fronts_of(self.site),
            [(kind.places[0], kind.places[-1]) for kind in kinds],
            self.site.limits.limit_bytes,
        )

    def _is_shorter(self, choice: Choice) -> bool:
        """Emit a choice in runs, and spread evenly where that may do, if it is new."""
        before = self._worthwhile
        orders = [_in_runs]
        if choice.links_bind and any(len(runs) > 1 for runs in choice.runs):
            orders.append(_spread)
        key = tuple((id(run.plan), run.count) for runs in choice.runs for run in runs)
        if key not in self._tried:
            self._tried.add(key)
            self.steps += [self._emitted(choice, order) for order in orders]
        return self._worthwhile < before

    def _emitted(self, choice: Choice, order: Order) -> Step:
        site = self.site
        lowering = LowerRedistributions(site.cluster, site.options.cost_model)
        decisions = self._decisions(choice, order)
        found = self._programs.emit(site.source, site.options, decisions, lowering)
        charge_emission(site.budget, found.records)
        charge_simulation(site.budget, found.program)
        timeline = simulate(found.program, site.cluster, site.limits.limit_bytes)
        return Step(choice, found, timeline)

    def _decisions(self, choice: Choice, order: Order) -> Decisions:
        """Return the decisions of a choice, for the program of the whole batch."""
        blocks = self.site.blocks
        plans: dict[int, Decisions] = {}
        for kind, runs in zip(self.site.kinds, choice.runs, strict=True):
            for block, plan in zip(kind.places, order(runs), strict=True):
                names = blocks.names(kind.first, block, 1)
                plans[block] = renamed(plan.decisions, names)
        parts = [blocks.stretch(block, block + 1) for block in sorted(plans)]
        whole = assembled(self.site.source, parts, [plans[block] for block in sorted(plans)])
        return blocks.loop.lifted(whole)
