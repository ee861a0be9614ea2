"""Graphs as those of networkx, which takes a tenth of a second to import: nothing else needs it."""

import networkx as nx

from shardwright.ir.export import View
from shardwright.ir.graph import Graph


def to_networkx(graph: Graph) -> "nx.DiGraph[str]":
    """Return the graph of nodes, inputs and parameters; edges carry the name of the value."""
    shown = View.of(graph)
    view: nx.DiGraph[str] = nx.DiGraph(name=graph.name)
    for name, (kind, label) in shown.nodes.items():
        view.add_node(name, kind=kind, label=label)
    for (source, target), value in shown.edges.items():
        view.add_edge(source, target, value=value)
    return view
