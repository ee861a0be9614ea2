"""Experts as people write them, made rows of experts: dispatch, products of groups, combine.

A mixture is ``y_t = sum_k w_tk f(x_t; W_e)`` with ``e = chosen_tk``. Programs of others compute the
experts ``f`` on rows that are sorted by expert, or on the rows of one expert after another; how
rows come to their expert and back is written in many ways (``histc``, ``bincount``, sorts, masks,
`index_add`). So the experts are recognized by their form, and the ways by what they do: with random
linear maps in place of the experts they are run on random choices, and must give the sum above.
"""

from collections.abc import Mapping
from dataclasses import replace

from shardwright.frontends.common.mixtures.branches import branches_of
from shardwright.frontends.common.mixtures.dense import dense_mixtures
from shardwright.frontends.common.mixtures.masks import masked_mixtures
from shardwright.frontends.common.mixtures.mixture import Mixture, emitted
from shardwright.frontends.common.mixtures.slots import slots_of
from shardwright.frontends.common.mixtures.sorted_rows import sorted_rows_of
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph, Node
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array


def mixtures_in_rows(graph: Graph, data: Mapping[str, Array]) -> Graph:
    """Return the graph with recognized mixtures as rows of experts; dead nodes are not removed.

    Parameters
    ----------
    graph : Graph
        The imported program.
    data : mapping of str to array
        Initial values of its parameters.
    """
    has_rows = any(node.operator == "dispatch" for node in graph.nodes)
    for find in (sorted_rows_of, branches_of) if has_rows else (slots_of,):
        found = {mixture.out: mixture for mixture in find(graph, data)}
        build, nodes = Builder(graph=graph), list[Node]()
        for node in graph.nodes:
            own = found.get(node.name)
            nodes += [node] if own is None else emitted(graph, build, node, own)
        graph = replace(graph, nodes=tuple(nodes))
    return graph


def refuse_selections(graph: Graph) -> None:
    """Refuse rows that are selected by choices, and are no rows of experts.

    Raises
    ------
    ModelError
        If there are any.
    """
    for node in graph.nodes:
        if node.operator == "dispatch" and not node.attributes.get("ragged", True):
            where = f" in `{node.scope}`" if node.scope else ""
            raise ModelError(
                f"tokens are selected by the expert that they chose{where}, and what comes of "
                "them is no sum of what experts compute row by row",
                hint="let every expert compute each of its tokens alone, and add up what it "
                "computes times the weight of the choice",
            )


__all__ = [
    "Mixture",
    "dense_mixtures",
    "masked_mixtures",
    "mixtures_in_rows",
    "refuse_selections",
]
