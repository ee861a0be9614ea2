"""Samples of a batch, and the inputs that are known whole before the loop over micro-batches."""

from shardwright.ir.graph import Graph, Node

POSITIONS = "positions"
"""The operator whose slice says which samples a micro-batch has."""


def samples_of(graph: Graph) -> int | None:
    """Return the samples of a batch, or of a micro-batch: the first size of the first input.

    Scalars do not count, nor do inputs that are known whole, where there are others.
    """
    whole = own_samples(graph)
    sizes = [v.type.shape[0] for v in graph.inputs if v.type.rank and v.name not in whole]
    return next(iter((*sizes, *(n.results[0].type.shape[0] for n in whole.values()))), None)


def own_samples(graph: Graph) -> dict[str, Node]:
    """Return the inputs that are known whole, each with the node that takes the own samples."""
    names = {value.name for value in graph.inputs}
    found = {}
    for node in graph.nodes:
        if node.operator == "gather" and node.operands[0] in names:
            indices = graph.producers.get(node.operands[1])
            if indices is not None and indices.operator == POSITIONS:
                found[node.operands[0]] = node
    return found
