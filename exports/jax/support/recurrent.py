"""Operators of a plan that follow the steps of a sequence."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from .pointwise import widened

State = tuple[Array, ...]


def _next(cell: str, entered: Array, turned: Array, state: State) -> State:
    """Return the state after a step, given its gates of the inputs and of the state before."""
    if cell == "gru":
        (r, z, n), (hr, hz, hn) = (jnp.split(x, 3, -1) for x in (entered, turned))
        r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
        n = jnp.tanh(n + r * hn)
        return (n + z * (state[0] - n),)
    gates = entered + turned
    if cell != "lstm":
        return (jnp.tanh(gates) if cell == "tanh" else jax.nn.relu(gates),)
    i, f, g, o = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def recurrent_layer(
    x: Array, weights: Array, *others: Array, cell: str = "lstm", reverse: bool = False
) -> Array | State:
    count = 2 if cell == "lstm" else 1
    bias = others[count] if len(others) > count else jnp.zeros((), x.dtype)

    def step(state: State, entered: Array) -> tuple[State, State]:
        after = _next(cell, entered, state[0] @ weights.T + bias, state)
        return after, after

    found: State = lax.scan(step, others[:count], x, reverse=reverse)[1]
    return found if count > 1 else found[0]


def recurrent_layer_gradient(*tensors: Array, cell: str = "lstm", reverse: bool = False) -> State:
    count = 2 if cell == "lstm" else 1
    x, weights, *others = tensors[count:-count]
    first, bias, states = others[:count], others[count:], tensors[-count:]
    before = tuple(
        jnp.concatenate((y[1:], a[None]) if reverse else (a[None], y[:-1]))
        for a, y in zip(first, states, strict=True)
    )
    turned = before[0] @ weights.T + (bias[0] if bias else 0)

    def step(slope: State, at: tuple[State, Array, Array, State]) -> tuple[State, State]:
        slope = tuple(a + dy for a, dy in zip(slope, at[0], strict=True))
        own = jax.vjp(partial(_next, cell), *at[1:])[1](slope)
        return (own[2][0] + own[1] @ weights, *own[2][1:]), own[:2]

    start = tuple(jnp.zeros_like(a) for a in first)
    along = (tensors[:count], x, turned, before)
    slope, (entering, turning) = lax.scan(step, start, along, reverse=not reverse)
    rows = turning.reshape(-1, turning.shape[-1])
    of_weights = rows.T @ before[0].reshape(-1, weights.shape[1])
    found: State = (entering, of_weights, *slope)
    return (*found, rows.sum(0)) if bias else found


@widened
def linear_recurrence(
    a: Array, b: Array, *initial: Array, axis: int = -1, reverse: bool = False
) -> Array:
    axis %= a.ndim
    if initial:
        end = a.shape[axis] - 1 if reverse else 0
        first = (*(slice(None),) * axis, end)
        b = b.at[first].add(a[first] * initial[0])

    def joined(before: State, after: State) -> State:
        return before[0] * after[0], after[0] * before[1] + after[1]

    states: Array = lax.associative_scan(joined, (a, b), reverse=reverse, axis=axis)[1]
    return states
