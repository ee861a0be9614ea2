"""Spectra: the Fourier transform of a dimension is a product with two matrices."""

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.fourier import waves, waves_to_real
from shardwright.frontends.onnx.converters.shape import cut, padded
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.frontends.onnx.onnx_types import dtype_of
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension


def _parts(call: Call, x: Value) -> tuple[Value, Value | None]:
    """Return the real and the imaginary part, which the last dimension holds."""
    shape = x.type.shape
    parts = []
    for i in range(shape[-1]):
        begin, end = [0] * len(shape), list(shape)
        begin[-1], end[-1] = i, i + 1
        parts.append(call.reshape(cut(call, x, begin, end), shape[:-1]))
    return parts[0], parts[1] if len(parts) > 1 else None


def _transformed(
    call: Call, real: Value, imaginary: Value | None, matrices: tuple[Array, Array], sign: float
) -> tuple[Value, Value]:
    """Return real and imaginary part of sums along the last dimension; `sign` is the exponent's."""
    cos, sin = (call.like(wave, real) for wave in matrices)
    re = call.emit("matmul", real, cos)
    im = call.emit("scale", call.emit("matmul", real, sin), factor=sign)
    if imaginary is None:
        return re, im
    other = call.emit("scale", call.emit("matmul", imaginary, sin), factor=-sign)
    return call.emit("add", re, other), call.emit("add", im, call.emit("matmul", imaginary, cos))


@converts("DFT")
def _dft(call: Call) -> Value:
    x = call.value(0)
    rank = x.type.rank
    last = -2 if call.opset >= 20 else 1
    axis = int(call.number(2)) if call.has(2) else call.attribute("axis", last)
    axis = dimension(axis, rank)
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    before = x.type.shape[axis]
    asked = int(call.number(1)) if call.has(1) else None
    order = [i for i in range(rank - 1) if i != axis] + [axis]
    real, imaginary = (
        None if part is None else call.transpose(part, order) for part in _parts(call, x)
    )
    assert real is not None
    back = np.argsort(order).tolist()
    if inverse and onesided:
        length = asked or 2 * (before - 1)
        return _real_inverse(call, real, imaginary, length, back)
    length = asked or before
    real = _of_length(call, real, length)
    imaginary = None if imaginary is None else _of_length(call, imaginary, length)
    after = length // 2 + 1 if onesided else length
    found = _transformed(
        call, real, imaginary, waves(length, after, length), 1.0 if inverse else -1.0
    )
    if inverse:
        found = tuple(call.emit("scale", part, factor=1 / length) for part in found)  # type: ignore[assignment]
    return call.emit("stack", *(call.transpose(part, back) for part in found), axis=-1)


def _of_length(call: Call, x: Value, length: int) -> Value:
    """Return a value with its last dimension sliced, or padded with zeros."""
    rank, missing = x.type.rank, length - x.type.shape[-1]
    return padded(call, x, (0,) * rank, (*(0,) * (rank - 1), missing))


def _real_inverse(
    call: Call, real: Value, imaginary: Value | None, length: int, back: list[int]
) -> Value:
    """Return the real signal of a one-sided spectrum."""
    count = length // 2 + 1
    real = _of_length(call, real, count)
    cos, sin = waves_to_real(length)
    found = call.emit("matmul", real, call.like(cos / length, real))
    if imaginary is not None:
        imaginary = _of_length(call, imaginary, count)
        other = call.emit("matmul", imaginary, call.like(sin / length, real))
        found = call.emit("sub", found, other)
    found = call.transpose(found, back)
    return call.reshape(found, (*found.type.shape, 1))


@converts("STFT")
def _stft(call: Call) -> Value:
    x, step = call.value(0), int(call.number(1))
    window = call.value(2) if call.has(2) else None
    if call.has(3):
        length = int(call.number(3))
    elif window is not None:
        length = window.type.shape[0]
    else:
        raise UnsupportedError("a spectrum without a frame length")
    size = x.type.shape[1]
    frames = (size - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)[None, :]
    index = call.constant(places, "int64")
    real, imaginary = (
        None if part is None else _framed(call, part, index, window)
        for part in _parts(call, x if x.type.rank > 2 else call.reshape(x, (*x.type.shape, 1)))
    )
    assert real is not None
    after = length // 2 + 1 if call.attribute("onesided", 1) else length
    found = _transformed(call, real, imaginary, waves(length, after, length), -1.0)
    return call.emit("stack", *found, axis=-1)


def _framed(call: Call, x: Value, places: Value, window: Value | None) -> Value:
    """Return the frames of a signal, times a window."""
    frames = call.emit("gather", x, places, axis=1)
    return frames if window is None else call.emit("mul", frames, window)


@converts("MelWeightMatrix")
def _mel(call: Call) -> Array:
    bins, length, rate = (int(call.number(i)) for i in range(3))
    low, high = (float(call.number(i)) for i in (3, 4))
    dtype = numpy_dtype(dtype_of(call.attribute("output_datatype", 1)))
    spectrum = length // 2 + 1
    mels = 2595 * np.log10(1 + np.array([low, high]) / 700)
    edges = np.arange(bins + 2) * ((mels[1] - mels[0]) / (bins + 2)) + mels[0]
    places = (((length + 1) * (700 * (10 ** (edges / 2595) - 1))) // rate).astype(int)
    found = np.zeros((spectrum, bins), dtype)
    for i in range(bins):
        low_at, centre, high_at = places[i : i + 3]
        if centre == low_at:
            found[centre, i] = 1
        rising = np.arange(low_at, centre + 1)
        if centre > low_at:
            found[rising, i] = (rising - low_at) / (centre - low_at)
        if high_at > centre:
            falling = np.arange(centre, high_at)
            found[falling, i] = (high_at - falling) / (high_at - centre)
    return found
