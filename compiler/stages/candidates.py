"""Candidates: the pipelines of a cut, from plans of its stages to the emitted program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Protocol

from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.dataflow.placement import in_stages
from shardwright.dataflow.schedule_paths import segment_seconds, simulate_schedule
from shardwright.dataflow.schedules import Schedule, most_in_flight
from shardwright.dataflow.stretches import Stretch
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager, PassRecord
from shardwright.planner.choice.cuts import Cut
from shardwright.planner.evaluation.simulated_step import (
    SimulatedStep,
    simulated_step,
    tolerance_of,
)
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.plan.assembly import assembled
from shardwright.planner.plan.blocks import Blocks
from shardwright.planner.plan.stage_plans import StagePlan
from shardwright.search.options import SearchOptions
from shardwright.solver.work import Budget

_TIGHTENINGS = 5  # tighter limits that are tried for stages whose program exceeds theirs
_LEAST_STEP = 1 / 200  # least relative tightening, doubled every time


class StagePlans(Protocol):
    """What finds a plan of a stage."""

    def plan(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> StagePlan | None:
        """Return a plan of a stage; None where none was found.

        Parameters
        ----------
        begin, end : int
            The first block of the stage, and the one after its last.
        in_flight : int
            Micro-batches in flight at its peak.
        memory_limit : float or None
            Bytes of a rank.
        received : mapping of str to Layout, optional
            Layouts of values that it receives; by default, any.
        """


@dataclass(frozen=True)
class Candidate:
    """An emitted pipeline.

    Parameters
    ----------
    cut : tuple of int
        The blocks at which its stages begin, and the end.
    decisions : Decisions
        What it decides.
    program : Graph
        The program.
    step : SimulatedStep
        Its step and memory.
    records : tuple of PassRecord
        The passes that emitted it.
    """

    cut: Cut
    decisions: Decisions
    program: Graph
    step: SimulatedStep
    records: tuple[PassRecord, ...]


@dataclass(frozen=True, eq=False)
class CandidateBuilder:
    """Builds the pipelines of one program, schedule and mesh.

    Parameters
    ----------
    blocks : Blocks
        What the program can be cut between.
    schedule : Schedule
        The schedule.
    cluster : Cluster or MixedCluster
        The devices and their links.
    options : CompileOptions
        How to compile.
    limits : SearchOptions
        The limits of the user, on the devices with the most memory.
    group_limits : tuple of float
        The memory limit of each device group, in bytes.
    lowering : LowerRedistributions
        The pass that lowers redistributions.
    level : int
        Level of the cluster whose links the stages use.
    budget : Budget
        Pays for the programs that are emitted.
    """

    blocks: Blocks
    schedule: Schedule
    cluster: AnyCluster
    options: CompileOptions
    limits: SearchOptions
    group_limits: tuple[float, ...]
    lowering: LowerRedistributions
    level: int
    budget: Budget

    def fitting(
        self, cut: Cut, plans: Sequence[StagePlans], memory_limit: float | None = None
    ) -> Candidate | None:
        """Return the pipeline of a cut whose program fits; None where none was found.

        Parameters
        ----------
        cut : tuple of int
            The cut.
        plans : sequence of StagePlans
            What finds plans of each stage.
        memory_limit : float, optional
            Bytes that a device group may take by these plans; by default the limit of the user.
        """
        limits = self.memory_limits(cut, plans, memory_limit)
        for step in range(_TIGHTENINGS):
            staged = self.staged(cut, plans, limits)
            if staged is None:
                return None if step else self._unlimited(cut, plans, memory_limit)
            found = self.emitted(cut, [plan.decisions for plan in staged])
            excess = self._excess(found)
            if not excess:
                return found
            limits = self._tightened(staged, limits, excess, step)
        return None

    def _unlimited(
        self, cut: Cut, plans: Sequence[StagePlans], memory_limit: float | None
    ) -> Candidate | None:
        """Return the pipeline of a cut without limits of its stages, if its program fits.

        The stages of one device group are not at their peaks at once: their shares of its memory
        may allow no plan where the program that they make takes less.
        """
        several = self.schedule.chunks > 1 and memory_limit is None
        free = self.staged(cut, plans, [inf] * self.schedule.stages) if several else None
        if free is None or not self.are_within(free):
            return None
        found = self.emitted(cut, [plan.decisions for plan in free])
        return found if self.fits(found) else None

    def memory_limits(
        self, cut: Cut, plans: Sequence[StagePlans], memory_limit: float | None = None
    ) -> list[float]:
        """Return the memory that each stage of a cut may take; see `fitting`.

        The stages of one device group share its memory by what they take without a limit.
        """
        schedule, limit = self.schedule, inf if memory_limit is None else memory_limit
        most = schedule.by_stage([min(limit, own) for own in self.group_limits])
        if schedule.chunks == 1:
            return most
        free = self.staged(cut, plans, [inf] * schedule.stages)
        if free is None:
            return [one / schedule.chunks for one in most]
        taken = schedule.by_group([plan.memory_bytes for plan in free])
        return [
            most[stage] * plan.memory_bytes / taken[schedule.group_of(stage)]
            for stage, plan in enumerate(free)
        ]

    def fits(self, candidate: Candidate) -> bool:
        """Return whether every device group has the memory for a pipeline."""
        return not self._excess(candidate)

    def are_within(self, staged: Sequence[StagePlan]) -> bool:
        """Return whether no stage alone takes more than the memory of its device group."""
        limits = self.schedule.by_stage(self.group_limits)
        return all(p.memory_bytes <= most for p, most in zip(staged, limits, strict=True))

    def _excess(self, candidate: Candidate) -> dict[int, float]:
        """Return the bytes beyond the limit of the device groups that exceed it."""
        held = zip(candidate.step.memory.by_group, self.group_limits, strict=True)
        over = enumerate(memory - limit for memory, limit in held)
        return {group: excess for group, excess in over if excess > 0}

    def _tightened(
        self,
        staged: Sequence[StagePlan],
        limits: Sequence[float],
        excess: Mapping[int, float],
        step: int,
    ) -> list[float]:
        """Return smaller limits for the stages of the groups whose programs exceed theirs."""
        found: list[float] = []
        for stage, limit in enumerate(limits):
            over = excess.get(self.schedule.group_of(stage))
            if over is None:
                found.append(limit)
                continue
            counted = staged[stage].memory_bytes
            less = min(counted - over / self.schedule.chunks, counted * (1 - _LEAST_STEP * 2**step))
            found.append(max(less, 0.0))
        return found

    # Plans of stages

    def staged(
        self, cut: Cut, plans: Sequence[StagePlans], limits: Sequence[float]
    ) -> list[StagePlan] | None:
        """Return the plans of the stages of a cut within limits; None where one has none.

        Each stage receives values in the layouts in which the stages before send them.
        """
        flights, sent = most_in_flight(self.schedule), dict[str, Layout]()
        found: list[StagePlan] = []
        for stage, (begin, end) in enumerate(pairwise(cut)):
            part = self.blocks.stretch(begin, end)
            received = self.received(part, sent)
            plan = plans[stage].plan(begin, end, flights[stage], limits[stage], received)
            if plan is None:
                return None
            found.append(plan)
            sent.update((name, plan.decisions.stored[name]) for name in part.sent)
        return found

    def staged_from_last(
        self, cut: Cut, plans: Sequence[StagePlans], limits: Sequence[float]
    ) -> list[StagePlan] | None:
        """Return plans of the stages of a cut, each of which sends what the later ones prefer."""
        flights, wanted = most_in_flight(self.schedule), dict[str, Layout]()
        found: list[StagePlan] = []
        for stage, (begin, end) in reversed(list(enumerate(pairwise(cut)))):
            part = self.blocks.stretch(begin, end)
            sent = {name: wanted[name] for name in part.sent if name in wanted}
            plan = plans[stage].plan(begin, end, flights[stage], limits[stage], sent)
            if plan is None:
                return None
            found.insert(0, plan)
            names = [value.name for value in part.graph.inputs if value.name in part.received]
            split = (name for name in names if self.blocks.loop.is_split(name))
            wanted.update((name, plan.decisions.stored[name]) for name in split)
        return found

    def received(self, part: Stretch, sent: Mapping[str, Layout]) -> dict[str, Layout]:
        """Return the layouts in which a stage receives the values of a micro-batch."""
        names = [value.name for value in part.graph.inputs if value.name in part.received]
        return {name: sent[name] for name in names if self.blocks.loop.is_split(name)}

    def estimate(self, staged: Sequence[StagePlan]) -> float:
        """Return about how long the step of a pipeline takes, by the seconds of its plans."""
        schedule = self.schedule
        passes = [plan.step_seconds / schedule.micro_batches for plan in staged]
        return simulate_schedule(schedule, segment_seconds(schedule, passes)).step_seconds

    # Programs

    def emitted(self, cut: Cut, plans: Sequence[Decisions]) -> Candidate:
        """Emit the pipeline of a cut, from the decisions of its stages."""
        source, loop, line = self.blocks.line.graph, self.blocks.loop, self.blocks.line
        parts = [self.blocks.stretch(*pair) for pair in pairwise(cut)]
        whole = loop.lifted(assembled(source, parts, plans))
        starts, schedule = self.blocks.starts, self.schedule
        stages = line.stages([starts[block] for block in cut[1:-1]])
        decisions = in_stages(whole, schedule.groups, stages, schedule.name, self.level)
        passes = PassManager(verify_later=not self.options.extra_passes)
        program = passes.run_all(partitioned(self.options, decisions, self.lowering), source)
        charge_emission(self.budget, passes.records)
        charge_simulation(self.budget, program)
        overlaps = self.options.objective == "overlapped"
        step = simulated_step(
            *(program, self.cluster, self.group_limits),
            overlaps=overlaps,
            tolerance=tolerance_of(self.options.gap),
        )
        return Candidate(cut, decisions, program, step, tuple(passes.records))
