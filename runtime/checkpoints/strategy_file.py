"""The layouts of parameters in the JSON form of MindSpore's strategy files.

MindSpore reads there how the parameters of a checkpoint are sliced: the matrix of devices, and for
each dimension the place in it, counted from the right, or -1.

References
----------
MindSpore, `strategy_checkpoint_info.cc`, for the names of the keys.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from shardwright.ir.graph import Graph, Parameter
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh

STRATEGY = "strategy"


def strategy_files(graph: Graph) -> dict[str, bytes]:
    """Return the strategy file of a program; of a pipeline one for each stage."""
    return {name: json_text(content).encode() for name, content in strategy_contents(graph).items()}


def json_text(content: Mapping[str, Any]) -> str:
    """Return the text of a strategy file."""
    return json.dumps(content, indent=1) + "\n"


def strategy_contents(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return what the strategy files of a program say, by their names.

    A parameter whose slices that form cannot express, because they differ in size or a dimension is
    split over axes that do not follow each other, is listed under ``not_expressible``.
    """
    mesh, stages = graph.mesh, {_stage(parameter) for parameter in graph.parameters}
    if mesh is None:
        return {}
    numbers = sorted(stage for stage in stages if stage is not None)
    if not numbers:
        return {f"{STRATEGY}.json": _content(graph.parameters, mesh.of_ranks, 0)}
    return {
        f"{STRATEGY}.stage_{number}.json": _content(
            [p for p in graph.parameters if _stage(p) in (number, None)], mesh.of_ranks, number
        )
        for number in numbers
    }


def _stage(parameter: Parameter) -> int | None:
    layout = parameter.value.layout
    return None if layout is None else layout.stage


def _content(parameters: Iterable[Parameter], mesh: Mesh, stage: int) -> dict[str, Any]:
    layouts: dict[str, Any] = {}
    left_out = []
    for parameter in parameters:
        value = parameter.value
        layout = value.known_layout
        found = _matrix_and_map(layout, value.type.shape, mesh)
        if found is None:
            left_out.append(parameter.name)
            continue
        layouts[parameter.name] = {
            "dev_matrix": found[0],
            "tensor_map": found[1],
            "tensor_shape": list(value.type.shape),
            "field": 0,
            "opt_weight_shard_step": 0,
            "opt_weight_shard_size": 0,
        }
    return {
        "current_stage": stage,
        "parallel_strategy_item": {},
        "parallel_layout_item": layouts,
        **({"not_expressible": left_out} if left_out else {}),
    }


def _matrix_and_map(
    layout: Layout, shape: Sequence[int], mesh: Mesh
) -> tuple[list[int], list[int]] | None:
    """Return the matrix of devices and the map of a tensor; None if there is none.

    Axes of the mesh that split one dimension together become one axis of the matrix.
    """
    names = list(mesh.names)
    runs: list[tuple[str, ...]] = []
    for axes in layout.splits:
        if not axes:
            continue
        first = names.index(axes[0])
        if tuple(names[first : first + len(axes)]) != axes:
            return None
        runs.append(axes)
    if any(size % mesh.extent(axes) for size, axes in zip(shape, layout.splits, strict=True)):
        return None
    matrix: list[tuple[str, ...]] = []
    for name in names:
        run = next((axes for axes in runs if name in axes), (name,))
        if run not in matrix:
            matrix.append(run)
    places = [-1 if not axes else len(matrix) - 1 - matrix.index(axes) for axes in layout.splits]
    return [prod(mesh.sizes[name] for name in axes) for axes in matrix] or [1], places
