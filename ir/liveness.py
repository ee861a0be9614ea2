"""Liveness of values: where a program uses each value for the last time.

Buffers, which several values may share, are in `dataflow.liveness`.
"""

from collections.abc import Container

from shardwright.ir.graph import Graph


def dying_values(graph: Graph, updated: Container[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Return for each node the values that are dead after it.

    A result without a reader dies at its own node. Parameters outlive the program, except those
    that an update replaces.

    Parameters
    ----------
    graph : Graph
        A program.
    updated : container of str
        Parameters that an update replaces.
    """
    lasting = {p.name for p in graph.parameters if p.name not in updated}
    seen: set[str] = set()
    dying = []
    for node in reversed(graph.nodes):
        touched = dict.fromkeys((*node.operands, *(result.name for result in node.results)))
        names = tuple(name for name in touched if name not in seen and name not in lasting)
        seen.update(names)
        dying.append(names)
    return tuple(reversed(dying))
