"""The step of an emitted pipeline, and the memory of its device groups."""

from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.roofline import node_seconds
from shardwright.dataflow.schedule_paths import Transfer, simulate_schedule
from shardwright.dataflow.stages import Run, pipeline_of
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
    """Return the simulated step of a program with stages, without overlap."""
    found = pipeline_of(program)
    assert found is not None

    def seconds(runs: Iterable[Run]) -> float:
        return sum(
            node_seconds(program.nodes[run.position], program, cluster)
            for run in runs
            if run.kind == "run"
        )

    durations = {s: seconds(runs) for group in found.groups for s, runs in group.segments.items()}
    delays: dict[Transfer, float] = {}
    for position, transfer in found.transfers.items():
        spent = node_seconds(program.nodes[position], program, cluster)
        delays[transfer] = delays.get(transfer, 0.0) + spent
    loop = simulate_schedule(found.schedule, durations, delays).step_seconds
    before = max(seconds(group.before) for group in found.groups)
    after = max(seconds(group.after) for group in found.groups)
    memory = peak_memory(program)
    return PipelineStep(before + loop + after, memory)
