"""The device mesh: named axes over ranks, and the groups of ranks along them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from shardwright.ir.errors import IRError
from shardwright.ir.values import POSITIVE_INTEGER, wrong_value


@dataclass(frozen=True)
class StageMap:
    """Which device group runs which stages: in rounds, or to and fro in a V.

    Stage s of S groups is on group s mod S in rounds. In a V each other round goes back: of 2 S
    stages group g has g and 2 S - 1 - g, so that the first and the last are on one group.

    Parameters
    ----------
    groups : int
        Number of device groups.
    in_v : bool
        Whether each other round goes back.

    Examples
    --------
    >>> [StageMap(2).group(stage) for stage in range(4)]
    [0, 1, 0, 1]
    >>> [StageMap(2, in_v=True).group(stage) for stage in range(4)]
    [0, 1, 1, 0]
    """

    groups: int
    in_v: bool = False

    def group(self, stage: int) -> int:
        """Return the device group of a stage."""
        number, place = divmod(stage, self.groups)
        return self.groups - 1 - place if self.in_v and number % 2 else place

    def stages(self, group: int, count: int) -> tuple[int, ...]:
        """Return the stages of a device group, of so many."""
        return _stages_by_group(self, count)[group]


@lru_cache(maxsize=256)
def _stages_by_group(where: StageMap, count: int) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(where.groups)]
    for stage in range(count):
        found[where.group(stage)].append(stage)
    return tuple(map(tuple, found))


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh.

    Parameters
    ----------
    name : str
        Name, unique in the mesh.
    size : int
        Number of ranks along the axis.
    level : int
        Level of the cluster whose links the axis uses; 0 is the innermost.
    in_time : bool
        Whether the axis is run in time: each rank computes the parts of the axis one after the
        other, as the passes of a loop over micro-batches.
    of_stages : bool
        Whether the axis is of pipeline stages: each of its parts is a group of devices that runs
        other stages of the program.
    in_v : bool
        Whether the stages go to and fro between the groups; see `StageMap`.
    """

    name: str
    size: int
    level: int = 0
    in_time: bool = False
    of_stages: bool = False
    in_v: bool = False


@dataclass(frozen=True)
class Mesh:
    """Ranks arranged along named axes; the first axis is the most significant in the rank number.

    An axis that is run in time is the first, and adds no ranks. Where a method takes a rank,
    ``rank + i size`` is the rank in pass ``i``. An axis of pipeline stages follows; a stage runs on
    the ranks at the coordinate that `stage_map` says.

    Examples
    --------
    >>> mesh = Mesh((MeshAxis("data", 2), MeshAxis("model", 3)))
    >>> mesh.group(4, ["data"]), mesh.group(4, ["model"])
    ((1, 4), (3, 4, 5))
    """

    axes: tuple[MeshAxis, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.axes, tuple) or not all(isinstance(a, MeshAxis) for a in self.axes):
            raise wrong_value("axes", self.axes, "a tuple of `MeshAxis`", of="of a mesh")
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise IRError(f"a mesh has the axes {names}, every name must be unique")
        if any(axis.size not in POSITIVE_INTEGER for axis in self.axes):
            raise IRError(f"a mesh has the shape {self.shape}, every size must be at least 1")
        if any(axis.in_time for axis in self.axes[1:]):
            raise IRError(f"only the first axis of a mesh can be run in time, this one is {self}")
        if any(axis.of_stages for axis in self.axes[len(self.in_time) + 1 :]):
            raise IRError(
                f"the axis of stages of a mesh comes before those of ranks, this mesh is {self}"
            )
        if any(axis.in_time and axis.of_stages for axis in self.axes):
            raise IRError(f"an axis of stages cannot be run in time, this mesh is {self}")
        if any(axis.in_v and not axis.of_stages for axis in self.axes):
            raise IRError(f"only an axis of stages can be in a V, this mesh is {self}")

    @cached_property
    def _hash(self) -> int:
        return hash(self.axes)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Mesh"], tuple[object, ...]]:
        return Mesh, (self.axes,)  # hashes anew: names hash otherwise in another process

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def size(self) -> int:
        """Number of ranks, of all stages."""
        return prod(axis.size for axis in self.axes if not axis.in_time)

    @cached_property
    def in_time(self) -> tuple[str, ...]:
        """Names of the axes that are run in time: one, or none."""
        return tuple(axis.name for axis in self.axes if axis.in_time)

    @cached_property
    def passes(self) -> int:
        """Number of passes of the loop over the axis that is run in time; 1 without one."""
        return self.extent(self.in_time)

    @cached_property
    def of_stages(self) -> tuple[str, ...]:
        """Names of the axes of pipeline stages: one, or none."""
        return tuple(axis.name for axis in self.axes if axis.of_stages)

    @cached_property
    def stages(self) -> int:
        """Number of device groups that run different stages; 1 without an axis of stages."""
        return self.extent(self.of_stages)

    @cached_property
    def stage_map(self) -> StageMap:
        """Which device group runs which stages."""
        return StageMap(self.stages, any(axis.in_v for axis in self.axes))

    @cached_property
    def of_ranks(self) -> "Mesh":
        """The mesh of one stage: without the axis that is run in time and that of stages."""
        kept = tuple(a for a in self.axes if not a.in_time and not a.of_stages)
        return Mesh(kept) if len(kept) < len(self.axes) else self

    def device_group(self, rank: int) -> int:
        """Return the device group of `rank`.

        Examples
        --------
        >>> mesh = Mesh((MeshAxis("stage", 2, of_stages=True), MeshAxis("x", 2)))
        >>> [mesh.device_group(rank) for rank in range(4)]
        [0, 0, 1, 1]
        """
        return self.index(rank, self.of_stages)

    def is_in(self, stage: int | None, group: int) -> bool:
        """Return whether a device group runs a stage; every one does for None."""
        return stage is None or self.stage_map.group(stage) == group

    def ranks_of(self, stage: int | None) -> range:
        """Return the ranks that run a stage; all ranks for None, which is every stage.

        The ranks of a stage have its places in their order, so that the same position in two
        stages is the same place in each.
        """
        if stage is None:
            return range(self.size)
        count = self.size // self.stages
        first = self.stage_map.group(stage) * count
        return range(first, first + count)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each axis by name."""
        return self._of_axes(self.shape)

    @cached_property
    def _by_name(self) -> dict[str, MeshAxis]:
        return {axis.name: axis for axis in self.axes}

    def _of_axes(self, values: Iterable[int]) -> dict[str, int]:
        return _OfAxes(zip(self.names, values, strict=True))

    @cached_property
    def _strides(self) -> dict[str, int]:
        return self._of_axes(prod(self.shape[i + 1 :]) for i in range(len(self.names)))

    def axis(self, name: str) -> MeshAxis:
        """Return the axis called `name`.

        Raises
        ------
        IRError
            If the mesh has no such axis.
        """
        if name not in self.names:
            raise _no_axis(name, self.names)
        return self._by_name[name]

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the axis names in the order of the mesh."""
        wanted = set(names)
        return tuple(name for name in self.names if name in wanted)

    def extent(self, names: Iterable[str]) -> int:
        """Return the number of ranks in a group along the axes `names`."""
        sizes, extent = self.sizes, 1
        for name in names:
            extent *= sizes[name]
        return extent

    def coordinate(self, rank: int, name: str) -> int:
        """Return the position of `rank` along one axis."""
        return rank // self._strides[name] % self.sizes[name]

    def index(self, rank: int, names: Iterable[str]) -> int:
        """Return the position of `rank` along several axes taken together, major to minor."""
        position = 0
        for name in names:
            position = position * self.sizes[name] + self.coordinate(rank, name)
        return position

    def part(self, size: int, names: Iterable[str], rank: int) -> tuple[int, int]:
        """Return the start and length of the slice of `rank` of `size` elements.

        They are split along each axis in turn, major to minor; if an axis does not divide the rest,
        its first ranks have one more.

        Examples
        --------
        >>> mesh = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
        >>> [mesh.part(7, ["x", "y"], rank) for rank in range(4)]
        [(0, 2), (2, 2), (4, 2), (6, 1)]
        """
        start = 0
        for name in names:
            place, (least, more) = self.coordinate(rank, name), divmod(size, self.sizes[name])
            start += place * least + min(place, more)
            size = least + (place < more)
        return start, size

    def group(self, rank: int, names: Iterable[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along the axes `names`, by index."""
        names = tuple(names)
        base = rank - sum(self.coordinate(rank, name) * self._strides[name] for name in names)
        members = [base]
        for name in names:
            stride = self._strides[name]
            members = [m + i * stride for m in members for i in range(self.sizes[name])]
        return tuple(members)

    def groups(self, names: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return every group along the axes `names`, by their smallest rank."""
        names = tuple(names)
        return tuple(
            self.group(rank, names) for rank in range(self.size) if self.index(rank, names) == 0
        )

    def __repr__(self) -> str:
        return f"<Mesh {self}>"

    def __str__(self) -> str:
        times = [f"{a.name}={a.size}" + _kind_of(a) for a in self.axes]
        return " x ".join(times) or "one device"


class _OfAxes(dict[str, int]):
    """A number of each axis; there is none of any other."""

    def __missing__(self, name: object) -> int:
        raise _no_axis(name, self)


def _no_axis(name: object, names: Iterable[str]) -> IRError:
    return IRError(f"the mesh has no axis `{name}`", hint=f"its axes are {tuple(names)}")


def _kind_of(axis: MeshAxis) -> str:
    if axis.in_time:
        return " in time"
    return " stages" * axis.of_stages + " in a V" * axis.in_v
