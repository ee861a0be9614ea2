"""The finished import: patterns fused, dead nodes removed, bounds of integer inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.frontends.common.items import InitialValues, StoredTensor
from shardwright.frontends.common.mixtures import (
    dense_mixtures,
    masked_mixtures,
    mixtures_in_rows,
    refuse_selections,
)
from shardwright.frontends.common.patterns.recurrences import rerolled
from shardwright.frontends.common.patterns.rewrites import fuse
from shardwright.frontends.common.patterns.rows import unjoined
from shardwright.ir.graph import Graph
from shardwright.ir.reachability import live
from shardwright.ir.units import first_names
from shardwright.operators.info import Array
from shardwright.operators.verify import verify


@dataclass(frozen=True)
class Imported:
    """An imported model.

    Parameters
    ----------
    graph : Graph
        The forward program; with a loss it is the first output.
    initial : mapping of str to array
        The weights.
    highs : mapping of str to int
        Exclusive upper bounds of integer inputs, as far as the program implies them.
    warnings : tuple of str
        Warnings about parameters that are trained differently from the original module, and about
        experts that compute what they need not.
    """

    graph: Graph
    initial: Mapping[str, Array] = field(default_factory=dict)
    highs: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def absent(self) -> list[str]:
        """Names of the parameters whose elements are missing."""
        given = (p.name for p in self.graph.parameters if p.attributes["initializer"] == "data")
        return [name for name in given if name not in self.initial]


def finished(graph: Graph, data: Mapping[str, Array | StoredTensor]) -> Imported:
    """Return an emitted graph with patterns fused and without dead nodes.

    Parameters
    ----------
    graph : Graph
        The emitted program.
    data : mapping of str to array or StoredTensor
        Initial values of its parameters.
    """
    graph = _without_unread(mixtures_in_rows(_without_unread(graph), InitialValues(data)))
    refuse_selections(graph)
    graph = _without_unread(rerolled(graph))
    graph = _without_unread(fuse(graph, InitialValues(data)))
    graph = _without_unread(unjoined(graph))
    verify(graph)
    initial = InitialValues({p.name: data[p.name] for p in graph.parameters if p.name in data})
    told = (*dense_mixtures(graph, initial), *masked_mixtures(graph, initial))
    return Imported(graph, initial, _highs(graph), tuple(dict.fromkeys(told)))


def unread_warning(names: Sequence[str]) -> str:
    """Return the warning about parameters that no result depends on."""
    return f"not trained: parameters that no result depends on: {first_names(names)}"


def _without_unread(graph: Graph) -> Graph:
    """Return the graph without dead nodes, and parameters that are neither read nor updated."""
    nodes, values = live(graph.nodes, graph.kept())
    kept = {*values, *dict(graph.updates)}
    parameters = tuple(p for p in graph.parameters if p.name in kept)
    return replace(graph, parameters=parameters, nodes=nodes)


# Operators that keep positions; `mod` keeps positions counted from the front.
_PASSING = ("mod", "cast", "reshape", "transpose", "identity", "expand_dims", "squeeze")
# Lookup operators, and the operand whose shape bounds the positions.
_LOOKUPS = {"gather": 0, "gather_elements": 0, "pick": 0}


def _highs(graph: Graph) -> dict[str, int]:
    """Return exclusive upper bounds of integer inputs, for random samples."""
    bounds: dict[str, int] = {}
    for node in reversed(graph.nodes):
        if node.operator in _LOOKUPS:
            table = graph.values[node.operands[0]].type.shape
            axis = node.attributes.get("axis", -1 if node.operator == "pick" else 0)
            assert isinstance(axis, int)
            _bound(bounds, node.operands[1], table[axis])
        elif node.operator == "exp_sum_and_pick":
            _bound(bounds, node.operands[2], graph.values[node.operands[0]].type.shape[-1])
        elif node.operator == "one_hot":
            depth = node.attributes["depth"]
            assert isinstance(depth, int)
            _bound(bounds, node.operands[0], depth)
        elif node.operator in _PASSING and node.name in bounds:
            _bound(bounds, node.operands[0], bounds[node.name])
        elif node.operator == "where" and node.name in bounds:
            for chosen in node.operands[1:]:
                _bound(bounds, chosen, bounds[node.name])
    return {value.name: bounds[value.name] for value in graph.inputs if value.name in bounds}


def _bound(bounds: dict[str, int], name: str, high: int) -> None:
    bounds[name] = min(high, bounds.get(name, high))
