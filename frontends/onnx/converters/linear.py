"""Products, convolutions and windows."""

from collections.abc import Sequence
from typing import Any

from shardwright.frontends.common.einsum import emit_einsum
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.onnx.converters.shape import padded
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value

Pairs = tuple[tuple[int, int], ...]


@converts("MatMul")
def _matmul(call: Call) -> Value:
    return product(call, call.value(0), call.value(1))


def product(call: Call, a: Value, b: Value) -> Value:
    """Return the matrix product of two values by the rules of numpy for vectors."""
    row, column = a.type.rank == 1, b.type.rank == 1
    a = call.reshape(a, (1, *a.type.shape)) if row else a
    b = call.reshape(b, (*b.type.shape, 1)) if column else b
    found = call.emit("matmul", a, b)
    shape = found.type.shape
    if row or column:
        shape = (*shape[:-2], *shape[-2:][row : 2 - column])
    return call.reshape(found, shape)


@converts("Gemm")
def _gemm(call: Call) -> Value:
    a, b = call.value(0), call.value(1)
    turned = {"transpose_a": "transA", "transpose_b": "transB"}
    how = {ours: True for ours, theirs in turned.items() if call.attribute(theirs, 0)}
    found = call.emit("matmul", a, b, **how)
    found = scaled(call, found, call.attribute("alpha", 1.0))
    if not call.has(2):
        return found
    return call.emit("add", found, scaled(call, call.value(2), call.attribute("beta", 1.0)))


def scaled(call: Call, x: Value, factor: float) -> Value:
    """Return a value times a number."""
    if factor == 1:
        return x
    if not x.type.is_float:
        return call.emit("mul", x, call.like(int(factor), x))
    return call.emit("scale", x, factor=float(factor))


@converts("Einsum")
def _einsum(call: Call) -> Value:
    return emit_einsum(call, call.attribute("equation"), call.values)


# Convolutions


def geometry(call: Call, kernel: Sequence[int], space: Sequence[int]) -> dict[str, Any]:
    """Return stride, padding and dilation of windows as attributes of our operators."""
    rank = len(space)
    stride = tuple(call.attribute("strides", (1,) * rank))
    dilation = tuple(call.attribute("dilations", (1,) * rank))
    pads = tuple(call.attribute("pads", (0,) * 2 * rank))
    padding: Pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
    automatic = call.attribute("auto_pad", "NOTSET")
    if automatic == "VALID":
        padding = ((0, 0),) * rank
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        sizes = zip(kernel, stride, dilation, space, strict=True)
        totals = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for k, s, d, n in sizes]
        padding = tuple(_shared(total, automatic) for total in totals)
    return {"stride": stride, "padding": padding, "dilation": dilation}


def _shared(total: int, automatic: str) -> tuple[int, int]:
    """Divide padding between both ends; the odd one is at the end, or at the start."""
    less, more = total // 2, total - total // 2
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


@converts("Conv")
def _conv(call: Call) -> Value:
    x, w = call.value(0), call.value(1)
    how = geometry(call, w.type.shape[2:], x.type.shape[2:])
    found = call.emit("convolution", x, w, groups=call.attribute("group", 1), **how)
    return call.emit("bias_add", found, call.value(2), axis=1) if call.has(2) else found


@converts("ConvTranspose")
def _conv_transpose(call: Call) -> Value:
    x, w = call.value(0), call.value(1)
    space, kernel = x.type.shape[2:], w.type.shape[2:]
    rank = len(space)
    stride = tuple(call.attribute("strides", (1,) * rank))
    dilation = tuple(call.attribute("dilations", (1,) * rank))
    extra = tuple(call.attribute("output_padding", (0,) * rank))
    pads = tuple(call.attribute("pads", (0,) * 2 * rank))
    padding: Pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
    sides = zip(space, stride, kernel, dilation, extra, strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in sides]
    asked, automatic = call.attribute("output_shape"), call.attribute("auto_pad", "NOTSET")
    if asked is not None or automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = asked or tuple(n * s for n, s in zip(space, stride, strict=True))
        totals = [f - n for f, n in zip(full, wanted[-rank:], strict=True)]
        if asked is None and min(totals) < 0:  # the standard and onnxruntime differ in the size
            raise UnsupportedError(f"windows smaller than their stride with `{automatic}`")
        lower = "SAME_UPPER" if automatic == "SAME_UPPER" else "SAME_LOWER"
        padding = tuple(_shared(max(t, 0), lower) for t in totals)
        full = [f + max(-t, 0) for f, t in zip(full, totals, strict=True)]
    # Emitted on the padded space, then sliced, unless our operator supports the padding.
    size = tuple(n - a - b for n, (a, b) in zip(full, padding, strict=True))
    how: dict[str, Any] = {"stride": stride, "dilation": dilation}
    groups = call.attribute("group", 1)
    plain = all(0 <= e < s for e, s in zip(extra, stride, strict=True)) and asked is None
    if plain and automatic == "NOTSET":
        found = call.emit(
            "transposed_convolution", x, w, groups=groups, size=size, padding=padding, **how
        )
    else:
        found = call.emit("transposed_convolution", x, w, groups=groups, **how)
        ends = zip(full, found.type.shape[2:], padding, strict=True)
        after = [n - m - b for n, m, (_, b) in ends]
        before = [-a for a, _ in padding]
        found = padded(call, found, (0, 0, *before), (0, 0, *after))
    return call.emit("bias_add", found, call.value(2), axis=1) if call.has(2) else found
