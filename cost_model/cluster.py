"""Clusters: one kind of device, and the levels of links between devices.

A cluster is a small YAML or JSON file; some come with the package (``cost_model/clusters``). Those
of several kinds of devices are `pipelines.mixed`.
``mesh_for`` maps a device mesh to a cluster: every mesh axis uses the links of one level. Knows no
operator and no collective.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice, product
from math import isqrt, prod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from shardwright.cost_model.efficiency.cluster_files import (
    DEFAULT_VARIABLE,
    cluster_content,
    content_of,
    file_text,
    in_one_sentence,
)
from shardwright.cost_model.efficiency.cluster_files import preset_names as preset_names
from shardwright.cost_model.efficiency.figures import Bytes, Description, Name, Positive
from shardwright.cost_model.efficiency.hardware import HOST_LINKS as HOST_LINKS
from shardwright.cost_model.efficiency.hardware import Device as Device
from shardwright.cost_model.efficiency.hardware import Level as Level
from shardwright.cost_model.efficiency.software import Software
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.units import bytes_text
from shardwright.ir.values import POSITIVE_INTEGER, checked

DEFAULT_CLUSTER = os.environ.get(DEFAULT_VARIABLE) or "h100"
"""The cluster where none is named: a line of the user's environment, or H100."""
_AXIS_NAMES = "xyzwuvtsrqp"  # names of axes, the outermost first


class Host(Description):
    """The host memory behind each device, and the link to it.

    Parameters
    ----------
    memory_bytes : int
        Host memory that each device can have: that of a server by its devices.
    to_host, from_host : float
        Bytes per second that *each device* can copy in either direction while all devices copy in
        both: the link is full duplex.
    """

    memory_bytes: Bytes
    to_host: Positive
    from_host: Positive


class Cluster(Description):
    """Devices of one kind, connected by levels of links.

    Parameters
    ----------
    name : str
        Name in messages and plans.
    device : Device
        The kind of device.
    levels : tuple of Level
        Innermost first.
    host : Host, optional
        The host memory; without it no tensor is moved there.
    software : Software, optional
        The training software that a program is timed for, see `run_by`; no key of a cluster file.
    """

    name: Name
    device: Device
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    host: Host | None = None
    software: Software | None = None

    @field_validator("levels")
    @classmethod
    def _names_differ(cls, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        names = [level.name for level in levels]
        if len(set(names)) < len(names):
            raise ValueError(f"the level names {', '.join(names)} are not all different")
        return levels

    @field_validator("levels")
    @classmethod
    def _innermost_connects_devices(cls, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        if levels and levels[0].efficiency is not None and levels[0].efficiency.several is not None:
            raise ValueError(
                f"`{levels[0].name}` has `several`, but it connects devices, not groups of them"
            )
        return levels

    @model_validator(mode="after")
    def _cards_are_shared_evenly(self) -> Self:
        inside = 1
        for level in self.levels:
            if level.sharing(inside, inside) != level.shared_by:
                raise ValueError(
                    f"`{level.name}` is shared by {level.shared_by}, but {inside} devices of the "
                    "level below cannot share cards so evenly"
                )
            if level.shared_by > 1 and level.efficiency and level.efficiency.collectives:
                raise ValueError(f"`{level.name}` has measured collectives and is shared")
            inside *= level.size
        return self

    def __repr__(self) -> str:
        memory = bytes_text(self.device.memory_bytes)
        return f"<Cluster {self.name}: {self.size} devices `{self.device.name}` of {memory}>"

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """Read a cluster from a YAML file, or a JSON file if its name ends in ``.json``.

        A JSON file may be a rank table of HCCL, see `rank_table`.

        Raises
        ------
        ClusterError
            If the file cannot be read or does not describe a cluster.
        """
        text, where = file_text(Path(path))
        return cls.parsed(cluster_content(text, where), where)

    @classmethod
    @checked
    def parsed(cls, content: Mapping[str, Any], where: str) -> Self:
        """Return the cluster that the content of a file describes.

        Raises
        ------
        ClusterError
            If it describes none of one kind of device.
        """
        if "parts" in content:
            what = (
                f"cluster `{content.get('name')}` has parts, and one kind of device is needed here"
            )
            raise ClusterError(what, hint="use a cluster of one part")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ClusterError(in_one_sentence(error), where=where) from error

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the links of a device: those of the levels, then those of the host."""
        names = tuple(level.name for level in self.levels)
        return names if self.host is None else (*names, *HOST_LINKS)

    def without_host(self) -> Self:
        """Return the cluster for programs that keep all tensors on the devices."""
        return self if self.host is None else self.model_copy(update={"host": None})

    @checked
    def run_by(self, software: Software | None) -> Self:
        """Return the cluster for timing programs as a training software runs them."""
        if software is None:
            return self.model_copy(update={"software": None})
        levels = tuple(level.with_skew(software.skew) for level in self.levels)
        device = self.device.under_software(software.kernel)
        return self.model_copy(update={"software": software, "levels": levels, "device": device})

    def without_latencies(self) -> Self:
        """Return the cluster for communication in few large buckets: bandwidths alone count."""
        device = self.device.model_copy(update={"launch_seconds": 0.0})
        levels = tuple(level.without_latency() for level in self.levels)
        return self.model_copy(update={"device": device, "levels": levels})

    def with_links_slower_by(self, factors: Sequence[float]) -> Self:
        """Return the cluster where messages over each level take some factor of their seconds."""
        pairs = zip(self.levels, factors, strict=True)
        return self.model_copy(update={"levels": tuple(one.slower_by(by) for one, by in pairs)})

    @property
    def size(self) -> int:
        """Number of devices."""
        return prod(level.size for level in self.levels)

    @checked
    def for_devices(self, devices: int) -> tuple[int, ...]:
        """Return the number of members that `devices` devices use of each level, innermost first.

        As many members of an inner level are used as possible, equally many in each member of the
        level above: 12 devices in nodes of 8 are 2 nodes of 6.

        Raises
        ------
        ClusterError
            If the cluster has fewer devices, or they cannot lie evenly in its levels.

        Examples
        --------
        >>> cluster("h100-pod").for_devices(64), cluster("h100-pod").for_devices(12)
        ((8, 8), (6, 2))
        """
        if not 1 <= devices <= self.size:
            what = f"cluster `{self.name}` has {self.size} devices, but {devices} were asked for"
            raise ClusterError(what, hint=f"use 1 to {self.size} devices, or a larger cluster")
        sizes = tuple(level.size for level in self.levels)
        counts = _evenly(devices, sizes)
        if counts is None:
            below, above = (
                next(n for n in numbers if _evenly(n, sizes))
                for numbers in (range(devices, 0, -1), range(devices, self.size + 1))
            )
            what = f"{devices} devices do not lie evenly in the levels of `{self.name}`"
            raise ClusterError(what, hint=f"the nearest numbers that do are {below} and {above}")
        return counts

    def levels_of(self, devices: int) -> tuple[Level, ...]:
        """Return the levels whose links some devices use, and those inside of them.

        Raises
        ------
        ClusterError
            If the cluster has no such number of devices.

        Examples
        --------
        >>> [level.name for level in cluster("h100-pods").levels_of(16)]
        ['node', 'pod']
        """
        counts = self.for_devices(devices)
        used = max((i + 1 for i, count in enumerate(counts) if count > 1), default=0)
        return self.levels[:used]

    @checked
    def check_groups(self, devices: int, groups: int) -> None:
        """Check that groups of neighbouring devices, all of one size, lie alike in the levels.

        Raises
        ------
        ClusterError
            If they do not: one would lie in more members of a level than another.
        """
        counts = self.for_devices(devices)
        POSITIVE_INTEGER.check("groups", groups)
        if devices % groups:
            raise ClusterError(f"{devices} devices cannot be divided into {groups} groups")
        if not self._lie_alike(groups, counts):
            numbers = (n for n in range(1, devices + 1) if devices % n == 0)
            fit = (str(n) for n in numbers if self._lie_alike(n, counts))
            used = " x ".join(
                f"{count} of a `{level.name}`"
                for level, count in zip(self.levels, counts, strict=True)
                if count > 1
            )
            what = f"{groups} groups of {devices // groups} devices do not lie alike in {used}"
            raise ClusterError(what, hint=f"numbers of groups that do are {', '.join(fit)}")

    def _lie_alike(self, groups: int, counts: tuple[int, ...]) -> bool:
        """Return whether groups of the used members are groups as `for_devices` places one."""
        each = prod(counts) // groups
        sizes = tuple(level.size for level in self.levels)
        return _inside(each, counts) == _evenly(each, sizes) is not None

    def for_programs_of(self, software: Software | None) -> Self:
        """Return the cluster by which programs are made that a training software runs.

        Training software sends to a group in one call. Where a ring of several devices of a node
        attains less than others, the cheapest program would divide the call into one in nodes and
        one between them, which the software does not.
        """
        if software is None:
            return self
        levels = tuple(level.with_rings_alike() for level in self.levels)
        return self.model_copy(
            update={"levels": levels, "device": self.device.under_software(software.kernel)}
        )

    def used_by(self, devices: int) -> Self:
        """Return the cluster with the links of the part that some devices use.

        Where fewer devices share a network card, each has more of it.

        Raises
        ------
        ClusterError
            If the cluster has no such number of devices.
        """
        levels, inside, used = list[Level](), 1, 1
        for level, members in zip(self.levels, self.for_devices(devices), strict=True):
            levels.append(level.of_members(members, inside, used) if members > 1 else level)
            inside, used = inside * level.size, used * members
        rates = [(level.bandwidth, level.shared_by) for level in self.levels]
        if [(level.bandwidth, level.shared_by) for level in levels] == rates:
            return self
        return self.model_copy(update={"levels": tuple(levels)})

    def part_text(self, devices: int) -> str:
        """Return how many members of the levels are used; empty where those in use are full.

        Examples
        --------
        >>> cluster("h100-pod").part_text(12), cluster("h100-pod").part_text(16)
        (' (6 of 8 in each node)', '')
        """
        counts = self.for_devices(devices)
        last = max((i for i, count in enumerate(counts) if count > 1), default=0)
        pairs = zip(self.levels[:last], counts, strict=False)
        partly = ((level, used) for level, used in pairs if used < level.size)
        parts = [f"{used} of {level.size} in each {level.name}" for level, used in partly]
        return f" ({', '.join(parts)})" if parts else ""


def cluster(name: str) -> Cluster:
    """Return a cluster of the package by name, from a file, or said in a line.

    Parameters
    ----------
    name : str
        One of ``preset_names()``, or the path of a ``.yaml``, ``.yml`` or ``.json`` file; after a
        colon what differs (`efficiency.lines`).

    Raises
    ------
    ClusterError
        If there is no such cluster, or the file does not describe one.

    Examples
    --------
    >>> cluster("h100:nodes=8").size
    64
    """
    return Cluster.parsed(*content_of(name))


def mesh_for(
    cluster: Cluster,
    devices: int,
    shape: str | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> Mesh:
    """Return a mesh over the first `devices` devices of a cluster.

    Parameters
    ----------
    cluster : Cluster
        The cluster, whose levels the axes belong to.
    devices : int
        Number of devices.
    shape : str or sequence of int, optional
        Sizes of the axes from the outermost inwards: ``"2x2x2"``, ``"data=2,model=4"`` or ``(2,
        4)``. By default one axis for every level in use; a single innermost level of at most 8
        devices is divided into prime factors, the finest mesh.
    names : sequence of str, optional
        Names of the axes; by default the names in `shape`, or x, y, z, w, ...

    Raises
    ------
    ClusterError
        If the devices do not fill the levels, or an axis would span more than one level.

    Examples
    --------
    >>> str(mesh_for(cluster("h100-pod"), 64)), str(mesh_for(cluster("h100-pod"), 8))
    ('x=8 x y=8', 'x=2 x y=2 x z=2')
    """
    counts = cluster.for_devices(devices)
    if isinstance(shape, str):
        sizes, written = _parse_shape(shape)
        names = names or written
    else:
        sizes = tuple(shape) if shape is not None else _default_sizes(counts)
    text = "x".join(map(str, sizes))
    if min(sizes, default=1) < 1:
        what = f"mesh shape `{text}` has an axis of {min(sizes)}"
        raise ClusterError(what, hint="every size is at least 1")
    if prod(sizes) != devices:
        what = f"mesh shape `{text}` has {prod(sizes)} ranks, but there are {devices} devices"
        raise ClusterError(what, hint="the sizes of the axes multiply to the number of devices")
    if names is None:
        names = tuple(islice(_default_names(), len(sizes)))
    if len(names) != len(sizes) or len(set(names)) != len(names):
        what = f"{len(sizes)} mesh axes are called {', '.join(names)}"
        raise ClusterError(what, hint=f"give {len(sizes)} different names")
    levels = _axis_levels(cluster, counts, sizes)
    return Mesh(tuple(map(MeshAxis, names, sizes, levels)))


def mesh_shapes(cluster: Cluster, devices: int, axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the finest meshes with at most a number of axes.

    A mesh is finer than another if it divides an axis in two: it allows every strategy of the
    other, which is omitted. There is at least one axis for each level in use.

    Examples
    --------
    >>> mesh_shapes(cluster("h100-pod"), 64)
    ((8, 2, 4), (2, 4, 8))
    """
    counts = [count for count in reversed(cluster.for_devices(devices)) if count > 1]
    shapes = [tuple(chain.from_iterable(cuts)) for cuts in product(*map(_cuts, counts))]
    allowed = [shape for shape in shapes if len(shape) <= max(axes, len(counts))]
    finest = max(map(len, allowed))
    return tuple(shape for shape in allowed if len(shape) == finest)


def _cuts(number: int, least: int = 2) -> tuple[tuple[int, ...], ...]:
    """Return every factorization of a number into non-decreasing factors."""
    longer = (
        (factor, *rest)
        for factor in range(least, isqrt(number) + 1)
        if number % factor == 0
        for rest in _cuts(number // factor, factor)
    )
    return ((number,), *longer)


def _evenly(devices: int, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return how many members of each level some devices use, as many inner ones as possible."""
    if not sizes:
        return () if devices == 1 else None
    for inner in range(min(devices, sizes[0]), 0, -1):
        outer = None if devices % inner else _evenly(devices // inner, sizes[1:])
        if outer is not None:
            return (inner, *outer)
    return None


def _inside(devices: int, counts: Sequence[int]) -> tuple[int, ...] | None:
    """Return how many members of each level a group of some devices uses; None if groups differ.

    The groups follow each other within `counts` members of every level.
    """
    found, left = [], devices
    for used in counts:
        if left % used and used % left:
            return None
        found.append(min(left, used))
        left //= found[-1]
    return tuple(found)


def _default_sizes(counts: Sequence[int]) -> tuple[int, ...]:
    if prod(counts) == counts[0] <= 8:
        return prime_factors(counts[0])
    return tuple(size for size in reversed(counts) if size > 1)


def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, the least first."""
    for factor in range(2, number + 1):
        if number % factor == 0:
            return (factor, *prime_factors(number // factor))
    return ()


def _default_names() -> Iterator[str]:
    yield from _AXIS_NAMES
    yield from (f"axis{i}" for i in count(len(_AXIS_NAMES)))


def _parse_shape(text: str) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    """Return the sizes in a mesh shape, and the names if it has them."""
    text = text.replace(" ", "")
    if re.fullmatch(r"\d+(x\d+)*", text):
        return tuple(map(int, text.split("x"))), None
    if re.fullmatch(r"[A-Za-z_]\w*=\d+(,[A-Za-z_]\w*=\d+)*", text):
        pairs = [part.split("=") for part in text.split(",")]
        return tuple(int(size) for _, size in pairs), tuple(name for name, _ in pairs)
    raise ClusterError(f"`{text}` is not a mesh shape", hint="write `2x4` or `data=2,model=4`")


def _axis_levels(cluster: Cluster, counts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the level of each axis, from the outermost inwards."""
    levels = []
    level, left = len(counts) - 1, counts[-1]
    for size in sizes:
        while left == 1 < size and level > 0:
            level -= 1
            left = counts[level]
        if left % size:
            text, fits = "x".join(map(str, sizes)), "x".join(map(str, _default_sizes(counts)))
            what = (
                f"an axis of {size} in mesh shape `{text}` does not fit into level "
                f"`{cluster.levels[level].name}`, where {left} of {counts[level]} are left"
            )
            raise ClusterError(what, hint=f"an axis spans one level: `{fits}` fits")
        levels.append(level)
        left //= size
    return levels
