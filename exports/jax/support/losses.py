"""Losses of a plan, and the head of a model whose logits are made by chunks of the tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.elementwise import widened
from .shared.losses import *  # noqa: F403
from .tensors import pick, pick_gradient

# Cross entropy


def _exponentials(x: Array, shift: Array) -> Array:
    """Return exp(x - shift); a shift that is not finite counts as zero."""
    return jnp.exp(x - jnp.where(jnp.isfinite(shift), shift, 0)[..., None])


@widened
def exp_sum(x: Array, shift: Array) -> Array:
    return _exponentials(x, shift).sum(-1)


@widened
def exp_sum_gradient(dy: Array, x: Array, shift: Array) -> Array:
    return dy[..., None] * _exponentials(x, shift)


@widened
def exp_sum_and_pick(
    x: Array, shift: Array, indices: Array, *, start_v: Any = 0
) -> tuple[Array, Array]:
    return _exponentials(x, shift).sum(-1), pick(x, indices, start_v=start_v)


@widened
def exp_sum_and_pick_gradient(
    d_sum: Array, d_picked: Array, x: Array, shift: Array, indices: Array, *, start_v: Any = 0
) -> Array:
    own = pick_gradient(d_picked, indices, start_v=start_v, size_v=x.shape[-1])
    return _exponentials(x, shift) * d_sum[..., None] + own


@widened
def sparse_softmax_cross_entropy_gradient(dy: Array, logits: Array, labels: Array) -> Array:
    one = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return (jax.nn.softmax(logits, -1) - one) * dy[..., None]


# The head with the sums of its loss, by chunks


def _chunked(x: Array, chunks: int) -> Array:
    """Return rows [chunk, row, ...], with further rows of zeros in the last chunk."""
    step = max(1, -(-len(x) // chunks))
    count = -(-len(x) // step)
    rest = ((0, count * step - len(x)), *((0, 0),) * (x.ndim - 1))
    return jnp.pad(x, rest).reshape(count, step, *x.shape[1:])


def _logits(hidden: Array, weight: Array, bias: Array | None, transposed: bool) -> Array:
    x = hidden @ (weight.T if transposed else weight)
    x = x if bias is None else x + bias
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _labels(labels: Array, start: Any, size: int) -> tuple[Array, Array]:
    """Return the positions of labels among own logits, clipped; and which are."""
    local = labels.reshape(-1) - start
    clipped = jnp.clip(local, 0, size - 1)
    return clipped, clipped == local


def head_log_sum_and_pick(
    hidden: Array,
    weight: Array,
    labels: Array,
    bias: Array | None = None,
    *,
    transpose_b: bool = True,
    chunks: int = 1,
    cap: float = 0.0,
    size_p: int,
    size_w: int,
    start_p: Any = 0,
) -> tuple[Array, Array]:
    lead = hidden.shape[:-1]
    local, inside = _labels(labels, start_p * size_w, size_p * size_w)

    def chunk(parts: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, at = parts
        x = _logits(rows, weight, bias, transpose_b)
        x = cap * jnp.tanh(x) if cap else x
        sums = jax.nn.logsumexp(x.reshape(len(x), size_p, size_w), -1)
        return sums, jnp.take_along_axis(x, at[:, None], -1)[:, 0]

    flat = hidden.reshape(-1, hidden.shape[-1])
    sums, picked = lax.map(chunk, (_chunked(flat, chunks), _chunked(local, chunks)))
    picked = jnp.where(inside, picked.reshape(-1)[: len(flat)], 0)
    return sums.reshape(-1, size_p)[: len(flat)].reshape(*lead, size_p), picked.reshape(lead)


def head_log_sum_and_pick_gradient(
    hidden: Array,
    weight: Array,
    d_sums: Array,
    d_picked: Array,
    sums: Array,
    labels: Array,
    bias: Array | None = None,
    *,
    transpose_b: bool = True,
    chunks: int = 1,
    cap: float = 0.0,
    size_p: int,
    size_w: int,
    start_p: Any = 0,
) -> tuple[Array, ...]:
    flat = hidden.reshape(-1, hidden.shape[-1])
    local, inside = _labels(labels, start_p * size_w, size_p * size_w)
    own = jnp.where(inside, d_picked.reshape(-1), 0)
    d_sums, sums = d_sums.reshape(-1, size_p, 1), sums.reshape(-1, size_p, 1)
    shift = jnp.where(jnp.isfinite(sums), sums, 0)

    def chunk(totals: tuple[Array, ...], parts: tuple[Array, ...]) -> tuple[Any, Array]:
        rows, d_rows, shifts, at, cotangent = parts
        before = _logits(rows, weight, bias, transpose_b)
        x = cap * jnp.tanh(before) if cap else before
        slope = jnp.exp(x.reshape(len(x), size_p, size_w) - shifts) * d_rows
        slope = slope.reshape(x.shape).at[jnp.arange(len(x)), at].add(cotangent)
        slope = slope * cap * (1 - jnp.square(jnp.tanh(before))) if cap else slope
        narrow = slope.astype(rows.dtype)
        pair = (narrow.T, rows) if transpose_b else (rows.T, narrow)
        added = (pair[0] @ pair[1], *(slope.sum(0) for _ in totals[1:]))
        found = tuple(total + one for total, one in zip(totals, added, strict=True))
        return found, narrow @ (weight if transpose_b else weight.T)

    zeros = (
        jnp.zeros_like(weight),
        *(jnp.zeros(b.shape, sums.dtype) for b in [bias] if b is not None),
    )
    parts = tuple(_chunked(x, chunks) for x in (flat, d_sums, shift, local, own))
    (d_weight, *d_bias), d_hidden = lax.scan(chunk, zeros, parts)
    d_hidden = d_hidden.reshape(-1, hidden.shape[-1])[: len(flat)].reshape(hidden.shape)
    return (d_hidden, d_weight, *(one.astype(weight.dtype) for one in d_bias))
