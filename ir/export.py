"""Graphs for other programs: Graphviz ``dot``, ``json``, and a networkx view."""

import json
from dataclasses import asdict

import networkx as nx

from shardwright.ir.graph import Graph
from shardwright.ir.text import type_text

_STYLES = {
    "input": "shape=ellipse",
    "parameter": "shape=cylinder",
    "node": "shape=box",
    "move": "shape=box, style=filled, fillcolor=lightblue",
}


def to_networkx(graph: Graph) -> "nx.DiGraph[str]":
    """Return the graph of nodes, inputs and parameters; edges carry the name of the value."""
    view: nx.DiGraph[str] = nx.DiGraph(name=graph.name)
    for value in graph.inputs:
        view.add_node(value.name, kind="input", label=f"{value.name}\n{type_text(value)}")
    for parameter in graph.parameters:
        label = f"{parameter.name}\n{type_text(parameter.value)}"
        view.add_node(parameter.name, kind="parameter", label=label)
    for node in graph.nodes:
        label = f"{node.operator}\n{node.name}: {type_text(node.results[0])}"
        provenance = node.provenance.text(node.name)
        label += f"\n{provenance}" if provenance else ""
        # An operator over mesh axes is communication.
        moves = "axes" in node.attributes or node.operator == "redistribute"
        view.add_node(node.name, kind="move" if moves else "node", label=label)
    for node in graph.nodes:
        for operand in node.operands:
            producer = graph.producers.get(operand)
            view.add_edge(producer.name if producer else operand, node.name, value=operand)
    return view


def to_dot(graph: Graph) -> str:
    """Return the graph in Graphviz's language; communication is coloured."""
    view = to_networkx(graph)
    lines = [f'digraph "{graph.name}" {{', "  node [fontname=monospace];"]
    for name, data in view.nodes(data=True):
        label = data["label"].replace("\n", "\\n")
        lines.append(f'  "{name}" [{_STYLES[data["kind"]]}, label="{label}"];')
    lines += [f'  "{a}" -> "{b}" [label="{d["value"]}"];' for a, b, d in view.edges(data=True)]
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
