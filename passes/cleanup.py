"""Removal of nodes that compute nothing anyone reads."""

from dataclasses import replace

from shardwright.ir.graph import Graph, Node, renamed


def drop_dead_nodes(graph: Graph) -> Graph:
    """Remove nodes whose results reach no output and no update.

    Before::

        h = relu(x)
        d = add(h, h)
        return h

    After::

        h = relu(x)
        return h
    """
    live = set(graph.kept())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(result.name in live for result in node.results):
            live.update(node.operands)
            kept.append(node)
    return graph.with_nodes(tuple(reversed(kept))) if len(kept) < len(graph) else graph


def drop_mirrors(graph: Graph) -> Graph:
    """Remove mirrors, which have done their work once the program is differentiated.

    Before::

        m = mirror(w) {axes=('x',)}
        h = matmul(a, m)

    After::

        h = matmul(a, w)
    """
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        operand = names.get(node.operands[0], node.operands[0]) if node.operands else ""
        if node.operator == "mirror":
            names[node.name] = operand
        else:
            nodes.append(renamed(node, names))
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
    return replace(graph, nodes=tuple(nodes), outputs=outputs, updates=updates)
