"""A model with fewer of its repeated layers, by which one of any depth is priced."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph, Node, renamed


@dataclass(frozen=True)
class _Layer:
    """A numbered cell: its operators, and what they read and make."""

    nodes: tuple[Node, ...]

    @property
    def made(self) -> list[str]:
        return [result.name for node in self.nodes for result in node.results]

    def structure(self, before: "_Layer", graph: Graph) -> Hashable:
        """Return what is equal for two layers that do the same to what the one before makes."""
        own = {name: ("own", i) for i, name in enumerate(self.made)}
        own |= {name: ("before", i) for i, name in enumerate(before.made)}
        stored: dict[str, int] = {}

        def place(name: str) -> Hashable:
            if name in own:
                return own[name]
            value = graph.values[name]
            if name in graph.producers or value in graph.inputs:
                return name
            return "stored", stored.setdefault(name, len(stored)), value.type

        return tuple(
            (
                node.operator,
                tuple(map(place, node.operands)),
                tuple(result.type for result in node.results),
                repr(sorted(node.attributes.items())),
            )
            for node in self.nodes
        )


def shortened(graph: Graph, keep: int) -> Graph:
    """Return a model without the last of its repeated layers; itself where they do not repeat.

    Parameters
    ----------
    graph : Graph
        The model. Its repeated layers are the longest run of equal numbered cells, and the one
        before them.
    keep : int
        How many of them stay. What reads the last layer reads the last one kept.
    """
    layers = _repeated(graph)
    dropped = layers[keep:]
    if not dropped:
        return graph
    last, kept = layers[-1], layers[keep - 1]
    names = dict(zip(last.made, kept.made, strict=True))
    gone = {node.name for layer in dropped for node in layer.nodes}
    nodes = tuple(renamed(node, names) for node in graph.nodes if node.name not in gone)
    return _connected(graph, nodes, names) or graph


def cells(graph: Graph) -> int:
    """Return the number of numbered cells of a program."""
    return len({block_of(node.scope) for node in graph.nodes} - {""})


def _repeated(graph: Graph) -> Sequence[_Layer]:
    """Return the longest run of equal layers, with the one before it."""
    by_cell: dict[str, list[Node]] = {}
    for node in graph.nodes:
        cell = block_of(node.scope)
        if cell:
            by_cell.setdefault(cell, []).append(node)
    layers = [_Layer(tuple(nodes)) for nodes in by_cell.values()]
    keys = [
        None,
        *(own.structure(before, graph) for before, own in pairwise(layers)),
    ]
    best, begin = range(0), 1
    for i in range(1, len(layers) + 1):
        if i == len(layers) or keys[i] != keys[begin]:
            best = max(best, range(begin, i), key=len)
            begin = i
    return layers[best.start - 1 : best.stop] if best else []


def _connected(graph: Graph, nodes: tuple[Node, ...], names: Mapping[str, str]) -> Graph | None:
    """Return the program of some nodes; None where they read what none of them makes."""
    read = {name for node in nodes for name in node.operands}
    made = {result.name for node in nodes for result in node.results}
    stored = {p.name for p in graph.parameters} | {value.name for value in graph.inputs}
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((p, new) for p, new in graph.updates if p in read)
    needed = read.union(outputs, (new for _, new in updates))
    if not needed <= made | stored:
        return None
    return replace(
        graph,
        inputs=tuple(value for value in graph.inputs if value.name in read),
        parameters=tuple(p for p in graph.parameters if p.name in read),
        nodes=nodes,
        outputs=outputs,
        updates=updates,
    )
