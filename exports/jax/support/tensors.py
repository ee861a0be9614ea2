"""Operators of a plan that move, look up or reduce elements.

Where a dimension is looked up that is split, `start_v` is where the part of the device begins:
every device serves the positions in its part, and leaves zero elsewhere.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from .shared.reductions import *  # noqa: F403
from .shared.shapes import *  # noqa: F403
from .shared.shapes import Shape, _kept, _local, _places

# Shapes


def slice(x: Array, *, begin: Shape, shape: Shape, strides: Shape = ()) -> Array:
    steps = tuple(strides) or (1,) * x.ndim
    places = zip(begin, shape, steps, strict=True)
    ends = [first + (count - 1) * abs(step) + 1 for first, count, step in places]
    return lax.slice(x, tuple(begin), tuple(ends), steps)


def own_samples(x: Array, *, start_b: Any = 0, size_b: int) -> Array:
    return lax.dynamic_slice_in_dim(x, start_b, size_b)


def pad(x: Array, *, before: Shape, shape: Shape, between: Shape = (), value: float = 0.0) -> Array:
    gaps = between or (0,) * x.ndim
    sizes = zip(before, x.shape, gaps, shape, strict=True)
    config = [(b, whole - b - ((n - 1) * (t + 1) + 1), t) for b, n, t, whole in sizes]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _columns_less_rows(x: Array, start_m: Any, start_n: Any) -> Array:
    rows, columns = jnp.arange(x.shape[-2]) + start_m, jnp.arange(x.shape[-1]) + start_n
    return columns - rows[:, None]


def tril(x: Array, *, diagonal: int = 0, start_m: Any = 0, start_n: Any = 0) -> Array:
    return jnp.where(_columns_less_rows(x, start_m, start_n) <= diagonal, x, jnp.zeros_like(x))


def triu(x: Array, *, diagonal: int = 0, start_m: Any = 0, start_n: Any = 0) -> Array:
    return jnp.where(_columns_less_rows(x, start_m, start_n) >= diagonal, x, jnp.zeros_like(x))


# Look-ups


def gather(
    table: Array, indices: Array, *, axis: int = 0, outside: str = "zero", start_v: Any = 0
) -> Array:
    axis %= table.ndim
    places = jnp.where(indices < 0, -1 - indices, indices) if outside == "constant" else indices
    local, inside = _local(places, start_v, table.shape[axis])
    found = _kept(jnp.take(table, local, axis, mode="clip"), inside, axis)
    return found if outside != "nan" else _kept(found, indices >= 0, axis, jnp.nan)


def gather_gradient(
    indices: Array, dy: Array, *, axis: int = 0, start_v: Any = 0, size_v: int
) -> Array:
    axis %= dy.ndim - indices.ndim + 1
    local, inside = _local(indices, start_v, size_v)
    shape = (*dy.shape[:axis], size_v, *dy.shape[axis + indices.ndim :])
    place = (*(jnp.s_[:],) * axis, local)
    return jnp.zeros(shape, dy.dtype).at[place].add(_kept(dy, inside, axis))


def pick_gradient(dy: Array, indices: Array, *, start_v: Any = 0, size_v: int) -> Array:
    chosen = indices[..., None] == jnp.arange(size_v) + start_v
    return jnp.where(chosen, dy[..., None], jnp.zeros((), dy.dtype))


def gather_elements_gradient(
    dy: Array, indices: Array, *, axis: int = 0, start_v: Any = 0, size_v: int
) -> Array:
    local, inside = _local(indices, start_v, size_v)
    shape = [*dy.shape]
    shape[axis] = size_v
    place: list[Array] = [*jnp.indices(dy.shape, sparse=True)]
    place[axis] = local
    return jnp.zeros(shape, dy.dtype).at[tuple(place)].add(_kept(dy, inside))


def scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: int = 0, start_v: Any = 0
) -> Array:
    local, inside = _local(indices, start_v, x.shape[axis])
    place: list[Array] = [*jnp.indices(indices.shape, sparse=True)]
    place[axis] = jnp.where(inside, local, x.shape[axis])  # what other ranks write is dropped
    return x.at[tuple(place)].set(updates, mode="drop")


def scatter_nd(
    indices: Array,
    updates: Array,
    *,
    shape: Shape,
    start_v0: Any = 0,
    start_v1: Any = 0,
    start_v2: Any = 0,
) -> Array:
    places, inside = _places(indices, shape, (start_v0, start_v1, start_v2))
    return jnp.zeros(tuple(shape), updates.dtype).at[places].add(_kept(updates, inside))


def scatter_nd_mul(
    x: Array, at: Array, updates: Array, *, start_v0: Any = 0, start_v1: Any = 0, start_v2: Any = 0
) -> Array:
    places, inside = _places(at, x.shape, (start_v0, start_v1, start_v2))
    return x.at[places].multiply(_kept(updates, inside, other=1))


def scatter_nd_mul_gradient(
    dy: Array,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    start_v0: Any = 0,
    start_v1: Any = 0,
    start_v2: Any = 0,
) -> Array:
    """Multiply all other updates at the position of each, of which some may be zero."""
    places, inside = _places(indices, x.shape, (start_v0, start_v1, start_v2))
    is_zero = updates == 0
    divisor = jnp.where(is_zero, 1, updates)
    product = (x * dy).at[places].multiply(_kept(divisor, inside, other=1))
    zeros = jnp.zeros(x.shape, jnp.int32).at[places].add(_kept(is_zero.astype(jnp.int32), inside))
    others = jnp.where(zeros[places] > is_zero, 0, product[places] / divisor)
    return _kept(others.astype(updates.dtype), inside)


# Reductions


def _ordered(x: Array, axis: int, descending: bool, count: int) -> tuple[Array, Array]:
    places = jnp.argsort(x, axis, stable=True, descending=descending)
    places = lax.slice_in_dim(places, 0, count, axis=axis)
    return jnp.take_along_axis(x, places, axis), places


def sort(x: Array, *, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return _ordered(x, axis, descending, x.shape[axis])


def top_k(x: Array, *, k: int = 1, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    return _ordered(x, axis, largest, k)
