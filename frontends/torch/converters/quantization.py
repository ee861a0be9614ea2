"""Fake quantization: numbers rounded to a grid, with the gradient of those inside of its range."""

from shardwright.frontends.common.call import Operand
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


@converts("aten.fake_quantize_per_tensor_affine")
def _per_tensor(
    call: Call, x: Value, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> Value:
    step = call.reshape(scale, ()) if isinstance(scale, Value) else call.fill(scale, "float32")
    zero = call.operand(zero_point, x.type.dtype)
    zero = call.reshape(zero, ()) if zero.type.rank else zero
    return _rounded(call, x, step, zero, (quant_min, quant_max), "float32")


@converts("aten.fake_quantize_per_channel_affine")
def _per_channel(
    call: Call,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value:
    shape = [n if d == axis % x.type.rank else 1 for d, n in enumerate(x.type.shape)]
    zero = call.cast(call.reshape(zero_point, shape), x.type.dtype)
    step = call.reshape(scale, shape)
    return _rounded(call, x, step, zero, (quant_min, quant_max), x.type.dtype)


def _rounded(
    call: Call, x: Value, step: Value, zero: Value, bounds: tuple[int, int], dtype: str
) -> Value:
    """Return the nearest numbers of a grid; what is beyond its bounds has no gradient.

    PyTorch rounds the step and its inverse to float32, and products with the step to `dtype`.
    """
    step = call.emit("stop_gradient", call.cast(step, "float32"))
    inverse = call.cast(call.emit("div", call.fill(1, "float32"), step), x.type.dtype)
    least, most = (call.fill(bound, x.type.dtype) for bound in bounds)
    plain = call.emit("stop_gradient", x)
    place = call.emit("add", call.emit("round", call.emit("mul", plain, inverse)), zero)
    inside = call.emit("minimum", call.emit("maximum", place, least), most)
    count = call.cast(call.emit("sub", inside, zero), dtype)
    value = call.cast(call.emit("mul", count, call.cast(step, dtype)), x.type.dtype)
    passed = call.emit("mask", x, call.emit("equal", inside, place))
    return call.emit("with_gradient_of", value, passed)
