"""Attention, and the rotation of its queries and keys by their positions."""

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from .pointwise import _is_recorded, _once

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a release without it: documents are masked
    varlen_attn = None

_CHUNK = 64  # positions of linear attention, whose states follow each other


def scaled_dot_product_attention(
    *tensors: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    chunk: int = 0,
    documents: int = 0,
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: int = 0,
) -> Tensor:
    """Attention of queries that begin at the position `start_s`.

    A mask may follow, or the positions of queries in documents, then sinks. What a kernel saves for
    its gradient is kept while there are the queries, so that backward does not run it again.
    """
    how = (causal, scale, window, chunk, documents, soft_cap, sinks, start_s)
    if _is_recorded():
        return _attended(tensors, *how)
    own, y = _with_gradient(tensors, *how)
    name = y.grad_fn.name() if y.grad_fn is not None else ""
    if name.startswith("ScaledDotProduct"):  # one kernel, which saves no scores
        _SAVED[tensors[0]] = (tensors[1:], how, own, y)
    return y.detach()


_SAVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _with_gradient(tensors: Sequence[Tensor], *how: Any) -> tuple[list[Tensor], Tensor]:
    """Return operands, and attention of them with what its gradient reads."""
    with torch.enable_grad():
        own = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
        return own, _attended(own, *how)


def _attended(
    tensors: Sequence[Tensor],
    causal: bool,
    scale: float | None,
    window: int,
    chunk: int,
    documents: int,
    soft_cap: float,
    sinks: bool,
    start_s: int,
) -> Tensor:
    q, k, v = tensors[:3]
    positions = tensors[3] if documents else None
    mask = tensors[3] if len(tensors) > 3 and not sinks and not documents else None
    restricted = start_s or window or chunk or soft_cap or sinks
    if positions is not None and not restricted and _has_lengths(q, k, v):
        return _by_lengths(q, k, v, positions, scale)
    if causal and (restricted or len(tensors) > 3):
        seen = _seen(q, k, window, chunk, start_s, positions)
        if mask is None:
            mask = seen
        elif mask.dtype == torch.bool:
            mask = mask & seen
        else:
            mask = torch.where(seen, mask, float("-inf"))
        causal = False
    if mask is not None and mask.stride(-1) != 1:  # PyTorch has no fast kernel for these
        mask = mask.contiguous()
    if soft_cap or sinks:
        return _by_scores(q, k, v, mask, scale, soft_cap, tensors[-1] if sinks else None)
    return functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _seen(
    q: Tensor, k: Tensor, window: int, chunk: int, start_s: int, positions: Tensor | None
) -> Tensor:
    """Return which keys each query reads, of a window, of its own chunk or document."""
    queries = torch.arange(start_s, start_s + q.shape[2], device=q.device)[:, None]
    keys = torch.arange(k.shape[2], device=k.device)
    own = queries if positions is None else positions[:, None, :, None]
    seen = (keys <= queries) & (keys >= queries - own)
    if window:
        seen = seen & (keys > queries - window)
    return seen & (keys >= queries - own % chunk) if chunk else seen


def _has_lengths(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the device has a kernel for documents of given lengths."""
    own = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16)
    return own and q.shape[2] == k.shape[2] and q.shape[3] == v.shape[3] and varlen_attn is not None


def _by_lengths(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float | None) -> Tensor:
    """Attention within documents, whose positions count from 0, by the kernel for lengths."""
    begins, longest = _once(positions, "begins", _document_begins)
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    found = varlen_attn(
        *rows,
        begins,
        begins,
        longest,
        longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return found.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


def _document_begins(positions: Tensor) -> tuple[Tensor, int]:
    """Return where each document of all rows begins, and the end; and the longest length."""
    rows, length = positions.shape
    is_first = torch.ones_like(positions, dtype=torch.bool)
    is_first[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    begins = is_first.flatten().nonzero().flatten()
    begins = functional.pad(begins, (0, 1), value=rows * length).to(torch.int32)
    return begins, int(begins.diff().max())


def _by_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    soft_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with capped scores or sinks, for which PyTorch has no kernel."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT).float() if q.element_size() < 4 else q @ k.mT
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if mask is not None:
        own = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, float("-inf")) if own else scores + mask
    if sinks is not None:
        rows = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, rows), -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    return weights.to(v.dtype) @ v


def scaled_dot_product_attention_gradient(
    dy: Tensor,
    *tensors: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    chunk: int = 0,
    documents: int = 0,
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: int = 0,
) -> tuple[Tensor, ...]:
    """Return the gradients of attention by all operands that are floats.

    Where nothing of the forward pass is kept, it is computed again.
    """
    how = (causal, scale, window, chunk, documents, soft_cap, sinks, start_s)
    others, before, own, y = _SAVED.pop(tensors[0], ((), None, [], dy))
    same = len(others) == len(tensors) - 1 and all(map(operator.is_, others, tensors[1:]))
    if not same or before != how:
        own, y = _with_gradient(tensors, *how)
    found: tuple[Tensor, ...] = torch.autograd.grad(y, [t for t in own if t.requires_grad], dy)
    return found


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    *rate: Tensor,
    delta: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention by states that decay, chunk by chunk; with `delta` they correct themselves."""
    kind, groups = v.dtype, v.shape[1] // q.shape[1]
    wide = torch.promote_types(kind, torch.float32)
    q, k, v, decay = (x.to(wide) for x in (q, k, v, decay))
    q, k = (x.repeat_interleave(groups, 1) for x in (q, k))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    state, found = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), []
    for begin in range(0, v.shape[2], _CHUNK):
        at = slice(begin, begin + _CHUNK)
        total = decay[..., at].cumsum(-1)
        apart = total[..., :, None] - total[..., None, :]
        apart = apart.masked_fill(~torch.ones_like(apart, dtype=torch.bool).tril(), float("-inf"))
        between, since = apart.exp(), total.exp()[..., None]
        queries, keys, taken = q[:, :, at], k[:, :, at], v[:, :, at]
        if delta:
            own = rate[0].to(wide)[..., at, None]
            known = (keys @ keys.mT * between).tril(-1) * own
            one = torch.eye(keys.shape[2], dtype=wide, device=keys.device)
            right = own * (taken - since * (keys @ state))
            taken = torch.linalg.solve_triangular(
                one + known, right, upper=False, unitriangular=True
            )
        found.append(since * (queries @ state) + (queries @ keys.mT * between) @ taken)
        left = (total[..., -1:] - total).exp()[..., None]
        state = since[..., -1:, :] * state + (keys * left).mT @ taken
    return torch.cat(found, 2).to(kind)


def linear_attention_gradient(
    dy: Tensor, *tensors: Tensor, delta: bool = False, scale: float | None = None
) -> tuple[Tensor, ...]:
    """Compute linear attention again, and its gradients by all operands."""
    with torch.enable_grad():
        own = [t.detach().requires_grad_() for t in tensors]
        y = linear_attention(*own, delta=delta, scale=scale)
    found: tuple[Tensor, ...] = torch.autograd.grad(y, own, dy)
    return found


def rotary_embedding(
    x: Tensor,
    *own_positions: Tensor,
    base: float = 10000.0,
    interleaved: bool = False,
    start: int = 0,
    reverse: bool = False,
    factor: float = 1.0,
    ramp: tuple[float, ...] = (),
    by_frequency: bool = False,
    amplitude: float = 1.0,
    start_s: int = 0,
    start_d: int = 0,
    whole_d: int,
) -> Tensor:
    features = whole_d * 2 if interleaved else whole_d
    pairs = (start_d if interleaved else 0, x.shape[-1] // 2)
    wide = torch.promote_types(x.dtype, torch.float32)  # 16 bits are turned in float32
    how = (base, features, pairs, (factor, ramp, by_frequency, amplitude), wide)
    if own_positions:
        cos, sin = _once(
            own_positions[0], (how, start), lambda x: _angles(x[:, None] + start, *how)
        )
    else:
        cos, sin = _turns((start + start_s, x.shape[-2]), x.device, *how)
    if reverse:
        sin = -sin
    if interleaved:
        first, second = x[..., ::2], x[..., 1::2]
        turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
        return turned.flatten(-2).to(x.dtype)
    first, second = x.chunk(2, -1)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    return torch.addcmul(x * cos, torch.cat([second, first], -1), sin).to(x.dtype)


@lru_cache(maxsize=16)  # every layer turns queries and keys by the same angles
def _turns(positions: tuple[int, int], device: torch.device, *how: Any) -> tuple[Tensor, Tensor]:
    """Return cosine and sine at each position from a first one."""
    first, count = positions
    return _angles(torch.arange(first, first + count, device=device), *how)


def _angles(
    positions: Tensor,
    base: float,
    features: int,
    pairs: tuple[int, int],
    stretch: tuple[float, tuple[float, ...], bool, float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine at each position, for each pair of features."""
    first, count = pairs
    pair = torch.arange(first, first + count, dtype=torch.float64, device=positions.device)
    frequencies = base ** (-2.0 * pair / features)
    factor, ramp, by_frequency, amplitude = stretch
    kept = torch.zeros_like(pair)
    if ramp:
        place = frequencies if by_frequency else pair
        kept = ((place - ramp[0]) / (ramp[1] - ramp[0])).clamp(0, 1)
    angles = positions[..., None] * frequencies * (kept + (1 - kept) / factor)
    return (amplitude * angles.cos()).to(dtype), (amplitude * angles.sin()).to(dtype)
