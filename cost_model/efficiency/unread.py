"""What a software computes again of a block although no gradient reads it.

The compiler computes again what gradients read. Most training software wraps a whole block, and
computes its last product and the collective after it again too.
"""

from collections.abc import Mapping

from shardwright.cost_model.streams import parameter_tensors
from shardwright.ir.graph import Graph, Node

_DEPTH = 2  # parts of the scope of a block: `blocks/0`
_PLAIN = ("matmul", "contract_leading", "grouped_matmul", "grouped_outer")
PRODUCTS = (*_PLAIN, *(f"quantized_{name}" for name in _PLAIN), "einsum")
"""Operators that are matrix products."""


def unread_recomputation(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return the forward nodes that whole blocks would compute again, by position.

    The key is the last recomputed node of a block, the values are forward nodes of the block that
    the program does not compute again. A block is recomputed whole if products other than attention
    are.
    """
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    forward: dict[str, list[int]] = {}
    again: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        block, role = block_of(node), node.provenance.role
        if not block or made.issuperset(result.name for result in node.results):
            continue
        if role == "recompute":
            again.setdefault(block, []).append(position)
        elif role in ("forward", "redistribution"):
            forward.setdefault(block, []).append(position)
    found = {}
    for block, positions in again.items():
        nodes = [graph.nodes[i] for i in positions]
        if any(map(_is_product, nodes)):
            kept = set(map(_identity, nodes))
            missing = (i for i in forward[block] if _identity(graph.nodes[i]) not in kept)
            found[positions[-1]] = tuple(missing)
    return found


def block_of(node: Node) -> str:
    """Return the block of a node, ``blocks/0``; empty outside of blocks.

    The first parts of its scope; of an update, which has none, of the name of its parameter.
    """
    parts = node.scope.split("/") if node.scope else node.provenance.tensor.split(".")
    return "/".join(parts[:_DEPTH]) if len(parts) > 1 and parts[1].isdigit() else ""


def _identity(node: Node) -> tuple[str, str]:
    """Return what a node and its recomputed copy have in common."""
    return node.provenance.operator, node.operator


def _is_product(node: Node) -> bool:
    return node.operator in (*PRODUCTS, "convolution")
