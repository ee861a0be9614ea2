"""The memory of a plan as a training software keeps tensors, and whether a device has as much."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Device
from shardwright.cost_model.efficiency.memory_as_run import lasting_bytes, memory_as_run
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.pipelines.mixed import AnyCluster, mean_device
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text

NOT_COUNTED = (
    "what a training software keeps beside this program: all gradients until the step, flat "
    "copies, workspaces, free blocks of its allocator; `--software` counts it"
)
"""What the memory of a program leaves out."""


@dataclass(frozen=True)
class Kept:
    """What a training software keeps of a program.

    Parameters
    ----------
    program : Graph
        The program.
    software : Software
        The training software, with an account of its memory.
    device : Device
        A device; of several kinds, the mean.
    given : float or None
        Memory limit of the user in bytes; None for all that a device has, since the software's
        workspaces and allocator are counted.
    """

    program: Graph
    software: Software
    device: Device
    given: float | None

    @staticmethod
    def of(program: Graph, cluster: AnyCluster, given: float | None) -> "Kept | None":
        """Return what the software of a cluster keeps; None where that is not known."""
        software = cluster.software
        if software is None or software.memory is None:
            return None
        return Kept(program, software, mean_device(cluster), given)

    @cached_property
    def report(self) -> MemoryUseReport:
        """The peak memory of a rank."""
        return memory_as_run(self.program, self.software, self.device)

    @cached_property
    def between(self) -> tuple[float, ...]:
        """Bytes of a rank of each device group between steps."""
        return lasting_bytes(self.program, self.software, self.device)

    @property
    def limit(self) -> float:
        """Bytes that it may take."""
        return self.device.memory_bytes if self.given is None else self.given

    @property
    def fits(self) -> bool:
        """Whether a device has as much."""
        return self.report.peak_bytes <= self.limit

    @property
    def text(self) -> str:
        """The memory by its kinds, and what of it lasts, for people."""
        peak, by_kind = self.report.peak_bytes, self.report.by_kind
        kinds = ", ".join(f"{k} {bytes_text(size)}" for k, size in by_kind.items() if round(size))
        of = "the device's " if self.given is None else ""
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"{bytes_text(peak)} of {of}{bytes_text(self.limit)} as {self.software.name} keeps "
            f"tensors, {verdict}, {bytes_text(max(self.between))} between steps: {kinds}"
        )

    @property
    def document(self) -> Mapping[str, Any]:
        """The memory as the value of a key of ``estimate --json``."""
        return {
            "peak_bytes_per_device": self.report.peak_bytes,
            "by_kind": dict(self.report.by_kind),
            "by_group": list(self.report.by_group),
            "between_steps_bytes_by_group": list(self.between),
        }
