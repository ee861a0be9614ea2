"""Lowering of redistributions to collectives."""

from dataclasses import replace

from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class


def lower_redistributions(graph: Graph, planner: RedistributionPlanner) -> Graph:
    """Replace every ``redistribute`` by the cheapest collectives that do it.

    The search has priced the same paths, so the program costs what the search said.

    Before::

        y: f32[8, 4@x] = redistribute(p)

    After::

        y: f32[8, 4@x] = reduce_scatter(p) {axes=('x',), dimension=1}
    """
    build = Builder(graph.mesh, graph)
    build.nodes = []
    names: dict[str, str] = {}
    for node in graph.nodes:
        if node.operator == "redistribute":
            source = graph.values[node.operands[0]]
            read = names.get(source.name, source.name)
            names[node.name] = _lower(build, node, replace(source, name=read), planner)
        else:
            build.nodes.append(renamed(node, names))
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
    return replace(graph, nodes=tuple(build.nodes), outputs=outputs, updates=updates)


def _lower(build: Builder, node: Node, source: Value, planner: RedistributionPlanner) -> str:
    """Emit the moves of one redistribution and return the name of what comes out."""
    target = node.results[0]
    if source.layout is None or target.layout is None:
        raise PassError(f"`{node.name}` redistributes a tensor whose layout is not decided")
    moves = planner.plan(source.type, source.layout, target.layout)
    build.scope = node.scope
    value, origin = source, node.provenance
    for position, move in enumerate(moves):
        attributes = dict(move.attributes)
        if source.layout.reduction != "sum" and operator_class(move.operator).reduces:
            attributes["reduction"] = source.layout.reduction
        last = position == len(moves) - 1
        layout = move.target
        if layout.partial and source.layout.reduction != "sum":
            layout = layout.with_partial(layout.partial, source.layout.reduction)
        name = target.name if last else build.unique_name(f"{target.name}.step", numbered=True)
        result = Value(name, source.type, layout)
        build.append(
            Node(
                move.operator,
                (value.name,),
                (result,),
                {"axes": move.axes, **attributes},
                node.scope,
                provenance=origin if last else replace(origin, target=target.name),
            )
        )
        value = result
    return value.name
