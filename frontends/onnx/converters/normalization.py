"""Normalizations, and functions along one dimension."""

from math import prod

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.models.batch_normalization import emit_batch_norm
from shardwright.operators.rule import dimension

_SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


@converts("Softmax", "LogSoftmax")
def _softmax(call: Call) -> Value:
    x, ours = call.value(0), _SOFTMAX[call.operator]
    if call.opset >= 13:
        return call.emit(ours, x, axis=call.attribute("axis", -1))
    # Before, all dimensions from the axis on were one.
    shape = x.type.shape
    axis = dimension(call.attribute("axis", 1), len(shape))
    flat = call.reshape(x, (*shape[:axis], prod(shape[axis:])))
    return call.reshape(call.emit(ours, flat, axis=-1), shape)


@converts("BatchNormalization")
def _batch_normalization(call: Call) -> list[Item | Array]:
    x, gamma, beta = (call.value(i) for i in range(3))
    epsilon = float(call.attribute("epsilon", 1e-5))
    mean, variance = call.frozen(3), call.frozen(4)
    if not call.attribute("training_mode", 0):
        return [call.emit("batch_normalize", x, mean, variance, gamma, beta, epsilon=epsilon)]
    y, now_mean, now_variance = emit_batch_norm(call.importer.build, x, gamma, beta, epsilon)
    kept = float(call.attribute("momentum", 0.9))
    return [y, _moved(call, mean, now_mean, kept), _moved(call, variance, now_variance, kept)]


def _moved(call: Call, old: Value, new: Value, kept: float) -> Value:
    """Return a moving average."""
    return call.emit(
        "add",
        call.emit("scale", old, factor=kept),
        call.emit("scale", call.emit("stop_gradient", new), factor=1 - kept),
    )


@converts("InstanceNormalization")
def _instance_normalization(call: Call) -> Value:
    x, epsilon = call.value(0), float(call.attribute("epsilon", 1e-5))
    return call.emit(
        "group_norm", x, call.value(1), call.value(2), groups=x.type.shape[1], epsilon=epsilon
    )


@converts("GroupNormalization")
def _group_normalization(call: Call) -> Value:
    x, gamma, beta = (call.value(i) for i in range(3))
    groups, channels = call.attribute("num_groups"), x.type.shape[1]
    if gamma.type.shape != (channels,):  # until opset 20 there is one of each for a group
        gamma, beta = (_repeated(call, v, channels // groups) for v in (gamma, beta))
    return call.emit(
        "group_norm", x, gamma, beta, groups=groups, epsilon=float(call.attribute("epsilon", 1e-5))
    )


def _repeated(call: Call, vector: Value, count: int) -> Value:
    size = vector.type.shape[0]
    spread = call.emit("spread", vector, shape=(size, count), axis=(1,))
    return call.reshape(spread, (size * count,))


@converts("LayerNormalization")
def _layer_normalization(call: Call) -> list[Item | Array]:
    x, epsilon = call.value(0), float(call.attribute("epsilon", 1e-5))
    shape, axis = x.type.shape, dimension(call.attribute("axis", -1), x.type.rank)
    row, last = prod(shape[axis:]), shape[axis:]
    gamma = _row(call, call.value(1), last)
    beta = _row(call, call.value(2), last) if call.has(2) else call.like([0.0] * row, x)
    flat = call.reshape(x, (*shape[:axis], row))
    y = call.reshape(call.emit("layer_norm", flat, gamma, beta, epsilon=epsilon), shape)
    if call.outputs == 1:
        return [y]
    outer = (*shape[:axis], *(1,) * (len(shape) - axis))
    axes = tuple(range(axis, len(shape)))
    mean = call.emit("reduce_mean", x, axis=axes, keep_dims=True)
    squares = call.emit("square", call.emit("sub", x, mean))
    variance = call.emit("reduce_mean", squares, axis=axes, keep_dims=True)
    inverse = call.emit("rsqrt", call.emit("add_scalar", variance, value=epsilon))
    return [y, call.reshape(mean, outer), call.reshape(inverse, outer)]


def _row(call: Call, weight: Value, shape: tuple[int, ...]) -> Value:
    """Return a weight of the normalized dimensions as one vector."""
    if weight.type.shape != shape:
        weight = call.emit("broadcast_to", weight, shape=shape)
    return call.reshape(weight, (prod(shape),))


@converts("RMSNormalization")
def _rms_normalization(call: Call) -> Value:
    x, epsilon = call.value(0), float(call.attribute("epsilon", 1e-5))
    shape, axis = x.type.shape, dimension(call.attribute("axis", -1), x.type.rank)
    gamma = _row(call, call.value(1), shape[axis:])
    flat = call.reshape(x, (*shape[:axis], prod(shape[axis:])))
    return call.reshape(call.emit("rms_norm", flat, gamma, epsilon=epsilon), shape)


@converts("LpNormalization")
def _lp_normalization(call: Call) -> Value:
    x, axis = call.value(0), call.attribute("axis", -1)
    if call.attribute("p", 2) == 2:
        return call.emit("l2_normalize", x, axis=axis, epsilon=0.0 if _never_zero(x) else 1e-30)
    if call.attribute("p", 2) == 1:
        norm = call.emit("reduce_sum", call.emit("abs", x), axis=axis, keep_dims=True)
        return call.emit("div", x, call.emit("maximum", norm, call.like(1e-30, x)))
    raise UnsupportedError(f"a norm of power {call.attribute('p')}")


def _never_zero(x: Value) -> bool:
    return x.type.dtype == "float16"  # which has no epsilon


@converts("LRN")
def _local_response(call: Call) -> Value:
    x, size = call.value(0), call.attribute("size")
    alpha, beta = float(call.attribute("alpha", 1e-4)), float(call.attribute("beta", 0.75))
    rank, channels = x.type.rank, x.type.shape[1]
    squares = call.emit("square", x)
    total = None
    for shift in range(-((size - 1) // 2), size // 2 + 1):
        before, after = [0] * rank, [0] * rank
        before[1], after[1] = -shift, shift
        if abs(shift) >= channels:
            continue
        moved = _shifted(call, squares, shift)
        total = moved if total is None else call.emit("add", total, moved)
    assert total is not None
    scale = call.emit("scale", total, factor=alpha / size)
    scale = call.emit("add_scalar", scale, value=float(call.attribute("bias", 1.0)))
    return call.emit("mul", x, call.emit("pow", scale, exponent=-beta))


def _shifted(call: Call, x: Value, shift: int) -> Value:
    """Return for each channel the channel `shift` later, or zero."""
    if shift == 0:
        return x
    rank, channels = x.type.rank, x.type.shape[1]
    begin, size = [0] * rank, list(x.type.shape)
    begin[1], size[1] = max(shift, 0), channels - abs(shift)
    kept = call.emit("slice", x, begin=tuple(begin), size=tuple(size))
    before, after = [0] * rank, [0] * rank
    before[1], after[1] = max(-shift, 0), max(shift, 0)
    return call.emit("pad", kept, before=tuple(before), after=tuple(after))
