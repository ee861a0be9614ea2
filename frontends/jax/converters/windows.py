"""Poolings: reductions of windows."""

from typing import Any

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.jax.converters.shape import transposed
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value


def _geometry(call: Call) -> tuple[list[int], dict[str, Any]]:
    """Return the dimensions that have windows, and their kernel, stride and padding."""
    params = call.params
    if any(n != 1 for n in params["base_dilation"]):
        raise UnsupportedError("a pooling of elements with others between")
    sizes, strides = params["window_dimensions"], params["window_strides"]
    paddings, dilation = params["padding"], params["window_dilation"]
    rank = len(sizes)
    space = [d for d in range(rank) if sizes[d] > 1 or strides[d] > 1 or any(paddings[d])]
    how = {
        "kernel": tuple(int(sizes[d]) for d in space),
        "stride": tuple(int(strides[d]) for d in space),
        "padding": tuple((int(paddings[d][0]), int(paddings[d][1])) for d in space),
        "dilation": tuple(int(dilation[d]) for d in space),
    }
    return space, how


def _pooled(call: Call, operator: str) -> Value:
    x = call.at(0)
    space, how = _geometry(call)
    if not space:
        return x
    if operator != "max_pool" and any(n != 1 for n in how.pop("dilation")):
        raise UnsupportedError("a mean of windows with gaps")
    others = [d for d in range(x.type.rank) if d not in space]
    order = [*others, *space]
    turned = transposed(call, x, order)
    outer, inner = turned.type.shape[: len(others)], turned.type.shape[len(others) :]
    first = outer[0] if len(outer) > 1 else 1
    channels = 1
    for n in outer[1:] if len(outer) > 1 else outer:
        channels *= n
    flat = call.reshape(turned, (first, channels, *inner))
    found = call.emit(operator, flat, **how)
    found = call.reshape(found, (*outer, *found.type.shape[2:]))
    back = [order.index(d) for d in range(x.type.rank)]
    return transposed(call, found, back)


@converts("reduce_window_max")
def _max(call: Call) -> Value:
    return _pooled(call, "max_pool")


@converts("reduce_window_sum")
def _sum(call: Call) -> Value:
    count = 1.0
    for n in call.params["window_dimensions"]:
        count *= n
    found = _pooled(call, "average_pool")
    return found if count == 1 else call.emit("scale", found, factor=float(count))


@converts("reduce_window_min")
def _min(call: Call) -> Value:
    inverted = call.emit("neg", call.at(0))
    call.operands = [inverted]
    return call.emit("neg", _pooled(call, "max_pool"))


@converts("reduce_window")
def _general(call: Call) -> Value:
    raise UnsupportedError("a pooling by a function of the user")
