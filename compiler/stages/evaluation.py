"""The step of an emitted pipeline, and the memory of its device groups."""

from dataclasses import dataclass, replace

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import serial_seconds, simulate
from shardwright.ir.graph import Graph


@dataclass(frozen=True)
class PipelineStep:
    """The step of a pipeline.

    Parameters
    ----------
    seconds : float
        Time of the step.
    memory : MemoryUseReport
        The peak memory of each device group, in the step as it is simulated.
    """

    seconds: float
    memory: MemoryUseReport


def pipeline_step(
    program: Graph, cluster: Cluster, memory_limit: float, *, overlaps: bool
) -> PipelineStep:
    """Return the simulated step of a program with stages.

    Parameters
    ----------
    program : Graph
        The program, lowered to collectives.
    cluster : Cluster
        Its devices and links.
    memory_limit : float
        Bytes of a rank, for early gathers and late reductions.
    overlaps : bool
        Whether communication of parameters is concurrent with computation.
    """
    memory = peak_memory(program)
    if not overlaps:
        return PipelineStep(serial_seconds(program, cluster), memory)
    timeline = simulate(program, cluster, memory_limit)
    return PipelineStep(timeline.step_seconds, _in_timeline(memory, timeline))


def _in_timeline(memory: MemoryUseReport, timeline: Timeline) -> MemoryUseReport:
    """Return the memory of the overlapped step: what waits or is gathered ahead is live longer.

    It counts among the other buffers, as activations do.
    """
    longer = max(0.0, timeline.peak_bytes - memory.peak_bytes)
    groups = timeline.group_live_bytes or ((),) * len(memory.by_group)
    return replace(
        memory,
        peak_bytes=memory.peak_bytes + longer,
        by_kind={**memory.by_kind, "activations": memory.by_kind["activations"] + longer},
        by_group=tuple(
            max(serial, *(nbytes for _, nbytes in live)) if live else serial
            for serial, live in zip(memory.by_group, groups, strict=True)
        ),
    )
