"""Layouts of the inputs of a step: split over all devices, whole, or as the user says."""

from collections.abc import Sequence

from shardwright.ir.errors import ModelError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import SplitCounts
from shardwright.tracing import InputSpec


def input_layouts(
    inputs: Sequence[InputSpec], strategy: str | SplitCounts | None, mesh: Mesh | None
) -> dict[str, Layout]:
    """Return the layouts of the inputs; empty where the search chooses them, and without a mesh.

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
        spec.name: _layout(spec, counts, mesh)
        for spec, counts in zip(inputs, strategy, strict=True)
    }


def _layout(spec: InputSpec, counts: Sequence[int], mesh: Mesh) -> Layout:
    """Assign each dimension the next mesh axes that make its slices."""
    free, splits = list(mesh.axes), []
    for size, count in zip(spec.type.shape, counts, strict=True):
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
        splits.append(tuple(names))
    return Layout(tuple(splits))
