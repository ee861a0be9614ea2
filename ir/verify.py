"""Structural rules of graphs, independent of operators.

Names are defined once and before they are read; operands, outputs and updates exist; layouts fit
their tensors and use axes of the mesh at most once; inputs, parameters and outputs are not partial;
a parameter is updated at most once. ``operators.verify`` adds the rules of operators.
"""

from collections.abc import Sequence

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout, SharedLayout
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import node_text, parameter_text, type_text


def verify_structure(graph: Graph) -> None:
    """Check the structural rules.

    Raises
    ------
    IRError
        At the first broken rule; names the node, the value found and the value expected.
    """
    known: set[str] = set()
    fitting: set[tuple[Layout, tuple[int, ...]]] = set()
    for value in graph.inputs:
        _define(value, known, graph.mesh, fitting)
        _check_complete("input", value)
    for parameter in graph.parameters:
        _define(parameter.value, known, graph.mesh, fitting)
        _check_complete("parameter", parameter.value)
    _check_weights(graph)
    for node in graph.nodes:
        for operand in node.operands:
            if operand not in known:
                raise IRError(f"`{operand}` is read before it is defined", node_text(node))
        if not node.results:
            raise IRError(f"a node of `{node.operator}` has no result, every node has one")
        try:
            for result in node.results:
                _define(result, known, graph.mesh, fitting)
        except IRError as error:
            raise IRError(error.what, node_text(node), error.hint) from None
    for name in graph.outputs:
        if name not in known:
            raise IRError(f"the output `{name}` is not defined", f"graph {graph.name}")
        _check_complete("output", graph.values[name])
    for name, shared in graph.shared_layouts:
        _verify_shared(graph, name, shared)
    _verify_marked(graph, "recompute", graph.recomputed)
    _verify_marked(graph, "regather", graph.regathered)
    _verify_marked(graph, "offload", graph.offloaded)
    for name in sorted({*graph.recomputed, *graph.regathered} & {*graph.offloaded}):
        raise IRError(
            f"`{name}` is saved in host memory, and its result is made again, too",
            f"offload {name}",
            "mark it once",
        )
    _verify_cuts(graph)
    updated: set[str] = set()
    for name, new in graph.updates:
        _verify_update(graph, name, new)
        if name in updated:
            raise IRError(f"`{name}` is updated twice", f"update {name} = {new}")
        updated.add(name)


def _check_weights(graph: Graph) -> None:
    names = {parameter.name for parameter in graph.parameters}
    for parameter in graph.parameters:
        if parameter.weight and parameter.weight not in names:
            raise IRError(
                f"`{parameter.weight}` is no parameter, a state belongs to one",
                parameter_text(parameter),
            )


def _check_complete(kind: str, value: Value) -> None:
    _check_in_device(kind, value)
    if value.layout is not None and value.layout.partial:
        raise IRError(
            f"the {kind} `{value.name}` is partial over {list(value.layout.partial)}, "
            f"expected a layout without partial axes",
            hint="reduce it first" if kind == "output" else None,
        )


def _verify_update(graph: Graph, name: str, new: str) -> None:
    where = f"update {name} = {new}"
    if new not in graph.values:
        raise IRError(f"the new value `{new}` is not defined", where)
    before, after = graph.parameter(name).value, graph.values[new]
    undecided = after.layout is None  # before partition, only stored tensors have layouts
    if before.type != after.type or (before.layout != after.layout and not undecided):
        raise IRError(
            f"`{name}` is {type_text(before)} but its next value is {type_text(after)}", where
        )


def _verify_marked(graph: Graph, mark: str, names: Sequence[str]) -> None:
    named: set[str] = set()
    for name in names:
        if name not in graph.producers:
            raise IRError(f"the graph has no operator `{name}`", f"{mark} {name}")
        if name in named:
            raise IRError(f"`{name}` is named twice, expected once", f"{mark} {name}")
        named.add(name)


def _verify_cuts(graph: Graph) -> None:
    """Check that the cuts name operators in program order, the first of a stage each."""
    positions = {node.name: i for i, node in enumerate(graph.nodes)}
    last = 0
    for name in graph.cuts:
        if name not in positions:
            raise IRError(f"the graph has no operator `{name}`", f"cut {name}")
        if positions[name] <= last:
            raise IRError(
                f"the stage that `{name}` begins is empty, or the cuts are not in program order",
                f"cut {name}",
            )
        last = positions[name]
    if graph.cuts and graph.mesh is not None and not graph.mesh.of_stages:
        raise IRError(f"the mesh has no axis of stages, and `{graph.cuts[0]}` begins a stage")


def _verify_shared(graph: Graph, name: str, shared: SharedLayout) -> None:
    where = f"shared {name}: {shared.layout}"
    if name not in graph.values:
        raise IRError(f"the shared value `{name}` is not defined", where)
    try:
        _define(Value(name, graph.values[name].type, shared.layout), set(), graph.mesh, set())
        for axis in shared.gradient:
            (graph.mesh or Mesh(())).axis(axis)
    except IRError as error:
        raise IRError(error.what, where, error.hint) from None


def _check_in_device(kind: str, value: Value) -> None:
    if value.type.in_host:
        raise IRError(
            f"the {kind} `{value.name}` is in host memory, expected the memory of the devices",
            hint="copy it with `from_host` first" if kind == "output" else None,
        )


def _define(
    value: Value,
    known: set[str],
    mesh: Mesh | None,
    fitting: set[tuple[Layout, tuple[int, ...]]],
) -> None:
    """Check a name, and a layout unless it is known to fit tensors of this shape on this mesh."""
    if value.name in known:
        raise IRError(f"`{value.name}` is defined twice, every name is defined once")
    known.add(value.name)
    if value.layout is None or (value.layout, value.type.shape) in fitting:
        return
    if mesh is None:
        raise IRError(f"`{value.name}` has a layout but the graph has no mesh")
    axes = value.layout.split_axes + value.layout.partial
    for axis in axes:
        if mesh.axis(axis).of_stages:
            raise IRError(
                f"`{value.name}` is split or partial over `{axis}`, which is the axis of stages"
            )
    if value.layout.stage is not None and not mesh.of_stages:
        raise IRError(
            f"`{value.name}` is in stage {value.layout.stage}, the mesh has no axis of stages"
        )
    if len(set(axes)) != len(axes):
        raise IRError(f"`{value.name}` uses a mesh axis twice: {value.layout}")
    try:
        value.layout.check(value.type.shape, mesh)
    except IRError as error:
        raise IRError(f"`{value.name}`: {error.what}") from None
    fitting.add((value.layout, value.type.shape))
