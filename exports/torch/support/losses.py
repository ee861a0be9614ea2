"""Losses of a plan, and the head of a model whose logits are made by chunks of the tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from .shared.elementwise import widened
from .shared.losses import *  # noqa: F403
from .tensors import pick

# Cross entropy


def _exponentials(x: Tensor, shift: Tensor) -> Tensor:
    """Return exp(x - shift) without a further tensor of their size: logits are large.

    A shift that is not finite counts as zero.
    """
    return (x - torch.where(shift.isfinite(), shift, 0)[..., None]).exp_()


@widened
def exp_sum(x: Tensor, shift: Tensor) -> Tensor:
    return _exponentials(x, shift).sum(-1)


@widened
def exp_sum_gradient(dy: Tensor, x: Tensor, shift: Tensor) -> Tensor:
    return _exponentials(x, shift).mul_(dy[..., None])


@widened
def exp_sum_and_pick(
    x: Tensor, shift: Tensor, indices: Tensor, *, start_v: int = 0
) -> tuple[Tensor, Tensor]:
    return _exponentials(x, shift).sum(-1), pick(x, indices, start_v=start_v)


@widened
def exp_sum_and_pick_gradient(
    d_sum: Tensor, d_picked: Tensor, x: Tensor, shift: Tensor, indices: Tensor, *, start_v: int = 0
) -> Tensor:
    local = (indices - start_v).clamp(0, x.shape[-1] - 1)
    own = torch.where(local == indices - start_v, d_picked, d_picked.new_zeros(()))
    result = _exponentials(x, shift).mul_(d_sum[..., None])
    return result.scatter_add_(-1, local[..., None], own[..., None])


@widened
def sparse_softmax_cross_entropy_gradient(dy: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    y = functional.softmax(logits, -1)
    one = torch.ones_like(dy)[..., None]
    return y.scatter_add(-1, labels[..., None], -one) * dy[..., None]


# The head with the sums of its loss, by chunks


def _chunks(count: int, chunks: int) -> Iterator[slice]:
    step = max(1, -(-count // chunks))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """Return logits before their cap, in at least 32 bits; nothing else reads them."""
    columns = weight.T if transposed else weight
    x = hidden @ columns if bias is None else torch.addmm(bias, hidden, columns)
    return x.float() if x.itemsize < 4 else x


def _labels(labels: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the positions of labels among own logits, clipped; and which are."""
    local = labels.reshape(-1, 1).long() - start
    clipped = local.clamp(0, size - 1)
    return clipped, clipped == local


def head_log_sum_and_pick(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    transpose_b: bool = True,
    chunks: int = 1,
    cap: float = 0.0,
    size_p: int,
    size_w: int,
    start_p: int = 0,
) -> tuple[Tensor, Tensor]:
    flat = hidden.reshape(-1, hidden.shape[-1])
    local, inside = _labels(labels, start_p * size_w, size_p * size_w)
    dtype = torch.float32 if hidden.itemsize < 4 else hidden.dtype
    sums, picked = (flat.new_empty(len(flat), n, dtype=dtype) for n in (size_p, 1))
    for rows in _chunks(len(flat), chunks):
        x = _logits(flat[rows], weight, bias, transpose_b)
        x = x.tanh_().mul_(cap) if cap else x
        picked[rows] = x.gather(-1, local[rows])
        pieces = x.view(-1, size_p, size_w)
        peak = pieces.amax(-1)
        shift = torch.where(peak.isfinite(), peak, 0)
        sums[rows] = shift + pieces.sub_(shift[..., None]).exp_().sum(-1).log_()
    picked = torch.where(inside, picked, 0)
    return sums.view(*hidden.shape[:-1], size_p), picked.view(hidden.shape[:-1])


def head_log_sum_and_pick_gradient(
    hidden: Tensor,
    weight: Tensor,
    d_sums: Tensor,
    d_picked: Tensor,
    sums: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    transpose_b: bool = True,
    chunks: int = 1,
    cap: float = 0.0,
    size_p: int,
    size_w: int,
    start_p: int = 0,
) -> tuple[Tensor, ...]:
    flat = hidden.reshape(-1, hidden.shape[-1])
    local, inside = _labels(labels, start_p * size_w, size_p * size_w)
    own = torch.where(inside, d_picked.reshape(-1, 1), 0)
    d_sums, sums = d_sums.reshape(-1, size_p, 1), sums.reshape(-1, size_p, 1)
    shift = torch.where(sums.isfinite(), sums, 0)
    d_hidden = torch.empty_like(flat, memory_format=torch.contiguous_format)
    d_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    d_bias = None if bias is None else torch.zeros_like(bias, dtype=d_sums.dtype)
    for rows in _chunks(len(flat), chunks):
        x = _logits(flat[rows], weight, bias, transpose_b)
        turned = x.tanh_() if cap else x
        x = turned * cap if cap else x
        x.view(-1, size_p, size_w).sub_(shift[rows]).exp_().mul_(d_sums[rows])
        x.scatter_add_(-1, local[rows], own[rows])
        if cap:
            x.mul_(turned.square_().neg_().add_(1).mul_(cap))
        if d_bias is not None:
            d_bias += x.sum(0)
        x = x.to(hidden.dtype)
        torch.mm(x, weight if transpose_b else weight.T, out=d_hidden[rows])
        d_weight.addmm_(*((x.T, flat[rows]) if transpose_b else (flat[rows].T, x)))
    found = (d_hidden.view(hidden.shape), d_weight)
    return found if d_bias is None else (*found, d_bias.to(weight.dtype))
