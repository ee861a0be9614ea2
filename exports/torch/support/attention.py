"""Attention, and the rotation of its queries and keys by their positions."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

_CHUNK = 64  # positions of linear attention, whose states follow each other


def scaled_dot_product_attention(
    *tensors: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int = 0,
    chunk: int = 0,
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: int = 0,
) -> Tensor:
    """Attention of queries that begin at the position `start_s`; a mask or sinks may follow."""
    q, k, v = tensors[:3]
    mask = tensors[3] if len(tensors) > 3 and not sinks else None
    if causal and (start_s or mask is not None or window or chunk or soft_cap or sinks):
        seen = _seen(q, k, window, chunk, start_s)
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
        return _by_scores(q, k, v, mask, scale, soft_cap, tensors[3] if sinks else None)
    return functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _seen(q: Tensor, k: Tensor, window: int, chunk: int, start_s: int) -> Tensor:
    """Return which keys each query reads, of a window or of its own chunk."""
    queries = torch.arange(start_s, start_s + q.shape[2], device=q.device)[:, None]
    keys = torch.arange(k.shape[2], device=k.device)
    seen = keys <= queries
    if window:
        seen = seen & (keys > queries - window)
    return seen & (keys >= queries // chunk * chunk) if chunk else seen


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
    soft_cap: float = 0.0,
    sinks: bool = False,
    start_s: int = 0,
) -> tuple[Tensor, ...]:
    """Compute the attention again, and its gradients by all operands that are floats."""
    with torch.enable_grad():
        own = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        y = scaled_dot_product_attention(
            *own,
            causal=causal,
            scale=scale,
            window=window,
            chunk=chunk,
            soft_cap=soft_cap,
            sinks=sinks,
            start_s=start_s,
        )
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
    *,
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
    positions = (start + start_s, x.shape[-2])
    wide = torch.promote_types(x.dtype, torch.float32)  # 16 bits are turned in float32
    stretch = (factor, ramp, by_frequency, amplitude)
    cos, sin = _turns(base, features, pairs, positions, stretch, wide, x.device)
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
def _turns(
    base: float,
    features: int,
    pairs: tuple[int, int],
    positions: tuple[int, int],
    stretch: tuple[float, tuple[float, ...], bool, float],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine at each position, for each pair of features."""
    pair, position = (
        torch.arange(first, first + count, dtype=torch.float64, device=device)
        for first, count in (pairs, positions)
    )
    frequencies = base ** (-2.0 * pair / features)
    factor, ramp, by_frequency, amplitude = stretch
    kept = torch.zeros_like(pair)
    if ramp:
        place = frequencies if by_frequency else pair
        kept = ((place - ramp[0]) / (ramp[1] - ramp[0])).clamp(0, 1)
    angles = position[:, None] * frequencies * (kept + (1 - kept) / factor)
    return (amplitude * angles.cos()).to(dtype), (amplitude * angles.sin()).to(dtype)
