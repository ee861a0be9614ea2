"""Operators of a plan whose elements depend on all others up to them, and products of elements."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .pointwise import by_operand
from .shared.elementwise import widened

Axis = int | Sequence[int] | None


def cumsum(x: Array, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Array:
    if reverse:
        x = jnp.flip(x, axis)
    if exclusive:  # without a difference, which would be no number where there is an infinite one
        first = lax.slice_in_dim(x, 0, x.shape[axis] - 1, axis=axis)
        x = jnp.concatenate([jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=axis)), first], axis)
    total = jnp.cumsum(x, axis, dtype=x.dtype)
    return jnp.flip(total, axis) if reverse else total


def cumprod(x: Array, *, axis: int = -1) -> Array:
    return jnp.cumprod(x, axis, dtype=x.dtype)


@widened
def cumprod_gradient(dy: Array, x: Array, *, axis: int = -1) -> Array:
    return by_operand(cumprod)(dy, x, axis=axis)


@widened
def cumlogsumexp(x: Array, *, axis: int = -1) -> Array:
    return lax.cumlogsumexp(x, axis % x.ndim)


@widened
def cumlogsumexp_gradient(dy: Array, x: Array, *, axis: int = -1) -> Array:
    dy, x = (jnp.moveaxis(one, axis, 0) for one in (dy, x))
    sums = lax.cumlogsumexp(x, 0)
    floor = jnp.where(jnp.isneginf(sums), 0, sums)  # there, all elements so far have no share
    shares = jnp.concatenate([jnp.exp(sums[:-1] - floor[1:]), jnp.zeros_like(x[:1])])

    def step(total: Array, one: tuple[Array, Array]) -> tuple[Array, Array]:
        total = one[0] + one[1] * total
        return total, total

    totals = lax.scan(step, jnp.zeros_like(x[0]), (dy, shares), reverse=True)[1]
    return jnp.moveaxis(jnp.exp(x - floor) * totals, 0, axis)


def _extremum(found: Array, x: Array, axis: int) -> tuple[Array, Array]:
    """Return extrema of all elements up to each, and their last positions."""
    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    is_extreme = (x == found) | (x != x)
    return found, lax.cummax(jnp.where(is_extreme, places, 0), axis)


def cummax(x: Array, *, axis: int = -1) -> tuple[Array, ...]:
    return _extremum(lax.cummax(x, axis % x.ndim), x, axis % x.ndim)


def cummin(x: Array, *, axis: int = -1) -> tuple[Array, ...]:
    return _extremum(lax.cummin(x, axis % x.ndim), x, axis % x.ndim)


def reduce_prod(x: Array, *, axis: Axis = None, keep_dims: bool = False) -> Array:
    axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
    return jnp.prod(x, axes, dtype=x.dtype, keepdims=keep_dims)


@widened
def reduce_prod_gradient(
    dy: Array, x: Array, *, axis: Axis = None, keep_dims: bool = False
) -> Array:
    return by_operand(reduce_prod)(dy, x, axis=axis, keep_dims=keep_dims)
