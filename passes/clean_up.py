"""Removal of mirrors and of dead nodes."""

from dataclasses import dataclass, replace

from shardwright.dataflow.properties import DIFFERENTIATED, LIVE, UNMIRRORED
from shardwright.ir.graph import Graph, renamed
from shardwright.ir.reachability import without_dead_nodes
from shardwright.passes.base import Pass, register_pass


@register_pass
@dataclass(frozen=True)
class CleanUp(Pass):
    """Remove mirrors, which only differentiation needs, and nodes that nothing depends on.

    Before::

        m = mirror(w) {axes=('x',)}
        h = matmul(a, m)
        d = add(h, h)
        return h

    After::

        h = matmul(a, w)
        return h
    """

    name = "clean_up"
    requires = (DIFFERENTIATED,)
    ensures = (UNMIRRORED, LIVE)

    def run(self, graph: Graph) -> Graph:
        """Return the program without mirrors and dead nodes."""
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
        graph = replace(graph, nodes=tuple(nodes), outputs=outputs, updates=updates)
        return without_dead_nodes(graph)
