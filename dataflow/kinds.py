"""Kinds of nodes: equal ones of many layers, which cost the same and are priced once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.attributes import Attributes, ordered
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.communication.inserted import Transfer


@dataclass(frozen=True)
class Kinds:
    """The nodes of a program by what they cost: those of a kind cost the same.

    Parameters
    ----------
    of_nodes : sequence of int
        The kind of each node.
    firsts : sequence of int
        The position of the first node of each kind.
    """

    of_nodes: Sequence[int]
    firsts: Sequence[int]


def kinds_of(graph: Graph) -> Kinds:
    """Return the kinds of the nodes of a program: equal nodes of many layers are of one kind."""
    return graph.analysed("kinds of nodes", lambda: _kinds(graph))


def _kinds(graph: Graph) -> Kinds:
    values, numbers, known = graph.values, _Numbers(), dict[object, int]()
    of_nodes, firsts = list[int](), list[int]()
    for position, node in enumerate(graph.nodes):
        key: object = node.name
        if node.operator != Transfer.name:  # of others no cost depends on the stage
            operands = [values[name] for name in node.operands]
            parts = [part for value in operands for part in (value.type, value.layout)]
            parts += [value.layout for value in node.results]
            key = (node.operator, numbers.of(node.attributes), *map(numbers.of, parts))
        kind = known.setdefault(key, len(known))
        of_nodes.append(kind)
        if kind == len(firsts):
            firsts.append(position)
    return Kinds(of_nodes, firsts)


class _Numbers:
    """Numbers of the types, layouts and attributes of a program: equal ones have the same.

    Each object is compared once. Layouts in several stages are equal.
    """

    def __init__(self) -> None:
        self._by_object: dict[int, int] = {}
        self._by_value: dict[object, int] = {}

    def of(self, thing: TensorType | Layout | Attributes | None) -> int:
        """Return the number of something that is alive as long as this."""
        found = self._by_object.get(id(thing))
        if found is None:
            value: object = thing
            if isinstance(thing, Layout):
                value = thing.at(None)
            elif isinstance(thing, Mapping):
                value = ordered(thing)
            found = self._by_value.setdefault(value, len(self._by_value))
            self._by_object[id(thing)] = found
        return found
