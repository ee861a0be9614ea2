"""Operators of a plan that follow the steps of a sequence."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.elementwise import widened
from .shared.recurrent import next_state

State = tuple[Array, ...]


def recurrent_layer(
    x: Array, weights: Array, *others: Array, cell: str = "lstm", reverse: bool = False
) -> Array | State:
    count = 2 if cell == "lstm" else 1
    bias = others[count] if len(others) > count else jnp.zeros((), x.dtype)

    def step(state: State, entered: Array) -> tuple[State, State]:
        after = next_state(cell, entered, state[0] @ weights.T + bias, state)
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
        own = jax.vjp(partial(next_state, cell), *at[1:])[1](slope)
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


@widened
def ctc_loss(
    logs: Array,
    labels: Array,
    steps: Array,
    counts: Array,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Array:
    classes, skips = _paths(labels, counts, blank)
    losses = _losses(_forward(logs, classes, skips, steps, counts)[-1], steps, counts)
    return jnp.where(jnp.isinf(losses), 0, losses) if zero_infinity else losses


@widened
def ctc_loss_gradient(
    g: Array,
    logs: Array,
    labels: Array,
    steps: Array,
    counts: Array,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Array:
    classes, skips = _paths(labels, counts, blank)
    before = _forward(logs, classes, skips, steps, counts)
    after = _backward(logs, classes, skips, steps, counts)
    losses = _losses(before[-1], steps, counts)
    own = jnp.take_along_axis(logs, jnp.broadcast_to(classes, before.shape), 2)
    shares = jnp.exp(before + after + losses[:, None] - own)
    is_read = (jnp.arange(len(logs))[:, None] < steps)[..., None]
    place = jnp.arange(len(logs))[:, None, None], jnp.arange(len(g))[:, None], classes
    total = jnp.zeros_like(logs).at[place].add(jnp.where(is_read, shares, 0))
    lost = is_read & jnp.isinf(losses)[:, None]
    return -g[:, None] * jnp.where(lost, 0 if zero_infinity else jnp.nan, total)


@widened
def ctc_prefixes(
    logs: Array, labels: Array, steps: Array, counts: Array, *, blank: int = 0
) -> Array:
    classes, skips = _paths(labels, counts, blank)
    found = _forward(logs, classes, skips, steps, counts).swapaxes(0, 1)
    is_own = jnp.arange(classes.shape[1]) <= 2 * counts[:, None]
    is_read = jnp.arange(len(logs)) < steps[:, None]
    return jnp.where(is_read[..., None] & is_own[:, None], found, -jnp.inf)


def _paths(labels: Array, counts: Array, blank: int) -> tuple[Array, Array]:
    """Return the class of each state, and whether the blank before it can be skipped."""
    classes = jnp.full((len(labels), 2 * labels.shape[1] + 1), blank)
    own = jnp.arange(labels.shape[1]) < counts[:, None]
    classes = classes.at[:, 1::2].set(jnp.where(own, labels, blank))
    differs = classes != jnp.pad(classes, ((0, 0), (2, 0)))[:, :-2]
    return classes, differs & (jnp.arange(classes.shape[1]) % 2 == 1)


def _joined(x: Array, skips: Array, by: int) -> Array:
    """Return the sums of all ways to a state from itself and those before it, or after."""

    def moved(count: int) -> Array:
        pads = (count, 0) if by > 0 else (0, count)
        wide = jnp.pad(x, ((0, 0), pads), constant_values=-jnp.inf)
        return wide[:, : x.shape[1]] if by > 0 else wide[:, count:]

    return jnp.logaddexp(jnp.logaddexp(x, moved(1)), jnp.where(skips, moved(2), -jnp.inf))


def _forward(logs: Array, classes: Array, skips: Array, steps: Array, counts: Array) -> Array:
    """Return the sums ``[step, sample, state]`` of all ways to a state."""
    states = jnp.arange(classes.shape[1])
    is_first = (states < 2) & (states <= 2 * counts[:, None])
    first = jnp.where(is_first, jnp.take_along_axis(logs[0], classes, 1), -jnp.inf)

    def step(found: Array, one: tuple[Array, Array]) -> tuple[Array, Array]:
        place, log = one
        ways = _joined(found, skips, 1) + jnp.take_along_axis(log, classes, 1)
        found = jnp.where(place < steps[:, None], ways, found)
        return found, found

    rest = lax.scan(step, first, (jnp.arange(1, len(logs)), logs[1:]))[1]
    return jnp.concatenate((first[None], rest))


def _backward(logs: Array, classes: Array, skips: Array, steps: Array, counts: Array) -> Array:
    """Return the sums ``[step, sample, state]`` of all ways on from a state."""
    states, ends = jnp.arange(classes.shape[1]), 2 * counts[:, None]
    last = jnp.where((states >= ends - 1) & (states <= ends), 0, -jnp.inf)
    ahead = jnp.pad(skips, ((0, 0), (0, 2)))[:, 2:]

    def step(found: Array, one: tuple[Array, Array]) -> tuple[Array, Array]:
        place, log = one
        left = steps[:, None] - 1 - place
        ways = jnp.where(left == 0, last, -jnp.inf)
        ways = jnp.where(left > 0, _joined(found, ahead, -1), ways)
        found = ways + jnp.take_along_axis(log, classes, 1)
        return found, found

    none = jnp.full(classes.shape, -jnp.inf, logs.dtype)
    return lax.scan(step, none, (jnp.arange(len(logs)), logs), reverse=True)[1]


def _losses(last: Array, steps: Array, counts: Array) -> Array:
    """Return the losses of samples by the sums of all ways to their states."""
    blank, label = (
        jnp.take_along_axis(last, jnp.maximum(2 * counts[:, None] - n, 0), 1)[:, 0] for n in (0, 1)
    )
    losses = -jnp.logaddexp(blank, jnp.where(counts > 0, label, -jnp.inf))
    return jnp.where(steps > 0, losses, jnp.where(counts > 0, jnp.inf, 0))
