"""Partition: lay every tensor out as the chosen strategies demand.

Operators get their strategies and their results' layouts; where a tensor does not lie as its reader
takes it, a ``redistribute`` node stands between, and where windows are split, an exchange of halos.
A tensor with several readers is first brought to one layout that serves most of them, once.

Before::

    graph mlp {
      input x: f32[8, 16]
      parameter w: f32[16, 4]
      h: f32[8, 4] = matmul(x, w)

After::

    graph mlp on x=2 {
      input x: f32[8@x, 16]
      parameter w: f32[16@x, 4]
      w.to_0: f32[16, 4]* = redistribute(w)
      h: f32[8@x, 4] = matmul(x, w.to_0) split(m=x)
"""

from dataclasses import replace

from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_info
from shardwright.operators.windows.halo_exchange import emit_split
from shardwright.passes.gradient import emit_redistribute


def annotate(graph: Graph, decisions: Decisions) -> Graph:
    """Write the chosen strategies on the operators of a whole program.

    Before::

        h: f32[8, 4] = matmul(x, w)

    After::

        h: f32[8, 4] = matmul(x, w) split(m=x)
    """
    return graph.with_nodes(
        tuple(replace(node, strategy=decisions.strategies[node.name]) for node in graph.nodes)
    )


def partition(graph: Graph, decisions: Decisions) -> Graph:
    """Apply decisions to a whole program; outputs leave whole, updates as parameters are stored.

    Raises
    ------
    StrategyError
        If a decision does not fit its operator.
    """
    build = Builder(decisions.mesh)
    build.reserve(graph.values)
    at: dict[str, Value] = {}
    for value in graph.inputs:
        placed = replace(value, layout=decisions.stored[value.name])
        at[value.name] = _met(build, graph, build.input(placed), decisions)
    for parameter in graph.parameters:
        placed = replace(parameter.value, layout=decisions.stored[parameter.name])
        build.parameter(placed, parameter.attributes, parameter.role, parameter.weight)
    for parameter in graph.parameters:
        placed = replace(parameter.value, layout=decisions.stored[parameter.name])
        at[parameter.name] = _met(build, graph, placed, decisions)
    for node in graph.nodes:
        build.scope = node.scope
        _place(build, graph, node, decisions, at)
    outputs = []
    for name in graph.outputs:
        _move_for(build, _owner(graph, name), name)
        whole = Layout.replicated(at[name].type.rank)
        outputs.append(_brought(build, at[name], whole).name)
    for name, new in graph.updates:
        _move_for(build, _owner(graph, new), new)
        build.updates.append((name, _brought(build, at[new], decisions.stored[name]).name))
    return build.graph(graph.name, tuple(outputs))


def _place(
    build: Builder, graph: Graph, node: Node, decisions: Decisions, at: dict[str, Value]
) -> None:
    operands = graph.operand_values(node)
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    strategy = decisions.strategies[node.name]
    info.check_strategy(strategy, decisions.mesh)
    taken = info.rule.operand_layouts(strategy)
    read = []
    for name, layout in zip(node.operands, taken, strict=True):
        _move_for(build, node.provenance.operator, name)
        read.append(_brought(build, at[name], layout, name in decisions.regathered))
    split = emit_split(build, node, read, strategy)
    for result, value in zip(node.results, split.results, strict=True):
        at[result.name] = _met(build, graph, value, decisions)


def _owner(graph: Graph, name: str) -> str:
    """Return the operator that computes a value; empty for inputs and parameters."""
    producer = graph.producers.get(name)
    return producer.provenance.operator if producer is not None else ""


def _move_for(build: Builder, operator: str, tensor: str) -> None:
    """Let what is emitted next bring a tensor to the layout in which an operator reads it."""
    build.provenance = Provenance(operator, "redistribution", tensor)


def _brought(build: Builder, value: Value, layout: Layout, again: bool = False) -> Value:
    return value if value.layout == layout else emit_redistribute(build, value, layout, again)


def _met(build: Builder, graph: Graph, value: Value, decisions: Decisions) -> Value:
    shared_layout = decisions.shared_layouts.get(value.name)
    if shared_layout is None:
        return value
    _move_for(build, _first_reader(graph, value.name), value.name)
    return _brought(build, value, shared_layout.layout)


def _first_reader(graph: Graph, name: str) -> str:
    """Return the operator that reads a value first, which owns what its readers share."""
    readers = graph.uses[name]
    return readers[0][0].provenance.operator if readers else _owner(graph, name)


def insert_mirrors(graph: Graph, decisions: Decisions) -> Graph:
    """Mark every place where copies that ranks hold alike enter work that is split.

    A parameter used by data-parallel work, and an activation used by a column-split product, are
    one case: the gradients of the copies are partial sums. Readers of one tensor share a mirror
    where its `SharedLayout` says so.

    Before::

        h: f32[8@x, 4] = matmul(x, w) split(m=x)

    After::

        w.mirror: f32[16, 4]* = mirror(w) {axes=('x',)}
        h: f32[8@x, 4] = matmul(x, w.mirror) split(m=x)
    """
    flow = cotangent_flow(graph)
    shared = _shared_mirrors(graph, decisions)
    build = Builder(graph.mesh)
    build.inputs, build.parameters = list(graph.inputs), list(graph.parameters)
    for name in graph.values:
        build.unique_name(name)
    at = dict(graph.values)

    def met(name: str) -> tuple[str, ...]:
        return shared.get(_met_as(graph, name), ())

    for start in (*graph.inputs, *(p.value for p in graph.parameters)):
        at[start.name] = _mirrored(build, graph, start, shared.get(start.name, ()))
    for node in graph.nodes:
        build.scope = node.scope
        read = [
            _for_reader(build, graph, node, i, at[name], flow.operands[node.name][i], met(name))
            for i, name in enumerate(node.operands)
        ]
        build.append(replace(node, operands=tuple(value.name for value in read)))
        for result in node.results:
            at[result.name] = _mirrored(build, graph, result, shared.get(result.name, ()))
    build.updates = [(name, at[new].name) for name, new in graph.updates]
    return build.graph(graph.name, tuple(at[name].name for name in graph.outputs))


def _shared_mirrors(graph: Graph, decisions: Decisions) -> dict[str, tuple[str, ...]]:
    """Return for each value at which readers meet the axes of the mirror that they share."""
    found = {}
    for name, shared_layout in decisions.shared_layouts.items():
        value, gradient = graph.values[name], shared_layout.gradient
        if not gradient:
            continue
        if value.layout != shared_layout.layout:
            name = next(
                node.name
                for node, _ in graph.uses[name]
                if node.operator == "redistribute"
                and node.results[0].layout == shared_layout.layout
            )
        found[name] = gradient
    return found


def _met_as(graph: Graph, name: str) -> str:
    """Return what a value was before halos were exchanged: there its readers meet."""
    producer = graph.producers.get(name)
    while producer is not None and producer.operator == "halo_exchange":
        name = producer.operands[0]
        producer = graph.producers.get(name)
    return name


def _mirrored(build: Builder, graph: Graph, value: Value, axes: tuple[str, ...]) -> Value:
    if not axes:
        return value
    tensor = graph.copied_tensor(value.name)
    build.provenance = Provenance(_first_reader(graph, value.name), "mirror", tensor)
    return build.emit("mirror", value, name=f"{value.name}.mirror", axes=axes)


def _for_reader(
    build: Builder,
    graph: Graph,
    node: Node,
    position: int,
    value: Value,
    wanted: bool,
    shared: tuple[str, ...],
) -> Value:
    if node.strategy is None or not wanted:
        return value
    assert graph.mesh is not None
    types = [operand.type for operand in graph.operand_values(node)]
    rule = operator_info(node.operator, types, node.attributes).rule
    axes = rule.mirror_axes(position, node.strategy, graph.mesh)
    if not axes or axes == shared:
        return value
    tensor = graph.copied_tensor(node.operands[position])
    build.provenance = Provenance(node.provenance.operator, "mirror", tensor)
    return build.emit("mirror", value, name=f"{value.name}.mirror", axes=axes)
