"""The step of an emitted pipeline, and the memory of its device groups."""

from dataclasses import dataclass

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import serial_seconds
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


def pipeline_step(program: Graph, cluster: Cluster) -> PipelineStep:
    """Return the simulated step of a program with stages, without overlap within a stage."""
    return PipelineStep(serial_seconds(program, cluster), peak_memory(program))
