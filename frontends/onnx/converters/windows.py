"""Poolings: maximum, mean or norm of windows, positions, and unpooling."""

from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.converters.linear import geometry
from shardwright.frontends.onnx.converters.shape import padded
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array

Pairs = tuple[tuple[int, int], ...]


def _filled(call: Call, how: dict[str, Any], kernel: tuple[int, ...]) -> Pairs:
    """Return the padding, with room for an incomplete last window."""
    space = call.shape(0)[2:]
    if not call.attribute("ceil_mode", 0):
        return how["padding"]
    found = []
    for k, n, s, d, (a, b) in zip(
        kernel, space, how["stride"], how["dilation"], how["padding"], strict=True
    ):
        span = (k - 1) * d + 1
        count = min(-(-(n + a + b - span) // s), (n + a - 1) // s) + 1
        found.append((a, max(b, (count - 1) * s + span - n - a)))
    return tuple(found)


def pooled(call: Call, kernel: tuple[int, ...], space: tuple[int, ...]) -> dict[str, Any]:
    """Return the geometry of the windows of a pooling."""
    how = geometry(call, kernel, space)
    automatic = call.attribute("auto_pad", "NOTSET")
    spread = any(d > 1 < k for d, k in zip(how["dilation"], kernel, strict=True))
    if spread and automatic in ("SAME_UPPER", "SAME_LOWER"):
        # Sizes by the standard and by onnxruntime differ.
        raise UnsupportedError(f"dilated windows with `{automatic}` (`pads` can be)")
    return how


def window_sums(call: Call, x: Value, kernel: tuple[int, ...]) -> tuple[Value, dict[str, Any]]:
    """Return the sum of each window, and the geometry of the windows."""
    how = pooled(call, kernel, x.type.shape[2:])
    channels = x.type.shape[1]
    ones = call.emit("fill", shape=(channels, 1, *kernel), dtype=x.type.dtype, value=1.0)
    full = {**how, "padding": _filled(call, how, kernel)}
    return call.emit("convolution", x, ones, groups=channels, **full), how


def window_counts(call: Call, how: dict[str, Any], kernel: tuple[int, ...], pads: bool) -> Array:
    """Return the number of elements in each window's mean, optionally with padding."""
    space = call.shape(0)[2:]
    filled = _filled(call, how, kernel)
    total = np.ones((), np.float64)
    for n, k, s, d, (a, b), (fa, fb) in zip(
        space, kernel, how["stride"], how["dilation"], how["padding"], filled, strict=True
    ):
        counted = np.zeros(fa + n + fb)
        counted[0 if pads else a : a + n + (b if pads else 0)] = 1
        starts = np.arange(0, len(counted) - (k - 1) * d, s)
        along = sum(counted[starts + i * d] for i in range(k))
        total = total[..., None] * along
    return total


def _pooling(call: Call) -> dict[str, Any]:
    kernel = tuple(call.attribute("kernel_shape"))
    how = pooled(call, kernel, call.shape(0)[2:])
    return {"kernel": kernel, "ceil_mode": bool(call.attribute("ceil_mode", 0)), **how}


@converts("MaxPool")
def _max_pool(call: Call) -> list[Item | Array]:
    if call.outputs > 1:
        return max_pool_with_positions(call)
    return [call.emit("max_pool", call.value(0), **_pooling(call))]


@converts("AveragePool")
def _average_pool(call: Call) -> Value:
    how = _pooling(call)
    if any(d > 1 for d in how.pop("dilation")):
        return spread_average(call, how["kernel"])
    include = bool(call.attribute("count_include_pad", 0))
    return call.emit("average_pool", call.value(0), count_include_pad=include, **how)


@converts("LpPool")
def _lp_pool(call: Call) -> Value:
    x, kernel = call.value(0), tuple(call.attribute("kernel_shape"))
    power = call.attribute("p", 2)
    size = call.emit("abs", x)
    raised = call.emit("square", x) if power == 2 else call.emit("pow", size, exponent=float(power))
    total, _ = window_sums(call, raised, kernel)
    if power == 2:
        return call.emit("sqrt", total)
    return call.emit("pow", total, exponent=1.0 / power)


@converts("GlobalLpPool")
def _global_lp_pool(call: Call) -> Value:
    x, power = call.value(0), float(call.attribute("p", 2))
    raised = call.emit("pow", call.emit("abs", x), exponent=power)
    space = tuple(range(2, x.type.rank))
    total = call.emit("reduce_sum", raised, axis=space, keep_dims=True)
    return call.emit("pow", total, exponent=1 / power)


@converts("Col2Im")
def _col2im(call: Call) -> Value:
    x, size, kernel = call.value(0), call.ints(1), call.ints(2)
    rank, taps = len(kernel), prod(kernel)
    samples, columns, _ = x.type.shape
    channels = columns // taps
    how = geometry(call, kernel, size)
    pairs = zip(size, kernel, how["stride"], how["dilation"], how["padding"], strict=True)
    count = tuple((n + a + b - ((k - 1) * d + 1)) // s + 1 for n, k, s, d, (a, b) in pairs)
    one = np.eye(taps).reshape(taps, 1, *kernel)
    weight = call.constant(np.tile(one, (channels, 1, *(1,) * rank)), x.type.dtype)
    flat = call.reshape(x, (samples, columns, *count))
    return call.emit("transposed_convolution", flat, weight, groups=channels, size=size, **how)


def max_pool_with_positions(call: Call) -> list[Item | Array]:
    """Return the maximum of each window, and its flat position in the tensor."""
    x, kernel = call.value(0), tuple(call.attribute("kernel_shape"))
    how = pooled(call, kernel, x.type.shape[2:])
    padding, rank = _filled(call, how, kernel), len(kernel)
    before, after = zip(*padding, strict=True)
    lost = -np.inf if x.type.is_float else np.iinfo(x.type.dtype).min
    whole = padded(call, x, (0, 0, *before), (0, 0, *after), lost)
    space, size = x.type.shape[2:], whole.type.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, how["dilation"], strict=True)]
    count = [(n - p) // s + 1 for n, p, s in zip(size, spans, how["stride"], strict=True)]
    taps, offsets = [], []
    steps = _strides(space, bool(call.attribute("storage_order", 0)))
    for tap in np.ndindex(*kernel):
        begin = (0, 0, *(t * d for t, d in zip(tap, how["dilation"], strict=True)))
        cut = {"begin": begin, "size": (*x.type.shape[:2], *count)}
        taps.append(call.emit("slice", whole, **cut, strides=(1, 1, *how["stride"])))
        offsets.append(sum(b * s for b, s in zip(begin[2:], steps, strict=True)))
    stacked = call.emit("stack", *taps, axis=0)
    chosen = call.emit("argmax", stacked, axis=0)
    offset = call.emit("gather", call.constant(np.array(offsets), "int64"), chosen, axis=0)
    first: Array = np.arange(prod(x.type.shape[:2])) * prod(space)
    base = first.reshape(*x.type.shape[:2], *(1,) * rank)
    for d in range(rank):
        along = (np.arange(count[d]) * how["stride"][d] - padding[d][0]) * steps[d]
        base = base + along.reshape(-1, *(1,) * (rank - 1 - d))
    position = call.emit("add", offset, call.constant(base, "int64"))
    return [call.emit("reduce_max", stacked, axis=0), position]


def _strides(space: tuple[int, ...], columns_first: bool) -> list[int]:
    """Return the stride of each dimension in the flat space."""
    if columns_first:
        return [prod(space[:d]) for d in range(len(space))]
    return [prod(space[d + 1 :]) for d in range(len(space))]


@converts("MaxUnpool")
def _max_unpool(call: Call) -> Value:
    x, kernel = call.value(0), call.attribute("kernel_shape")
    how = geometry(call, kernel, x.type.shape[2:])
    sides = zip(x.type.shape[2:], kernel, how["stride"], how["padding"], strict=True)
    shape = (*x.type.shape[:2], *((n - 1) * s + k - a - b for n, k, s, (a, b) in sides))
    asked = call.ints(2) if call.has(2) else shape
    flat = call.emit("fill", shape=(prod(shape),), dtype=x.type.dtype, value=0.0)
    index = call.reshape(call.value(1), (x.type.elements,))
    updates = call.reshape(x, (x.type.elements,))
    found = call.emit("scatter_elements", flat, index, updates, axis=0)
    after = [a - n for n, a in zip(shape, asked, strict=True)]
    return padded(call, call.reshape(found, shape), (0,) * len(shape), after)


def spread_average(call: Call, kernel: tuple[int, ...]) -> Value:
    """Return the mean of each dilated window."""
    x = call.value(0)
    total, how = window_sums(call, x, kernel)
    counts = window_counts(call, how, kernel, bool(call.attribute("count_include_pad", 0)))
    if counts.shape != total.type.shape[2:]:
        raise UnsupportedError("windows outside the space")
    return call.emit("mul", total, call.like(1 / counts, total))
