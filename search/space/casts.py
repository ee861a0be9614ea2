"""Casts of parameters: copies of master weights in the precision in which operators read them.

A parameter that only one cast reads is cast where it is stored: no other place is cheaper, since
the cast reads the least there, and the copy that is gathered afterwards has fewer bytes. So such a
cast is no choice of its own. It follows the storage of its parameter.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType, item_bytes
from shardwright.operators.info import SplitCounts, info_of


def parameter_casts(graph: Graph) -> dict[str, Node]:
    """Return the casts that follow the storage of a parameter, by parameter."""
    kept = graph.kept() | {name for name, _ in graph.updates}
    casts = {}
    for parameter in graph.parameters:
        readers = graph.uses[parameter.name]
        node = readers[0][0] if len(readers) == 1 else None
        if node is None or node.operator != "cast":
            continue
        outside = not kept.isdisjoint((parameter.name, node.name))
        if not outside and _narrows(parameter.value.type, node.results[0].type):
            casts[parameter.name] = node
    return casts


def _narrows(master: TensorType, copy: TensorType) -> bool:
    """Return whether a copy is in a floating-point type of fewer bytes."""
    return master.is_float and copy.is_float and item_bytes(copy.dtype) < item_bytes(master.dtype)


def cast_strategy(cast: Node, stored: Layout, graph: Graph, mesh: Mesh) -> Strategy:
    """Return the strategy of a cast that follows the storage of its parameter."""
    return info_of(graph, cast).infer_layouts((stored,), mesh)[0]


def pinned_storages(
    cast: Node, counts: Sequence[SplitCounts], pins: Sequence[SplitCounts]
) -> NDArray[np.int64]:
    """Return the positions of the storage options that match the pins on a cast.

    Parameters
    ----------
    cast : Node
        The cast.
    counts : sequence of SplitCounts
        The numbers of slices of each storage option of its parameter.
    pins : sequence of SplitCounts
        The pins.

    Raises
    ------
    StrategyError
        If there is none.
    """
    wanted = {tuple(map(tuple, pin)) for pin in pins}
    kept = [i for i, found in enumerate(counts) if wanted == {found}]
    if not kept:
        raise StrategyError(
            f"`{cast.operands[0]}`, which `{cast.name}` casts, cannot be stored split by "
            f"{' and '.join(map(str, sorted(wanted)))}",
            f"the strategy pinned on `{cast.name}`",
            "leave out the pin: a parameter is cast where it is stored",
        )
    return np.array(kept, dtype=np.int64)
