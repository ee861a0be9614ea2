"""The size of buckets: which gradients are reduced together, chosen by the overlapped step.

One all-reduce of a bucket takes less time than many of its gradients, but starts only when the last
of them is ready. Every candidate is emitted and simulated; the fastest that fits the memory limit
is taken, so the choice is never worse than any candidate, up to the gap that is asked for: a step
that is as near to its own computation is not made shorter. Of a large program, nothing is tried
where even all-reduces without any latency do not make the step shorter. Gathers and reduce-scatters
are not bucketed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.compiler.fitting import Attempt
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import collective_model
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.mindspore.allreduce_fusion import Fusion, FusionSettings
from shardwright.cost_model.streams import COMPUTE, loads
from shardwright.cost_model.timeline import seconds_in_best_buckets, simulate, with_window
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.passes.fuse_all_reduces import FuseAllReduces, reduced_gradients
from shardwright.planner.evaluation.programs import EmittedPlan, of_all_layers
from shardwright.planner.options import CompileOptions
from shardwright.solver.solution import relative_gap

Floats = NDArray[np.float64]
NO_BUCKETS = FusionSettings()
_USUAL = (25.0, 64.0)  # megabytes: the defaults of PyTorch and of MindSpore
_FURTHER = (1.0, 4.0, 16.0, 256.0)
_SHARES = (1 / 8, 1 / 4, 1 / 2)  # of all gradients
_SMALL = 1_000  # nodes of a program up to which the further sizes are tried
_TIMES = (2, 4, 8)  # groups of MindSpore's algorithm 1
_BUCKETED = 3  # candidates whose buckets are chosen
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
    least = proven = max(bound, loads(plain, cluster)[COMPUTE])  # buckets take no less
    if len(program) > _SMALL and relative_gap(timeline.step_seconds, least) > gap:
        likely = seconds_in_best_buckets(plain, cluster, timeline.window_bytes or 0.0)
        least = max(least, min(likely, timeline.step_seconds))
        if likely >= shortest * (1 - gap):
            return best, timeline
    seen = [plain]
    for fusion in _candidates(program, cluster):
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


def fusion_text(fusion: Fusion) -> str:
    """Return how gradients are bucketed, in words."""
    if isinstance(fusion, tuple):
        return f"buckets of the parameters before {', '.join(map(str, fusion))}, and the others"
    if not isinstance(fusion, FusionSettings):
        return f"buckets of {fusion:g} MB"
    if fusion.algorithm == 0:
        return "each gradient alone"
    return f"buckets by MindSpore's algorithm {fusion.algorithm}"


def _candidates(program: Graph, cluster: Cluster) -> Iterator[Fusion]:
    elements = reduced_gradients(program)
    if len(elements) < 2:
        return
    yield from _USUAL
    if program.outputs:
        times = _TIMES if len(program) <= _SMALL else _TIMES[1:2]
        yield from (FusionSettings(1, times=count) for count in times)
        yield _by_time(program, cluster)
    if len(program) <= _SMALL:
        yield from _FURTHER
        yield from (share * 4 * sum(elements.values()) / 2**20 for share in _SHARES)


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
class Candidate:
    """A plan that fits, with its overlapped step.

    Parameters
    ----------
    attempt : Attempt
        The plan, and the program without buckets.
    timeline : Timeline
        The overlapped step of the program.
    least_seconds : float
        An estimate of how short buckets can make the step, from below: its greatest load, or the
        step without any latency of all-reduces of gradients.
    """

    attempt: Attempt
    timeline: Timeline
    least_seconds: float

    @property
    def step_seconds(self) -> float:
        """The overlapped step."""
        return self.timeline.step_seconds


def candidate_of(
    attempt: Attempt, cluster: Cluster, limit: float, loads: Floats | None = None
) -> Candidate:
    """Return a plan that fits the memory limit with its overlapped step.

    Parameters
    ----------
    attempt : Attempt
        The plan.
    cluster : Cluster
        Where it runs.
    limit : float
        Bytes of a device.
    loads : array, optional
        The loads of its program in its best buckets, if they are known.
    """
    if loads is None:
        loads = least_loads(attempt.program, cluster).total
    timeline = simulate(attempt.program, cluster, limit)
    saved = max(_link_seconds(timeline) - float(loads[1:].sum()), 0.0)
    least = max(float(loads.max()), timeline.step_seconds - saved)
    return Candidate(attempt, timeline, least)


def _link_seconds(timeline: Timeline) -> float:
    """Return the seconds for which the links of all levels are occupied."""
    return sum(event.seconds * len(event.placement.levels) for event in timeline.events)


def to_be_bucketed(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates whose programs differ: the fastest, then those of the least loads."""
    kept: list[Candidate] = []
    others = sorted(candidates[1:], key=lambda candidate: candidate.least_seconds)
    for candidate in (*candidates[:1], *others):
        programs = [other.attempt.program for other in kept]
        if len(kept) < _BUCKETED and candidate.attempt.program not in programs:
            kept.append(candidate)
    return kept


@dataclass(frozen=True)
class Bucketed:
    """A plan whose gradients are reduced in buckets.

    Parameters
    ----------
    attempt : Attempt
        The plan, and its program with buckets.
    fusion : FusionSettings or float
        The buckets.
    timeline : Timeline or None
        The overlapped step of the program, where that is minimised.
    """

    attempt: Attempt
    fusion: Fusion
    timeline: Timeline | None

    @property
    def step_seconds(self) -> float:
        """The overlapped step."""
        return math.inf if self.timeline is None else self.timeline.step_seconds

    def of_all_layers(
        self, source: Graph, options: CompileOptions, decisions: Decisions, cluster: Cluster
    ) -> "Bucketed":
        """Return the plan with the program that passes make of the whole model."""
        attempt, timeline = self.attempt, self.timeline
        known = EmittedPlan(decisions, attempt.program, attempt.memory, attempt.records)
        whole = of_all_layers(source, options, known)
        if whole is known:
            return self
        program, memory = whole.program, whole.memory
        attempt = replace(attempt, program=program, memory=memory, records=whole.records)
        if timeline is not None:
            timeline = with_window(program, cluster, timeline.window_bytes)
        return replace(self, attempt=attempt, timeline=timeline)
