"""Mixed clusters: parts of one kind of device each, and the links between the parts.

A pipeline stage runs on devices of one part, so everything that prices a stage takes the cluster of
its part. `groups_on` tells it for every device group of a pipeline, and what a group sends through.
Of a cluster of one kind, all groups have that cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from shardwright.cost_model.cluster import Cluster, Device, Level
from shardwright.cost_model.efficiency.cluster_files import (
    content_of,
    in_one_sentence,
    with_device,
    with_figures_asked,
)
from shardwright.cost_model.efficiency.figures import Description, Name
from shardwright.cost_model.efficiency.software import Software
from shardwright.ir.errors import ClusterError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh, StageMap
from shardwright.ir.types import TF32

_LINK = "between parts"  # its name, where the file has none


class MixedCluster(Description):
    """Parts of one kind of device each, joined by one kind of link.

    Parameters
    ----------
    name : str
        Name in messages and plans.
    parts : tuple of Cluster
        The parts; the first has the first pipeline stages.
    link : Level
        The links from any part to another.
    """

    name: Name
    parts: Annotated[tuple[Cluster, ...], Field(min_length=2)]
    link: Level

    @model_validator(mode="before")
    @classmethod
    def _complete_link(cls, content: Any) -> Any:
        """Add what a file leaves out: the name of the link, and how many parts it joins."""
        link = content.get("link") if isinstance(content, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        if not isinstance(link, dict) or not isinstance(parts, list | tuple):
            return content
        return {**content, "link": {"name": _LINK, "size": len(parts), **link}}

    @field_validator("parts")
    @classmethod
    def _names_differ(cls, parts: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ValueError(f"the names of the parts {', '.join(names)} are not all different")
        return parts

    @model_validator(mode="after")
    def _link_joins_parts(self) -> Self:
        if self.link.size != len(self.parts):
            raise ValueError(f"`link.size` is {self.link.size}, there are {len(self.parts)} parts")
        if self.link.shared_by != 1:
            raise ValueError("`link.shared_by` is not supported: give the bandwidth of one device")
        for part in self.parts:
            if self.link.name in part.links:
                named = f"the name of a level of `{part.name}`"
                raise ValueError(f"`link.name` is `{self.link.name}`, {named}")
        return self

    def __repr__(self) -> str:
        parts = " and ".join(f"{part.size} `{part.device.name}`" for part in self.parts)
        return f"<MixedCluster {self.name}: {parts}>"

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(part.size for part in self.parts)

    @property
    def software(self) -> None:
        """No training software: programs on several kinds of devices are not timed as one runs."""
        return

    def run_by(self, software: Software | None) -> Self:
        """Return the cluster; a training software is refused.

        Raises
        ------
        ClusterError
            If there is one.
        """
        if software is not None:
            what = (
                f"`software` is `{software.name}`, which is not supported on parts of `{self.name}`"
            )
            raise ClusterError(what, hint="leave it out, or use a cluster of one kind of device")
        return self

    def for_programs_of(self, software: Software | None) -> Self:
        """Return the cluster by which programs are made; a training software is refused."""
        return self.run_by(software)

    def without_host(self) -> Self:
        """Return the cluster for programs that keep all tensors on the devices."""
        return self.model_copy(update={"parts": tuple(p.without_host() for p in self.parts)})

    def shares(self, devices: int) -> tuple[int, ...]:
        """Return how many of some devices are in each part: in proportion to their sizes.

        Raises
        ------
        ClusterError
            If the parts have no such numbers of devices.
        """
        sizes = [part.size for part in self.parts]
        if not 1 <= devices <= self.size:
            what = f"cluster `{self.name}` has {self.size} devices, but {devices} were asked for"
            raise ClusterError(what, hint=f"use 1 to {self.size} devices, or a larger cluster")
        if any(devices * size % self.size for size in sizes):
            ratio = ":".join(map(str, sizes))
            what = (
                f"{devices} devices cannot be divided in the ratio {ratio} of the parts of "
                f"`{self.name}`"
            )
            least = next(n for n in range(1, self.size + 1) if not self._remainders(n))
            raise ClusterError(what, hint=f"use a multiple of {least}, or other parts")
        shares = tuple(devices * size // self.size for size in sizes)
        for part, share in zip(self.parts, shares, strict=True):
            part.for_devices(share)
        return shares

    def _remainders(self, devices: int) -> list[int]:
        return [rest for part in self.parts if (rest := devices * part.size % self.size)]

    def used_by(self, devices: int) -> Self:
        """Return the cluster of the devices that are used: of each part as many as its share.

        Raises
        ------
        ClusterError
            If the cluster has no such number of devices.
        """
        pairs = zip(self.parts, self.shares(devices), strict=True)
        return self.model_copy(update={"parts": tuple(_reduced(*pair) for pair in pairs)})

    def part_text(self, devices: int) -> str:
        """Return how many devices of each kind are used.

        Examples
        --------
        >>> any_cluster("h100-a100").part_text(16)
        ' (8 H100 SXM5 80GB and 8 A100 SXM4 80GB)'
        """
        pairs = zip(self.shares(devices), self.parts, strict=True)
        return f" ({' and '.join(f'{share} {part.device.name}' for share, part in pairs)})"

    def in_groups(self, devices: int, groups: int) -> "GroupClusters":
        """Return the cluster of each device group of a pipeline.

        Raises
        ------
        ClusterError
            If a group would have devices of two parts, or the groups do not lie alike.
        """
        if groups == 1:
            raise needs_stages(self, "a program in one stage runs on one kind of device")
        found = self._in_groups(devices, groups)
        if isinstance(found, GroupClusters):
            return found
        numbers = (n for n in range(2, devices + 1) if devices % n == 0)
        fit = [str(n) for n in numbers if isinstance(self._in_groups(devices, n), GroupClusters)]
        hint = (
            f"numbers of stages that work are {', '.join(fit)}"
            if fit
            else ("use parts whose numbers of devices have a common divisor")
        )
        raise ClusterError(found, hint=hint)

    def _in_groups(self, devices: int, groups: int) -> "GroupClusters | str":
        """Return the cluster of each device group, or why there are no such groups."""
        shares = self.shares(devices)
        if devices % groups:
            return f"{devices} devices cannot be divided into {groups} pipeline stages"
        each = devices // groups
        clusters, parts, levels, lying = [], [], [], set()
        for number, (part, share) in enumerate(zip(self.parts, shares, strict=True)):
            if share % each:
                have = " and ".join(
                    f"{s} `{p.name}`" for s, p in zip(shares, self.parts, strict=True)
                )
                return (
                    f"{groups} pipeline stages of {each} devices straddle the parts of "
                    f"`{self.name}`: {have}"
                )
            try:
                part.check_groups(share, share // each)
                lying.add(_without_ones(part.for_devices(each)))
            except ClusterError as error:
                return error.what
            count = share // each
            clusters += [part] * count
            parts += [number] * count
            levels += [_outermost(part, share)] * count
        if len(lying) > 1:
            return (
                f"stages of {each} devices do not lie alike in the levels of the parts of "
                f"`{self.name}`"
            )
        return GroupClusters(tuple(clusters), tuple(parts), tuple(levels), self.link)


AnyCluster = Cluster | MixedCluster


@dataclass(frozen=True)
class GroupClusters:
    """The cluster of each device group of a pipeline, and the links between groups.

    Parameters
    ----------
    clusters : tuple of Cluster
        The cluster of each group.
    parts : tuple of int
        The number of its part.
    levels : tuple of int
        Level of the part whose links its stages use among each other.
    link : Level, optional
        The links between parts.
    in_v : bool
        Whether the stages go to and fro between the groups; see `StageMap`.
    """

    clusters: tuple[Cluster, ...]
    parts: tuple[int, ...]
    levels: tuple[int, ...]
    link: Level | None = None
    in_v: bool = False

    @cached_property
    def level(self) -> int:
        """The level of the mesh axis of stages: one that every part has."""
        if self.link is None:
            return self.levels[0]
        return min(len(cluster.levels) for cluster in self.clusters) - 1

    @cached_property
    def by_part(self) -> dict[int, Cluster]:
        """The cluster of each part, by its number."""
        return dict(zip(self.parts, self.clusters, strict=True))

    @property
    def is_mixed(self) -> bool:
        """Whether the groups are of several parts."""
        return self.link is not None

    def of(self, stage: int | None) -> Cluster:
        """Return the cluster of a stage; of what runs on every stage, that of the first."""
        return self.clusters[self._group(stage)]

    def _group(self, stage: int | None) -> int:
        return self._stage_map.group(stage or 0)

    @cached_property
    def _stage_map(self) -> StageMap:
        return StageMap(len(self.clusters), self.in_v)

    def sending(self, source: int | None, target: int | None) -> Cluster:
        """Return the cluster of a stage as it sends to another: links of `level` lead there."""
        one, other = self._group(source), self._group(target)
        if self.link is None:
            return self.clusters[one]
        if (one, other) not in self._sending:
            cluster = self.clusters[one]
            inside = cluster.levels[self.levels[one]]
            link = inside if self.parts[one] == self.parts[other] else self.link
            levels = (*cluster.levels[: self.level], link, *cluster.levels[self.level + 1 :])
            self._sending[one, other] = cluster.model_copy(update={"levels": levels})
        return self._sending[one, other]

    @cached_property
    def _sending(self) -> dict[tuple[int, int], Cluster]:
        return {}

    def of_node(self, node: Node, graph: Graph) -> Cluster:
        """Return the cluster by which a node of a program with stages is priced."""
        target = graph.stage_of(node)
        if node.operator != "transfer" or not node.operands:
            return self.of(target)
        layout = graph.values[node.operands[0]].layout
        return self.sending(None if layout is None else layout.stage, target)


def groups_on(cluster: AnyCluster, mesh: Mesh) -> GroupClusters:
    """Return the cluster of each device group of a mesh, one group where it has no stages.

    Raises
    ------
    ClusterError
        If the cluster has parts, and there are no stages or others than it allows.
    """
    if isinstance(cluster, MixedCluster):
        found = cluster.in_groups(mesh.of_ranks.size * mesh.stages, mesh.stages)
        return replace(found, in_v=mesh.stage_map.in_v)
    level = mesh.axis(mesh.of_stages[0]).level if mesh.of_stages else 0
    count = max(mesh.stages, 1)
    return GroupClusters((cluster,) * count, (0,) * count, (level,) * count)


def of_one_kind(cluster: AnyCluster, why: str) -> Cluster:
    """Return a cluster of one kind of device.

    Parameters
    ----------
    cluster : Cluster or MixedCluster
        The cluster.
    why : str
        What needs one kind of device, as a sentence.

    Raises
    ------
    ClusterError
        If it has parts.
    """
    if isinstance(cluster, MixedCluster):
        raise needs_stages(cluster, why)
    return cluster


def check_products(cluster: AnyCluster, precision: str) -> None:
    """Refuse a precision whose products a device of a cluster does not have.

    Raises
    ------
    ClusterError
        If there is such a device.
    """
    parts = cluster.parts if isinstance(cluster, MixedCluster) else (cluster,)
    for part in parts:
        part.device.check_products(precision)


def mean_device(cluster: AnyCluster) -> Device:
    """Return the device of a cluster; with parts, one whose peak rates are the mean of all."""
    if not isinstance(cluster, MixedCluster):
        return cluster.device
    pairs = [(part.size / cluster.size, part.device) for part in cluster.parts]
    types = dict.fromkeys(dtype for _, device in pairs for dtype in device.peak_flops)
    if not all(TF32 in device.peak_flops for _, device in pairs):
        types.pop(TF32, None)
    peaks = {t: sum(share * device.flops_per_second(t) for share, device in pairs) for t in types}
    name = " and ".join(device.name for _, device in pairs)
    first = pairs[0][1]
    recipes = {
        one: figure
        for one, figure in first.recipes.items()
        if all(one in device.recipes for _, device in pairs)
    }
    update = {"name": name, "peak_flops": peaks, "recipes": recipes}
    return first.model_copy(update=update)


_STAGES = (
    "give `stages` and `micro_batches`, or a named plan with `pipeline`; or use a cluster of one "
    "part"
)


def needs_stages(cluster: MixedCluster, why: str, hint: str = _STAGES) -> ClusterError:
    """Return the error that something needs one kind of device."""
    kinds = " and ".join(f"`{part.name}`" for part in cluster.parts)
    return ClusterError(f"cluster `{cluster.name}` has the parts {kinds}, and {why}", hint=hint)


def any_cluster(name: str) -> AnyCluster:
    """Return a cluster by name, file or line; see `cost_model.cluster.cluster`.

    Raises
    ------
    ClusterError
        If there is no such cluster, or the file does not describe one.
    """
    content, where = content_of(name)
    return _mixed(content, where) if "parts" in content else Cluster.parsed(content, where)


def _mixed(content: Mapping[str, Any], where: str) -> MixedCluster:
    parts = content["parts"]
    if not isinstance(parts, list) or len(parts) < 2:
        what = "`parts` must be a list of at least two clusters"
        raise ClusterError(what, where=where, hint="a cluster of one kind has no `parts`")
    resolved = [_part(part, f"parts.{i}", where) for i, part in enumerate(parts)]
    try:
        return MixedCluster.model_validate({**content, "parts": resolved})
    except ValidationError as error:
        raise ClusterError(in_one_sentence(error), where=where) from error


def _part(part: Any, place: str, where: str) -> Any:
    """Return the description of a part: itself, or some devices of another cluster."""
    if not isinstance(part, dict):
        what = f"`{place}` must hold `name`, `device` and `levels`, or `cluster` and `devices`"
        raise ClusterError(what, where=where)
    if "software" in part or "parts" in part:
        key = "software" if "software" in part else "parts"
        raise ClusterError(f"`{place}.{key}` is not a key of a part", where=where)
    if "cluster" not in part:
        return with_figures_asked(with_device(dict(part), where), where)
    unknown = sorted(set(part) - {"name", "cluster", "devices"})
    if unknown:
        what = f"`{place}.{unknown[0]}` is not a key of a part that is devices of a cluster"
        raise ClusterError(what, where=where, hint="its keys are `name`, `cluster` and `devices`")
    described = Cluster.parsed(*content_of(str(part["cluster"]), Path(where).parent))
    devices = part.get("devices", described.size)
    if not isinstance(devices, int) or isinstance(devices, bool):
        what = f"`{place}.devices` is `{devices}`, expected a positive integer"
        raise ClusterError(what, where=where)
    content = _reduced(described, devices).model_dump(exclude_none=True)
    return {**content, "name": part.get("name", described.name)}


def _reduced(cluster: Cluster, devices: int) -> Cluster:
    """Return a cluster of so many devices of another one, with the links that they use."""
    counts, used = cluster.for_devices(devices), cluster.used_by(devices)
    pairs = zip(used.levels, counts, strict=True)
    levels = tuple(level.model_copy(update={"size": count}) for level, count in pairs)
    return used.model_copy(update={"levels": levels})


def _outermost(cluster: Cluster, devices: int) -> int:
    """Return the outermost level that some devices span."""
    return max(len(cluster.levels_of(devices)) - 1, 0)


def _without_ones(counts: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of members of levels without those of levels that are not used."""
    most = max((i for i, count in enumerate(counts) if count > 1), default=-1)
    return tuple(counts[: most + 1])
