"""Operators of a plan that move elements, by functions that all systems have.

Where a dimension is looked up that is split, `start_v` is where the part of the rank begins: every
rank serves the positions in its part, and leaves zero elsewhere.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from . import arrays
from .arrays import Array, xp

Shape = Sequence[int]
Axis = int | Sequence[int] | None


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted({a % rank for a in ((axis,) if isinstance(axis, int) else axis)}))


def reshape(x: Array, *, shape: Shape) -> Array:
    return x.reshape(tuple(shape))


flatten = expand_dims = squeeze = reshape


def transpose(x: Array, *, permutation: Sequence[int] = ()) -> Array:
    return arrays.permuted(x, tuple(permutation) or tuple(reversed(range(x.ndim))))


def broadcast_to(x: Array, *, shape: Shape) -> Array:
    return arrays.broadcast(x, shape)


def spread(x: Array, *, shape: Shape, axis: Sequence[int] = (), keep_dims: bool = False) -> Array:
    if not keep_dims:
        x = x.reshape([1 if d in axis else n for d, n in enumerate(shape)])
    return arrays.broadcast(x, shape)


def tile(x: Array, *, shape: Shape) -> Array:
    copies = tuple(after // n for after, n in zip(shape, x.shape, strict=True))
    return xp.tile(x, copies)


def split(x: Array, *, axis: int = 0, parts: int = 1) -> tuple[Array, ...]:
    return tuple(arrays.parts(x, parts, axis))


def concat(*tensors: Array, axis: int = 0) -> Array:
    return xp.concatenate(tensors, axis)


def stack(*tensors: Array, axis: int = 0) -> Array:
    return xp.stack(tensors, axis)


def reverse(x: Array, *, axis: Axis = -1) -> Array:
    return xp.flip(x, _axes(axis, x.ndim))


# Buffers of many tensors


def pack(*tensors: Array) -> Array:
    return xp.concatenate([tensor.reshape(-1) for tensor in tensors])


def unpack(buffer: Array, *, shapes: Sequence[Shape]) -> tuple[Array, ...]:
    ends = accumulate(prod(shape) for shape in shapes)
    return tuple(
        buffer[end - prod(shape) : end].reshape(tuple(shape))
        for end, shape in zip(ends, shapes, strict=True)
    )


def pack_dealt(*tensors: Array, dimensions: Sequence[int], count: int = 1) -> Array:
    cut = [arrays.parts(x, count, d) for x, d in zip(tensors, dimensions, strict=True)]
    return pack(*(piece for member in zip(*cut, strict=True) for piece in member))


def unpack_gathered(
    buffer: Array, *, shapes: Sequence[Shape], dimensions: Sequence[int], count: int = 1
) -> tuple[Array, ...]:
    pieces = [
        [*shape[:d], shape[d] // count, *shape[d + 1 :]]
        for shape, d in zip(shapes, dimensions, strict=True)
    ]
    members = [unpack(run, shapes=pieces) for run in arrays.parts(buffer, count)]
    columns = zip(*members, strict=True)
    return tuple(xp.concatenate(column, d) for column, d in zip(columns, dimensions, strict=True))


# Look-ups


def _local(positions: Array, start: Any, size: int) -> tuple[Array, Array]:
    """Return positions in the part of the rank, clipped; and which are in it."""
    local = positions - start
    clipped = xp.clip(local, 0, size - 1)
    return clipped, clipped == local


def _kept(elements: Array, inside: Array, axis: int = 0, other: float = 0) -> Array:
    """Return elements, zero at positions of other ranks, which stand along dimensions from `axis`.

    At these positions it may be another number.

    They are not multiplied by zero: one that is infinite would be no number.
    """
    deep = inside.reshape(*inside.shape, *(1,) * (elements.ndim - axis - inside.ndim))
    return xp.where(deep, elements, arrays.scalar(other, elements))


def one_hot(indices: Array, *, dtype: str = "float32", start_v: Any = 0, size_v: int) -> Array:
    places = arrays.counted(start_v, size_v, indices)
    return arrays.as_type(indices[..., None] == places, arrays.dtype_of(dtype))


def pick(x: Array, indices: Array, *, start_v: Any = 0) -> Array:
    local, inside = _local(indices, start_v, x.shape[-1])
    return _kept(arrays.along(x, local[..., None], -1)[..., 0], inside)


def gather_elements(x: Array, indices: Array, *, axis: int = 0, start_v: Any = 0) -> Array:
    local, inside = _local(indices, start_v, x.shape[axis])
    return _kept(arrays.along(x, local, axis), inside)


def gather_nd(
    x: Array, indices: Array, *, start_v0: Any = 0, start_v1: Any = 0, start_v2: Any = 0
) -> Array:
    places, inside = _places(indices, x.shape, (start_v0, start_v1, start_v2))
    return _kept(x[places], inside)


def _places(indices: Array, shape: Shape, starts: Sequence[Any]) -> tuple[tuple[Array, ...], Array]:
    count = indices.shape[-1]
    found = [_local(indices[..., d], starts[d], shape[d]) for d in range(count)]
    inside = xp.ones_like(found[0][1])
    for _, own in found:
        inside = inside & own
    return tuple(place for place, _ in found), inside
