"""Positions of lookups, moved inside as JAX moves them, and which of them were outside.

XLA moves the beginning of a slice inside. By its mode, JAX then adds the cotangent of a slice that
was outside to the one inside (CLIP), drops it (PROMISE_IN_BOUNDS, the mode of ``x[i]``), or puts
another value in place of the slice (FILL_OR_DROP, the mode of `jnp.take`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.frontends.jax.primitive_call import Call
from shardwright.ir.files.reading import DEEPEST
from shardwright.ir.graph import Node, Value
from shardwright.ir.types import numpy_dtype

Span = tuple[float, float]
_SAME_NUMBERS = frozenset(
    {"reshape", "broadcast_to", "slice", "transpose", "identity", "reverse", "stop_gradient"}
)


@dataclass
class Positions:
    """The positions of a lookup.

    Parameters
    ----------
    columns : list of int, array or Value
        Along each dimension that is looked up the positions, inside.
    inside : Value, optional
        Which were inside before; None if that makes no difference.
    """

    columns: list[Any]
    inside: Value | None


def mode_of(call: Call) -> str:
    """Return what happens to slices that are out of range: clip, fill or promise."""
    mode = str(call.params.get("mode", "")).upper()
    return next((word for word in ("CLIP", "FILL", "PROMISE") if word in mode), "FILL").lower()


def positions_inside(call: Call, x: Value, most: list[int]) -> Positions:
    """Return the positions of a lookup in a tensor, each at most a number."""
    mode = mode_of(call)
    told = mode == "fill" or (mode == "promise" and x.type.is_float)
    known = call.known(1)
    if known is not None:
        limited = np.clip(known, 0, np.asarray(most, known.dtype))
        inside = (known == limited).all(-1)
        columns = [_plain(limited[..., i]) for i in range(len(most))]
        kept = None if inside.all() or not told else call.constant(inside, "bool")
        return Positions(columns, kept)
    columns, tests = [], []
    for before, high in zip(columns_of(call, len(most)), most, strict=True):
        column, test = limited_to(call, before, high)
        columns.append(column)
        tests += [test] if told and test is not None else []
    both = tests[0] if tests else None
    for test in tests[1:]:
        both = call.emit("logical_and", both, test)  # type: ignore[arg-type]
    return Positions(columns, both)


def _plain(line: Any) -> Any:
    return int(line.ravel()[0]) if line.size == 1 else line


def columns_of(call: Call, count: int) -> list[Value]:
    """Return the positions along each dimension that is looked up, without the last dimension."""
    index = call.at(1)
    last = index.type.rank - 1
    joined = call.notes.joined.get(index.name, ())
    made = joined if len(joined) == count else [call.part(index, last, i, 1) for i in range(count)]
    return [call.reshape(column, index.type.shape[:-1]) for column in made]


def limited_to(call: Call, position: Value, most: int) -> tuple[Value, Value | None]:
    """Return positions, at least zero and at most a number, and which were so; None if all are."""
    position = _counted(call, position)
    low, high = span_of(call, position)
    if low >= 0 and high <= most:
        return position, None
    kind = np.iinfo(numpy_dtype(position.type.dtype))
    if kind.min == 0 or kind.max < most:
        position = call.cast(position, "int64")
    dtype = position.type.dtype
    limited = call.emit("minimum", position, call.fill(most, dtype))
    limited = call.emit("maximum", limited, call.fill(0, dtype))
    return limited, call.emit("equal", position, limited)


def _counted(call: Call, index: Value) -> Value:
    """Return positions without the choice that counts negative ones from the end, if none is."""
    source = call.views.get(index.name, index)
    node = call.producer(source.name)
    if node is not None and node.operator == "cast":
        node = call.producer(node.operands[0])
    plain = node and _from_the_end(call, node)
    if node is None or not plain or _span(call, plain, 0)[0] < 0:
        return index
    of = Value(plain, node.results[0].type)
    return call.reshape(call.cast(of, index.type.dtype), index.type.shape)


def _from_the_end(call: Call, node: Node) -> str | None:
    """Return the value that a choice counts from the end where it is negative."""
    if node.operator != "where":
        return None
    test, moved, plain = call.producer(node.operands[0]), node.operands[1], node.operands[2]
    added = call.producer(moved)
    is_choice = test is not None and test.operator == "less" and test.operands[0] == plain
    is_moved = added is not None and added.operator == "add" and added.operands[0] == plain
    if not is_choice or not is_moved or _span(call, test.operands[1], 0) != (0, 0):  # type: ignore[union-attr]
        return None
    return plain


# Ranges


def span_of(call: Call, value: Value) -> Span:
    """Return the least and the greatest number that integers can be, as far as it is known."""
    found = _span(call, value.name, 0)
    return _met(found, _of_type(value.type.dtype))


def _of_type(dtype: str) -> Span:
    if dtype == "bool":
        return 0, 1
    unsigned = dtype.startswith("uint")
    return (0 if unsigned else -np.inf), np.inf


def _met(a: Span, b: Span) -> Span:
    return max(a[0], b[0]), min(a[1], b[1])


def _joined(*spans: Span) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)


def _span(call: Call, name: str, depth: int) -> Span:
    """Return the span of a value, from the operators that made it; of a long chain, any number."""
    node = call.producer(name)
    if name in call.notes.spans:
        return call.notes.spans[name]
    if node is None or depth > DEEPEST or node.results[0].type.is_float:
        return -np.inf, np.inf
    found = _met(_spanned(call, node, depth + 1), _of_type(node.results[0].type.dtype))
    call.notes.spans[name] = found
    return found


def _spanned(call: Call, node: Node, depth: int) -> Span:
    operator, operands = node.operator, node.operands
    if operator == "fill":
        number = float(node.attributes["value"])  # type: ignore[arg-type]
        return number, number
    if operator not in _SAME_NUMBERS | _COMBINED | {"cast"}:
        return -np.inf, np.inf
    if operator == "where" and (plain := _from_the_end(call, node)):
        size = _span(call, call.producer(node.operands[1]).operands[1], depth)[0]  # type: ignore[union-attr]
        low, high = _span(call, plain, depth)
        return (low, high) if low >= 0 else (min(0, low + size), max(high, size - 1))
    spans = [_span(call, operand, depth) for operand in operands]
    if operator == "cast":
        kind = np.iinfo(numpy_dtype(node.results[0].type.dtype))
        fits = kind.min <= spans[0][0] and spans[0][1] <= kind.max
        return spans[0] if fits else (-np.inf, np.inf)
    if operator in _SAME_NUMBERS:
        return spans[0]
    return _combined(operator, spans)


_COMBINED = frozenset({"minimum", "maximum", "mod", "add", "where", "concat", "stack"})


def _combined(operator: str, spans: list[Span]) -> Span:
    if operator == "minimum":
        return min(s[0] for s in spans), min(s[1] for s in spans)
    if operator == "maximum":
        return max(s[0] for s in spans), max(s[1] for s in spans)
    if operator == "mod":
        divisor = spans[1]
        return (0, divisor[1] - 1) if divisor[0] > 0 else (-np.inf, np.inf)
    if operator == "add":
        total = spans[0][0] + spans[1][0], spans[0][1] + spans[1][1]
        return total if max(map(abs, total)) < 2**31 else (-np.inf, np.inf)
    return _joined(*(spans[1:] if operator == "where" else spans))
