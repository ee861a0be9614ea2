"""Experts of limited capacity: what depends on the global place of an element.

Slot `j` of expert `i` is `i capacity + j`; the slot of a choice that has none is -1.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def expert_slots(chosen: Array, *, experts: int = 1, capacity: int = 1) -> Array:
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
    slots = jnp.where(kept, expert * capacity + place, -1).astype(chosen.dtype)
    return slots.reshape(groups, choices, tokens).transpose(0, 2, 1)


def _own_slots(
    slots: Array, capacity: int, starts: tuple[Any, Any], sizes: tuple[int, int, int]
) -> tuple[Array, Array]:
    """Return the place of each slot in the part of the rank, and whether it is in it."""
    experts, groups, places = sizes
    expert = slots // capacity - starts[0]
    place = slots % capacity - starts[1]
    inside = (slots >= 0) & (expert >= 0) & (expert < experts) & (place >= 0) & (place < places)
    group = jnp.arange(groups)[:, None, None]
    return jnp.where(inside, (expert * groups + group) * places + place, 0), inside


def dispatch(
    x: Array,
    slots: Array,
    *weights: Array,
    experts: int = 1,
    capacity: int = 1,
    start_e: Any = 0,
    start_c: Any = 0,
    size_e: int,
    size_g: int,
    size_c: int,
    shape: Sequence[int],
) -> Array:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    terms = x[:, :, None] * inside[..., None]
    if weights:
        terms = terms * weights[0][..., None]
    total = jnp.zeros((shape[0] * shape[1], shape[2]), x.dtype)
    return total.at[positions].add(terms).reshape(tuple(shape))


def combine(
    y: Array,
    slots: Array,
    *weights: Array,
    capacity: int = 1,
    start_e: Any = 0,
    start_c: Any = 0,
    size_e: int,
    size_g: int,
    size_c: int,
) -> Array:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    factors = inside * weights[0] if weights else inside.astype(y.dtype)
    return (y.reshape(-1, y.shape[-1])[positions] * factors[..., None]).sum(2)


def routing_weight_gradient(
    x: Array,
    y: Array,
    slots: Array,
    *,
    capacity: int = 1,
    start_e: Any = 0,
    start_c: Any = 0,
    size_e: int,
    size_g: int,
    size_c: int,
) -> Array:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    return (y.reshape(-1, y.shape[-1])[positions] * x[:, :, None]).sum(-1) * inside
