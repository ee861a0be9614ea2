"""Parts of a tensor that are each reshaped and transposed, such as queries, keys and values."""

from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Node, Value


def match_turned_part(m: Matches, node: Node) -> Value | None:
    """Match a part of the last dimension whose heads are moved, and so are those of all parts.

    The whole is transposed once, and then split. Each part has its own copy of the transpose and
    the split here; equal nodes are merged when the program is compiled.
    """
    found = _turned(m, node)
    if found is None:
        return None
    split, shape, order = found
    x = m.value(split.operands[0])
    last = x.type.rank - 1
    parts = len(split.results)
    others = _transposes(m, split)
    if len(others) != parts or any(_turned(m, other) != found for other in others):
        return None
    whole = m.build.emit("reshape", x, shape=(*shape[:last], parts, *shape[last:]))
    moved = (last, *(d + (d >= last) for d in order))
    turned = m.build.emit("transpose", whole, permutation=moved)
    results = m.build.emit_all("split", turned, axis=0, parts=parts)
    part = m.graph.producers[node.operands[0]].operands[0]
    at = [result.name for result in split.results].index(part)
    return m.build.emit("reshape", results[at], shape=m.value(node.name).type.shape)


Turned = tuple[Node, tuple[int, ...], tuple[int, ...]]


def _turned(m: Matches, node: Node) -> Turned | None:
    """Return the split, the shape of a part with heads, and the order of its dimensions."""
    view = m.made(node.operands[0], "reshape")
    split = m.made(view.operands[0], "split") if view else None
    if view is None or split is None:
        return None
    rank = m.value(split.operands[0]).type.rank
    shape = m.value(view.name).type.shape
    part = m.value(view.operands[0]).type.shape
    permutation = attribute_of(node, "permutation")
    if not isinstance(permutation, tuple) or not permutation:  # all dimensions reversed
        return None
    order = tuple(d % len(shape) for d in permutation if isinstance(d, int))
    is_last = attribute_of(split, "axis") in (-1, rank - 1)
    return (split, shape, order) if is_last and shape[: rank - 1] == part[:-1] else None


def _transposes(m: Matches, split: Node) -> list[Node]:
    """Return the transposes of reshaped parts of a split."""
    views = [view for part in split.results for view, _ in m.graph.uses[part.name]]
    reading = [node for view in views for node, _ in m.graph.uses[view.name]]
    return [node for node in reading if node.operator == "transpose"]
