"""Samples of a batch, and the inputs that are known whole before the loop over micro-batches."""

from shardwright.ir.graph import Graph, Node

OWN_SAMPLES = "own_samples"
"""The operator that takes the samples of a pass, or of a rank, from a whole input."""


def samples_of(graph: Graph) -> int | None:
    """Return the samples of a batch, or of a micro-batch: the first size of the first input.

    Scalars do not count; of an input that is known whole, the own samples do.
    """
    own = own_samples(graph)
    for value in graph.inputs:
        found = own[value.name].results[0] if value.name in own else value
        if found.type.rank:
            return found.type.shape[0]
    return None


def own_samples(graph: Graph) -> dict[str, Node]:
    """Return the inputs that are known whole, each with the node that takes the own samples."""
    return graph.analysed(
        "own_samples",
        lambda: {n.operands[0]: n for n in graph.nodes if n.operator == OWN_SAMPLES},
    )
