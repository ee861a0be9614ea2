"""Gradients that a module computes itself; see `frontends.torch.gradients`."""

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients import emit_gradients
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


@converts("shardwright.gradient")
def _gradient(
    call: Call, outputs: list[Value], inputs: list[Value], cotangents: list[Value], again: bool
) -> list[Value]:
    found = emit_gradients(call.build, outputs, cotangents, inputs, again=again)
    gradients = [gradient for gradient in found if gradient is not None]
    if len(gradients) < len(found):
        raise UnsupportedError("a gradient by a tensor that is written to, or viewed again, since")
    return gradients
