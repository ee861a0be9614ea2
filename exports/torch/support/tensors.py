"""Operators of a plan that move, look up or reduce elements.

Where a dimension is looked up that is split, `start_v` is where the part of the rank begins: every
rank serves the positions in its part, and leaves zero elsewhere.
"""

import math

import torch
from torch import Tensor

from .shared.reductions import *  # noqa: F403
from .shared.shapes import *  # noqa: F403
from .shared.shapes import Shape, _kept, _local, _places

# Shapes


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


def tril(x: Tensor, *, diagonal: int = 0, start_m: int = 0, start_n: int = 0) -> Tensor:
    return torch.tril(x, diagonal + start_m - start_n)


def triu(x: Tensor, *, diagonal: int = 0, start_m: int = 0, start_n: int = 0) -> Tensor:
    return torch.triu(x, diagonal + start_m - start_n)


# Look-ups


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


def pick_gradient(dy: Tensor, indices: Tensor, *, start_v: int = 0, size_v: int) -> Tensor:
    local, inside = _local(indices, start_v, size_v)
    own = _kept(dy, inside)
    return dy.new_zeros(*dy.shape, size_v).scatter_(-1, local[..., None], own[..., None])


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


def scatter_nd_mul(
    x: Tensor,
    at: Tensor,
    updates: Tensor,
    *,
    start_v0: int = 0,
    start_v1: int = 0,
    start_v2: int = 0,
) -> Tensor:
    places, inside = _places(at, x.shape, (start_v0, start_v1, start_v2))
    row, linear = x.shape[len(places) :], torch.zeros_like(places[0])
    for place, size in zip(places, x.shape, strict=False):
        linear = linear * size + place
    factors = _kept(updates, inside, other=1).reshape(-1, *row)
    rows = linear.reshape(-1, *(1,) * len(row)).expand_as(factors)
    return x.reshape(-1, *row).scatter_reduce(0, rows, factors, "prod").view(x.shape)


def scatter_nd_mul_gradient(
    dy: Tensor,
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    start_v0: int = 0,
    start_v1: int = 0,
    start_v2: int = 0,
) -> Tensor:
    """Multiply all other updates at the position of each, of which some may be zero."""
    places, inside = _places(indices, x.shape, (start_v0, start_v1, start_v2))
    is_zero = updates == 0
    divisor = torch.where(is_zero, 1, updates)
    product = scatter_nd_mul(
        x * dy, indices, divisor, start_v0=start_v0, start_v1=start_v1, start_v2=start_v2
    )
    zeros = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    zeros.index_put_(places, _kept(is_zero.long(), inside), accumulate=True)
    others = torch.where(zeros[places] > is_zero.long(), 0, product[places] / divisor)
    return _kept(others.to(updates.dtype), inside)


# Reductions


def _ordered(x: Tensor, axis: int, descending: bool, count: int) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=axis, descending=descending, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def sort(x: Tensor, *, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _ordered(x, axis, descending, x.shape[axis])


def top_k(x: Tensor, *, k: int = 1, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    return _ordered(x, axis, largest, k)
