"""What `estimate` tells of a plan beyond the document of `compile`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwright.compilation import Compilation
from shardwright.compiler.page.page_memory import peaks_by_layer
from shardwright.compiler.plans.rates import Rates, rates
from shardwright.cost_model.efficiency.figures import Description, Figure
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.model_flops import ModelFlops, hardware_flops
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster, mean_device
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.cost_model.timeline import with_window
from shardwright.tools.answers.kept import Kept
from shardwright.tools.answers.told import interval_of, out_of_range
from shardwright.tools.estimate.doubts import doubts
from shardwright.tools.estimate.exposed import Exposed, exposed
from shardwright.tools.reports.documents import compile_document, timeline_of

# Keys of `compile` about the step of the program, which is not that of a software.
_OF_PROGRAM = ("objective", "objective_is", "lower_bound", "lower_bound_covers", "gap")


@dataclass(frozen=True)
class Estimated:
    """A plan that was built and timed.

    Parameters
    ----------
    planned : Compilation
        The plan.
    cluster : Cluster or MixedCluster
        Its cluster, as a training software runs it where one is named.
    timeline : Timeline
        Its timeline there.
    limit : float or tuple of float
        Memory limit of a device in bytes, or of those of each device group.
    given : float or None
        The limit of the user; None for that of the devices.
    """

    planned: Compilation
    cluster: AnyCluster
    timeline: Timeline
    limit: MemoryLimit
    given: float | None = None

    @cached_property
    def kept(self) -> Kept | None:
        """What the training software keeps in memory; None where that is not known."""
        return Kept.of(self.planned.plan.program, self.cluster, self.given)

    @property
    def fits(self) -> bool:
        """Whether the program fits the limit, and what the training software keeps too."""
        as_kept = self.kept is None or self.kept.fits
        return as_kept and self.planned.plan.document.memory.fits(self.limit)

    @cached_property
    def rates(self) -> Rates:
        """How fast it trains."""
        compiled, step = self.planned.compiled, self.timeline.step_seconds
        return rates(self.planned.plan, compiled, mean_device(self.cluster), step)

    @cached_property
    def work(self) -> ModelFlops:
        """The model flops of a step with those of products that are computed again."""
        blocks = self.recomputes_blocks
        return hardware_flops(
            self.planned.compiled.source, self.planned.plan.program, blocks=blocks
        )

    @property
    def recomputes_blocks(self) -> bool:
        """Whether the training software recomputes whole blocks."""
        return self.cluster.software is not None and self.cluster.software.recompute == "blocks"

    @cached_property
    def hardware_utilization(self) -> float:
        """The share of the peak rate of that work."""
        devices = self.planned.plan.document.devices
        device, step = mean_device(self.cluster), self.timeline.step_seconds
        return self.work.utilization(device, devices, step)

    @cached_property
    def exposed(self) -> Exposed:
        """The exposed communication, by what is sent."""
        return exposed(self.timeline)

    @cached_property
    def peaks(self) -> list[dict[str, Any]]:
        """The peak of each device group by layer and kind: the program's, without a software.

        What a plan that does not fit takes is told without gathers that run ahead.
        """
        software, planned = self.cluster.software, self.planned
        program, own = planned.plan.program, self.timeline
        if not planned.plan.document.memory.fits(self.limit):
            own = with_window(program, planned.cluster, 0.0)
        elif software is not None:
            own = timeline_of(planned, self.limit)
        return peaks_by_layer(planned.compiled.source, program, own, planned.cluster)

    @cached_property
    def doubts(self) -> list[str]:
        """What one figure or one buffer decides, as sentences."""
        plan = self.planned.plan
        memory, step = plan.document.memory, self.timeline.step_seconds
        return list(doubts(plan.program, self.cluster, step, memory.peak_bytes, self.fits))

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document of ``estimate --json``; the overlapped step is the one that is told."""
        document = compile_document(self.planned, self.limit, timeline=self.timeline)
        document |= {
            "fits": self.fits,
            "hardware_flops": self.work.total,
            "hardware_flops_utilization": self.hardware_utilization,
            "exposed_by_kind": dict(self.exposed.by_kind),
            "waiting_seconds": self.exposed.waiting,
            "memory_peaks": self.peaks,
            "doubts": self.doubts,
            "figures": {name: figure.tag for name, figure in tagged(self.cluster)},
        }
        software = self.cluster.software
        if software is not None:
            document = {k: value for k, value in document.items() if k not in _OF_PROGRAM}
            document["software"] = software.name
            document["out_of_range"] = out_of_range(self.rates, self.cluster)
            step = self.timeline.step_seconds
            interval = interval_of(self.rates, self.planned.plan, step, self.cluster)
            document["step_interval"] = interval and interval.document
            # Of a pipeline the timeline's own has transfers, for which stages wait.
            document["exposed_communication_seconds"] = sum(self.exposed.by_kind.values())
            if self.kept is not None:
                document["software_memory"] = self.kept.document
        return document


def folded_layers(
    layers: Sequence[dict[str, Any]], kinds: Sequence[str]
) -> list[tuple[str, list[float]]]:
    """Return the layers of a peak with their bytes by kind and in all; numbered ones are one row.

    Examples
    --------
    >>> rows = [{"layer": f"blocks/{i}", "bytes": {"inputs": 8.0 + i}} for i in range(3)]
    >>> folded_layers(rows, ["inputs"])
    [('3 of blocks, 0 to 2', [27.0, 27.0])]
    """
    rows: dict[str, list[tuple[str, list[float]]]] = {}
    for layer in layers:
        sizes = [layer["bytes"].get(kind, 0.0) for kind in kinds]
        family, _, number = layer["layer"].rpartition("/")
        own = family if number.isdecimal() else layer["layer"]
        rows.setdefault(own, []).append((number, [*sizes, sum(sizes)]))
    lasts = Counter(family.rpartition("/")[2] for family in rows)
    return [
        (
            _title(family, lasts, [number for number, _ in found]),
            [sum(column) for column in zip(*(sizes for _, sizes in found), strict=True)],
        )
        for family, found in rows.items()
    ]


def _title(family: str, lasts: Mapping[str, int], numbers: Sequence[str]) -> str:
    """Return the name of a row: of numbered layers by their last part, where no other has it."""
    if not numbers[0].isdecimal():
        return family
    last = family.rpartition("/")[2]
    shown = last if lasts[last] == 1 else family
    if len(numbers) == 1:
        return f"{shown}/{numbers[0]}"
    return f"{len(numbers)} of {shown}, {numbers[0]} to {numbers[-1]}"


def tagged(cluster: AnyCluster) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of devices, links and software, by their names."""
    if isinstance(cluster, MixedCluster):
        for part in cluster.parts:
            yield from ((f"{part.name} {name}", figure) for name, figure in tagged(part))
        if cluster.link.efficiency is not None:
            yield from _named(f"{cluster.link.name} ", cluster.link.efficiency)
        return
    if cluster.device.efficiency is not None:
        yield from _named("", cluster.device.efficiency)
    for level in cluster.levels:
        if level.efficiency is not None:
            yield from _named(f"{level.name} ", level.efficiency)
    software = cluster.software
    if software is not None:
        yield from _named(f"{software.name} ", software)
        if software.memory is not None:
            yield from _named(f"{software.name} memory ", software.memory)


def _named(prefix: str, part: Description) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a part, by their names."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Figure):
            yield prefix + name.replace("_", " "), value
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, Description):
                    yield from _named(f"{prefix}{key} ", one)
        elif isinstance(value, tuple):
            for one in value:
                if isinstance(one, Description):
                    yield from _named(f"{prefix}{getattr(one, 'name', name)} ", one)
