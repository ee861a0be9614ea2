"""Rows of experts; see `frontends.torch.experts`."""

from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


@converts("shardwright.dispatch")
def _dispatch(call: Call, tokens: Value, chosen: Value, experts: int) -> Value:
    return call.emit("dispatch", tokens, chosen, experts=experts)


@converts("shardwright.grouped_matmul")
def _grouped_matmul(call: Call, rows: Value, matrices: Value, transposed: bool) -> Value:
    return call.emit("grouped_matmul", rows, matrices, transposed=transposed)


@converts("shardwright.combine")
def _combine(call: Call, rows: Value, chosen: Value, weights: Value) -> Value:
    return call.emit("combine", rows, chosen, weights)
