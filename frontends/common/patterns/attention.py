"""The patterns of decomposed attention: softmax(scale q k' + mask) v and its variants.

That is: scales of queries and keys apart, masks chosen or added, zeros for queries that read no
key, keys and values repeated for several heads of queries, and casts around the softmax.
"""

from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.patterns.masks import MASKED, is_mask
from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Node, Value
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape

# Scores, their mask, whether it is the causal one, and the queries that read some key, if others
# may read none.
Masked = tuple[str, Value | None, bool, Value | None]


def match_attention(m: Matches, node: Node) -> Value | None:
    """Match the product of weights and values, per head or per sample."""
    weights = _softmax(m, node.operands[0])
    values = m.value(node.operands[1])
    plain = not attribute_of(node, "transpose_a") and not attribute_of(node, "transpose_b")
    if not weights or not plain or values.type.rank not in (3, 4):
        return None
    if attribute_of(weights, "axis") not in (-1, values.type.rank - 1):
        return None
    before = weights.operands[0]
    masked = _unmasked(m, m.rounded(before))
    if masked is None:
        return None
    scores, mask, causal, reading = masked
    scale, rest = m.factors(m.rounded(scores), whole=False)
    product = m.made(rest[0], "matmul") if len(rest) == 1 else None
    if product is None or attribute_of(product, "transpose_a"):
        return None
    factor, queries = _unscaled(m, product.operands[0])
    found = _keys(m, product)
    if m.value(queries).type.rank != values.type.rank or found is None:
        return None
    scale *= factor * found[0]
    taken = m.value(queries) if reading is None else _zeroed(m, queries, reading)
    return _emitted(m, node, (taken, found[1], values), mask, causal, scale, before)


def _zeroed(m: Matches, queries: str, reading: Value) -> Value:
    """Return queries that are zero where they read no key.

    All their scores are one number then, whatever the keys are, and no gradient enters them.
    """
    x = m.value(queries)
    zero = m.build.emit("fill", shape=(), dtype=x.type.dtype, value=0.0)
    return m.build.emit("where", reading, x, zero)


def match_repeated_heads(m: Matches, node: Node) -> Value | None:
    """Match attention whose keys and values are repeated for several heads of queries."""
    query, key, value, *mask = (m.value(name) for name in node.operands)
    keys, values = _unrepeated(m, key, value)
    if keys.name == key.name:
        return None
    how: dict[str, Any] = dict(node.attributes)
    return m.build.emit(node.operator, query, keys, values, *mask, **how)


def _emitted(
    m: Matches,
    node: Node,
    operands: tuple[Value, Value, Value],
    mask: Value | None,
    causal: bool,
    scale: float,
    before: str,
) -> Value | None:
    """Emit the operator, in the type of the softmax."""
    queries, keys, values = (_by_head(m, value) for value in operands)
    leading = queries.type.shape[:2]
    if keys.type.shape[:2] != leading or values.type.shape[:2] != leading:
        return None
    keys, values = _unrepeated(m, keys, values)
    dtype = m.value(before).type.dtype
    taken = [m.cast(value, dtype) for value in (queries, keys, values)]
    if mask is not None:
        taken.append(_four(m, mask, operands[0].type.rank, dtype))
    made = m.build.emit("scaled_dot_product_attention", *taken, causal=causal, scale=scale)
    result = m.value(node.name).type
    made = m.cast(made, result.dtype)
    if made.type.shape == result.shape:
        return made
    return m.build.emit("reshape", made, shape=result.shape)


def _softmax(m: Matches, name: str) -> Node | None:
    """Return the softmax that produces weights, past a replacement of NaN rows by zero."""
    name = m.rounded(name)
    chosen = m.made(name, "where")
    if chosen is None:
        return m.made(name, "softmax")
    condition, zero, kept = chosen.operands
    tested, filled = m.made(condition, "is_nan"), m.graph.producers.get(zero)
    if tested is None or tested.operands[0] != kept or filled is None:
        return None
    is_zero = filled.operator == "fill" and not attribute_of(filled, "value")
    return m.made(kept, "softmax", reads=2) if is_zero else None


# Queries, keys and values


def _unscaled(m: Matches, name: str) -> tuple[float, str]:
    """Return a value as a number times another value."""
    factor, scaled = 1.0, m.made(name, "scale")
    while scaled is not None:
        factor *= float(str(attribute_of(scaled, "factor")))
        name = scaled.operands[0]
        scaled = m.made(name, "scale")
    return factor, name


def _keys(m: Matches, product: Node) -> tuple[float, Value] | None:
    """Return the factor of the keys of a product, and the keys, the features last."""
    factor, name = _unscaled(m, product.operands[1])
    if attribute_of(product, "transpose_b"):
        return factor, m.value(name)
    keys = m.value(name)
    if keys.type.rank not in (3, 4):
        return None
    turned = _turned(m, keys)
    inner, source = _unscaled(m, turned.name)
    return factor * inner, turned if source == turned.name else m.value(source)


def _turned(m: Matches, keys: Value) -> Value:
    """Return keys from their transpose ``[..., feature, key]``, without a node if possible."""
    rank = keys.type.rank
    swap = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(keys.type.shape[i] for i in swap)
    before, joined = m.made(keys.name, "transpose"), m.made(keys.name, "reshape")
    if joined is not None:  # [batch head, feature, key] between
        inner = m.made(joined.operands[0], "transpose")
        if inner is not None and attribute_of(inner, "permutation") == (0, 2, 1):
            source = m.value(inner.operands[0])
            if source.type.shape == (prod(shape[:-2]), *shape[-2:]):
                return _as_shape(m, source, shape)
    if before is None:
        return m.build.emit("transpose", keys, permutation=swap)
    order = attribute_of(before, "permutation")
    assert isinstance(order, tuple)
    whole = tuple(order[i] for i in swap)
    source = m.value(before.operands[0])
    if whole == tuple(range(rank)):
        return source
    return m.build.emit("transpose", source, permutation=whole)


def _as_shape(m: Matches, value: Value, shape: Shape) -> Value:
    """Return a value in another shape: the source of a reshape, if it has that shape."""
    found = value
    while found.type.shape != shape:
        node = m.producer(found.name)
        if node is None or node.operator != "reshape":
            break
        found = m.value(node.operands[0])
    if found.type.shape == shape:
        return found
    return m.build.emit("reshape", value, shape=shape)


def _by_head(m: Matches, value: Value) -> Value:
    """Return a value as ``[batch, head, position, feature]``, of one head if it has none."""
    shape = value.type.shape
    if len(shape) == 4:
        return value
    return m.build.emit("reshape", value, shape=(shape[0], 1, *shape[1:]))


def _unrepeated(m: Matches, keys: Value, values: Value) -> tuple[Value, Value]:
    """Return keys and values without repetition for several heads of queries, if both have it."""
    found = [_repeated(m, value) for value in (keys, values)]
    if found[0] is None or found[1] is None:
        return keys, values
    if found[0].type.shape[1] != found[1].type.shape[1]:
        return keys, values
    own = [
        (x.type.shape[0], y.type.shape[1], *x.type.shape[2:])
        for x, y in zip((keys, values), found, strict=True)
        if y is not None
    ]
    first, second = (_as_shape(m, x, s) for x, s in zip(found, own, strict=True) if x is not None)
    return first, second


def _repeated(m: Matches, value: Value) -> Value | None:
    """Return the source of a repetition: ``[batch, group, 1, position, feature]``."""
    batch, heads, *rest = value.type.shape
    node = m.producer(value.name)
    while node is not None and node.operator == "reshape":
        node = m.producer(node.operands[0])
    if node is None or node.operator != "broadcast_to":
        return None
    source, shape = m.value(node.operands[0]), m.value(node.name).type.shape
    if len(shape) != 5 or (shape[0], shape[1] * shape[2], *shape[3:]) != (batch, heads, *rest):
        return None
    return source if source.type.shape == (batch, shape[1], 1, *rest) else None


# Masks


def _four(m: Matches, mask: Value, rank: int, dtype: str) -> Value:
    """Return a mask of four dimensions; a mask per sample gets one head."""
    shape = mask.type.shape
    shape = (*(1,) * (rank - len(shape)), *shape)
    if rank == 3:
        shape = (shape[0], 1, *shape[1:])
    if mask.type.dtype != "bool":
        mask = m.cast(mask, dtype)
    return mask if mask.type.shape == shape else m.build.emit("reshape", mask, shape=shape)


def _unmasked(m: Matches, name: str) -> Masked | None:
    """Return scores without their mask, the mask, and whether it is the causal one."""
    shape = m.value(name).type.shape
    chosen, added = m.made(name, "where"), m.made(name, "add")
    if chosen is not None:
        return _chosen(m, chosen, shape)
    for scores, mask in (added.operands, added.operands[::-1]) if added else ():
        value = m.value(mask)
        fits = m.value(scores).type.shape == shape == _widened(value, shape)
        if not fits or m.reads[scores] != 1 or _holds_product(m, mask):
            continue
        known = None if mask in m.trained else m.data.get(mask)
        if known is not None and is_mask(known) and _is_causal(known == 0, shape):
            return scores, None, True, None
        return scores, _condition(m, mask) or value, False, None
    return name, None, False, None


def _condition(m: Matches, mask: str) -> Value | None:
    """Return where a mask is zero, if it is minus infinity elsewhere."""
    chosen = m.graph.producers.get(mask)
    if chosen is None or chosen.operator != "where":
        return None
    condition, *numbers = chosen.operands
    filled = [_filled(m, name) for name in numbers]
    if filled == [0.0, -np.inf]:
        read = m.value(condition)
    elif filled == [-np.inf, 0.0]:
        read = m.build.emit("logical_not", m.value(condition))
    else:
        return None
    return read if read.type.shape == m.value(mask).type.shape else None


def _holds_product(m: Matches, name: str) -> bool:
    """Return whether a value contains the scores that are masked."""
    _, rest = m.factors(name, whole=False)
    return len(rest) == 1 and m.made(rest[0], "matmul") is not None


def _widened(mask: Value, shape: Shape) -> Shape | None:
    """Return the shape, if a mask broadcasts to it and has all its keys."""
    own = mask.type.shape
    if not own or own[-1] != shape[-1] or len(own) > len(shape):
        return None
    sides = zip(own[::-1], shape[::-1], strict=False)
    return shape if all(n in (1, size) for n, size in sides) else None


def _chosen(m: Matches, node: Node, shape: Shape) -> Masked | None:
    """Return the result of `_unmasked` for a selection of scores or a large negative number."""
    condition, *choices = node.operands
    mask, filled = m.value(condition), [_filled(m, name) for name in choices]
    below = [number is not None and number <= MASKED for number in filled]
    if sum(below) != 1 or _widened(mask, shape) is None:
        return None
    scores, number = choices[below.index(False)], filled[below.index(True)]
    if m.value(scores).type.shape != shape:
        return None
    known = m.data.get(condition)
    if known is None:
        reading = _reading(m, mask, below[0]) if number != -np.inf else None
        return scores, _chosen_mask(m, mask, below[0], number, scores), False, reading
    read = ~known if below[0] else known  # where keys are read
    if number != -np.inf and not read.any(axis=-1).all():
        return None  # a query without keys reads all keys equally there
    if _is_causal(read, shape):
        return scores, None, True, None
    return scores, m.build.emit("logical_not", mask) if below[0] else mask, False, None


def _reading(m: Matches, mask: Value, is_below: bool) -> Value:
    """Return which queries read some key, by the condition of the mask."""
    axis = (mask.type.rank - 1,)
    if not is_below:
        return m.build.emit("reduce_any", mask, axis=axis, keep_dims=True)
    none = m.build.emit("reduce_all", mask, axis=axis, keep_dims=True)
    return m.build.emit("logical_not", none)


def _chosen_mask(
    m: Matches, mask: Value, is_below: bool, number: float | None, scores: str
) -> Value:
    """Return a computed mask: where keys are read, or numbers to add.

    A query without keys gives zero, or the mean if all its scores are one finite number.
    """
    if number == -np.inf:
        return m.build.emit("logical_not", mask) if is_below else mask
    dtype = m.value(scores).type.dtype
    numbers = [m.build.emit("fill", shape=(), dtype=dtype, value=n) for n in (number, 0.0)]
    return m.build.emit("where", mask, *(numbers if is_below else numbers[::-1]))


def _filled(m: Matches, name: str) -> float | None:
    """Return the number that all elements of a value equal; None if they differ."""
    fill = m.graph.producers.get(name)
    if fill is None or fill.operator != "fill":
        return None
    return float(str(attribute_of(fill, "value")))


def _is_causal(known: Array, shape: Shape) -> bool:
    """Return whether each query reads exactly the keys up to its position."""
    causal = np.tri(shape[-2], shape[-1], dtype=bool)
    return bool((np.broadcast_to(known, shape) == causal).all())
