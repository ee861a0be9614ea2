"""Gradients of operands that were broadcast."""

from shardwright.ir.graph import Value
from shardwright.operators.info import Emitter


def unbroadcast(build: Emitter, cotangent: Value, operand: Value) -> Value:
    """Sum a cotangent over the dimensions along which `operand` was broadcast."""
    extra = cotangent.type.rank - operand.type.rank
    shape = (1,) * extra + operand.type.shape
    stretched = tuple(
        i
        for i, (have, want) in enumerate(zip(cotangent.type.shape, shape, strict=True))
        if have != want and i >= extra
    )
    if stretched:
        cotangent = build.emit("reduce_sum", cotangent, axis=stretched, keep_dims=True)
    if extra:
        cotangent = build.emit("reduce_sum", cotangent, axis=tuple(range(extra)), keep_dims=False)
    return cotangent
