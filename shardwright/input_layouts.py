"""Types and layouts of the inputs of a step: split over all devices, whole, or as the user says."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DTYPES, TensorType
from shardwright.operators.info import Array, SplitCounts
from shardwright.tracing import InputSpec


def input_layouts(
    inputs: Sequence[InputSpec],
    strategy: str | SplitCounts | None,
    mesh: Mesh | None,
    in_turn: bool = True,
) -> dict[str, Layout]:
    """Return the layouts of the inputs; empty where the search chooses them, and without a mesh.

    Parts are on the last axes of the mesh, as ranks have them in turn, or on the first ones.

    Raises
    ------
    ModelError
        If no mesh axes make so many slices, or an input is not divisible by them.
    """
    if strategy is None or mesh is None:
        return {}
    shapes = [spec.type.shape for spec in inputs]
    if strategy == "full_batch":
        strategy = tuple((1,) * len(shape) for shape in shapes)
    elif strategy == "data_parallel":
        strategy = tuple((mesh.size,) * bool(s) + (1,) * (len(s) - 1) for s in shapes)
    if isinstance(strategy, str) or [*map(len, strategy)] != [*map(len, shapes)]:
        raise ModelError(
            f"the data set strategy {strategy!r} does not fit inputs of the shapes {tuple(shapes)}",
            hint="use `data_parallel`, `full_batch`, or the slices of each dimension of each input",
        )
    return {
        spec.name: _layout(spec, counts, mesh, in_turn)
        for spec, counts in zip(inputs, strategy, strict=True)
    }


def _layout(spec: InputSpec, counts: Sequence[int], mesh: Mesh, in_turn: bool) -> Layout:
    """Assign each dimension the next mesh axes that make its slices, from one end of the mesh."""
    order = -1 if in_turn else 1
    free, splits = list(mesh.axes)[::order], []
    for size, count in list(zip(spec.type.shape, counts, strict=True))[::order]:
        names: list[str] = []
        rest = count
        while rest > 1 and free and rest % free[0].size == 0:
            rest //= free[0].size
            names.append(free.pop(0).name)
        if rest > 1 or size % count:
            raise ModelError(
                f"`{spec.name}` of type {spec.type} cannot be split into {tuple(counts)} slices on "
                f"the mesh {mesh}"
            )
        splits.append(tuple(names[::order]))
    return Layout(tuple(splits[::order]))


def parts_of_ranks(
    strategy: str | SplitCounts | None, batch: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """Return how many parts of each input the ranks have, where a strategy says it."""
    if strategy is None or isinstance(strategy, str) or len(strategy) != len(batch):
        return {}
    if any(
        len(counts) != array.ndim for counts, array in zip(strategy, batch.values(), strict=True)
    ):
        return {}  # which is refused where layouts are made
    return {name: tuple(counts) for name, counts in zip(batch, strategy, strict=True)}


def whole_type(part: Array, counts: Sequence[int]) -> TensorType:
    """Return the type of an input that ranks have parts of."""
    shape = tuple(n * count for n, count in zip(part.shape, counts, strict=True))
    return TensorType(part.dtype.name, shape)


def specify(name: str, array: Any, before: int = 1, after: int = 1) -> InputSpec:
    """Return the specification of an input that fits an array.

    Parameters
    ----------
    name : str
        Name of the input.
    array : array
        Its first value.
    before, after : int
        Into how many parts it is cut, and of how many such parts the input is, along its first
        dimension.

    Raises
    ------
    ModelError
        If its element type is not supported.
    """
    array = np.asarray(array)
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise ModelError(
            f"the input `{name}` has the element type `{dtype}`, expected one of {DTYPES}",
            hint="put `transforms.TypeCast` into the pipeline of the data set",
        )
    whole = np.issubdtype(array.dtype, np.integer)
    high = int(array.max()) + 1 if whole and array.size else None
    rows = tuple(size // before * after for size in array.shape[:1])
    return InputSpec(name, TensorType(dtype, rows + array.shape[1:]), high)
