"""The size of buckets: which gradients are reduced together, chosen by the overlapped step.

One all-reduce of a bucket takes less time than many of its gradients, but starts only when the last
of them is ready. Every candidate is emitted and simulated; the fastest that fits the memory limit
is taken, so the choice is never worse than any candidate, up to the gap that is asked for: a step
that is as near to its own computation is not made shorter. Of a large program, nothing is tried
where even all-reduces without any latency do not make the step shorter. Gathers and reduce-scatters
are not bucketed.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import collective_model
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.mindspore.allreduce_fusion import Fusion, FusionSettings
from shardwright.cost_model.streams import COMPUTE, loads
from shardwright.cost_model.timeline import seconds_in_best_buckets, simulate, with_window
from shardwright.cost_model.weighted.loads import Loads, least_loads
from shardwright.ir.graph import Graph
from shardwright.passes.fuse_all_reduces import FuseAllReduces, reduced_gradients
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.programs import of_all_layers
from shardwright.planner.evaluation.simulated_step import in_least_memory
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import fused
from shardwright.planner.whole.plan import NO_BUCKETS, Plan
from shardwright.search.budget_note import BudgetNote
from shardwright.solver.solution import relative_gap
from shardwright.solver.work import Budget

_USUAL = (25.0, 64.0)  # megabytes: the defaults of PyTorch and of MindSpore
_FURTHER = (1.0, 4.0, 16.0, 256.0)
_SHARES = (1 / 8, 1 / 4, 1 / 2)  # sizes of buckets that are tried, as shares of all gradients
_SMALL = 1_000  # nodes of a program up to which the further sizes are tried
_TIMES = (2, 4, 8)  # groups of MindSpore's algorithm 1
_TAIL = 10  # MindSpore's algorithm 2: the tail takes so many times the latency


def fastest_fusion(
    program: Graph,
    cluster: Cluster,
    memory_limit: float = math.inf,
    gap: float = 0.0,
    bound: float = 0.0,
    timeline: Timeline | None = None,
    is_late: Callable[[], bool] = lambda: False,
    charge: Callable[[Graph], None] = lambda _: None,
    shortest: float = math.inf,
) -> tuple[Fusion, Timeline]:
    """Return the fastest way to bucket the all-reduces of gradients, and the overlapped step.

    Parameters
    ----------
    program : Graph
        A training step, lowered to collectives, whose all-reduces are not fused.
    cluster : Cluster
        Its devices.
    memory_limit : float
        Bytes of a device.
    gap : float
        Relative distance of the step from a lower bound at which nothing more is tried.
    bound : float
        A lower bound of the overlapped step, or an estimate, beside the computation of the program.
    timeline : Timeline, optional
        The overlapped step without buckets, if it is known.
    is_late : callable
        Returns whether nothing is left of the budget to try another way.
    charge : callable
        Charges for the simulation of a program.
    shortest : float
        The step of another program: of a large one, nothing is tried where no buckets are likely to
        make its step shorter than that.
    """
    best: Fusion = NO_BUCKETS
    plain = FuseAllReduces(NO_BUCKETS).run(program)
    charge(plain)
    timeline = timeline or simulate(plain, cluster, memory_limit)
    elements = reduced_gradients(program)
    if len(elements) < 2:
        return best, timeline
    least = proven = max(bound, loads(plain, cluster)[COMPUTE])  # buckets take no less
    if len(program) > _SMALL and relative_gap(timeline.step_seconds, least) > gap:
        likely = seconds_in_best_buckets(plain, cluster, timeline.window_bytes or 0.0)
        least = max(least, min(likely, timeline.step_seconds))
        if likely >= shortest * (1 - gap):
            return best, timeline
    seen = [plain]
    for fusion in _candidates(program, cluster, sum(elements.values())):
        if relative_gap(timeline.step_seconds, least) <= gap or is_late():
            break
        fused = FuseAllReduces(fusion).run(program)
        if any(_same_buckets(fused, other) for other in seen):
            continue
        seen.append(fused)
        if peak_memory(fused).peak_bytes > memory_limit:
            continue
        charge(fused)
        found = simulate(fused, cluster, memory_limit)
        if found.step_seconds < timeline.step_seconds:
            best, timeline = fusion, found
            least = least if found.step_seconds >= least else proven  # else it is no estimate
    return best, timeline


def _candidates(program: Graph, cluster: Cluster, elements: int) -> Iterator[Fusion]:
    """Yield ways to bucket gradients of some elements, all together."""
    yield from _USUAL
    if program.outputs:
        times = _TIMES if len(program) <= _SMALL else _TIMES[1:2]
        yield from (FusionSettings(1, times=count) for count in times)
        yield _by_time(program, cluster)
    if len(program) <= _SMALL:
        yield from _FURTHER
        yield from (share * 4 * elements / 2**20 for share in _SHARES)


def _by_time(program: Graph, cluster: Cluster) -> FusionSettings:
    """Return the settings of MindSpore's algorithm 2 for the links of the mesh."""
    axes = program.mesh.axes if program.mesh else ()
    fastest = collective_model("all_reduce", axes, cluster)[-1]
    latency = fastest.latency_seconds + cluster.device.launch_seconds
    return FusionSettings(
        2,
        tail_time=_TAIL * latency,
        inherent_time=latency,
        bandwidth=4 * fastest.seconds_per_byte,
        computation_parameter=1 / cluster.device.memory_bandwidth,
    )


def _same_buckets(one: Graph, other: Graph) -> bool:
    """Return whether two programs fuse the same all-reduces, whatever the ids."""
    return len(one) == len(other) and _packed(one) == _packed(other)


def _packed(program: Graph) -> list[tuple[str, ...]]:
    return [node.operands for node in program.nodes if node.operator == "pack"]


@dataclass(frozen=True)
class Buckets:
    """Chooses buckets by the overlapped step.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    cluster : Cluster
        Where it runs.
    options : CompileOptions
        How to compile; an explicit way to reduce gradients is kept.
    limit : float
        Bytes of a device.
    budget : Budget
        What all choices may spend.
    note : BudgetNote
        Notes whether the budget ended one.
    """

    source: Graph
    cluster: Cluster
    options: CompileOptions
    limit: float
    budget: Budget
    note: BudgetNote = field(default_factory=BudgetNote)

    def simulated(self, plan: Plan) -> Plan:
        """Return a plan with its overlapped step."""
        charge_simulation(self.budget, plan.program)
        return replace(plan, timeline=simulate(plan.program, self.cluster, self.limit))

    def best(self, plan: Plan, bound: float = 0.0, shortest: float = math.inf) -> Plan:
        """Return a plan whose gradients are reduced in the fastest buckets.

        Parameters
        ----------
        plan : Plan
            The plan, and its program as the options ask for.
        bound : float
            A lower bound of the overlapped step, or an estimate of it in the best buckets.
        shortest : float
            The step of another program that it must undercut.
        """
        options = self.options
        if options.fusion != NO_BUCKETS:
            return self._timed(replace(plan, fusion=options.fusion))
        records = plan.records
        position = [record.name for record in records].index(FuseAllReduces.name)
        alone = records[position].before
        plain = None if options.rewrites_programs else plan.timeline
        fusion, timeline = fastest_fusion(
            *(alone, self.cluster, self.limit, options.gap, bound, plain),
            is_late=lambda: self.note.is_late(self.budget, "the search for buckets"),
            charge=lambda program: charge_simulation(self.budget, program),
            shortest=shortest,
        )
        if fusion == NO_BUCKETS:
            is_simulated = not options.rewrites_programs
            return replace(plan, timeline=timeline) if is_simulated else self._timed(plan)
        passes = PassManager(
            records=list(records[:position]), verify_later=not options.extra_passes
        )
        program = passes.run_all(fused(replace(options, fusion=fusion)), alone)
        memory = peak_memory(program)
        if memory.peak_bytes > self.limit:  # by passes of the user
            return self._timed(plan)
        done = tuple(passes.records)
        emitted = replace(plan.emitted, program=program, memory=memory, records=done)
        plan = replace(plan, emitted=emitted, fusion=fusion, timeline=timeline)
        return self.simulated(plan) if options.rewrites_programs else plan

    def _timed(self, plan: Plan) -> Plan:
        return self.simulated(plan) if plan.timeline is None else plan

    def of_all_layers(self, plan: Plan) -> Plan:
        """Return a plan with the program that passes make of the whole model."""
        whole, timeline = of_all_layers(self.source, self.options, plan.emitted), plan.timeline
        if whole is not plan.emitted and timeline is not None:
            timeline = with_window(whole.program, self.cluster, timeline.window_bytes)
        charge_emission(self.budget, whole.records)
        return replace(plan, emitted=whole, timeline=timeline)

    def in_least_memory(self, plan: Plan, tolerance: float) -> Plan:
        """Return a plan of all layers in the least memory in which its step is about as short.

        Parameters
        ----------
        plan : Plan
            The plan, with its overlapped step.
        tolerance : float
            Relative length by which the step may exceed that.
        """
        plan = self.of_all_layers(plan)
        assert plan.timeline is not None
        charge_simulation(self.budget, plan.program)
        step = in_least_memory(plan.program, self.cluster, plan.timeline, tolerance)
        result = replace(plan.result, cost=step.seconds)
        return replace(plan, result=result, emitted=replace(plan.emitted, memory=step.memory))

    def least_step(self, plan: Plan, loads: Loads | None = None) -> float:
        """Return about how short buckets can make the step of a plan, from below.

        Parameters
        ----------
        plan : Plan
            The plan, with its overlapped step without buckets.
        loads : Loads, optional
            The loads of its program in the best buckets, if they are known.
        """
        assert plan.timeline is not None
        total = (loads or least_loads(plan.program, self.cluster)).total
        events = plan.timeline.events
        links = sum(event.seconds * len(event.placement.levels) for event in events)
        saved = max(links - float(total[1:].sum()), 0.0)
        return max(float(total.max()), plan.step_seconds - saved)
