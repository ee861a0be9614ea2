"""Matrix products and convolutions."""

from math import prod
from string import ascii_lowercase
from typing import Any

from shardwright.frontends.common.einsum import emit_einsum
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value


@converts("aten.linear")
def _linear(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    flat = x if x.type.rank > 1 else call.reshape(x, (1, *x.type.shape))
    found = call.emit("matmul", flat, weight, transpose_b=True)
    found = call.reshape(found, call.result.shape)
    return found if bias is None else call.emit("add", found, bias)


@converts("aten.matmul", "aten.mm", "aten.bmm", "aten.dot", "aten.mv")
def _matmul(
    call: Call,
    x: Value,
    other: Value | None = None,
    mat2: Value | None = None,
    tensor: Value | None = None,
    vec: Value | None = None,
) -> Value:
    b = next(v for v in (other, mat2, tensor, vec) if v is not None)
    a = call.reshape(x, (1, *x.type.shape)) if x.type.rank == 1 else x
    b = call.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    return call.reshape(call.emit("matmul", a, b), call.result.shape)


@converts("aten.addmm", "aten.baddbmm")
def _addmm(
    call: Call,
    x: Value,
    mat1: Value | None = None,
    mat2: Value | None = None,
    batch1: Value | None = None,
    batch2: Value | None = None,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    a, b = (v for v in (mat1, mat2, batch1, batch2) if v is not None)
    if x.type.rank == 1 and a.type.rank == 2:
        a = _unjoined(call, a)
    product = call.scaled(call.emit("matmul", a, b), alpha)
    return call.reshape(call.emit("add", product, call.scaled(x, beta)), call.result.shape)


@converts("aten.addmv")
def _addmv(
    call: Call, x: Value, mat: Value, vec: Value, beta: float = 1, alpha: float = 1
) -> Value:
    column = call.reshape(vec, (*vec.type.shape, 1))
    product = call.reshape(call.emit("matmul", mat, column), call.result.shape)
    return call.emit("add", call.scaled(product, alpha), call.scaled(x, beta))


def _unjoined(call: Call, rows: Value) -> Value:
    """Return rows that were joined only for a product, ``[batch token, feature]``, as they were.

    A split of the batch and one of the tokens then reach the product.
    """
    joined = call.views.get(rows.name)
    if joined is None:
        return rows
    count, features = rows.type.shape
    leading = joined.type.shape
    while leading and prod(leading) > count:
        leading = leading[:-1]
    is_whole = leading and prod(leading) == count
    return call.reshape(joined, (*leading, features)) if is_whole else rows


@converts("aten.einsum")
def _einsum(call: Call, equation: str, tensors: list[Value], path: Any = None) -> Value:
    return emit_einsum(call, equation, tensors)


@converts("aten._trilinear")
def _trilinear(
    call: Call,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Value:
    """Convert a product of three tensors, each without some of the dimensions, and its sum."""
    letters = ascii_lowercase[: i1.type.rank + len(expand1)]

    def without(places: list[int]) -> str:
        return "".join(letter for i, letter in enumerate(letters) if i not in places)

    terms = ",".join(map(without, (expand1, expand2, expand3)))
    return emit_einsum(call, f"{terms}->{without(sumdim)}", [i1, i2, i3])


@converts("aten.outer")
def _outer(call: Call, x: Value, vec2: Value) -> Value:
    a, b = (call.cast(v, call.result.dtype) for v in (x, vec2))
    column = call.reshape(a, (a.type.shape[0], 1))
    return call.emit("mul", column, call.reshape(b, (1, b.type.shape[0])))


# Convolutions


def spread(number: Any, rank: int) -> tuple[int, ...]:
    """Return one number for each dimension of space."""
    numbers = [number] if isinstance(number, int) else list(number)
    return tuple(numbers * rank if len(numbers) == 1 else numbers)


@converts("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
@converts("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _convolution(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool | None = None,
    output_padding: Any = 0,
    groups: int = 1,
) -> Value:
    rank = weight.type.rank - 2
    is_transposed = "transpose" in call.operator if transposed is None else transposed
    how: dict[str, Any] = {
        "stride": spread(stride, rank),
        "dilation": spread(dilation, rank),
        "padding": _padding(padding, weight.type.shape[2:], spread(dilation, rank)),
        "groups": groups,
    }
    single = x.type.rank == rank + 1  # one sample without a batch
    batch = call.reshape(x, (1, *x.type.shape)) if single else x
    if is_transposed:
        how["size"] = call.result.shape[-rank:]
    operator = "transposed_convolution" if is_transposed else "convolution"
    found = call.emit(operator, batch, weight, **how)
    if bias is not None:
        found = call.emit("bias_add", found, bias, axis=1)
    return call.reshape(found, call.result.shape)


def _padding(
    padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((n, n) for n in spread(padding, len(kernel)))
