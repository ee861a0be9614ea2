"""The plan of a program of blocks, in one stage or several.

The fronts of its kinds of blocks are searched alone, and counts of their plans fill the memory. How
much of it must be left for parameters that are gathered ahead only the simulated step tells: where
it is short, gathers are no longer hidden, and the step may take twice as long. So the first plan
leaves about one gather; further ones leave more, as long as the step becomes shorter.

Where links bind one half of the step, how long blocking collectives wait for gathers only the
simulated step tells, too: so plans of smaller gathers are tried.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf

from shardwright.cost_model.events import Timeline
from shardwright.cost_model.timeline import simulate
from shardwright.dataflow.placement import in_stages
from shardwright.dataflow.schedules import Schedule
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import NotFoundError
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.choice.counts import Run
from shardwright.planner.choice.questions import NotFasterError
from shardwright.planner.choice.stages import StagedBlocks, StagedChoice
from shardwright.planner.effort import GAIN
from shardwright.planner.evaluation.programs import EmittedPlan, Programs
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.fronts.front import BlockPlan
from shardwright.planner.fronts.site import Site
from shardwright.planner.plan.assembly import assembled
from shardwright.planner.plan.stage_plans import renamed
from shardwright.solver.work import Budget

_AHEAD = (1.2, 1.7, 2.4, 3.4, 4.8)
"""How often the largest gather fits beside what is held, in the plans that are tried in turn.

Llama 3 70B on 64 H100 is fastest by 1.7 on a mesh of 8 x 8 and by 4.8 on 8 x 2 x 4, Megatron 530B
on 280 A100 by 3.4, GPT-3 175B on 64 by 2, between two of them."""
_FIRST = 0.25
"""Where the first of equal blocks of one plan stands, in the distance of two, where plans are
spread. Of Mixtral 8x7B on 64 H100 the step is 465 ms with it, and with 0, where few gather nothing
forward and these begin; 467 ms with a half."""
_CORRECTIONS = 4  # most corrections of the limit by what programs take beyond it, where none fits


Order = Callable[[Sequence[Run]], list[BlockPlan]]


def _in_runs(runs: Sequence[Run]) -> list[BlockPlan]:
    """Return the plans of equal blocks one run after the other, those that hold least first.

    Their backward passes come last, when others hold nothing any more.
    """
    return [run.plan for run in runs for _ in range(run.count)]


def _spread(runs: Sequence[Run]) -> list[BlockPlan]:
    """Return the plans of equal blocks spread evenly, so that no part of the step has one alone."""
    where = ((n, i, run.count) for n, run in enumerate(runs) for i in range(run.count))
    places = [((i + _FIRST) / count, n) for n, i, count in where]
    return [runs[number].plan for _, number in sorted(places)]


@dataclass(frozen=True)
class Step:
    """A whole plan that was emitted.

    Parameters
    ----------
    choice : StagedChoice
        The plans of blocks.
    emitted : EmittedPlan
        Its program.
    timeline : Timeline
        The overlapped step of that, within the memory limit.
    """

    choice: StagedChoice
    emitted: EmittedPlan
    timeline: Timeline

    @property
    def seconds(self) -> float:
        """The overlapped step."""
        return self.timeline.step_seconds


@dataclass
class StepSearch:
    """Plans blocks.

    Parameters
    ----------
    blocks : StagedBlocks
        The blocks, in one stage or several.
    level : int
        Level of the cluster whose links the stages use.
    below : float
        Seconds that a step must undercut to be of use.
    budget : Budget
        What may be spent: once it is, no plan is tried that only may be better.
    steps : list of Step
        The plans that were emitted.
    """

    blocks: StagedBlocks
    level: int = 0
    below: float = inf
    budget: Budget = field(default_factory=Budget)
    steps: list[Step] = field(default_factory=list)
    _tried: set[Hashable] = field(default_factory=set)
    _programs: Programs = field(default_factory=Programs)

    def best(self) -> Step:
        """Return the plan of the shortest step that was found.

        Raises
        ------
        NotFasterError
            If none is expected to be of use.
        NotFoundError
            If none fits.
        """
        self._leave_room()
        self._gather_less()
        if self._fastest is None:
            self._leave_excess()
        if self._fastest is None:
            choice = None if self.steps else self._choice(_AHEAD[0]) or self._choice(0.0)
            if choice is not None:
                raise NotFasterError(self.below, choice.seconds)
            raise NotFoundError(
                "no plan of blocks was found that fits within the memory limit",
                hint="allow more memory",
            )
        return self._fastest

    @property
    def site(self) -> Site:
        """Where the blocks run."""
        return self.blocks.site

    @property
    def schedule(self) -> Schedule:
        """The schedule of their stages."""
        return self.blocks.schedule

    def _choice(
        self, ahead: float, excess: Sequence[float] = (), most_bytes: float = inf
    ) -> StagedChoice | None:
        """Return the choice that leaves some room, and what device groups took too much."""
        limit = self.site.limits.limit_bytes
        over = excess or (0.0,) * self.schedule.groups
        return self.blocks.best(ahead, [limit - each for each in over], most_bytes)

    def _gather_less(self) -> None:
        """Try plans of ever smaller gathers where links bind one half, while they are faster."""
        shortest = inf if self.site.intervals > 1 else 0.0
        while self._fastest is not None and self._fastest.seconds < shortest:
            shortest = self._fastest.seconds
            choices = [step.choice for step in self.steps if step.choice.can_spread]
            if not choices:
                return
            smaller = [s for s in self.blocks.gathers if s < choices[-1].gathered_bytes]
            if smaller:
                self._leave_room(max(smaller))

    def _leave_room(self, most_bytes: float = inf) -> None:
        """Try plans that leave ever more room, as long as they may be faster."""
        before, low, high = 0.0, 0.0, 0.0
        for ahead in _AHEAD:
            choice = self._choice(ahead, (), most_bytes)
            if choice is None or choice.seconds >= self._worthwhile or self._is_late:
                break
            emitted = len(self.steps)
            if self._emit(choice):
                low, high = before, ahead
            elif self._is_staged and self._fastest is not None and len(self.steps) > emitted:
                break  # programs in stages take long
            before = ahead
        if low:  # a second halving would emit another program
            choice = self._choice((low * high) ** 0.5, (), most_bytes)
            if choice is not None and choice.seconds < self._worthwhile and not self._is_late:
                self._emit(choice)

    def _leave_excess(self) -> None:
        """Try plans that leave what their programs take beyond the limit: buffers, mostly."""
        limit, excess = self.site.limits.limit_bytes, [0.0] * self.schedule.groups
        for _ in range(_CORRECTIONS):
            taken = _taken(self.steps[-1]) if self.steps else [0.0] * self.schedule.groups
            excess = [e + max(t - limit, 0.0) for e, t in zip(excess, taken, strict=True)]
            choice = self._choice(0.0, excess)
            if choice is None or choice.seconds >= self._worthwhile or self._emit(choice):
                return

    @property
    def _is_late(self) -> bool:
        """Whether there is a plan, and the budget is spent."""
        return self.budget.is_spent and bool(self.steps)

    @property
    def _is_staged(self) -> bool:
        return self.schedule.stages > 1

    @property
    def _fastest(self) -> Step | None:
        limit = self.site.limits.limit_bytes
        fitting = [step for step in self.steps if max(_taken(step)) <= limit]
        return min(fitting, key=lambda step: step.seconds, default=None)

    @property
    def _worthwhile(self) -> float:
        """The estimate below which a plan may be faster by more than a little."""
        found = inf if self._fastest is None else self._fastest.seconds
        return (1 - GAIN) * min(found, self.below)

    def _emit(self, choice: StagedChoice) -> bool:
        """Emit a choice in runs, and spread evenly where that may do, if it is new.

        Returns
        -------
        bool
            Whether the fastest plan that fits is a faster one then.
        """
        before = self._worthwhile
        orders = [_in_runs, _spread] if choice.can_spread else [_in_runs]
        if choice.can_spread and self.site.intervals > 1:  # links bind one half: runs take longer
            orders = [_spread]
        if choice.key not in self._tried:
            self._tried.add(choice.key)
            self.steps += [self._emitted(choice, order) for order in orders]
            for step in self.steps:
                if step is not self._fastest:
                    step.emitted.forget()
        return self._worthwhile < before

    def _emitted(self, choice: StagedChoice, order: Order) -> Step:
        site = self.site
        lowering = LowerRedistributions(site.cluster, site.options.cost_model)
        decisions = self._decisions(choice, order)
        found = self._programs.emit(site.source, site.options, decisions, lowering)
        charge_emission(site.budget, found.records)
        charge_simulation(site.budget, found.program)
        timeline = simulate(found.program, site.cluster, site.limits.limit_bytes)
        return Step(choice, found, timeline)

    def _decisions(self, choice: StagedChoice, order: Order) -> Decisions:
        """Return the decisions of a choice, for the program of the whole batch."""
        blocks = self.site.blocks
        plans: dict[int, Decisions] = {}
        for parts, group in zip(choice.parts, choice.groups, strict=True):
            for part, runs in zip(parts, group.runs, strict=True):
                first = self.site.kinds[part.kind].first
                for block, plan in zip(part.places, order(runs), strict=True):
                    plans[block] = renamed(plan.decisions, blocks.names(first, block, 1))
        stretches = [blocks.stretch(block, block + 1) for block in sorted(plans)]
        whole = assembled(self.site.source, stretches, [plans[block] for block in sorted(plans)])
        return self._in_stages(blocks.loop.lifted(whole))

    def _in_stages(self, decisions: Decisions) -> Decisions:
        schedule, cut = self.schedule, self.blocks.cut
        if not self._is_staged:
            return decisions
        assert cut is not None
        blocks = self.site.blocks
        stages = blocks.line.stages([blocks.starts[block] for block in cut[1:-1]])
        return in_stages(decisions, schedule.groups, stages, schedule.name, self.level)


def _taken(step: Step) -> Sequence[float]:
    """Return the memory that a rank of each device group takes."""
    return step.timeline.group_peak_bytes or (step.timeline.peak_bytes,)
