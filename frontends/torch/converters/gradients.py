"""Gradients that a module computes itself; see `frontends.torch.gradients`."""

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients import emit_gradients
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
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
