"""Slicing and assembly of tensors: inputs, parameters, and the state between steps."""

import difflib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Graph, Parameter, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import is_real, numpy_dtype, unit_roundoff
from shardwright.operators.info import Array
from shardwright.operators.models.random import initial_value
from shardwright.runtime.communicator import ONE_DEVICE, Communicator, Parts

State = dict[str, dict[int, Array]]  # parameter -> rank -> slice
Region = tuple[slice, ...]
_REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def region(value: Value, mesh: Mesh, rank: int) -> Region:
    """Return the region of a value that a rank holds; all of it without a layout."""
    if value.layout is None:
        return tuple(slice(0, size) for size in value.type.shape)
    return value.layout.slices(value.type.shape, mesh, rank)


def hosted_ranks(value: Value, communicator: Communicator) -> tuple[int, ...]:
    """Return the ranks of this process that hold a value: those of its pipeline stage."""
    if value.layout is None or value.layout.stage is None:
        return communicator.ranks
    holders = communicator.mesh.ranks_of(value.layout.stage)
    return tuple(rank for rank in communicator.ranks if rank in holders)


def local_shapes(value: Value, mesh: Mesh, ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the shape of the slice of a value on each of some ranks."""
    shape, layout = value.type.shape, value.layout
    if layout is None:
        return dict.fromkeys(ranks, shape)
    if layout.is_even(shape, mesh):
        return dict.fromkeys(ranks, layout.slice_shape(shape, mesh))
    found = {}
    for rank in ranks:
        found[rank] = tuple(part.stop - part.start for part in layout.slices(shape, mesh, rank))
    return found


def fill_regions(
    value: Value, communicator: Communicator, make: Callable[[Region], Array], number: int = 0
) -> dict[int, Array]:
    """Return `make` of the region of every hosted rank; equal regions share one array.

    Of a value in a pipeline stage, for the ranks of the stage. In pass `number` over micro-batches,
    where the value is split over the passes.

    Raises
    ------
    ExecutionError
        If the value is partial: a whole tensor has no unique partial form.
    """
    if value.layout is not None and value.layout.partial:
        raise ExecutionError(
            f"`{value.name}` has the layout {value.layout}, expected one without partial axes"
        )
    made: dict[tuple[tuple[int, int], ...], Array] = {}
    parts: dict[int, Array] = {}
    mesh = communicator.mesh
    for rank in hosted_ranks(value, communicator):
        wanted = region(value, mesh, rank + number * mesh.size)
        key = tuple((s.start, s.stop) for s in wanted)
        if key not in made:
            made[key] = make(wanted)
        parts[rank] = made[key]
    return parts


def scatter(
    value: Value,
    whole: Array,
    communicator: Communicator,
    float_dtype: str | None = None,
    number: int = 0,
) -> dict[int, Array]:
    """Return the slice of `whole` for every hosted rank, in a pass over micro-batches.

    Raises
    ------
    ExecutionError
        If the array has another shape or kind of numbers than the value.
    """
    array = np.asarray(whole)
    dtype = numpy_dtype(value.type.dtype, float_dtype)
    if array.shape != value.type.shape:
        raise ExecutionError(
            f"`{value.name}` was given an array of shape {array.shape}, expected {value.type.shape}"
        )
    if not (
        np.can_cast(array.dtype, dtype, casting="same_kind")
        or (is_real(array.dtype) and is_real(dtype))
    ):
        raise ExecutionError(
            f"`{value.name}` was given elements of type {array.dtype}, expected {value.type.dtype}"
        )

    def make(part: Region) -> Array:
        return np.array(array[part], dtype, order="C")

    return fill_regions(value, communicator, make, number)


def initialize(
    graph: Graph,
    seed: int,
    communicator: Communicator,
    initial: Mapping[str, Array] | None = None,
    float_dtype: str | None = None,
) -> State:
    """Return the initial state of a program, independent of its layouts.

    Parameters
    ----------
    graph : Graph
        The program; the attribute ``initializer`` of a parameter (default ``normal``) decides.
    seed : int
        Seed of the whole program.
    communicator : Communicator
        The communicator, which has the hosted ranks.
    initial : mapping of str to array, optional
        Whole initial values that override the initializer.
    float_dtype : str, optional
        Stores every floating-point tensor in this type.

    Raises
    ------
    ExecutionError
        If a value is for no parameter or does not fit, or a value of the model is missing.
    """
    given = initial or {}
    _check_known(graph, given)
    _check_given(graph, given)
    state: State = {}
    for parameter in graph.parameters:
        if parameter.name in given:
            whole = given[parameter.name]
            state[parameter.name] = scatter(parameter.value, whole, communicator, float_dtype)
        else:
            state[parameter.name] = _drawn(parameter, seed, communicator, float_dtype)
    return state


def _check_known(graph: Graph, given: Mapping[str, Array]) -> None:
    known = [parameter.name for parameter in graph.parameters]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else None
            raise ExecutionError(f"graph `{graph.name}` has no parameter `{name}`", hint=hint)


def _check_given(graph: Graph, given: Mapping[str, Array]) -> None:
    missing = [
        parameter.name
        for parameter in graph.parameters
        if parameter.attributes.get("initializer") == "data" and parameter.name not in given
    ]
    if missing:
        raise ExecutionError(
            f"{len(missing)} parameters begin with values of the model, which are missing: "
            f"`{missing[0]}`" + " and others" * (len(missing) > 1),
            hint="compile it again in the folder with the files of its weights",
        )


def _drawn(
    parameter: Parameter, seed: int, communicator: Communicator, float_dtype: str | None
) -> dict[int, Array]:
    tensor = parameter.value.type
    initializer = str(parameter.attributes.get("initializer", "normal"))
    dtype = numpy_dtype(tensor.dtype, float_dtype)

    def draw(part: Region) -> Array:
        return initial_value(initializer, parameter.name, seed, tensor.shape, part, dtype)

    return fill_regions(parameter.value, communicator, draw)


def assemble(
    graph: Graph, name: str, parts: Parts, mesh: Mesh | None = None, tolerance: float | None = None
) -> Array:
    """Return the whole tensor, assembled from the slices of all ranks.

    Parameters
    ----------
    graph : Graph
        The graph that defines the value.
    name : str
        Name of the value.
    parts : mapping of int to array
        The slice of each rank of the mesh (`Communicator.collect`).
    mesh : Mesh, optional
        The mesh; by default the graph's.
    tolerance : float, optional
        Greatest difference between copies, relative to the largest magnitude; by default a thousand
        units in the last place.

    Raises
    ------
    ExecutionError
        If copies of ranks differ; names two ranks and the difference.
    """
    mesh = mesh or graph.mesh or ONE_DEVICE
    value = graph.value(name)
    layout = value.layout
    partial = layout.partial if layout else ()
    holders = _holders(layout, mesh, parts)
    missing = sorted(set(holders) - set(parts))
    if missing:
        raise ExecutionError(f"`{name}`: the slices of ranks {missing} are missing")
    first: dict[tuple[tuple[int, ...], int], int] = {}
    whole = np.empty(value.type.shape, parts[holders[0]].dtype)
    written: set[tuple[int, ...]] = set()
    for rank in holders:
        held = region(value, mesh, rank)
        start = tuple(s.start for s in held)
        key = (start, mesh.index(rank, partial))
        if key in first:
            _check_copies(name, first[key], rank, parts, tolerance)
            continue
        first[key] = rank
        if start in written and layout:
            whole[held] = _REDUCTIONS[layout.reduction](whole[held], parts[rank])
        else:
            whole[held] = parts[rank]
        written.add(start)
    return whole


def _holders(layout: Layout | None, mesh: Mesh, parts: Parts) -> Sequence[int]:
    """Return the ranks that hold a value: a device group does not make what it does not need."""
    if layout is not None and layout.stage is not None:
        return mesh.ranks_of(layout.stage)
    groups = {mesh.device_group(rank) for rank in parts}
    return [rank for rank in range(mesh.size) if not groups or mesh.device_group(rank) in groups]


def _check_copies(name: str, one: int, other: int, parts: Parts, tolerance: float | None) -> None:
    a, b = parts[one], parts[other]
    if a is b or np.array_equal(a, b):
        return
    if is_real(a.dtype):
        allowed = 2000 * unit_roundoff(a.dtype) if tolerance is None else tolerance
        wide = np.result_type(a.dtype, np.float32)
        with np.errstate(invalid="ignore"):
            scale = float(np.max(np.abs(a)))
            difference = float(np.max(np.abs(a.astype(wide) - b.astype(wide))))
        if difference <= allowed * scale or np.array_equal(a, b, equal_nan=True):
            return
        found = f"differ by {difference:.3g} (largest magnitude {scale:.3g})"
    else:
        found = f"differ in {int(np.count_nonzero(a != b))} of {a.size} elements"
    raise ExecutionError(
        f"`{name}`: ranks {one} and {other} should hold equal copies, they {found}"
    )
