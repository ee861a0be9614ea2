"""Configurations: the mesh, micro-batches and pipeline of a plan, which a search chooses first."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwright.dataflow.micro_batches import micro_batches
from shardwright.dataflow.orders import SCHEDULES, Order
from shardwright.dataflow.samples import own_samples, samples_of
from shardwright.ir.errors import ShardwrightError, ShardwrightWarning
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis

USUAL = "1f1b"
"""The schedule of a pipeline of which none is said."""
_SMALL = 300  # operators of a program whose searches are short


@dataclass(frozen=True)
class Configuration:
    """The mesh of an exact search, and its number of micro-batches.

    Parameters
    ----------
    mesh : Mesh or None
        The ranks of a device group; None where the mode has no mesh of the cluster's.
    micro_batches : int
        Micro-batches of a step.
    stages : int
        Device groups of a pipeline; 1 without one.
    chunks : int
        Stages of each device group.
    schedule : str, optional
        The order of the micro-batches in a pipeline.
    """

    mesh: Mesh | None
    micro_batches: int = 1
    stages: int = 1
    chunks: int = 1
    schedule: str | None = None

    @property
    def shape(self) -> str:
        """The sizes of the mesh axes, from the outermost inwards; ``1`` of a single device.

        Examples
        --------
        >>> from shardwright.ir.mesh import MeshAxis
        >>> Configuration(Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 8, 0)))).shape
        '2x8'
        """
        return "" if self.mesh is None else "x".join(map(str, self.mesh.shape)) or "1"

    @property
    def axes(self) -> int:
        """Number of mesh axes."""
        return 0 if self.mesh is None else len(self.mesh.axes)

    @property
    def order(self) -> type[Order]:
        """The order of the micro-batches in a pipeline."""
        return SCHEDULES[self.schedule or USUAL]

    @property
    def parts(self) -> int:
        """Number of stages of all device groups."""
        return self.stages * self.chunks

    @property
    def is_merged(self) -> bool:
        """Whether the mesh has one axis for each level at most."""
        mesh = self.mesh
        return mesh is None or sum(axis.size > 1 for axis in mesh.axes) == len(_extents(mesh))

    @property
    def merged(self) -> Hashable:
        """What is equal for configurations that differ by how levels are divided into axes."""
        extents = {} if self.mesh is None else _extents(self.mesh)
        return replace(self, mesh=None), tuple(sorted(extents.items()))

    def __str__(self) -> str:
        number = self.micro_batches
        count = "one micro-batch" if number == 1 else f"{number} micro-batches"
        where = f"mesh {self.shape}, {count}" if self.shape else count
        return where if self.stages == 1 else f"{self._pipeline}, {where}"

    @property
    def _pipeline(self) -> str:
        if self.chunks > 1:
            return f"{self.stages} groups of {self.chunks} chunks"
        usual = self.schedule in (None, USUAL)
        return f"{self.stages} stages" if usual else f"{self.stages} stages ({self.schedule})"

    def divides(self, other: "Configuration") -> bool:
        """Return whether the other one has each micro-batch divided further, on no finer mesh.

        Not where either has stages: their steps depend on the numbers of micro-batches otherwise.
        """
        if self.stages > 1 or other.stages > 1:
            return False
        whole = other.micro_batches % self.micro_batches == 0
        return whole and (self.mesh == other.mesh or self._is_finer(other))

    def _is_finer(self, other: "Configuration") -> bool:
        """Return whether the other mesh has one axis for each level, and this one divides them."""
        if self.mesh is None or other.mesh is None:
            return False
        levels = [axis.level for axis in other.mesh.axes]
        return len(set(levels)) == len(levels) and _extents(self.mesh) == _extents(other.mesh)


def divides_axes(fine: Mesh, coarse: Mesh) -> bool:
    """Return whether merging neighbouring axes of a mesh on one level gives another mesh.

    Examples
    --------
    >>> from shardwright.ir.mesh import MeshAxis
    >>> fine = Mesh((MeshAxis("x", 4, 1), MeshAxis("y", 2, 0), MeshAxis("z", 4, 0)))
    >>> coarse = Mesh((MeshAxis("data", 4, 1), MeshAxis("tensor", 8, 0)))
    >>> divides_axes(fine, coarse), divides_axes(coarse, fine)
    (True, False)
    """
    left = [axis for axis in fine.axes if axis.size > 1]
    for axis in (axis for axis in coarse.axes if axis.size > 1):
        size = 1
        while size < axis.size and left and left[0].level == axis.level:
            size *= left.pop(0).size
        if size != axis.size:
            return False
    return not left


def _extents(mesh: Mesh) -> dict[int, int]:
    """Return the ranks along each level."""
    found: dict[int, int] = {}
    for axis in mesh.axes:
        if axis.size > 1:
            found[axis.level] = found.get(axis.level, 1) * axis.size
    return found


def merged(mesh: Mesh) -> Mesh:
    """Return the mesh with one axis for each level.

    Examples
    --------
    >>> from shardwright.ir.mesh import MeshAxis
    >>> merged(Mesh((MeshAxis("x", 8, 1), MeshAxis("y", 2, 0), MeshAxis("z", 4, 0)))).shape
    (8, 8)
    """
    axes = (MeshAxis(f"x{level}", size, level) for level, size in _extents(mesh).items())
    return Mesh(tuple(axes))


def is_large(program: Graph) -> bool:
    """Return whether the searches of a program take long."""
    return len(program) > _SMALL


def candidate_counts(source_of: Callable[[int], Graph], *, staged: bool = False) -> tuple[int, ...]:
    """Return the numbers of micro-batches that are tried: the powers of two that divide the batch.

    With stages, and of a large program, all divisors of the batch: their samples have to be divided
    over the ranks of a data-parallel axis, and of many micro-batches a factor of two is much.

    One alone where the program has no form in two, or another one: with statistics of each
    micro-batch every number computes another step, and the user chooses.

    Parameters
    ----------
    source_of : callable
        Returns the program in a number of micro-batches, in canonical form.
    staged : bool
        Whether numbers of stages are tried too.

    Examples
    --------
    A batch of 24 samples can be divided into 1, 2, 4 or 8 micro-batches.
    """
    whole = source_of(1)
    batch = samples_of(whole) or 1
    every = staged or is_large(whole)
    tried = range(1, batch + 1) if every else [2**i for i in range(batch.bit_length())]
    counts = tuple(count for count in tried if batch % count == 0)
    least = counts[1] if len(counts) > 1 else 2
    try:
        divided = source_of(least)
        micro_batches(divided, least)
    except ShardwrightError:
        return counts[:1]
    if divided == whole or _sums_inputs(whole, divided):
        return counts
    warnings.warn(
        f"`{whole.name}` has statistics of the batch, so another number of micro-batches computes "
        "another step: only one micro-batch is tried; give the number for another",
        ShardwrightWarning,
        stacklevel=2,
    )
    return counts[:1]


def _sums_inputs(whole: Graph, divided: Graph) -> bool:
    """Return whether a program in micro-batches differs by sums of whole inputs alone.

    Statistics of micro-batches keep their names, and have another shape.
    """
    before, after = whole.values, divided.values
    same = (after[name].type == before[name].type for name in before.keys() & after.keys())
    return bool(own_samples(divided)) and all(same)


Form = tuple[int, str]
"""Chunks of each device group of a pipeline, and the schedule."""


def searched_forms() -> tuple[Form, ...]:
    """Return the forms that are tried, those of all schedules.

    Examples
    --------
    >>> searched_forms()[:2], searched_forms()[-2:]
    (((1, '1f1b'), (2, 'interleaved')), ((1, 'zero_bubble'), (2, 'zero_bubble_v')))
    """
    return tuple((chunks, name) for name in SCHEDULES for chunks in SCHEDULES[name].searched_chunks)


def configurations(
    meshes: Iterable[Mesh | None],
    counts: Sequence[int],
    devices: int,
    forms: Sequence[Form] = ((1, USUAL),),
    most_stages: tuple[float, float] = (inf, inf),
    fewest: int = 1,
) -> tuple[Configuration, ...]:
    """Return every mesh with every number of micro-batches, few micro-batches first.

    A mesh of fewer ranks than devices is that of one of several device groups.

    Parameters
    ----------
    meshes : iterable of Mesh or None
        The meshes of a device group.
    counts : sequence of int
        Numbers of micro-batches.
    devices : int
        Number of devices.
    forms : sequence of (int, str)
        Chunks and schedules of pipelines; of several, those that are not tried with so many
        micro-batches are left out.
    most_stages : tuple of float
        How many stages the program can be cut in at most, with one chunk and with several; more are
        left out of several forms.
    fewest : int
        Micro-batches of several device groups at least; fewer are left out of several forms.
    """
    listed = [(mesh, 1 if mesh is None else devices // mesh.size) for mesh in meshes]
    found: list[Configuration] = []
    for count in counts:
        for mesh, groups in listed:
            if groups == 1:
                found.append(Configuration(mesh, count))
                continue
            for chunks, schedule in forms:
                is_tried = SCHEDULES[schedule].is_tried(groups, count)
                most = most_stages[chunks > 1]
                is_tried = is_tried and groups * chunks <= most and count >= fewest
                if len(forms) > 1 and not is_tried:
                    continue
                found.append(Configuration(mesh, count, groups, chunks, schedule))
    return tuple(found)
