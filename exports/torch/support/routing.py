"""Experts between which tokens choose, and dropout: what depends on the place of an element.

The rows of experts are `[expert, token..., feature]`; a choice of -1 is of no expert.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from .shared.routing import *  # noqa: F403

# SplitMix64, in integers of 64 bits that overflow
_GAMMA = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def within_capacity(chosen: Tensor, *, experts: int = 1, capacity: int = 1) -> Tensor:
    groups, tokens, choices = chosen.shape
    expert = chosen.transpose(1, 2).reshape(groups, choices * tokens)
    ordered, order = torch.sort(expert, dim=1, stable=True)
    count = torch.arange(choices * tokens, device=chosen.device).expand_as(ordered)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.where(begins, count, 0).cummax(1).values
    place = torch.empty_like(expert).scatter_(1, order, count - first)
    kept = (place < capacity) & (expert >= 0) & (expert < experts)
    return torch.where(kept, expert, -1).reshape(groups, choices, tokens).transpose(1, 2)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _shifted(bits: Tensor, count: int) -> Tensor:
    return (bits >> count) & ((1 << (64 - count)) - 1)


def dropout(
    x: Tensor,
    step: Tensor,
    *,
    rate: float = 0.5,
    seed: int = 0,
    key: str = "dropout",
    starts: Sequence[int],
    whole_shape: Sequence[int],
) -> Tensor:
    """Drop elements by their index in the whole tensor, so that masks depend on no split."""
    drawn = _drawn(x, seed, f"{key}/{int(step)}", starts, whole_shape, ())
    return torch.where(drawn >= rate, x * (1 / (1 - rate)), 0).to(x.dtype)


def random_uniform(
    x: Tensor,
    step: Tensor,
    *,
    seed: int = 0,
    key: str = "random",
    blocks: Sequence[int] = (),
    starts: Sequence[int],
    whole_shape: Sequence[int],
) -> Tensor:
    """Draw a number for each element by its index in the whole tensor, rounded down.

    With blocks it is by the index in one, whose number is added to the seed.
    """
    steps = 2 / torch.finfo(x.dtype).eps
    drawn = _drawn(x, seed, f"{key}/{int(step)}", starts, whole_shape, blocks)
    return (torch.floor(drawn * steps) / steps).to(x.dtype)


def _drawn(
    x: Tensor,
    seed: int,
    stream: str,
    starts: Sequence[int],
    whole_shape: Sequence[int],
    blocks: Sequence[int],
) -> Tensor:
    counts = blocks or (1,) * x.ndim
    sizes = [size // count for size, count in zip(whole_shape, counts, strict=True)]
    bits, number = torch.zeros((2, *(1,) * x.ndim), dtype=torch.int64, device=x.device)
    for d, (start, size) in enumerate(zip(starts, x.shape, strict=True)):
        along = torch.arange(start, start + size, device=x.device)
        along = along.reshape(-1, *(1,) * (x.ndim - d - 1))
        bits = bits + along % sizes[d] * prod(sizes[d + 1 :])
        number = number + along // sizes[d] * prod(counts[d + 1 :])
    begins = torch.zeros_like(number)
    for block in number.unique().tolist():
        digest = blake2b(f"{seed + block}:{stream}".encode(), digest_size=8).digest()
        begin = _signed(int.from_bytes(digest, "little"))
        begins = torch.where(number == block, begin, begins)
    bits = (bits + 1) * _signed(_GAMMA) + begins
    for count, factor in _MIXERS:
        bits = (bits ^ _shifted(bits, count)) * _signed(factor)
    bits = bits ^ _shifted(bits, 31)
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53
