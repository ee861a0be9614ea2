"""Products with a transposed operand, and those of experts whose columns are cut in parts."""

from typing import Any

from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Node, Value


def match_turned_columns(m: Matches, node: Node) -> Value | None:
    """Match a product whose second operand is one with its last two dimensions swapped.

    The operator reads it as it is, without a copy.
    """
    x, columns = node.operands
    source = _swapped(m, columns)
    if source is None:
        return None
    is_turned = not attribute_of(node, "transpose_b")
    how: dict[str, Any] = {**node.attributes, "transpose_b": is_turned}
    return m.build.emit("matmul", m.value(x), m.value(source), **how)


def match_parted_columns(m: Matches, node: Node) -> tuple[Value, ...] | None:
    """Match the parts of the columns of experts: each becomes a product with a part of the weights.

    Ranks that divide the columns of one product in turn would have columns of different parts, such
    as gates and inner features, which meet element by element. Layers that are no experts stay one
    product, as other systems want them.
    """
    grouped, batched = (m.made(node.operands[0], name) for name in ("grouped_matmul", "matmul"))
    product, turned = (grouped, "transposed") if grouped else (batched, "transpose_b")
    last = node.results[0].type.rank - 1
    if product is None or attribute_of(node, "axis") not in (-1, last):
        return None
    x, columns = product.operands
    source = _swapped(m, columns)
    is_turned = bool(attribute_of(product, turned)) is not bool(source)
    weight = source or columns
    parameters = {parameter.name for parameter in m.graph.parameters}
    if weight not in parameters or m.value(weight).type.rank != 3:  # [expert, row, column]
        return None
    parts, rows = len(node.results), m.value(x)
    slices = m.build.emit_all("split", m.value(weight), axis=1 if is_turned else 2, parts=parts)
    emit, how = m.build.emit, dict[str, Any]({turned: is_turned})
    return tuple(emit(product.operator, rows, one, **how) for one in slices)


def _swapped(m: Matches, name: str) -> str | None:
    """Return the value that a value is with its last two dimensions swapped."""
    turned = m.graph.producers.get(name)
    if turned is None or turned.operator != "transpose":
        return None
    rank = m.value(name).type.rank
    order = attribute_of(turned, "permutation") or tuple(reversed(range(rank)))
    assert isinstance(order, tuple)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    is_swap = tuple(d % rank for d in order if isinstance(d, int)) == swapped
    return turned.operands[0] if is_swap else None
