"""Products with a transposed operand: the operator reads it as it lies, without a copy."""

from typing import Any

from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Node, Value


def match_turned_columns(m: Matches, node: Node) -> Value | None:
    """Match a product whose second operand is one with its last two dimensions swapped."""
    x, columns = node.operands
    turned = m.graph.producers.get(columns)
    if turned is None or turned.operator != "transpose":
        return None
    rank = m.value(columns).type.rank
    order = attribute_of(turned, "permutation") or tuple(reversed(range(rank)))
    assert isinstance(order, tuple)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    if tuple(d % rank for d in order if isinstance(d, int)) != swapped:
        return None
    is_turned = not attribute_of(node, "transpose_b")
    how: dict[str, Any] = {**node.attributes, "transpose_b": is_turned}
    return m.build.emit("matmul", m.value(x), m.value(turned.operands[0]), **how)
