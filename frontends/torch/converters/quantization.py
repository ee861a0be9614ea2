"""Fake quantization: numbers rounded to a grid, with the gradient of those inside of its range."""

from shardwright.frontends.common.call import Operand
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
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


# Fake quantization whose step and zero are trained (Esser et al., "Learned step size quantization",
# 2020), with the gradients of PyTorch's own operators.


@converts("aten._fake_quantize_learnable_per_tensor_affine")
@converts("aten._fake_quantize_learnable_per_channel_affine")
def _learned_affine(
    call: Call,
    x: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    axis: int | None = None,
    grad_factor: float = 1.0,
) -> Value:
    shape = [1] * x.type.rank
    if axis is not None:
        shape[axis] = x.type.shape[axis]
    step, zero = call.reshape(scale, shape), call.reshape(zero_point, shape)
    return _learned(call, x, step, zero, (quant_min, quant_max), grad_factor)


def _learned(
    call: Call, x: Value, scale: Value, zero: Value, bounds: tuple[int, int], factor: float
) -> Value:
    """Return the nearest numbers of a grid, with gradients of its step and its zero."""
    kind, emit = x.type.dtype, call.emit
    least, most = (call.fill(bound, kind) for bound in bounds)
    scale, zero = call.cast(scale, kind), call.cast(zero, kind)
    step, plain = emit("stop_gradient", scale), emit("stop_gradient", x)
    begin = emit("round", emit("stop_gradient", zero))
    begin = emit("minimum", emit("maximum", begin, least), most)
    place = emit("add", emit("round", emit("mul", plain, emit("reciprocal", step))), begin)
    held = emit("minimum", emit("maximum", place, least), most)
    count = emit("sub", held, begin)
    value = emit("mul", count, step)
    inside = emit("equal", held, place)
    error = emit("div", emit("sub", value, plain), step)
    of_step = call.scaled(emit("where", inside, error, count), factor)
    of_zero = emit(
        "mask",
        call.scaled(call.broadcast(step, x.type.shape), -factor),
        emit("logical_not", inside),
    )
    parts = (
        emit("mask", x, inside),
        emit("mul", of_step, scale),
        emit("mul", of_zero, zero),
    )
    return emit("with_gradient_of", value, emit("add", emit("add", parts[0], parts[1]), parts[2]))
