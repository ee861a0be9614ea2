"""Experts between which tokens choose.

The rows of experts are `[expert, token..., feature]`; a choice of -1 is of no expert.
"""

import jax.numpy as jnp
from jax import Array, lax

from .shared.routing import *  # noqa: F403


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
