"""How unevenly tokens are expected to choose experts."""

from dataclasses import dataclass, replace
from typing import Annotated

from shardwright.dataflow.properties import WHOLE
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.values import Range
from shardwright.operators.models.routing import Dispatch
from shardwright.passes.base import Pass, register_pass

IMBALANCE = Range(least=1.0)


@register_pass
@dataclass(frozen=True)
class ExpectImbalance(Pass):
    """Expect so many rows on the rank of experts that has most, over the mean of the ranks.

    The rows of experts are priced by it, and their values stay the same.

    Before::

        rows: f32[2/8*1.04, 16~, 4] = dispatch(x, chosen) {experts=8}

    After::

        rows: f32[2/8*1.5, 16~, 4] = dispatch(x, chosen) {experts=8, imbalance=1.5}

    Parameters
    ----------
    imbalance : float
        The rows of the busiest rank over the mean.
    """

    name = "expect_imbalance"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    imbalance: Annotated[float, IMBALANCE] = 1.0

    def run(self, graph: Graph) -> Graph:
        """Return the program with other types of the rows of experts.

        Raises
        ------
        OptionError
            If it has no experts.
        """
        if all(node.operator != Dispatch.name for node in graph.nodes):
            what = f"`imbalance` is {self.imbalance:g}, and `{graph.name}` has no experts"
            raise OptionError(what, hint="leave it out")
        return with_imbalance(graph, self.imbalance)


def with_imbalance(graph: Graph, imbalance: float) -> Graph:
    """Return a program in which the busiest rank of experts is expected to have other rows.

    Parameters
    ----------
    graph : Graph
        The program.
    imbalance : float
        The rows of that rank over the mean; without a bound, it has all that it can have.
    """

    def expecting(node: Node) -> Node:
        results = tuple(map(other, node.results))
        if node.operator != Dispatch.name:
            return node if results == node.results else replace(node, results=results)
        attributes = {**node.attributes, "imbalance": imbalance}
        return replace(node, results=results, attributes=attributes)

    def other(value: Value) -> Value:
        ragged = value.type.ragged
        if ragged is None:
            return value
        return replace(value, type=replace(value.type, ragged=replace(ragged, imbalance=imbalance)))

    return graph.with_nodes(tuple(map(expecting, graph.nodes)))
