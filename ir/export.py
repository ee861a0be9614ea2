"""Graphs for other programs: Graphviz ``dot`` and ``json``."""

import json
from dataclasses import asdict, dataclass

from shardwright.ir.graph import Graph
from shardwright.ir.text import type_text

_STYLES = {
    "input": "shape=ellipse",
    "parameter": "shape=cylinder",
    "node": "shape=box",
    "move": "shape=box, style=filled, fillcolor=lightblue",
}


@dataclass(frozen=True)
class View:
    """What a picture of a graph shows.

    Parameters
    ----------
    nodes : dict
        The kind of each node, input and parameter by its name, and its label.
    edges : dict
        The value that goes from the first to the second name.
    """

    nodes: dict[str, tuple[str, str]]
    edges: dict[tuple[str, str], str]

    @classmethod
    def of(cls, graph: Graph) -> "View":
        """Return the view of nodes, inputs and parameters; edges are in the order of sources."""
        nodes: dict[str, tuple[str, str]] = {}
        for value in graph.inputs:
            nodes[value.name] = "input", f"{value.name}\n{type_text(value)}"
        for parameter in graph.parameters:
            label = f"{parameter.name}\n{type_text(parameter.value)}"
            nodes[parameter.name] = "parameter", label
        for node in graph.nodes:
            label = f"{node.operator}\n{node.name}: {type_text(node.results[0])}"
            provenance = node.provenance.text(node.name)
            label += f"\n{provenance}" if provenance else ""
            # An operator over mesh axes is communication.
            moves = "axes" in node.attributes or node.operator == "redistribute"
            nodes[node.name] = "move" if moves else "node", label
        edges: dict[str, dict[str, str]] = {name: {} for name in nodes}
        for node in graph.nodes:
            for operand in node.operands:
                producer = graph.producers.get(operand)
                edges[producer.name if producer else operand][node.name] = operand
        return cls(nodes, {(a, b): value for a, to in edges.items() for b, value in to.items()})


def to_dot(graph: Graph) -> str:
    """Return the graph in Graphviz's language; communication is coloured."""
    view = View.of(graph)
    lines = [f'digraph "{graph.name}" {{', "  node [fontname=monospace];"]
    for name, (kind, label) in view.nodes.items():
        shown = label.replace("\n", "\\n")
        lines.append(f'  "{name}" [{_STYLES[kind]}, label="{shown}"];')
    lines += [f'  "{a}" -> "{b}" [label="{value}"];' for (a, b), value in view.edges.items()]
    return "\n".join(lines) + "\n}\n"


def to_json(graph: Graph) -> str:
    """Return the graph as a JSON document."""
    mesh = None
    if graph.mesh:
        mesh = [[a.name, a.size, "time" if a.in_time else a.level] for a in graph.mesh.axes]
    document: dict[str, object] = {
        "name": graph.name,
        "mesh": mesh,
        "inputs": {value.name: type_text(value) for value in graph.inputs},
        "parameters": {
            p.name: {
                "type": type_text(p.value),
                "attributes": dict(p.attributes),
                "role": p.role,
                "weight": p.weight,
            }
            for p in graph.parameters
        },
        "nodes": [
            {
                "operator": node.operator,
                "operands": list(node.operands),
                "results": {result.name: type_text(result) for result in node.results},
                "attributes": dict(node.attributes),
                "scope": node.scope,
                "strategy": None if node.strategy is None else dict(node.strategy.assignment),
                "provenance": asdict(node.provenance),
            }
            for node in graph.nodes
        ],
        "updates": dict(graph.updates),
        "outputs": list(graph.outputs),
    }
    if graph.shared_layouts:
        document["shared_layouts"] = {
            name: {"layout": str(shared.layout), "gradient": list(shared.gradient)}
            for name, shared in graph.shared_layouts
        }
    if graph.recomputed:
        document["recomputed"] = list(graph.recomputed)
    if graph.regathered:
        document["regathered"] = list(graph.regathered)
    if graph.offloaded:
        document["offloaded"] = list(graph.offloaded)
    return json.dumps(document, indent=1) + "\n"
