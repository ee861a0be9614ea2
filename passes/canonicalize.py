"""Canonical form: no identities, no two equal nodes, no dead nodes."""

from dataclasses import replace

from shardwright.ir.graph import Graph, Node, renamed
from shardwright.passes.cleanup import drop_dead_nodes


def canonicalize(graph: Graph, keep: frozenset[str] = frozenset()) -> Graph:
    """Remove identities, merge equal nodes, and drop dead ones.

    Before::

        a = relu(x)
        b = relu(x)
        c = identity(b)
        y = add(a, c)

    After::

        a = relu(x)
        y = add(a, a)

    Parameters
    ----------
    graph : Graph
        The program.
    keep : frozenset of str
        Nodes that stay as they are, such as those whose strategy a person has fixed.
    """
    names: dict[str, str] = {}
    seen: dict[object, Node] = {}
    nodes = []
    for node in graph.nodes:
        node = renamed(node, names)
        if node.operator == "identity" and node.name not in keep:
            names[node.name] = node.operands[0]
            continue
        key = (node.operator, node.operands, tuple(sorted(node.attributes.items())))
        twin = seen.setdefault(key, node)
        if twin is not node and not {node.name, twin.name} & keep:
            pairs = zip(node.results, twin.results, strict=True)
            names.update((result.name, other.name) for result, other in pairs)
            continue
        nodes.append(node)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
    return drop_dead_nodes(replace(graph, nodes=tuple(nodes), outputs=outputs, updates=updates))
