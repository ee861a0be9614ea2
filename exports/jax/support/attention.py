"""Attention, and the rotation of its queries and keys by their positions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .shared.elementwise import widened


def scaled_dot_product_attention(
    *tensors: Array,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    chunk: int = 0,
    documents: int = 0,
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: Any = 0,
) -> Array:
    """Attention of queries that begin at the position `start_s`.

    A mask may follow, or the positions of queries in documents, then sinks.
    """
    q, k, v = tensors[:3]
    (samples, heads, queries, size), groups = q.shape, k.shape[1]
    wide = jnp.promote_types(q.dtype, jnp.float32)
    apart = q.reshape(samples, groups, heads // groups, queries, size)
    scores = jnp.einsum("bghsd,bgtd->bghst", apart, k, preferred_element_type=wide)
    scores = scores.reshape(samples, heads, queries, k.shape[2])
    scores = scores * (size**-0.5 if scale is None else scale)
    if soft_cap:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    if len(tensors) > 3 and not sinks and not documents:
        mask = tensors[3]
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    if causal:
        keys, rows = jnp.arange(k.shape[2]), jnp.arange(queries)[:, None] + start_s
        own = tensors[3][:, None, :, None] if documents else rows
        seen = (keys <= rows) & (keys >= rows - own)
        if window:
            seen = seen & (keys > rows - window)
        if chunk:
            seen = seen & (keys >= rows - own % chunk)
        scores = jnp.where(seen, scores, -jnp.inf)
    if sinks:
        rest = jnp.broadcast_to(tensors[-1][:, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate((scores, rest.astype(scores.dtype)), -1)
    weights = jax.nn.softmax(scores, -1)[..., : k.shape[2]].astype(q.dtype)
    weights = weights.reshape(samples, groups, heads // groups, queries, k.shape[2])
    y = jnp.einsum("bghst,bgtd->bghsd", weights, v)
    return y.reshape(samples, heads, queries, v.shape[3])


def scaled_dot_product_attention_gradient(
    dy: Array,
    *tensors: Array,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    chunk: int = 0,
    documents: int = 0,
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: Any = 0,
) -> tuple[Array, ...]:
    """Compute the attention again, and its gradients by all operands that are floats."""
    trained = [i for i, t in enumerate(tensors) if jnp.issubdtype(t.dtype, jnp.floating)]

    def attention(*own: Array) -> Array:
        all_tensors = [*tensors]
        for i, tensor in zip(trained, own, strict=True):
            all_tensors[i] = tensor
        return scaled_dot_product_attention(
            *all_tensors,
            causal=causal,
            scale=scale,
            window=window,
            chunk=chunk,
            documents=documents,
            soft_cap=soft_cap,
            sinks=sinks,
            start_s=start_s,
        )

    found: tuple[Array, ...] = jax.vjp(attention, *(tensors[i] for i in trained))[1](dy)
    return found


def linear_attention(*tensors: Array, delta: bool = False, scale: float | None = None) -> Array:
    """Attention by states that decay, position by position; with `delta` they are corrected."""
    kind, groups = tensors[2].dtype, tensors[2].shape[1] // tensors[0].shape[1]
    wide = jnp.promote_types(kind, jnp.float32)
    q, k, v, decay, *rate = (x.astype(wide) for x in tensors)
    q, k = (jnp.repeat(x, groups, 1) for x in (q, k))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)

    def step(state: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
        query, key, value, log, *own = at
        state = state * jnp.exp(log)[..., None, None]
        if delta:
            value = own[0][..., None] * (value - jnp.einsum("bhd,bhde->bhe", key, state))
        state = state + key[..., None] * value[..., None, :]
        return state, jnp.einsum("bhd,bhde->bhe", query, state)

    start = jnp.zeros((*v.shape[:2], k.shape[-1], v.shape[-1]), wide)
    steps = tuple(jnp.moveaxis(x, 2, 0) for x in (q, k, v, decay, *rate))
    return jnp.moveaxis(jax.lax.scan(step, start, steps)[1], 0, 2).astype(kind)


def linear_attention_gradient(
    dy: Array, *tensors: Array, delta: bool = False, scale: float | None = None
) -> tuple[Array, ...]:
    """Compute linear attention again, and its gradients by all operands."""
    found: tuple[Array, ...] = jax.vjp(
        lambda *own: linear_attention(*own, delta=delta, scale=scale), *tensors
    )[1](dy)
    return found


@widened
def rotary_embedding(
    x: Array,
    *own_positions: Array,
    base: float = 10000.0,
    interleaved: bool = False,
    start: int = 0,
    reverse: bool = False,
    factor: float = 1.0,
    ramp: tuple[float, ...] = (),
    by_frequency: bool = False,
    amplitude: float = 1.0,
    start_s: Any = 0,
    start_d: Any = 0,
    whole_d: int,
) -> Array:
    features, half = whole_d * 2 if interleaved else whole_d, x.shape[-1] // 2
    wide = jnp.promote_types(x.dtype, jnp.float32)
    pairs = jnp.arange(half, dtype=wide) + (start_d if interleaved else 0)
    if own_positions:
        positions = own_positions[0][:, None].astype(wide) + start
    else:
        positions = jnp.arange(x.shape[-2], dtype=wide) + (start + start_s)
    frequencies = base ** (-2.0 * pairs / features)
    if factor != 1:
        kept = jnp.zeros_like(pairs)
        if ramp:
            place = frequencies if by_frequency else pairs
            kept = jnp.clip((place - ramp[0]) / (ramp[1] - ramp[0]), 0, 1)
        frequencies = frequencies * (kept + (1 - kept) / factor)
    angles = positions[..., None] * frequencies
    cos, sin = (amplitude * turn(angles).astype(x.dtype) for turn in (jnp.cos, jnp.sin))
    if reverse:
        sin = -sin
    if interleaved:
        first, second = x[..., ::2], x[..., 1::2]
        turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], -1)
        return turned.reshape(x.shape)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
