"""Experts of limited capacity, and dropout: what depends on the global place of an element.

Slot `j` of expert `i` is `i capacity + j`; the slot of a choice that has none is -1.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

# SplitMix64, in integers of 64 bits that overflow
_GAMMA = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def expert_slots(chosen: Tensor, *, experts: int = 1, capacity: int = 1) -> Tensor:
    groups, tokens, choices = chosen.shape
    expert = chosen.transpose(1, 2).reshape(groups, choices * tokens)
    ordered, order = torch.sort(expert, dim=1, stable=True)
    count = torch.arange(choices * tokens, device=chosen.device).expand_as(ordered)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.where(begins, count, 0).cummax(1).values
    place = torch.empty_like(expert).scatter_(1, order, count - first)
    kept = (place < capacity) & (expert >= 0) & (expert < experts)
    slots = torch.where(kept, expert * capacity + place, -1)
    return slots.reshape(groups, choices, tokens).transpose(1, 2)


def _own_slots(
    slots: Tensor, capacity: int, starts: tuple[int, int], sizes: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Return the place of each slot in the part of the rank, and whether it is in it."""
    experts, groups, places = sizes
    expert = torch.div(slots, capacity, rounding_mode="floor") - starts[0]
    place = slots.remainder(capacity) - starts[1]
    inside = (slots >= 0) & (expert >= 0) & (expert < experts) & (place >= 0) & (place < places)
    group = torch.arange(groups, device=slots.device)[:, None, None]
    return torch.where(inside, (expert * groups + group) * places + place, 0), inside


def dispatch(
    x: Tensor,
    slots: Tensor,
    *weights: Tensor,
    experts: int = 1,
    capacity: int = 1,
    start_e: int = 0,
    start_c: int = 0,
    size_e: int,
    size_g: int,
    size_c: int,
    shape: Sequence[int],
) -> Tensor:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    terms = x[:, :, None] * inside[..., None]
    if weights:
        terms = terms * weights[0][..., None]
    total = x.new_zeros(shape[0] * shape[1], shape[2])
    return total.index_add_(0, positions.reshape(-1), terms.flatten(0, 2)).reshape(tuple(shape))


def combine(
    y: Tensor,
    slots: Tensor,
    *weights: Tensor,
    capacity: int = 1,
    start_e: int = 0,
    start_c: int = 0,
    size_e: int,
    size_g: int,
    size_c: int,
) -> Tensor:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    factors = inside * weights[0] if weights else inside.to(y.dtype)
    return (y.flatten(0, 1)[positions] * factors[..., None]).sum(2)


def routing_weight_gradient(
    x: Tensor,
    y: Tensor,
    slots: Tensor,
    *,
    capacity: int = 1,
    start_e: int = 0,
    start_c: int = 0,
    size_e: int,
    size_g: int,
    size_c: int,
) -> Tensor:
    sizes = (size_e, size_g, size_c)
    positions, inside = _own_slots(slots, capacity, (start_e, start_c), sizes)
    return (y.flatten(0, 1)[positions] * x[:, :, None]).sum(-1) * inside


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
    drawn = _drawn(x, f"{seed}:{key}/{int(step)}", starts, whole_shape)
    return torch.where(drawn >= rate, x * (1 / (1 - rate)), 0).to(x.dtype)


def random_uniform(
    x: Tensor,
    step: Tensor,
    *,
    seed: int = 0,
    key: str = "random",
    starts: Sequence[int],
    whole_shape: Sequence[int],
) -> Tensor:
    """Draw a number for each element by its index in the whole tensor, rounded down."""
    steps = 2 / torch.finfo(x.dtype).eps
    drawn = _drawn(x, f"{seed}:{key}/{int(step)}", starts, whole_shape)
    return (torch.floor(drawn * steps) / steps).to(x.dtype)


def _drawn(x: Tensor, stream: str, starts: Sequence[int], whole_shape: Sequence[int]) -> Tensor:
    digest = blake2b(stream.encode(), digest_size=8).digest()
    bits = torch.zeros((1,) * x.ndim, dtype=torch.int64, device=x.device)
    for d, (start, size) in enumerate(zip(starts, x.shape, strict=True)):
        along = torch.arange(start, start + size, device=x.device) * prod(whole_shape[d + 1 :])
        bits = bits + along.reshape(-1, *(1,) * (x.ndim - d - 1))
    bits = (bits + 1) * _signed(_GAMMA) + _signed(int.from_bytes(digest, "little"))
    for count, factor in _MIXERS:
        bits = (bits ^ _shifted(bits, count)) * _signed(factor)
    bits = bits ^ _shifted(bits, 31)
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53
