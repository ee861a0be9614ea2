"""Removal of mirrors and of dead nodes."""

from dataclasses import dataclass

from shardwright.dataflow.properties import DIFFERENTIATED, LIVE, UNMIRRORED
from shardwright.ir.graph import Graph
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
        mirrors = [node for node in graph.nodes if node.operator in ("mirror", "own_gradient")]
        names = {node.name: node.operands[0] for node in mirrors}
        return without_dead_nodes(graph.replacing(names))
