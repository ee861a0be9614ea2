"""Operators point by point: arithmetic, functions, comparison, logic, bits, activations."""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from shardwright.frontends.common.call import FUNCTIONS
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import CONVERTERS, FOLDERS, converts
from shardwright.frontends.onnx.onnx_types import dtype_of, enum_of
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array

# ONNX operators on one tensor with an equivalent of our IR.
_UNARY = {
    **{name.title(): name for name in FUNCTIONS},
    "Abs": "abs",
    "BitwiseNot": "invert",
    "Ceil": "ceil",
    "Floor": "floor",
    "IsNaN": "is_nan",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Softplus": "softplus",
}
# On two tensors.
_BINARY = {
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
# On any number of tensors.
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(ours: str) -> Callable[[Call], Value]:
    return lambda call: call.emit(ours, call.value(0))


def _binary(ours: str) -> Callable[[Call], Value]:
    return lambda call: call.emit(ours, call.value(0), call.value(1))


def _variadic(ours: str) -> Callable[[Call], Value]:
    return lambda call: reduce(lambda a, b: call.emit(ours, a, b), call.values)


CONVERTERS.update({name: _unary(ours) for name, ours in _UNARY.items()})
CONVERTERS.update({name: _binary(ours) for name, ours in _BINARY.items()})
CONVERTERS.update({name: _variadic(ours) for name, ours in _VARIADIC.items()})


def _nothing(call: Call, arrays: Sequence[Array]) -> Array:
    """Return an empty result of arithmetic on empty tensors."""
    return np.zeros(np.broadcast_shapes(*(array.shape for array in arrays)), arrays[0].dtype)


_ON_NOTHING = (set(_UNARY) - {"IsNaN", "Not"}) | {"Add", "Sub", "Mul", "Div"}
FOLDERS.update(dict.fromkeys(_ON_NOTHING, _nothing))


# Arithmetic


def _with_number(call: Call) -> tuple[Value, float, int] | None:
    """Return the tensor operand, the number operand, and the position of the number."""
    for place in (1, 0):
        number = call.scalar(place)
        if number is None or call.known(1 - place) or len(call.shape(place)) > 1:
            continue
        value = call.value(1 - place)
        fits = value.type.rank >= len(call.shape(place))
        if value.type.is_float and fits and np.isfinite(number):
            return value, float(number), place
    return None


@converts("Add")
def _add(call: Call) -> Value:
    pair = _with_number(call)
    if pair:
        return call.emit("add_scalar", pair[0], value=pair[1])
    return call.emit("add", *call.values)


@converts("Sub")
def _sub(call: Call) -> Value:
    pair = _with_number(call)
    if pair and pair[2] == 1:
        return call.emit("add_scalar", pair[0], value=-pair[1])
    return call.emit("sub", *call.values)


@converts("Mul")
def _mul(call: Call) -> Value:
    pair = _with_number(call)
    if pair:
        return call.emit("scale", pair[0], factor=pair[1])
    return call.emit("mul", *call.values)


@converts("Div")
def _div(call: Call) -> Value:
    pair = _with_number(call)
    if pair and pair[2] == 1 and pair[1]:
        return call.emit("scale", pair[0], factor=1 / pair[1])
    if pair and pair[2] == 0 and pair[1] == 1:
        return call.emit("reciprocal", pair[0])
    a, b = call.values
    if a.type.is_float:
        return call.emit("div", a, b)
    if a.type.dtype.startswith("u"):
        return call.emit("floor_div", a, b)
    # Integer division truncates towards zero.
    size = call.emit("floor_div", call.emit("abs", a), call.emit("abs", b))
    return call.emit("mul", size, call.emit("mul", call.emit("sign", a), call.emit("sign", b)))


@converts("Mod")
def _mod(call: Call) -> Value:
    a, b = call.values
    if not call.attribute("fmod", 0):
        return call.emit("mod", a, b)
    if a.type.dtype.startswith("u"):
        return call.emit("mod", a, b)
    rest = call.emit("mod", call.emit("abs", a), call.emit("abs", b))
    return call.emit("mul", call.emit("sign", a), rest)


@converts("Pow")
def _pow(call: Call) -> Value:
    base, number = call.value(0), call.scalar(1)
    if base.type.is_float and number is not None and len(call.shape(1)) <= base.type.rank:
        if number == 2:
            return call.emit("square", base)
        return call.emit("pow", base, exponent=float(number))
    exponent, dtype = call.value(1), base.type.dtype
    if exponent.type.is_float and not base.type.is_float:
        return call.cast(call.emit("power", call.cast(base, exponent.type.dtype), exponent), dtype)
    return call.emit("power", base, call.cast(exponent, dtype))


@converts("Mean")
def _mean(call: Call) -> Value:
    total = reduce(lambda a, b: call.emit("add", a, b), call.values)
    return call.emit("scale", total, factor=1.0 / len(call.items))


@converts("BitShift")
def _bit_shift(call: Call) -> Value:
    left = call.attribute("direction") == "LEFT"
    return call.emit("left_shift" if left else "right_shift", *call.values)


@converts("IsInf")
def _is_inf(call: Call) -> Value:
    x, found = call.value(0), call.emit("is_inf", call.value(0))
    for name, comparison in (("detect_negative", "greater"), ("detect_positive", "less")):
        if not call.attribute(name, 1):
            side = call.emit(comparison, x, call.like(0, x))
            found = call.emit("logical_and", found, side)
    return found


# Choices, bounds, and other element types


@converts("Where")
def _where(call: Call) -> Value:
    return call.emit("where", *call.values)


@converts("Clip")
def _clip(call: Call) -> Value:
    x = call.value(0)
    bounds = [call.scalar(i) if call.has(i) else None for i in (1, 2)]
    if any(call.has(i) and bound is None for i, bound in zip((1, 2), bounds, strict=True)):
        for i, ours in ((1, "maximum"), (2, "minimum")):
            if call.has(i):
                x = call.emit(ours, x, call.value(i))
        return x
    low, high = bounds
    if x.type.is_float:
        least, most = -np.inf, np.inf
    else:
        numbers = np.iinfo(numpy_dtype(x.type.dtype))
        least, most = numbers.min, numbers.max
    low, high = least if low is None else low, most if high is None else high
    if low > high:
        return call.emit("fill", shape=x.type.shape, dtype=x.type.dtype, value=high)
    return call.emit("clip", x, low=low, high=high)


@converts("Cast")
def _cast(call: Call) -> Value:
    return call.cast(call.value(0), dtype_of(call.attribute("to")))


@converts("CastLike")
def _cast_like(call: Call) -> Item:
    item: Item = call.run("Cast", call.item(0), to=enum_of(call.dtype(1)))
    return item


@converts("BitCast")
def _bit_cast(call: Call) -> Value:
    return call.emit("bitcast", call.value(0), dtype=dtype_of(call.attribute("to")))


@converts("Identity")
def _identity(call: Call) -> Item:
    return call.item(0)


@converts("Dropout")
def _dropout(call: Call) -> list[Item | Array]:
    rate = float(call.number(1)) if call.has(1) else float(call.attribute("ratio", 0.5))
    if rate and call.has(2) and bool(call.number(2)):
        if call.outputs > 1:
            raise UnsupportedError("the mask of dropout")
        step, seed = call.importer.step(), int(call.attribute("seed", 0))
        key = call.names[0] or "dropout"
        return [call.emit("dropout", call.value(0), step, rate=rate, seed=seed, key=key)]
    kept = call.emit("fill", shape=call.shape(0), dtype="bool", value=True)
    return [call.item(0), kept]


# Activations


@converts("LeakyRelu")
def _leaky_relu(call: Call) -> Value:
    x, slope = call.value(0), float(call.attribute("alpha", 0.01))
    if slope > 0:
        return call.emit("leaky_relu", x, slope=slope)
    negative = call.emit("less", x, call.like(0, x))
    return call.emit("where", negative, call.emit("scale", x, factor=slope), x)


@converts("Elu")
def _elu(call: Call) -> Value:
    return call.emit("elu", call.value(0), alpha=float(call.attribute("alpha", 1.0)))


@converts("Gelu")
def _gelu(call: Call) -> Value:
    approximate = call.attribute("approximate", "none") == "tanh"
    return call.emit("gelu", call.value(0), approximate=approximate)


@converts("PRelu")
def _prelu(call: Call) -> Value:
    x, slope = call.value(0), call.value(1)
    rank = x.type.rank
    if rank > 1 and slope.type.shape == (x.type.shape[1], *(1,) * (rank - 2)):
        return call.emit("prelu", x, call.reshape(slope, slope.type.shape[:1]))
    if (
        slope.type.rank == 1 < rank
        and 1 < slope.type.elements == x.type.shape[1] != x.type.shape[-1]
    ):
        return call.emit("prelu", x, slope)  # as old exporters write it
    positive = call.emit("greater_equal", x, call.like(0, x))
    return call.emit("where", positive, x, call.emit("mul", x, slope))


@converts("Swish")
def _swish(call: Call) -> Value:
    x, alpha = call.value(0), float(call.attribute("alpha", 1.0))
    if alpha == 1:
        return call.emit("silu", x)
    return call.emit("mul", x, call.emit("sigmoid", call.emit("scale", x, factor=alpha)))
