"""Operators of a plan that are layers of networks: products, normalizations, losses, attention."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from .pointwise import widened
from .tensors import pick

Pairs = Sequence[Sequence[int]]
Sizes = Sequence[int]

# Products


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def contract_leading(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.reshape(-1, a.shape[-1]).T, b.reshape(-1, b.shape[-1]))


def einsum(*tensors: Tensor, equation: str = "") -> Tensor:
    return torch.einsum(equation, *tensors)


# Normalizations


def _standardized(x: Tensor, axes: Sizes, epsilon: float) -> tuple[Tensor, Tensor]:
    x = x - x.mean(tuple(axes), keepdim=True)
    deviation = torch.sqrt(torch.square(x).mean(tuple(axes), keepdim=True) + epsilon)
    return x / deviation, deviation


def _standardized_gradient(dy: Tensor, y: Tensor, deviation: Tensor, axes: Sizes) -> Tensor:
    dx = dy - y * (dy * y).mean(tuple(axes), keepdim=True)
    return (dx - dy.mean(tuple(axes), keepdim=True)) / deviation


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), gamma, beta, epsilon)


def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), gamma, epsilon)


def row_norm_gradient(
    dy: Tensor, x: Tensor, gamma: Tensor, *, epsilon: float = 1e-5, centred: bool = True
) -> Tensor:
    with torch.enable_grad():
        own = x.detach().requires_grad_()
        y = _row_norm(own, gamma, epsilon, centred)
    return torch.autograd.grad(y, own, dy)[0]


def row_norm_gamma_gradient(
    dy: Tensor, x: Tensor, *, epsilon: float = 1e-5, centred: bool = True
) -> Tensor:
    with torch.enable_grad():
        gamma = torch.ones_like(x[(0,) * (x.ndim - 1)]).requires_grad_()
        y = _row_norm(x, gamma, epsilon, centred)
    return torch.autograd.grad(y, gamma, dy)[0]


def _row_norm(x: Tensor, gamma: Tensor, epsilon: float, centred: bool) -> Tensor:
    if centred:
        return functional.layer_norm(x, gamma.shape, gamma, None, epsilon)
    return functional.rms_norm(x, gamma.shape, gamma, epsilon)


def group_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5, size_g: int
) -> Tensor:
    return functional.group_norm(x, size_g, gamma, beta, epsilon)


@widened
def group_norm_gradient(
    dy: Tensor, x: Tensor, gamma: Tensor, *, epsilon: float = 1e-5, size_g: int
) -> tuple[Tensor, ...]:
    apart = (x.shape[0], size_g, x.shape[1] // size_g, *x.shape[2:])
    cotangent, axes = dy.reshape(apart), tuple(range(2, x.ndim + 1))
    y, deviation = _standardized(x.reshape(apart), axes, epsilon)
    scaled = cotangent * gamma.reshape(1, size_g, -1, *(1,) * (x.ndim - 2))
    dx = _standardized_gradient(scaled, y, deviation, axes)
    others = (0, *range(3, x.ndim + 1))
    return dx.reshape(x.shape), (cotangent * y).sum(others).ravel(), cotangent.sum(others).ravel()


# Of a batch, or of equal groups of it: the statistics are [channel], or [group, channel]


def _in_groups(x: Tensor, groups: int) -> Tensor:
    return x.reshape(groups, -1, *x.shape[1:]) if groups else x


def _groups(statistics: Tensor) -> int:
    return statistics.shape[0] if statistics.ndim == 2 else 0


def _channels(vector: Tensor, x: Tensor) -> Tensor:
    behind = (1,) * (x.ndim - 2)
    if vector.ndim == 2:
        return vector.reshape(vector.shape[0], 1, -1, *behind)
    return vector.reshape(-1, *behind)


def _others(x: Tensor, groups: int) -> tuple[int, ...]:
    first = 1 if groups else 0
    return (first, *range(first + 2, x.ndim + first))


@widened
def channel_mean(x: Tensor, *, whole: int, size_g: int = 0) -> Tensor:
    return _in_groups(x, size_g).sum(_others(x, size_g)) / whole


@widened
def channel_variance(x: Tensor, mean: Tensor, *, whole: int) -> Tensor:
    groups = _groups(mean)
    distance = _in_groups(x, groups) - _channels(mean, x)
    return torch.square(distance).sum(_others(x, groups)) / whole


@widened
def channel_mean_gradient(dy: Tensor, *, shape: Sizes, whole: int) -> Tensor:
    behind, groups = shape[2:], _groups(dy)
    share = (dy / whole).reshape(*dy.shape[:-1], 1, dy.shape[-1], *(1,) * len(behind))
    samples = (groups, shape[0] // groups) if groups else (shape[0],)
    return share.expand(*samples, *shape[1:]).reshape(tuple(shape))


@widened
def channel_variance_gradient(dy: Tensor, x: Tensor, mean: Tensor, *, whole: int) -> Tensor:
    distance = _in_groups(x, _groups(mean)) - _channels(mean, x)
    return (distance * _channels(dy * (2 / whole), x)).reshape(x.shape)


@widened
def batch_normalize(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    inverse = gamma / torch.sqrt(variance + epsilon)
    distance = _in_groups(x, _groups(mean)) - _channels(mean, x)
    return (distance * _channels(inverse, x) + _channels(beta, x)).reshape(x.shape)


@widened
def batch_normalize_gradient(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    *,
    epsilon: float = 1e-5,
) -> tuple[Tensor, ...]:
    inverse, groups = 1 / torch.sqrt(variance + epsilon), _groups(mean)
    slope, axes = gamma * inverse, _others(x, groups)
    own = _in_groups(dy, groups)
    distance = _in_groups(x, groups) - _channels(mean, x)
    dbeta = own.sum(axes)
    dgamma = (own * distance * _channels(inverse, x)).sum(axes)
    dx = (own * _channels(slope, x)).reshape(x.shape)
    statistics = -slope * dbeta, -0.5 * slope * inverse * dgamma
    if groups:
        dgamma, dbeta = dgamma.sum(0), dbeta.sum(0)
    return dx, *statistics, dgamma, dbeta


def moving_weights(
    *, shape: Sizes, dtype: str = "float32", factor: float = 1.0, start_d0: int = 0, whole_d0: int
) -> Tensor:
    """Return by how much each of several terms counts in a moving average, the last one by 1."""
    following = whole_d0 - 1 - torch.arange(start_d0, start_d0 + shape[0], dtype=torch.float64)
    weights = (factor**following).to(getattr(torch, dtype))
    return weights.reshape(-1, *(1,) * (len(shape) - 1)).expand(tuple(shape))


# Softmax and losses


def softmax(x: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return functional.softmax(x, axes[0])
    return torch.exp(x - torch.logsumexp(x, axes, keepdim=True))


def softmax_gradient(dy: Tensor, y: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return torch.ops.aten._softmax_backward_data(dy, y, axes[0], y.dtype)
    return _softmax_gradient(dy, y, axis=axes)


@widened
def _softmax_gradient(dy: Tensor, y: Tensor, *, axis: Sizes) -> Tensor:
    return y * (dy - (dy * y).sum(axis, keepdim=True))


def log_softmax(x: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return functional.log_softmax(x, axes[0])
    return x - torch.logsumexp(x, axes, keepdim=True)


def log_softmax_gradient(dy: Tensor, y: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return torch.ops.aten._log_softmax_backward_data(dy, y, axes[0], y.dtype)
    return _log_softmax_gradient(dy, y, axis=axes)


@widened
def _log_softmax_gradient(dy: Tensor, y: Tensor, *, axis: Sizes) -> Tensor:
    return dy - torch.exp(y) * dy.sum(axis, keepdim=True)


def _axes(axis: int | Sizes) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def row_max(x: Tensor) -> Tensor:
    return x.amax(-1)


@widened
def exp_sum(x: Tensor, shift: Tensor) -> Tensor:
    return torch.exp(x - shift[..., None]).sum(-1)


@widened
def exp_sum_gradient(dy: Tensor, x: Tensor, shift: Tensor) -> Tensor:
    return dy[..., None] * torch.exp(x - shift[..., None])


@widened
def exp_sum_and_pick(
    x: Tensor, shift: Tensor, indices: Tensor, *, start_v: int = 0
) -> tuple[Tensor, Tensor]:
    return torch.exp(x - shift[..., None]).sum(-1), pick(x, indices, start_v=start_v)


@widened
def exp_sum_and_pick_gradient(
    d_sum: Tensor, d_picked: Tensor, x: Tensor, shift: Tensor, indices: Tensor, *, start_v: int = 0
) -> Tensor:
    local = (indices - start_v).clamp(0, x.shape[-1] - 1)
    own = torch.where(local == indices - start_v, d_picked, d_picked.new_zeros(()))
    result = torch.exp(x - shift[..., None]) * d_sum[..., None]
    return result.scatter_add_(-1, local[..., None], own[..., None])


@widened
def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -(functional.log_softmax(logits, -1) * labels).sum(-1)


@widened
def softmax_cross_entropy_gradient(dy: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    weight = labels.sum(-1, keepdim=True)
    return (functional.softmax(logits, -1) * weight - labels) * dy[..., None]


@widened
def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -functional.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]


@widened
def sparse_softmax_cross_entropy_gradient(dy: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    y = functional.softmax(logits, -1)
    one = torch.ones_like(dy)[..., None]
    return y.scatter_add(-1, labels[..., None], -one) * dy[..., None]


@widened
def sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(logits), logits) - logits * labels


@widened
def sigmoid_cross_entropy_gradient(dy: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    return (torch.sigmoid(logits) - labels) * dy


@widened
def binary_cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    first, second = torch.log(x).clamp(min=-100), torch.log1p(-x).clamp(min=-100)
    return (labels - 1) * second - labels * first


@widened
def binary_cross_entropy_gradient(dy: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    return dy * (x - labels) / (x * (1 - x)).clamp(min=1e-12)


# Attention


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


def rotary_embedding(
    x: Tensor,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    start: int = 0,
    reverse: bool = False,
    start_s: int = 0,
    start_d: int = 0,
    whole_d: int,
) -> Tensor:
    features = whole_d * 2 if interleaved else whole_d
    pairs = (start_d if interleaved else 0, x.shape[-1] // 2)
    positions = (start + start_s, x.shape[-2])
    wide = torch.promote_types(x.dtype, torch.float32)  # 16 bits are turned in float32
    cos, sin = _turns(base, features, pairs, positions, wide, x.device)
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
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine at each position, for each pair of features."""
    pair, position = (
        torch.arange(first, first + count, dtype=torch.float64, device=device)
        for first, count in (pairs, positions)
    )
    angles = position[:, None] * base ** (-2.0 * pair / features)
    return angles.cos().to(dtype), angles.sin().to(dtype)


# Convolutions: [n, channel, *space], with a padding before and after each dimension


def _padded(x: Tensor, padding: Pairs) -> Tensor:
    return functional.pad(x, [n for pair in reversed(padding) for n in pair])


def convolution(
    x: Tensor,
    weight: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    size_g: int = 1,
) -> Tensor:
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[x.ndim - 3]
    return function(_padded(x, padding), weight, None, tuple(stride), 0, tuple(dilation), size_g)


def convolution_weight_gradient(
    x: Tensor,
    dy: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Tensor:
    padded = _padded(x, padding)
    weight = x.new_empty(tuple(shape))
    return _backward(dy, padded, weight, stride, dilation, size_g, 1)


def transposed_convolution(
    dy: Tensor,
    weight: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Tensor:
    """Return the gradient of a convolution by its operand, which has the shape `shape`."""
    space = [n + a + b for n, (a, b) in zip(shape[2:], padding, strict=True)]
    padded = dy.new_empty(*shape[:2], *space)
    found = _backward(dy, padded, weight, stride, dilation, size_g, 0)
    for d, (n, (before, _)) in enumerate(zip(shape[2:], padding, strict=True)):
        found = found.narrow(d + 2, before, n)
    return found


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    which: int,
) -> Tensor:
    wanted = [i == which for i in range(3)]
    none = [0] * (x.ndim - 2)
    found = torch.ops.aten.convolution_backward(
        dy, x, weight, None, list(stride), none, list(dilation), False, none, groups, wanted
    )
    return found[which]
