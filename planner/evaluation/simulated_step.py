"""The step of an emitted program, and the memory that it takes: that of the least window."""

from dataclasses import dataclass, replace

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.live_bytes import overlapped_memory
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.cost_model.timeline import narrowed, serial_seconds, simulate
from shardwright.ir.graph import Graph
from shardwright.planner.effort import GAIN


@dataclass(frozen=True)
class SimulatedStep:
    """The step of a program.

    Parameters
    ----------
    seconds : float
        Time of the step.
    memory : MemoryUseReport
        The peak memory of a rank in the step as it is simulated; of a pipeline, of each device
        group.
    """

    seconds: float
    memory: MemoryUseReport


def tolerance_of(gap: float) -> float:
    """Return how much longer a step in less memory may be, by the gap that the user allows."""
    return min(GAIN, gap)


def in_least_memory(
    program: Graph, cluster: AnyCluster, timeline: Timeline, tolerance: float
) -> SimulatedStep:
    """Return the step of a program in the least memory in which it is about as short.

    Parameters
    ----------
    program, cluster
        The program, lowered to collectives, and its devices.
    timeline : Timeline
        Its fastest timeline within the memory limit.
    tolerance : float
        Relative length by which the step may exceed the shortest one.
    """
    serial = peak_memory(program)
    timeline = narrowed(program, cluster, timeline, serial.peak_bytes, tolerance)
    if program.stages:
        return SimulatedStep(timeline.step_seconds, _in_timeline(serial, timeline))
    return SimulatedStep(timeline.step_seconds, overlapped_memory(program, timeline))


def simulated_step(
    program: Graph,
    cluster: AnyCluster,
    memory_limit: MemoryLimit,
    *,
    overlaps: bool,
    tolerance: float = 0.0,
) -> SimulatedStep:
    """Return the simulated step of a program.

    Parameters
    ----------
    program : Graph
        The program, lowered to collectives.
    cluster : Cluster
        Its devices and links.
    memory_limit : float or tuple of float
        Bytes of a rank, or of those of each device group, for early gathers and late reductions.
    overlaps : bool
        Whether communication of parameters is concurrent with computation.
    tolerance : float
        Relative length by which the step in less memory may exceed the shortest one.
    """
    if not overlaps:
        return SimulatedStep(serial_seconds(program, cluster), peak_memory(program))
    timeline = simulate(program, cluster, memory_limit)
    return in_least_memory(program, cluster, timeline, tolerance)


def _in_timeline(memory: MemoryUseReport, timeline: Timeline) -> MemoryUseReport:
    """Return the memory of the overlapped step: what waits or is gathered ahead is live longer.

    It counts among the other buffers, as activations do.
    """
    longer = max(0.0, timeline.peak_bytes - memory.peak_bytes)
    groups = timeline.group_peak_bytes or memory.by_group
    return replace(
        memory,
        peak_bytes=memory.peak_bytes + longer,
        by_kind={**memory.by_kind, "activations": memory.by_kind["activations"] + longer},
        by_group=tuple(map(max, memory.by_group, groups)),
        window_bytes=timeline.window_bytes,
    )
