"""Primitives that move elements: shapes, broadcasts, slices, joins."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value


@converts("reshape")
def _reshape(call: Call) -> Value:
    if call.params.get("dimensions") is not None:
        raise UnsupportedError("a reshape that reorders dimensions")
    return call.reshape(call.at(0), call.result.shape)


@converts("squeeze", "expand_dims")
def _squeeze(call: Call) -> Value:
    return call.reshape(call.at(0), call.result.shape)


@converts("transpose")
def _transpose(call: Call) -> Value:
    return transposed(call, call.at(0), call.params["permutation"])


def transposed(call: Call, x: Value, order: Any) -> Value:
    """Return a value with its dimensions reordered, of a reordered one by a single operator."""
    order = tuple(int(d) for d in order)
    if x.name in call.notes.turned:
        x, before = call.notes.turned[x.name]
        order = tuple(before[d] for d in order)
    found = call.transpose(x, order)
    if found is not x:
        call.notes.turned[found.name] = (x, order)
    return found


@converts("broadcast_in_dim")
def _broadcast(call: Call) -> Value:
    x, shape = call.at(0), call.result.shape
    kept = [1] * len(shape)
    for d, n in zip(call.params["broadcast_dimensions"], x.type.shape, strict=True):
        kept[d] = n
    return call.broadcast(call.reshape(x, kept), shape)


@converts("slice")
def _slice(call: Call) -> Value:
    strides = call.params["strides"] or (1,) * call.result.rank
    begin = tuple(call.params["start_indices"])
    return sliced(call, call.at(0), begin, call.result.shape, tuple(strides))


def sliced(call: Call, x: Value, begin: Any, size: Any, strides: Any = None) -> Value:
    """Return elements of a value."""
    begin, size = tuple(int(n) for n in begin), tuple(int(n) for n in size)
    how: dict[str, Any] = {"begin": begin, "size": size}
    if strides is not None and max(strides, default=1) > 1:
        how["strides"] = tuple(int(n) for n in strides)
    elif size == x.type.shape:
        return x
    return call.emit("slice", x, **how)


@converts("pad")
def _pad(call: Call) -> Value:
    number, x = call.number(1), call.at(0)
    if number is None:
        raise UnsupportedError("a pad with a computed number")
    sides = call.params["padding_config"]
    begin = tuple(max(-low, 0) for low, _, _ in sides)
    less = [max(-low, 0) + max(-high, 0) for low, high, _ in sides]
    if any(n and inside for n, (_, _, inside) in zip(less, sides, strict=True)):
        raise UnsupportedError("a negative pad with elements between")
    x = sliced(call, x, begin, [n - k for n, k in zip(x.type.shape, less, strict=True)])
    how: dict[str, Any] = {
        "before": tuple(max(low, 0) for low, _, _ in sides),
        "after": tuple(max(high, 0) for _, high, _ in sides),
        "value": float(number),
    }
    between = tuple(inside for _, _, inside in sides)
    if any(between):
        how["between"] = between
    if not any((*how["before"], *how["after"], *between)):
        return x
    return call.emit("pad", x, **how)


@converts("concatenate")
def _concatenate(call: Call) -> Value:
    filled = [o for o in call.operands if not isinstance(o, Constant) or o.size]
    values = tuple(map(call.value, filled))
    if len(values) == 1:
        return values[0]
    found = call.emit("concat", *values, axis=int(call.params["dimension"]))
    call.notes.joined[found.name] = values
    return found


@converts("stack")
def _stack(call: Call) -> Value:
    return call.emit("stack", *call.values(), axis=int(call.params["axis"]))


@converts("tile")
def _tile(call: Call) -> Value:
    return call.emit("tile", call.at(0), multiples=tuple(map(int, call.params["reps"])))


@converts("split")
def _split(call: Call) -> list[Value]:
    x, axis = call.at(0), int(call.params["axis"])
    ends = np.cumsum([0, *call.params["sizes"]])
    sizes = call.params["sizes"]
    return [call.part(x, axis, int(b), int(n)) for b, n in zip(ends, sizes, strict=False)]


@converts("rev")
def _reverse(call: Call) -> Value:
    return call.emit("reverse", call.at(0), axis=tuple(call.params["dimensions"]))


@converts("bitcast_convert_type")
def _bitcast(call: Call) -> Value:
    return call.emit("bitcast", call.at(0), dtype=call.result.dtype)
