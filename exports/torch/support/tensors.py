"""Operators of a plan that move, look up or reduce elements.

Where a dimension is looked up that is split, `start_v` is where the part of the rank begins: every
rank serves the positions in its part, and leaves zero elsewhere.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from .pointwise import widened

Shape = Sequence[int]
Axis = int | Sequence[int] | None


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted({a % rank for a in ((axis,) if isinstance(axis, int) else axis)}))


# Shapes


def reshape(x: Tensor, *, shape: Shape) -> Tensor:
    return x.reshape(tuple(shape))


flatten = expand_dims = squeeze = reshape


def transpose(x: Tensor, *, permutation: Sequence[int] = ()) -> Tensor:
    return x.permute(tuple(permutation) or tuple(reversed(range(x.ndim))))


def broadcast_to(x: Tensor, *, shape: Shape) -> Tensor:
    return x.expand(tuple(shape))


def spread(x: Tensor, *, shape: Shape, axis: Sequence[int] = (), keep_dims: bool = False) -> Tensor:
    if not keep_dims:
        x = x.reshape([1 if d in axis else n for d, n in enumerate(shape)])
    return x.expand(tuple(shape))


def tile(x: Tensor, *, shape: Shape) -> Tensor:
    copies = tuple(after // n for after, n in zip(shape, x.shape, strict=True))
    return x.tile(copies)


def slice(x: Tensor, *, begin: Shape, shape: Shape, strides: Shape = ()) -> Tensor:
    for d, (first, count, step) in enumerate(
        zip(begin, shape, strides or (1,) * x.ndim, strict=True)
    ):
        if (first, count, step) != (0, x.shape[d], 1):
            chosen = torch.arange(first, first + (count - 1) * step + 1, step, device=x.device)
            x = x.narrow(d, first, count) if step == 1 else x.index_select(d, chosen)
    return x


def own_samples(x: Tensor, *, start_b: int = 0, size_b: int) -> Tensor:
    return x.narrow(0, start_b, size_b)


def pad(
    x: Tensor, *, before: Shape, shape: Shape, between: Shape = (), value: float = 0.0
) -> Tensor:
    result = torch.full(tuple(shape), value, dtype=x.dtype, device=x.device)
    bounds = zip(before, x.shape, between or (0,) * x.ndim, strict=True)
    part = result
    for d, (b, n, t) in enumerate(bounds):
        part = part.narrow(d, b, (n - 1) * (t + 1) + 1).unfold(d, 1, t + 1).squeeze(-1)
    part.copy_(x)
    return result


def split(x: Tensor, *, axis: int = 0, parts: int = 1) -> tuple[Tensor, ...]:
    return torch.chunk(x, parts, axis)


def concat(*tensors: Tensor, axis: int = 0) -> Tensor:
    return torch.cat(tensors, axis)


def stack(*tensors: Tensor, axis: int = 0) -> Tensor:
    return torch.stack(tensors, axis)


def reverse(x: Tensor, *, axis: Axis = -1) -> Tensor:
    return torch.flip(x, _axes(axis, x.ndim))


def tril(x: Tensor, *, diagonal: int = 0, start_m: int = 0, start_n: int = 0) -> Tensor:
    return torch.tril(x, diagonal + start_m - start_n)


def triu(x: Tensor, *, diagonal: int = 0, start_m: int = 0, start_n: int = 0) -> Tensor:
    return torch.triu(x, diagonal + start_m - start_n)


# Buffers of many tensors


def pack(*tensors: Tensor) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unpack(buffer: Tensor, *, shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    ends = accumulate(prod(shape) for shape in shapes)
    return tuple(
        buffer[end - prod(shape) : end].reshape(tuple(shape))
        for end, shape in zip(ends, shapes, strict=True)
    )


def pack_dealt(*tensors: Tensor, dimensions: Sequence[int], count: int = 1) -> Tensor:
    cut = [torch.chunk(x, count, d) for x, d in zip(tensors, dimensions, strict=True)]
    return pack(*(piece for member in zip(*cut, strict=True) for piece in member))


def unpack_gathered(
    buffer: Tensor, *, shapes: Sequence[Shape], dimensions: Sequence[int], count: int = 1
) -> tuple[Tensor, ...]:
    pieces = [
        [*shape[:d], shape[d] // count, *shape[d + 1 :]]
        for shape, d in zip(shapes, dimensions, strict=True)
    ]
    members = [unpack(run, shapes=pieces) for run in torch.chunk(buffer, count)]
    columns = zip(*members, strict=True)
    return tuple(torch.cat(column, d) for column, d in zip(columns, dimensions, strict=True))


# Look-ups


def _local(positions: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return positions in the part of the rank, clipped; and which are in it."""
    local = positions - start
    clipped = local.clamp(0, size - 1)
    return clipped, clipped == local


def _kept(elements: Tensor, inside: Tensor, axis: int = 0, other: float = 0) -> Tensor:
    """Return elements, zero at positions of other ranks, which stand along dimensions from `axis`.

    At these positions it may be another number.

    They are not multiplied by zero: one that is infinite would be no number.
    """
    deep = inside.reshape(*inside.shape, *(1,) * (elements.ndim - axis - inside.ndim))
    return torch.where(deep, elements, elements.new_full((), other))


def gather(
    table: Tensor, indices: Tensor, *, axis: int = 0, outside: str = "zero", start_v: int = 0
) -> Tensor:
    axis %= table.ndim
    places = torch.where(indices < 0, -1 - indices, indices) if outside == "constant" else indices
    local, inside = _local(places, start_v, table.shape[axis])
    found = table.index_select(axis, local.reshape(-1))
    found = found.reshape(*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
    found = _kept(found, inside, axis)
    return found if outside != "nan" else _kept(found, indices >= 0, axis, math.nan)


def gather_gradient(
    indices: Tensor, dy: Tensor, *, axis: int = 0, start_v: int = 0, size_v: int
) -> Tensor:
    axis %= dy.ndim - indices.ndim + 1
    local, inside = _local(indices, start_v, size_v)
    terms = _kept(dy, inside, axis).flatten(axis, axis + indices.ndim - 1)
    shape = [*terms.shape]
    shape[axis] = size_v
    return dy.new_zeros(shape).index_add_(axis, local.reshape(-1), terms)


def one_hot(indices: Tensor, *, dtype: str = "float32", start_v: int = 0, size_v: int) -> Tensor:
    places = torch.arange(start_v, start_v + size_v, device=indices.device)
    return (indices[..., None] == places).to(getattr(torch, dtype))


def pick(x: Tensor, indices: Tensor, *, start_v: int = 0) -> Tensor:
    local, inside = _local(indices, start_v, x.shape[-1])
    return _kept(x.gather(-1, local[..., None])[..., 0], inside)


def pick_gradient(dy: Tensor, indices: Tensor, *, start_v: int = 0, size_v: int) -> Tensor:
    local, inside = _local(indices, start_v, size_v)
    own = _kept(dy, inside)
    return dy.new_zeros(*dy.shape, size_v).scatter_(-1, local[..., None], own[..., None])


def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0, start_v: int = 0) -> Tensor:
    local, inside = _local(indices, start_v, x.shape[axis])
    return _kept(x.gather(axis, local), inside)


def gather_elements_gradient(
    dy: Tensor, indices: Tensor, *, axis: int = 0, start_v: int = 0, size_v: int
) -> Tensor:
    local, inside = _local(indices, start_v, size_v)
    shape = [*dy.shape]
    shape[axis] = size_v
    return dy.new_zeros(shape).scatter_add_(axis, local, _kept(dy, inside))


def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, start_v: int = 0
) -> Tensor:
    local, inside = _local(indices, start_v, x.shape[axis])
    spare = torch.cat([x, x.narrow(axis, 0, 1)], axis)  # takes what other ranks write
    places = torch.where(inside, local, x.shape[axis])
    return spare.scatter(axis, places, updates).narrow(axis, 0, x.shape[axis])


def gather_nd(
    x: Tensor, indices: Tensor, *, start_v0: int = 0, start_v1: int = 0, start_v2: int = 0
) -> Tensor:
    places, inside = _places(indices, x.shape, (start_v0, start_v1, start_v2))
    return _kept(x[places], inside)


def scatter_nd(
    indices: Tensor,
    updates: Tensor,
    *,
    shape: Shape,
    start_v0: int = 0,
    start_v1: int = 0,
    start_v2: int = 0,
) -> Tensor:
    places, inside = _places(indices, shape, (start_v0, start_v1, start_v2))
    result = updates.new_zeros(tuple(shape))
    return result.index_put_(places, _kept(updates, inside), accumulate=True)


def _places(
    indices: Tensor, shape: Shape, starts: Sequence[int]
) -> tuple[tuple[Tensor, ...], Tensor]:
    count = indices.shape[-1]
    found = [_local(indices[..., d], starts[d], shape[d]) for d in range(count)]
    inside = torch.ones_like(found[0][1])
    for _, own in found:
        inside = inside & own
    return tuple(place for place, _ in found), inside


# Reductions


def reduce_sum(x: Tensor, *, axis: Axis = None, keep_dims: bool = False) -> Tensor:
    axes = _axes(axis, x.ndim)
    return x.sum(axes, keepdim=keep_dims, dtype=x.dtype) if axes else x


@widened
def reduce_mean(x: Tensor, *, axis: Axis = None, keep_dims: bool = False, whole: int) -> Tensor:
    return reduce_sum(x, axis=axis, keep_dims=keep_dims) / whole


def reduce_max(
    x: Tensor, *, axis: Axis = None, keep_dims: bool = False, differentiable: bool = True
) -> Tensor:
    return torch.amax(x, _axes(axis, x.ndim), keepdim=keep_dims)


def reduce_min(
    x: Tensor, *, axis: Axis = None, keep_dims: bool = False, differentiable: bool = True
) -> Tensor:
    return torch.amin(x, _axes(axis, x.ndim), keepdim=keep_dims)


def reduce_any(x: Tensor, *, axis: Axis = None, keep_dims: bool = False) -> Tensor:
    return torch.amax(x, _axes(axis, x.ndim), keepdim=keep_dims)


def reduce_all(x: Tensor, *, axis: Axis = None, keep_dims: bool = False) -> Tensor:
    return torch.amin(x, _axes(axis, x.ndim), keepdim=keep_dims)


def _share(dy: Tensor, x: Tensor, extremum: Tensor, axes: Shape, keep_dims: bool) -> Tensor:
    chosen = x == extremum
    if not keep_dims:
        dy = dy.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
    count = chosen.sum(tuple(axes), keepdim=True)
    others = torch.where(count == 0, torch.nan, 0.0)
    return torch.where(chosen, dy / count, others).to(x.dtype)


def reduce_max_gradient(
    dy: Tensor, x: Tensor, *, axis: Axis = None, keep_dims: bool = False
) -> Tensor:
    axes = _axes(axis, x.ndim)
    return _share(dy, x, torch.amax(x, axes, keepdim=True), axes, keep_dims)


def reduce_min_gradient(
    dy: Tensor, x: Tensor, *, axis: Axis = None, keep_dims: bool = False
) -> Tensor:
    axes = _axes(axis, x.ndim)
    return _share(dy, x, torch.amin(x, axes, keepdim=True), axes, keep_dims)


def argmax(x: Tensor, *, axis: int = -1, keep_dims: bool = False) -> Tensor:
    return torch.argmax(x, axis, keepdim=keep_dims)


def argmin(x: Tensor, *, axis: int = -1, keep_dims: bool = False) -> Tensor:
    return torch.argmin(x, axis, keepdim=keep_dims)


def _ordered(x: Tensor, axis: int, descending: bool, count: int) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=axis, descending=descending, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def sort(x: Tensor, *, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _ordered(x, axis, descending, x.shape[axis])


def top_k(x: Tensor, *, k: int = 1, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    return _ordered(x, axis, largest, k)
