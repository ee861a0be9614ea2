"""Reachability: the nodes and values that some values of a program depend on."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwright.ir.graph import Graph, Node


class Live(NamedTuple):
    """The live part of a program.

    Parameters
    ----------
    nodes : tuple of Node
        The live nodes, in program order.
    values : frozenset of str
        The ends, and every value that a live node reads.
    """

    nodes: tuple[Node, ...]
    values: frozenset[str]


def live(nodes: Sequence[Node], ends: Iterable[str]) -> Live:
    """Return the nodes and values that the values `ends` depend on; everything else is dead.

    Parameters
    ----------
    nodes : sequence of Node
        Nodes in an order in which they can run.
    ends : iterable of str
        Names of values.
    """
    values, reached = set(ends), []
    for node in reversed(nodes):
        if any(result.name in values for result in node.results):
            values.update(node.operands)
            reached.append(node)
    return Live(tuple(reversed(reached)), frozenset(values))


def without_dead_nodes(graph: Graph) -> Graph:
    """Return a program without the nodes that no output and no update depends on."""
    nodes = live(graph.nodes, graph.kept()).nodes
    if len(nodes) == len(graph):
        return graph
    names = {node.name for node in nodes}
    recomputed = tuple(name for name in graph.recomputed if name in names)
    dead = {result.name for node in graph.nodes for result in node.results} - {
        result.name for node in nodes for result in node.results
    }
    return replace(
        graph,
        nodes=nodes,
        recomputed=recomputed,
        regathered=tuple(name for name in graph.regathered if name in names),
        offloaded=tuple(name for name in graph.offloaded if name in names),
        cuts=graph.cuts_without(dead),
    )
