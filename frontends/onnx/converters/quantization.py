"""Quantization, dequantization, and products of quantized tensors."""

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.converters.linear import geometry, product
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.frontends.onnx.onnx_types import dtype_of
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension


def _aligned(call: Call, value: Value, x: Value) -> Value:
    """Return a scale or zero point in a shape that broadcasts to its tensor."""
    if value.type.elements == 1:
        return call.reshape(value, ())
    axis, block = dimension(call.attribute("axis", 1), x.type.rank), call.attribute("block_size", 0)
    if value.type.rank == 1:
        return call.reshape(value, [-1 if i == axis else 1 for i in range(x.type.rank)])
    if not block:
        return value
    shape = list(value.type.shape)
    grown = (*shape[: axis + 1], block, *shape[axis + 1 :])
    spread = call.emit("spread", value, shape=grown, axis=(axis + 1,))
    shape[axis] *= block
    whole = call.reshape(spread, shape)
    if shape[axis] == x.type.shape[axis]:
        return whole
    return call.emit("slice", whole, begin=(0,) * len(shape), size=x.type.shape)


@converts("QuantizeLinear")
def _quantize(call: Call) -> Value:
    x, scale = call.value(0), call.value(1)
    dtype = call.dtype(2) if call.has(2) else "uint8"
    asked = call.attribute("output_dtype", 0)
    if asked and not call.has(2):
        dtype = dtype_of(asked)
    zero = _aligned(call, call.value(2), x) if call.has(2) else None
    return quantized(call, x, _aligned(call, scale, x), zero, dtype)


def quantized(call: Call, x: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """Return a tensor, quantized by a scale, in a narrow integer type."""
    kind = "float32" if x.type.dtype != "float64" else "float64"
    if dtype not in ("int8", "int16", "uint8", "uint16"):
        raise UnsupportedError(f"a tensor quantized to {dtype}")
    divided = call.emit("div", call.cast(x, kind), call.cast(scale, kind))
    found = call.emit("round", divided)
    if zero is not None:
        found = call.emit("add", found, call.cast(zero, kind))
    bounds = np.iinfo(numpy_dtype(dtype))
    found = call.emit("clip", found, low=float(bounds.min), high=float(bounds.max))
    return call.cast(found, dtype)


@converts("DequantizeLinear")
def _dequantize(call: Call) -> Value:
    x, scale = call.value(0), call.frozen(1)
    asked = call.attribute("output_dtype", 0)
    zero = _aligned(call, call.value(2), x) if call.has(2) else None
    found = _centred(call, x, zero, scale.type.dtype)
    found = call.emit("mul", found, _aligned(call, scale, x))
    return call.cast(found, dtype_of(asked)) if asked else found


def _centred(call: Call, x: Value, zero: Value | None, dtype: str) -> Value:
    """Return quantized integers minus their zero point, in another type."""
    found = call.cast(x, dtype)
    return found if zero is None else call.emit("sub", found, call.cast(zero, dtype))


@converts("MatMulInteger")
def _matmul_integer(call: Call) -> Value:
    a = _centred(call, call.value(0), _rows(call, 2), "int32")
    b = _centred(call, call.value(1), call.value(3) if call.has(3) else None, "int32")
    return product(call, a, b)


def _rows(call: Call, position: int) -> Value | None:
    """Return a zero point for each row of a matrix."""
    if not call.has(position):
        return None
    zero = call.value(position)
    return call.reshape(zero, (*zero.type.shape, 1)) if zero.type.rank == 1 else zero


@converts("QLinearMatMul")
def _quantized_matmul(call: Call) -> Value:
    a_scale, b_scale, y_scale = call.value(1), call.value(4), call.value(6)
    a = _centred(call, call.value(0), call.value(2), "int32")
    b = _centred(call, call.value(3), call.value(5), "int32")
    total = call.cast(product(call, a, b), "float32")
    factor = call.emit("mul", call.cast(a_scale, "float32"), call.cast(b_scale, "float32"))
    factor = call.emit("div", factor, call.cast(y_scale, "float32"))
    one = call.constant(1.0, "float32")
    return quantized(call, call.emit("mul", total, factor), one, call.value(7), call.dtype(7))


@converts("ConvInteger")
def _conv_integer(call: Call) -> Value:
    return _integer_convolution(call, 0, 1, (2, 3))


def _first(call: Call, position: int) -> Value | None:
    """Return a zero point: of a tensor, or for each of its slices along the first dimension."""
    if not call.has(position):
        return None
    zero, rank = call.value(position), len(call.shape(0))
    count = zero.type.elements
    return call.reshape(zero, (count, *(1,) * (rank - 1)) if count > 1 else ())


def _integer_convolution(call: Call, x_at: int, w_at: int, zeros: tuple[int, int]) -> Value:
    """Return the convolution of quantized integers minus their zero points, as integers."""
    x_zero, w_zero = (_first(call, zero) for zero in zeros)
    x = _centred(call, call.value(x_at), x_zero, "int32")
    w = _centred(call, call.value(w_at), w_zero, "int32")
    how = geometry(call, w.type.shape[2:], x.type.shape[2:])
    return call.emit("convolution", x, w, groups=call.attribute("group", 1), **how)


@converts("QLinearConv")
def _quantized_conv(call: Call) -> Value:
    shape = [-1 if i == 1 else 1 for i in range(len(call.shape(0)))]
    total = _integer_convolution(call, 0, 3, (2, 5))
    if call.has(8):
        total = call.emit("bias_add", total, call.value(8), axis=1)
    weight_scale = call.value(4)
    each = weight_scale.type.elements > 1
    weight_scale = call.reshape(weight_scale, shape if each else ())
    factor = call.emit("mul", call.reshape(call.value(1), ()), weight_scale)
    factor = call.emit("div", factor, call.reshape(call.value(6), ()))
    real = call.emit("mul", call.cast(total, "float32"), factor)
    one = call.constant(1.0, "float32")
    return quantized(call, real, one, call.reshape(call.value(7), ()), call.dtype(7))


@converts("DynamicQuantizeLinear")
def _dynamic(call: Call) -> list[Item | Array]:
    x = call.value(0)
    nothing = call.like(0.0, x)
    high = call.emit("maximum", call.emit("reduce_max", x), nothing)
    low = call.emit("minimum", call.emit("reduce_min", x), nothing)
    scale = call.emit("scale", call.emit("sub", high, low), factor=1 / 255)
    zero = call.emit("round", call.emit("neg", call.emit("div", low, scale)))
    zero = call.cast(call.emit("clip", zero, low=0.0, high=255.0), "uint8")
    return [quantized(call, x, scale, zero, "uint8"), scale, zero]
