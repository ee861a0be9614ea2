"""Operators that change shapes: views, slices, joins, repetition, padding."""

from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.einsum import diagonal
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.stored import ModuleTensor
from shardwright.ir.graph import Value

_ANY = Any  # an argument that the types of the results repeat


@converts("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten")
@converts("aten.squeeze", "aten.unsqueeze", "aten.view_as", "aten._reshape_alias")
def _reshape(
    call: Call,
    x: Value,
    size: _ANY = None,
    shape: _ANY = None,
    start_dim: _ANY = None,
    end_dim: _ANY = None,
    dim: _ANY = None,
    sizes: _ANY = None,
    stride: _ANY = None,
    other: _ANY = None,
) -> Value:
    return call.reshape(x, call.result.shape)


@converts("aten.expand", "aten.expand_as", "aten.broadcast_to")
def _expand(call: Call, x: Value, size: _ANY = None, other: _ANY = None) -> Value:
    return call.broadcast(x, call.result.shape)


@converts("aten.permute")
def permute(call: Call, x: Value, dims: list[int]) -> Value:
    """Return a tensor with its dimensions in another order."""
    return call.transpose(x, [d % x.type.rank for d in dims])


@converts("aten.transpose")
def _transpose(call: Call, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.type.rank))
    a, b = dim0 % len(order), dim1 % len(order)
    order[a], order[b] = order[b], order[a]
    return call.transpose(x, order)


@converts("aten.t", "aten.numpy_T")
def _t(call: Call, x: Value) -> Value:
    return call.transpose(x, tuple(reversed(range(x.type.rank))))


@converts("aten.movedim")
def _movedim(call: Call, x: Value, source: list[int], destination: list[int]) -> Value:
    rank = x.type.rank
    moved = {d % rank: s % rank for s, d in zip(source, destination, strict=True)}
    rest = iter(d for d in range(rank) if d not in moved.values())
    return call.transpose(x, [moved[d] if d in moved else next(rest) for d in range(rank)])


# Parts


@converts("aten.slice")
def _slice(
    call: Call,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis = dim % x.type.rank
    first = slice(start, end, step).indices(x.type.shape[axis])[0]
    return call.part(x, axis, first, call.result.shape[axis], step)


@converts("aten.select")
def _select(call: Call, x: Value, dim: int, index: int) -> Value:
    axis = dim % x.type.rank
    part = call.part(x, axis, index % x.type.shape[axis], 1)
    return call.reshape(part, call.result.shape)


@converts("aten.narrow")
def _narrow(call: Call, x: Value, dim: int, start: int, length: int) -> Value:
    axis = dim % x.type.rank
    return call.part(x, axis, start % x.type.shape[axis], length)


@converts("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split")
def _split(
    call: Call,
    x: Value,
    split_size: _ANY = None,
    split_sizes: _ANY = None,
    chunks: _ANY = None,
    sections: _ANY = None,
    indices: _ANY = None,
    dim: int = 0,
) -> list[Item]:
    axis, start = dim % x.type.rank, 0
    sizes = [0 if kind is None else kind.shape[axis] for kind in call.results]
    if len(sizes) > 1 and len(set(sizes)) == 1 and sum(sizes) == x.type.shape[axis]:
        return list(call.emit_all("split", x, axis=axis, parts=len(sizes)))
    parts: list[Item] = []
    for size in sizes:
        parts.append(call.part(x, axis, start, size) if size else _empty(x, axis))
        start += size
    return parts


def _empty(x: Value, axis: int) -> Constant:
    """Return a part without elements."""
    shape = [0 if i == axis else size for i, size in enumerate(x.type.shape)]
    dtype = x.type.dtype
    return Constant(ModuleTensor(torch.empty(shape, dtype=getattr(torch, dtype))), dtype)


@converts("aten.unbind")
def _unbind(call: Call, x: Value, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    parts = [call.part(x, axis, i, 1) for i in range(x.type.shape[axis])]
    return [call.reshape(p, k.shape) for p, k in zip(parts, call.results, strict=True)]


@converts("aten.cat", "aten.concat")
def _cat(call: Call, tensors: Item, dim: int = 0) -> Value:
    dtype, items = call.result.dtype, cast(list[Item], tensors)
    filled = [i for i in items if not isinstance(i, Constant) or i.size]  # the rest is empty
    parts = [call.cast(call.value(part), dtype) for part in filled]
    axis = dim % call.result.rank
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


@converts("aten.stack")
def _stack(call: Call, tensors: list[Value], dim: int = 0) -> Value:
    dtype = call.result.dtype
    parts = [call.cast(part, dtype) for part in tensors]
    return call.emit("stack", *parts, axis=dim % call.result.rank)


@converts("aten.slice_scatter")
def _slice_scatter(
    call: Call,
    x: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis = dim % x.type.rank
    size = x.type.shape[axis]
    first, last, _ = slice(start, end, step).indices(size)
    if step != 1:
        return _every_nth(call, x, src, axis, first, step)
    parts = [call.part(x, axis, 0, first)] if first else []
    parts.append(src)
    parts += [call.part(x, axis, last, size - last)] if last < size else []
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


def _every_nth(call: Call, x: Value, src: Value, axis: int, first: int, step: int) -> Value:
    """Return a tensor with every n-th slice from a first one written."""
    size, count = x.type.shape[axis], src.type.shape[axis]
    after = size - first - (count - 1) * step - 1
    sides = {"before": first, "between": step - 1, "after": after}
    how = {k: tuple(n * (d == axis) for d in range(x.type.rank)) for k, n in sides.items()}
    written = np.isin(np.arange(size), first + np.arange(count) * step)
    mask = written.reshape([-1 if d == axis else 1 for d in range(x.type.rank)])
    return call.emit("where", call.constant(mask, "bool"), call.emit("pad", src, **how), x)


@converts("aten.select_scatter")
def _select_scatter(call: Call, x: Value, src: Value, dim: int, index: int) -> Value:
    axis = dim % x.type.rank
    place = index % x.type.shape[axis]
    shape = [1 if d == axis else n for d, n in enumerate(x.type.shape)]
    return _slice_scatter(call, x, call.reshape(src, shape), axis, place, place + 1)


# Repetition, order and padding


@converts("aten.repeat", "aten.tile")
def _repeat(call: Call, x: Value, repeats: Any = None, dims: Any = None) -> Value:
    counts = list(repeats if repeats is not None else dims)
    counts = [1] * (x.type.rank - len(counts)) + counts
    x = call.reshape(x, (1,) * (len(counts) - x.type.rank) + x.type.shape)
    return x if prod(counts) == 1 else call.emit("tile", x, multiples=tuple(counts))


@converts("aten.repeat_interleave.self_int")
def _repeat_interleave(
    call: Call, x: Value, repeats: int, dim: int | None = None, output_size: _ANY = None
) -> Value:
    shape = (x.type.elements,) if dim is None else x.type.shape
    axis = 0 if dim is None else dim % x.type.rank
    before, after = shape[: axis + 1], shape[axis + 1 :]
    single = call.reshape(x, (*before, 1, *after))
    return call.reshape(call.broadcast(single, (*before, repeats, *after)), call.result.shape)


@converts("aten.flip")
def _flip(call: Call, x: Value, dims: list[int]) -> Value:
    for dim in dims:
        x = call.emit("reverse", x, axis=dim % x.type.rank)
    return x


@converts("aten.roll")
def _roll(call: Call, x: Value, shifts: list[int], dims: list[int] | None = None) -> Value:
    if not dims:  # of all dimensions as one
        flat = _roll(call, call.reshape(x, (x.type.elements,)), shifts, [0])
        return call.reshape(flat, call.result.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % x.type.rank
        size = x.type.shape[axis]
        moved = -shift % size
        if moved:
            parts = call.part(x, axis, moved, size - moved), call.part(x, axis, 0, moved)
            x = call.emit("concat", *parts, axis=axis)
    return x


@converts("aten.constant_pad_nd", "aten.pad")
def _pad(
    call: Call, x: Value, pad: list[int], mode: str = "constant", value: Operand | None = None
) -> Value:
    if mode != "constant":
        return _padded_by_itself(call, x, pad, mode)
    rank = x.type.rank
    before, after = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    for d in range(rank):  # negative padding cuts
        cut_before, cut_after = max(-before[d], 0), max(-after[d], 0)
        x = call.part(x, d, cut_before, x.type.shape[d] - cut_before - cut_after)
    before, after = [max(n, 0) for n in before], [max(n, 0) for n in after]
    if not any(before + after):
        return x
    number = value or 0
    plain = float(number) if x.type.is_float else int(number)  # type: ignore[arg-type]
    return call.emit("pad", x, before=tuple(before), after=tuple(after), value=plain)


@converts("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
@converts("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def _pad_space(call: Call, x: Value, padding: list[int]) -> Value:
    mode = "reflect" if "reflection" in call.operator else "replicate"
    return _padded_by_itself(call, x, padding, mode)


def _padded_by_itself(call: Call, x: Value, pad: list[int], mode: str) -> Value:
    """Return a tensor padded with its own elements."""
    for i in range(len(pad) // 2):
        axis = x.type.rank - 1 - i
        line = torch.arange(x.type.shape[axis], dtype=torch.float64)[None, None]
        places = F.pad(line, (pad[2 * i], pad[2 * i + 1]), mode)[0, 0].to(torch.int64)
        x = call.taken(x, places.tolist(), axis)
    return x


# Windows and diagonals


@converts("aten.unfold")
def _unfold(call: Call, x: Value, dimension: int, size: int, step: int) -> Value:
    if not x.type.rank:
        return call.reshape(x, call.result.shape)
    axis = dimension % x.type.rank
    count = call.result.shape[axis]
    shape = x.type.shape
    if step == size:
        whole = call.part(x, axis, 0, count * size)
    else:
        places = np.arange(count)[:, None] * step + np.arange(size)
        whole = call.taken(x, places.ravel().tolist(), axis)
    whole = call.reshape(whole, (*shape[:axis], count, size, *shape[axis + 1 :]))
    rest = [d for d in range(whole.type.rank) if d != axis + 1]
    return call.transpose(whole, [*rest, axis + 1])


@converts("aten.im2col")
def _im2col(
    call: Call,
    x: Value,
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Value:
    batch = x if x.type.rank == 4 else call.reshape(x, (1, *x.type.shape))
    samples, channels = batch.type.shape[:2]
    before = (0, 0, *padding)
    if any(padding):
        batch = call.emit("pad", batch, before=before, after=before, value=0.0)
    counts = []
    for d in (0, 1):
        count = (batch.type.shape[2 + d] - dilation[d] * (kernel_size[d] - 1) - 1) // stride[d] + 1
        places = np.arange(kernel_size[d])[:, None] * dilation[d] + np.arange(count) * stride[d]
        batch = call.taken(batch, places.ravel().tolist(), 2 + d)
        counts.append(count)
    shape = (samples, channels, kernel_size[0], counts[0], kernel_size[1], counts[1])
    columns = call.transpose(call.reshape(batch, shape), (0, 1, 2, 4, 3, 5))
    return call.reshape(columns, call.result.shape)


@converts("aten.col2im")
def _col2im(
    call: Call,
    x: Value,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Value:
    counts = [
        (output_size[d] + 2 * padding[d] - dilation[d] * (kernel_size[d] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    ]
    samples = x.type.shape[0] if x.type.rank == 3 else 1
    channels = x.type.elements // (samples * prod(kernel_size) * prod(counts))
    whole = call.reshape(x, (samples, channels, *kernel_size, *counts))
    whole = call.transpose(whole, (0, 1, 2, 4, 3, 5))
    sizes = [k * n for k, n in zip(kernel_size, counts, strict=True)]
    whole = call.reshape(whole, (samples, channels, *sizes))
    for d in (0, 1):
        places = np.arange(kernel_size[d])[:, None] * dilation[d] + np.arange(counts[d]) * stride[d]
        targets = np.arange(output_size[d]) + padding[d]
        whole = call.mixed(whole, places.reshape(-1, 1) == targets, 2 + d)
    return call.reshape(whole, call.result.shape)


@converts("aten.diagonal")
def _diagonal(call: Call, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return diagonal(call, x, dim1 % x.type.rank, dim2 % x.type.rank, offset)


@converts("aten.tril", "aten.triu")
def _triangle(call: Call, x: Value, diagonal: int = 0) -> Value:
    operator = call.operator.split(".")[1]
    if x.type.dtype == "bool":
        return call.cast(call.emit(operator, call.cast(x, "int32"), diagonal=diagonal), "bool")
    return call.emit(operator, x, diagonal=diagonal)


@converts("aten.copy", "aten.copy_")
def _copy(call: Call, x: Item, src: Value, non_blocking: _ANY = None) -> Value:
    return call.broadcast(call.cast(src, call.result.dtype), call.result.shape)


# Tensors of known elements in the shape of another


@converts("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.new_zeros")
@converts("aten.new_ones", "aten.new_full", "aten.new_empty", "aten.empty_like", "aten.fill")
def _filled(
    call: Call,
    x: Item,
    size: _ANY = None,
    fill_value: Operand = 0,
    value: Operand | None = None,
    dtype: _ANY = None,
) -> Constant | Value:
    number = fill_value if value is None else value
    if "ones" in call.operator:
        number = 1
    if isinstance(number, Value):
        return call.broadcast(call.cast(number, call.result.dtype), call.result.shape)
    kind = getattr(torch, call.result.dtype)
    one = torch.tensor(number, dtype=kind)
    return Constant(ModuleTensor(one.expand(call.result.shape)), call.result.dtype)
