"""The step of an emitted pipeline, and the memory of its device groups."""

from dataclasses import dataclass

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
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
        The peak memory of each device group.
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
    if overlaps:
        seconds = simulate(program, cluster, memory_limit).step_seconds
    else:
        seconds = serial_seconds(program, cluster)
    return PipelineStep(seconds, peak_memory(program))
