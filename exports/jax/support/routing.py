"""Experts between which tokens choose.

The rows of experts are `[expert, token..., feature]`; a choice of -1 is of no expert.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def within_capacity(chosen: Array, *, experts: int = 1, capacity: int = 1) -> Array:
    groups, tokens, choices = chosen.shape
    expert = chosen.transpose(0, 2, 1).reshape(groups, choices * tokens)
    order = jnp.argsort(expert, 1, stable=True)
    ordered = jnp.take_along_axis(expert, order, 1)
    count = jnp.broadcast_to(jnp.arange(choices * tokens), ordered.shape)
    begins = jnp.ones(ordered.shape, bool).at[:, 1:].set(ordered[:, 1:] != ordered[:, :-1])
    first = lax.cummax(jnp.where(begins, count, 0), axis=1)
    rows = jnp.arange(groups)[:, None]
    place = jnp.zeros_like(count).at[rows, order].set(count - first)
    kept = (place < capacity) & (expert >= 0) & (expert < experts)
    found = jnp.where(kept, expert, -1).astype(chosen.dtype)
    return found.reshape(groups, choices, tokens).transpose(0, 2, 1)


def _taken(chosen: Array, start: Any, size: int) -> Array:
    """Return which choices are of each expert of the device, experts first."""
    return chosen == (start + jnp.arange(size)).reshape(-1, *(1,) * chosen.ndim)


def _shares(chosen: Array, weights: tuple[Array, ...], start: Any, size: int) -> Array:
    """Return the weight of the row of each expert and token: 0 where it is not filled."""
    taken = _taken(chosen, start, size)
    return (taken * weights[0]).sum(-1) if weights else taken.any(-1)


def dispatch(
    x: Array,
    chosen: Array,
    *weights: Array,
    experts: int = 1,
    imbalance: float = 1.0,
    ragged: bool = True,
    start_e: Any = 0,
    size_e: int,
) -> Array:
    return x * _shares(chosen, weights, start_e, size_e).astype(x.dtype)[..., None]


def combine(y: Array, chosen: Array, *weights: Array, start_e: Any = 0, size_e: int) -> Array:
    shares = _shares(chosen, weights, start_e, size_e)[..., None]
    return jnp.where(shares != 0, y * shares.astype(y.dtype), 0).sum(0)


def routing_weight_gradient(
    x: Array, y: Array, chosen: Array, *, start_e: Any = 0, size_e: int
) -> Array:
    taken = _taken(chosen, start_e, size_e)
    return jnp.where(taken, (x * y).sum(-1)[..., None], 0).sum(0)


def grouped_matmul(x: Array, matrices: Array, *, transposed: bool = False) -> Array:
    right = matrices.mT if transposed else matrices
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return jnp.matmul(rows, right).reshape(*x.shape[:-1], right.shape[-1])


def grouped_outer(x: Array, y: Array) -> Array:
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return jnp.matmul(rows.mT, y.reshape(y.shape[0], -1, y.shape[-1]))
