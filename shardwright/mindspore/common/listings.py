"""What MindSpore lists of a compiled cell: layouts of parameters, operators of the graph."""

from collections import Counter
from typing import Any

from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ops.names import name_of

ParameterLayout = tuple[list[int], list[int], list[int], int, bool, str]


def parameter_layouts(program: Graph, mesh: Mesh) -> dict[str, ParameterLayout]:
    """Return the layout of each parameter of a program on a mesh.

    It is MindSpore's tuple: the sizes of the arrangement of devices, for each dimension the axis
    that splits it, counted from the last one (-1 for none), the shape of a slice, 0, True, and an
    empty text: a parameter that an optimizer divides further has the layout in which it is stored.
    Axes that do not split the parameter are one, the first; those of a dimension are one, too.
    """
    return {
        parameter.name: _layout(parameter.value.layout, parameter.value.type.shape, mesh)
        for parameter in program.parameters
        if parameter.role in ("weight", "input") and parameter.value.layout is not None
    }


def _layout(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> ParameterLayout:
    counts = [mesh.extent(axes) for axes in layout.splits]
    split = [count for count in counts if count > 1]
    whole = mesh.size
    for count in split:
        whole //= count
    arrangement = [whole] * (whole > 1 or not split) + split
    places = iter(range(len(split) - 1, -1, -1))
    axes = [next(places) if count > 1 else -1 for count in counts]
    slices = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
    return arrangement, axes, slices, 0, True, ""


def graph_info(program: Graph) -> dict[str, dict[str, Any]]:
    """Return the operators of a program by graph, which is one: names, attributes and operands.

    They are the operators that every rank runs, under MindSpore's names where there is one: the
    first product is ``MatMul-0``. Operands are operators or parameters.
    """
    seen: Counter[str] = Counter()
    names: dict[str, str] = {}
    listed: dict[str, Any] = {}
    for node in program.nodes:
        kind = name_of(node.operator)
        name = f"{kind}-{seen[kind]}"
        seen[kind] += 1
        inputs = [names.get(operand, operand) for operand in node.operands]
        listed[name] = {"inputs": inputs, "attrs": dict(node.attributes)}
        names.update({result.name: name for result in node.results})
    return {"@graph_0": listed}
