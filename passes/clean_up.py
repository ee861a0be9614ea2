"""Removal of mirrors and of dead nodes, and the place of statistics in the program."""

from dataclasses import dataclass, replace

from shardwright.dataflow.deferrable import is_deferrable, parameter_tensors
from shardwright.dataflow.properties import DIFFERENTIATED, LIVE, LOWERED, UNMIRRORED
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import loop_of
from shardwright.ir.reachability import without_dead_nodes
from shardwright.operators.info import operator_class
from shardwright.passes.base import Pass, register_pass

_SMALL_BYTES = 64 * 2**10
"""Size of a tensor whose collective takes hardly longer than its latency.

A link of 50 GB/s sends it in 1.3 microseconds, and starts in more. The statistics of the experts of
Mixtral 8x7B have 32 bytes, so by half and twice as much the same is delayed."""


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


@register_pass
@dataclass(frozen=True)
class DelayStatistics(Pass):
    """Run collectives of small tensors that only the loss waits for after the forward pass.

    A collective on the path of computation waits for the parameter that is being gathered on its
    link, and computation for both. Where all that the forward pass makes of its result is as small,
    and made without parameters, the collective and all that is made of it run after everything else
    of the forward pass. A program in stages is left as it is.

    Before::

        share = all_reduce(part) {axes=('x',)}
        h = matmul(a, w)
        loss = add(h, share)

    After::

        h = matmul(a, w)
        share = all_reduce(part) {axes=('x',)}
        loss = add(h, share)
    """

    name = "delay_statistics"
    requires = (LOWERED,)
    ensures = (LOWERED,)

    def run(self, graph: Graph) -> Graph:
        """Return the program with these collectives after the forward pass."""
        if graph.mesh is None or graph.stages:
            return graph
        loop = loop_of(graph)
        begin, end = (0, len(graph.nodes)) if loop is None else (loop.start, loop.stop)
        body = graph.nodes[begin:end]
        last = max((i for i, n in enumerate(body, 1) if _is_forward(n)), default=0)
        delayed = _delayed(graph, body[:last])
        kept, late = (
            [n for n in body[:last] if (n.name in delayed) == is_late] for is_late in (0, 1)
        )
        nodes = (*graph.nodes[:begin], *kept, *late, *body[last:], *graph.nodes[end:])
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _is_forward(node: Node) -> bool:
    return node.provenance.phase == "forward"


def _delayed(graph: Graph, nodes: tuple[Node, ...]) -> set[str]:
    """Return which of some nodes, in their order, are delayed."""
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    can_wait = _that_can_wait(graph, nodes, made)
    found, read = set[str](), set[str]()
    for node in nodes:
        starts = operator_class(node.operator).is_collective and not is_deferrable(node, made)
        if node.name in can_wait and (starts or not read.isdisjoint(node.operands)):
            found.add(node.name)
            read.update(result.name for result in node.results)
    return found


def _that_can_wait(graph: Graph, nodes: tuple[Node, ...], made: set[str]) -> set[str]:
    """Return the nodes without parameters that are small, as are all their forward readers."""
    found, others = set[str](), {node.name for node in nodes if _is_forward(node)}
    for node in reversed(nodes):
        results = [result.name for result in node.results]
        sizes = [graph.values[name].type.nbytes for name in (*node.operands, *results)]
        readers = (reader.name for name in results for reader, _ in graph.uses[name])
        is_small = max(sizes, default=0) <= _SMALL_BYTES and made.isdisjoint(node.operands)
        if node.name in others and is_small and others.isdisjoint(readers):
            others.remove(node.name)
            found.add(node.name)
    return found
