"""The check that a program fits the memory of this machine, before allocation."""

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path

from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.liveness import dying_values
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import numpy_dtype
from shardwright.ir.units import bytes_text
from shardwright.operators.info import info_of
from shardwright.runtime.communicator import ONE_DEVICE

_MEMINFO = Path("/proc/meminfo")
_GROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def check_capacity(graph: Graph, ranks: Sequence[int], float_dtype: str | None = None) -> None:
    """Check that a program can fit the memory of this process.

    Parameters
    ----------
    graph : Graph
        The program.
    ranks : sequence of int
        The ranks that this process hosts.
    float_dtype : str, optional
        Stores every floating-point tensor in this type.

    Raises
    ------
    ExecutionError
        If it needs more memory than the machine has.
    """
    available = available_bytes()
    least = least_bytes(graph, ranks, float_dtype)
    if available is None or least <= available:
        return
    hosted = f"{len(ranks)} ranks" if len(ranks) > 1 else "one rank"
    raise ExecutionError(
        f"{hosted} of `{graph.name}` in one process take at least {bytes_text(least)}, this "
        f"machine has {bytes_text(available)} free",
        hint="train a smaller model here, or run one process a rank on more machines over MPI",
    )


def least_bytes(graph: Graph, ranks: Sequence[int], float_dtype: str | None = None) -> int:
    """Return a lower bound on the peak memory of a process that hosts some ranks of a program.

    Every element counts once, even where several ranks have copies of their own, and views of
    other values do not count; nor do values of pipeline stages that run elsewhere.
    """
    mesh = graph.mesh or ONE_DEVICE
    here = _values_of(graph, ranks)

    def held(value: Value) -> int:
        return _held_bytes(value, mesh, len(ranks), float_dtype) if value.name in here else 0

    live = {parameter.name: held(parameter.value) for parameter in graph.parameters}
    live.update((value.name, held(value)) for value in graph.inputs)
    updated = {name for name, _ in graph.updates}
    now = most = sum(live.values())
    for node, released in zip(graph.nodes, dying_values(graph, updated), strict=True):
        made = {value.name: held(value) for value in node.results if _computes(node, graph)}
        live.update(made)
        now += sum(made.values())
        most = max(most, now)
        now -= sum(live.pop(name, 0) for name in released)
    return most


def _values_of(graph: Graph, ranks: Sequence[int]) -> set[str]:
    """Return the values that are held on some ranks: of pipeline stages, those of their groups."""
    pipeline = pipeline_of(graph)
    if pipeline is None or graph.mesh is None:
        return set(graph.values)
    found: set[str] = set()
    for program in pipeline.groups:
        if set(ranks).isdisjoint(graph.mesh.ranks_of(program.group)):
            continue
        found.update((*program.inputs, *program.parameters))
        runs = [graph.nodes[run.position] for run in program.runs() if run.kind != "send"]
        found.update(result.name for node in runs for result in node.results)
    return found


def _computes(node: Node, graph: Graph) -> bool:
    """Return whether a node certainly allocates its results."""
    info = info_of(graph, node)
    return not info.is_view and info.flops_per_point > 0


def _held_bytes(value: Value, mesh: Mesh, hosted: int, float_dtype: str | None) -> int:
    """Return the bytes of the distinct elements of a value on some ranks."""
    shape = value.type.shape
    if value.layout is not None:
        axes = mesh.names if hosted < mesh.size else mesh.in_time
        kept = tuple(axis for axis in mesh.names if axis not in axes)
        slices = value.layout.without(kept).counts(mesh)
        shape = tuple(size // count for size, count in zip(shape, slices, strict=True))
    return prod(shape) * numpy_dtype(value.type.dtype, float_dtype).itemsize


# The machine


def available_bytes() -> int | None:
    """Return the bytes that this process can still allocate, swap included; None if unknown."""
    found = [_free_bytes(), *map(_limit, _GROUP_LIMITS)]
    known = [size for size in found if size is not None]
    return min(known, default=None)


def _free_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
        entries = dict(line.split(":", 1) for line in lines if ":" in line)
        kilobytes = sum(int(entries[key].split()[0]) for key in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError, IndexError):
        return _physical_bytes()
    return kilobytes * 1024


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
