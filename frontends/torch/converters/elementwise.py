"""Operators point by point: arithmetic, functions, comparison, logic, activations."""

from math import log
from typing import Any

import torch

from shardwright.frontends.common.call import COMPARISONS, FUNCTIONS, Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import CONVERTERS, converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.random import uniform
from shardwright.frontends.torch.torch_types import dtype_of
from shardwright.ir.graph import Value

# Operators on one tensor, which integers enter as floating point.
_UNARY = {
    **{
        name: name
        for name in (
            *FUNCTIONS,
            *("erfc", "erfinv", "expm1", "lgamma", "log1p", "mish", "reciprocal", "rsqrt"),
            *("sigmoid", "silu"),
        )
    },
    "special_erfcx": "erfcx",
    "special_log_ndtr": "log_ndtr",
    "special_ndtri": "ndtri",
    "i0": "bessel_i0",
    "special_i0e": "bessel_i0e",
    "special_i1": "bessel_i1",
    "special_i1e": "bessel_i1e",
}
# Operators on one tensor that keep its type.
_KEEPING = {
    "abs": "abs",
    "ceil": "ceil",
    "floor": "floor",
    "neg": "neg",
    "_neg_view": "neg",
    "relu": "relu",
    "relu6": "relu6",
    "sign": "sign",
    "square": "square",
    "trunc": "trunc",
}
_TESTS = {"isfinite": "is_finite", "isinf": "is_inf", "isnan": "is_nan"}
# Operators on two tensors of one type, which is that of the result.
_BINARY = {
    "atan2": "atan2",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "bitwise_xor": "bitwise_xor",
    "__lshift__": "left_shift",
    "__rshift__": "right_shift",
    "gcd": "gcd",
    "remainder": "mod",
}
_LOGIC = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}
_BITS = {"and": "and", "or": "or", "xor": "xor"}


def _unary(name: str, ours: str) -> None:
    def convert(call: Call, x: Value) -> Value:
        return call.emit(ours, call.cast(x, call.result.dtype))

    converts(f"aten.{name}")(convert)


def _test(name: str, ours: str) -> None:
    def convert(call: Call, x: Value) -> Value:
        return call.emit(ours, x)

    converts(f"aten.{name}")(convert)


def _binary(name: str, ours: str) -> None:
    def convert(call: Call, x: Operand, other: Operand) -> Value:
        dtype = call.result.dtype
        return call.emit(ours, call.operand(x, dtype), call.operand(other, dtype))

    converts(f"aten.{name}")(convert)


def _comparison(name: str, ours: str) -> None:
    def convert(call: Call, x: Operand, other: Operand) -> Value:
        dtype = common_dtype(x, other)
        return call.emit(ours, call.operand(x, dtype), call.operand(other, dtype))

    converts(f"aten.{name}")(convert)


def _logic(name: str, ours: str) -> None:
    def convert(call: Call, x: Value, other: Value) -> Value:
        return call.emit(ours, truth(call, x), truth(call, other))

    converts(f"aten.{name}")(convert)


def _bits(name: str, ours: str) -> None:
    def convert(call: Call, x: Operand, other: Operand) -> Value:
        dtype = call.result.dtype
        kind = "logical" if dtype == "bool" else "bitwise"
        return call.emit(f"{kind}_{ours}", call.operand(x, dtype), call.operand(other, dtype))

    converts(f"aten.bitwise_{name}", f"aten.__{name}__")(convert)


for _name, _ours in {**_UNARY, **_KEEPING}.items():
    _unary(_name, _ours)
for _name, _ours in _TESTS.items():
    _test(_name, _ours)
for _name, _ours in _BINARY.items():
    _binary(_name, _ours)
for _name, _ours in COMPARISONS.items():
    _comparison(_name, _ours)
for _name, _ours in _LOGIC.items():
    _logic(_name, _ours)
for _name, _ours in _BITS.items():
    _bits(_name, _ours)


def common_dtype(a: Operand, b: Operand) -> str:
    """Return the element type in which PyTorch compares two operands."""
    tensors = [_sample(a), _sample(b)]
    return dtype_of(torch.result_type(*tensors))


def _sample(operand: Operand) -> Any:
    """Return an empty tensor of the element type of an operand, or its number."""
    if not isinstance(operand, Value):
        return operand
    shape = [0] if operand.type.rank else []
    return torch.empty(shape, dtype=getattr(torch, operand.type.dtype))


def truth(call: Call, x: Value) -> Value:
    """Return whether elements are not zero."""
    return x if x.type.dtype == "bool" else call.emit("not_equal", x, call.fill(0, x.type.dtype))


@converts("aten.round")
def _round(call: Call, x: Value, decimals: int = 0) -> Value:
    """Round to even; to decimals by the product with a power of ten, as PyTorch does."""
    if not decimals:
        return call.emit("round", x)
    if not x.type.is_float:
        raise UnsupportedError("integers that are rounded to decimals")
    power = 10.0 ** abs(decimals)
    factor = call.fill(power, x.type.dtype)
    first, second = ("mul", "div") if decimals > 0 else ("div", "mul")
    return call.emit(second, call.emit("round", call.emit(first, x, factor)), factor)


@converts("aten.logical_not")
def _logical_not(call: Call, x: Value) -> Value:
    return call.emit("logical_not", truth(call, x))


@converts("aten.bitwise_not")
def _bitwise_not(call: Call, x: Value) -> Value:
    return call.emit("logical_not" if x.type.dtype == "bool" else "invert", x)


@converts("aten.lcm")
def _least_common_multiple(call: Call, x: Value, other: Value) -> Value:
    dtype = call.result.dtype
    a, b = call.cast(x, dtype), call.cast(other, dtype)
    divisor = call.emit("gcd", a, b)
    is_none = call.emit("equal", divisor, call.fill(0, dtype))
    safe = call.emit("where", is_none, call.fill(1, dtype), divisor)
    return call.emit("abs", call.emit("mul", call.emit("floor_div", a, safe), b))


# Arithmetic


@converts("aten.add", "aten.add_")
def _add(call: Call, x: Operand, other: Operand, alpha: float = 1) -> Value:
    dtype = call.result.dtype
    if not isinstance(x, Value) and alpha == 1:
        x, other = other, x
    a = call.operand(x, dtype)
    if not isinstance(other, Value):
        return call.shifted(a, other * alpha)
    operator = "logical_or" if dtype == "bool" else "add"
    return call.emit(operator, a, call.scaled(call.cast(other, dtype), alpha))


@converts("aten.sub", "aten.sub_")
def _sub(call: Call, x: Operand, other: Operand, alpha: float = 1) -> Value:
    dtype = call.result.dtype
    a = call.operand(x, dtype)
    if not isinstance(other, Value):
        return call.shifted(a, -other * alpha)
    return call.emit("sub", a, call.scaled(call.cast(other, dtype), alpha))


@converts("aten.rsub")
def _rsub(call: Call, x: Operand, other: Operand, alpha: float = 1) -> Value:
    return _sub(call, other, x, alpha)


@converts("aten.mul", "aten.mul_")
def _mul(call: Call, x: Operand, other: Operand) -> Value:
    dtype = call.result.dtype
    if not isinstance(x, Value):
        x, other = other, x
    a = call.operand(x, dtype)
    if dtype == "bool":
        return call.emit("logical_and", a, call.operand(other, dtype))
    if not isinstance(other, Value):
        return call.scaled(a, other)
    return call.emit("mul", a, call.cast(other, dtype))


@converts("aten.div", "aten.div_", "aten.true_divide")
def _div(call: Call, x: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    dtype = call.result.dtype
    a = call.operand(x, dtype)
    if rounding_mode is None and not isinstance(other, Value) and other:
        return call.scaled(a, 1 / other)
    b = call.operand(other, dtype)
    if rounding_mode == "floor":
        return call.emit("floor_div", a, b)
    if rounding_mode == "trunc" and not a.type.is_float:
        return _truncated(call, a, b)
    quotient = call.emit("div", a, b)
    return call.emit("trunc", quotient) if rounding_mode else quotient


def _truncated(call: Call, a: Value, b: Value) -> Value:
    """Return a quotient of integers, rounded towards zero."""
    sign = call.emit("mul", call.emit("sign", a), call.emit("sign", b))
    sizes = call.emit("abs", a), call.emit("abs", b)
    return call.emit("mul", sign, call.emit("floor_div", *sizes))


@converts("aten.floor_divide")
def _floor_divide(call: Call, x: Operand, other: Operand) -> Value:
    return _div(call, x, other, "floor")


@converts("aten.fmod")
def _fmod(call: Call, x: Operand, other: Operand) -> Value:
    dtype = call.result.dtype
    a, b = call.operand(x, dtype), call.operand(other, dtype)
    return call.remainder(a, b)


@converts("aten.pow")
def _pow(call: Call, x: Operand, exponent: Operand) -> Value:
    dtype = call.result.dtype
    if isinstance(exponent, Value) or not isinstance(x, Value):
        return call.emit("power", call.operand(x, dtype), call.operand(exponent, dtype))
    a = call.cast(x, dtype)
    if exponent == 2:
        return call.emit("square", a)
    if exponent == 1:
        return a
    if exponent == 0:  # no gradient, even where the element is zero
        return call.emit("ones_like", a)
    if not a.type.is_float:
        return call.emit("power", a, call.fill(exponent, dtype))
    return call.emit("pow", a, exponent=float(exponent))


@converts("aten.log2", "aten.log10", "aten.exp2")
def _other_base(call: Call, x: Value) -> Value:
    name = call.operator.split(".")[1]
    x = call.cast(x, call.result.dtype)
    if name == "exp2":
        return call.emit("exp", call.scaled(x, log(2)))
    return call.scaled(call.emit("log", x), 1 / log(2 if name == "log2" else 10))


@converts("aten.addcmul")
def _addcmul(call: Call, x: Value, tensor1: Value, tensor2: Value, value: float = 1) -> Value:
    product = call.scaled(call.emit("mul", tensor1, tensor2), value)
    return call.emit("add", x, product)


@converts("aten.lerp")
def _lerp(call: Call, x: Value, end: Value, weight: Operand) -> Value:
    """Start from the nearer end, as PyTorch does: the result is exact at both."""
    distance = call.emit("sub", end, x)
    if not isinstance(weight, Value):
        base, share = (x, weight) if weight < 0.5 else (end, weight - 1)
        return call.emit("add", base, call.scaled(distance, share))
    is_near = call.emit("less", weight, call.fill(0.5, weight.type.dtype))
    base = call.emit("where", is_near, x, end)
    shares = call.emit("where", is_near, weight, call.shifted(weight, -1))
    return call.emit("add", base, call.emit("mul", distance, shares))


# Choices


@converts("aten.where")
def _where(call: Call, condition: Value, x: Operand, other: Operand) -> Value:
    dtype = call.result.dtype
    operands = call.operand(x, dtype), call.operand(other, dtype)
    return call.emit("where", truth(call, condition), *operands)


@converts("aten.masked_fill", "aten.masked_fill_")
def _masked_fill(call: Call, x: Value, mask: Value, value: Operand) -> Value:
    filled = call.emit("where", mask, call.operand(value, x.type.dtype), x)
    return call.broadcast(filled, call.result.shape)


# Types


@converts("aten._to_copy", "aten.to", "aten.type_as", "aten.lift_fresh_copy", "aten.contiguous")
@converts("aten.clone", "aten.alias")
def _to(call: Call, x: Value, dtype: str | None = None, other: Value | None = None) -> Value:
    wanted = call.result.dtype
    if wanted == "bool":
        return truth(call, x)
    return call.cast(x, wanted)


@converts("aten.detach", "aten.detach_")
def _detach(call: Call, x: Value) -> Value:
    return call.emit("stop_gradient", x) if x.type.is_float else x


@converts("aten.view.dtype")
def _bits_as(call: Call, x: Value, dtype: str) -> Value:
    return call.emit("bitcast", x, dtype=dtype)


# Activations


@converts("aten.gelu", "aten.gelu_")
def _gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    return call.emit("gelu", x, approximate=approximate == "tanh")


@converts("aten.leaky_relu")
def _leaky_relu(call: Call, x: Value, negative_slope: float = 0.01) -> Value:
    if negative_slope < 0:  # the result does not have the sign of the operand
        return _from_zero(call, x, call.scaled(x, negative_slope))
    return call.emit("leaky_relu", x, slope=float(negative_slope))


@converts("aten.rrelu_with_noise_functional")
def _rrelu(
    call: Call,
    x: Value,
    noise: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> list[Value | None]:
    if training:  # slopes are random
        slopes = uniform(call, x.type.shape, x.type.dtype)
        slopes = call.shifted(call.scaled(slopes, upper - lower), lower)
        return [_from_zero(call, x, call.emit("mul", x, slopes)), None]
    return [_leaky_relu(call, x, (lower + upper) / 2), None]


def _from_zero(call: Call, x: Value, below: Value) -> Value:
    """Return elements over zero as they are, and others from another tensor."""
    return call.emit("where", call.emit("greater", x, call.fill(0, x.type.dtype)), x, below)


@converts("aten.elu")
def _elu(call: Call, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if alpha < 0 or input_scale != 1:  # linear at zero, where it has no second gradient
        scaled = call.scaled(x, input_scale)
        is_below = call.emit("less", x, call.fill(0, x.type.dtype))
        low = call.emit("where", is_below, scaled, call.fill(0, x.type.dtype))
        low = call.emit("where", is_below, call.emit("expm1", low), scaled)
        return call.scaled(_from_zero(call, x, call.scaled(low, alpha)), scale)
    return call.scaled(call.emit("elu", x, alpha=float(alpha)), scale)


@converts("aten.celu", "aten.celu_")
def _celu(call: Call, x: Value, alpha: float = 1) -> Value:
    return _elu(call, x, alpha, input_scale=1 / alpha)


@converts("aten.softplus")
def _softplus(call: Call, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """Convert softplus; PyTorch is linear where ``beta x`` is over the threshold."""
    sharp, bound = call.scaled(x, beta), call.fill(threshold, x.type.dtype)
    smooth = call.scaled(call.emit("softplus", sharp), 1 / beta)
    if call.notes.differentiates:  # it has no second gradient at the threshold
        slope = call.emit("stop_gradient", call.emit("sigmoid", sharp))
        line = call.emit("with_gradient_of", smooth, call.emit("mul", x, slope))
        smooth = call.emit("where", call.emit("equal", sharp, bound), line, smooth)
    return call.emit("where", call.emit("greater", sharp, bound), x, smooth)


@converts("aten.log_sigmoid", "aten.log_sigmoid_forward")
def _log_sigmoid(call: Call, x: Value) -> Value:
    return call.emit("neg", call.emit("softplus", call.emit("neg", x)))


@converts("aten.hardswish", "aten.hardswish_")
def _hardswish(call: Call, x: Value) -> Value:
    return call.emit("hard_swish", x)


@converts("aten.hardsigmoid")
def _hardsigmoid(call: Call, x: Value) -> Value:
    return call.emit("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@converts("aten.prelu", "aten._prelu_kernel")
def _prelu(call: Call, x: Value, weight: Value) -> Value:
    is_one, rows = weight.type.elements == 1, x
    if is_one and not call.notes.differentiates:
        slope = call.reshape(weight, (1,) * x.type.rank)
        return _from_zero(call, x, call.emit("mul", x, slope))
    if x.type.rank < 2:
        rows = call.reshape(x, (x.type.elements, 1))
    weight = call.broadcast(call.reshape(weight, (weight.type.elements,)), rows.type.shape[1:2])
    return call.reshape(call.emit("prelu", rows, weight), x.type.shape)


@converts("aten.glu")
def _glu(call: Call, x: Value, dim: int = -1) -> Value:
    axis = dim % x.type.rank
    half = x.type.shape[axis] // 2
    value, gate = call.part(x, axis, 0, half), call.part(x, axis, half, half)
    return call.emit("mul", value, call.emit("sigmoid", gate))


CONVERTERS["aten.relu_"] = CONVERTERS["aten.relu"]
CONVERTERS["aten.silu_"] = CONVERTERS["aten.silu"]
