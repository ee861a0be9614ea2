"""What MindSpore lists of a compiled cell: layouts of parameters, operators of the graph."""

from collections import Counter
from typing import Any, cast

from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import SplitCounts
from shardwright.ops.names import name_of

ParameterLayout = tuple[list[int], list[int], list[int], int, bool, str]


def parameter_layouts(
    program: Graph, mesh: Mesh, divides: bool = False
) -> dict[str, ParameterLayout]:
    """Return the layout of each input and parameter of a program on a mesh.

    It is MindSpore's tuple: the sizes of the arrangement of devices, for each dimension the axis
    that splits it, counted from the last one (-1 for none), the shape of a slice, 0, True, and the
    group of ranks among which the optimizer divides the slice further: their number and the first
    group. Axes that do not split the parameter are one, the first; those of a dimension are one,
    too.

    Parameters
    ----------
    program : Graph
        The program.
    mesh : Mesh
        The ranks.
    divides : bool
        Whether the optimizer divides parameters; then what is read is listed, not what is stored.
    """
    weights = [p.value for p in program.parameters if p.role == "weight"]
    listed = {}
    for value in (*program.inputs, *weights):
        if value.layout is not None:
            read, axes = _gathered(value, program) if divides else (value.layout, ())
            ranks = mesh.group(0, axes) if axes else ()
            group = f"{len(ranks)}-{'_'.join(map(str, ranks))}" if ranks else ""
            listed[value.name] = (*_layout(read, value.type.shape, mesh), group)
    return listed


def _gathered(value: Value, program: Graph) -> tuple[Layout, tuple[str, ...]]:
    """Return the layout in which a value is read, and the axes over which it is gathered first."""
    axes: list[str] = []
    readers = program.uses.get(value.name, ())
    while gather := next((n for n, _ in readers if n.operator == "all_gather"), None):
        axes += cast(tuple[str, ...], gather.attributes["axes"])
        value = gather.results[0]
        readers = program.uses.get(value.name, ())
    assert value.layout is not None
    return value.layout, tuple(axes)


def _layout(
    layout: Layout, shape: tuple[int, ...], mesh: Mesh
) -> tuple[list[int], list[int], list[int], int, bool]:
    counts = [mesh.extent(axes) for axes in layout.splits]
    split = [count for count in counts if count > 1]
    whole = mesh.size
    for count in split:
        whole //= count
    arrangement = [whole] * (whole > 1 or not split) + split
    places = iter(range(len(split) - 1, -1, -1))
    axes = [next(places) if count > 1 else -1 for count in counts]
    slices = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
    return arrangement, axes, slices, 0, True


def as_listed(node: Node, counts: SplitCounts) -> list[list[int]]:
    """Return the slices of the operands of an operator, as MindSpore's operator has them.

    Its `OneHot` has those of the result, with whole vectors, and of both values.
    """
    slices = [list(each) for each in counts]
    return [[*slices[0], 1], [], []] if node.operator == "one_hot" else slices


def fused_gradients(program: Graph) -> dict[str, int]:
    """Return the number of the fused all-reduce of each parameter whose gradient is in one."""
    found = {}
    for parameter in program.parameters:
        reduced = program.producers.get(gradient_name(parameter.name))
        if reduced is not None and reduced.provenance.role == "fusion":
            reduced = program.producers[reduced.operands[0]]
        fusion = reduced.attributes.get("fusion") if reduced is not None else None
        if isinstance(fusion, int) and fusion:
            found[parameter.name] = fusion
    return found


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
