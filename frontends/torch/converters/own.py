"""Operators of this frontend in exports: gradients that a module computes, and rows of experts.

See `frontends.torch.gradients` and `frontends.torch.experts`.
"""

from math import prod

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients import emit_gradients
from shardwright.frontends.common.groups import picked, product_of_groups, put
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value


@converts("shardwright.gradient")
def _gradient(
    call: Call,
    outputs: list[Value],
    inputs: list[Value],
    cotangents: list[Value],
    again: bool,
    zeros: bool = False,
) -> list[Value]:
    slopes, once = call.emission.slopes, call.emission.once
    found = emit_gradients(
        call.build, outputs, cotangents, inputs, again=again, slopes=slopes, once=once
    )
    if None in found and not zeros:
        raise UnsupportedError("a gradient by a tensor that is written to, or viewed again, since")
    return [
        call.fill(0, x.type.dtype, x.type.shape) if gradient is None else gradient
        for x, gradient in zip(inputs, found, strict=True)
    ]


@converts("shardwright.stopped")
def _stopped(call: Call, x: Value) -> Value:
    return call.emit("stop_gradient", x)


@converts("shardwright.dispatch")
def _dispatch(call: Call, tokens: Value, chosen: Value, experts: int) -> Value:
    return call.emit("dispatch", tokens, chosen, experts=experts)


@converts("shardwright.grouped_matmul")
def _grouped_matmul(call: Call, rows: Value, matrices: Value, transposed: bool) -> Value:
    return call.emit("grouped_matmul", rows, matrices, transposed=transposed)


@converts("shardwright.combine")
def _combine(call: Call, rows: Value, chosen: Value, weights: Value) -> Value:
    return call.emit("combine", rows, chosen, weights)


@converts("shardwright.product_of_groups")
def _product_of_groups(call: Call, rows: Value, matrices: Value, ends: Value) -> Value:
    return product_of_groups(call, rows, matrices, ends)


@converts("shardwright.picked")
def _picked(call: Call, rows: Value, mask: Value) -> Value:
    size, *rest = rows.type.shape
    found = picked(call, call.reshape(rows, (size, prod(rest))), mask)
    return call.reshape(found, rows.type.shape)


@converts("shardwright.put")
def _put(call: Call, rows: Value, mask: Value) -> Value:
    size, *rest = rows.type.shape
    found = put(call, call.reshape(rows, (size, prod(rest))), mask)
    return call.reshape(found, rows.type.shape)


@converts("shardwright.places")
def _places(call: Call, mask: Value, dim: int) -> Value:
    raise UnsupportedError("the places of tokens that chose an expert, as numbers,")
