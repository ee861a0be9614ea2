"""Attention of a sequence that is split over ranks, which send to each other while they compute.

Keys and values pass round the ranks, and the results of their parts are combined; or every rank has
all keys. Under a causal mask the last queries read most keys: balanced, each of `n` ranks works on
the i-th and the i-th last of `2 n` chunks of the sequence, which are exchanged before and after.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import scaled_dot_product_attention, scaled_dot_product_attention_gradient
from .mesh import Axes, Mesh, pieces

Interval = tuple[int, int]  # first position, and length
Tensors = Sequence[Tensor]
_POSITION = 2  # the dimension of positions: [batch, head, position, feature]


@dataclass(frozen=True)
class _Parts:
    """How a sequence is divided between ranks.

    Parameters
    ----------
    mesh, axes
        The ranks, along some axes.
    size : int
        Length of the sequence.
    balanced : bool
        Whether each works on an early and a late chunk.
    """

    mesh: Mesh
    axes: Axes
    size: int
    balanced: bool

    @property
    def slices(self) -> list[Interval]:
        """The slice of each rank."""
        return _intervals(pieces(self.size, self.mesh.counts_of(self.axes)))

    @property
    def chunks(self) -> list[Interval]:
        """The halves of all slices."""
        halves = [(n - n // 2, n // 2) for _, n in self.slices]
        return _intervals([n for pair in halves for n in pair])

    def of(self, member: int) -> list[Interval]:
        """Return what a rank works on."""
        if not self.balanced:
            return [self.slices[member]]
        return [self.chunks[member], self.chunks[-1 - member]]

    def length(self, member: int) -> int:
        """Return the number of positions that a rank works on."""
        return sum(count for _, count in self.of(member))

    def exchanged(self, tensors: Tensors, back: bool = False) -> list[Tensor]:
        """Return what this rank works on, from its slices; or its slices again."""
        count = len(self.slices)
        if not self.balanced or count == 1:
            return list(tensors)
        member, numbers = self.mesh.index(self.axes), range(2 * count)
        owners = [c // 2 for c in numbers]
        workers = [min(c, 2 * count - 1 - c) for c in numbers]
        before, after = (workers, owners) if back else (owners, workers)
        held = [c for c in numbers if before[c] == member]
        lengths = [self.chunks[c][1] for c in held]
        cut = [torch.split_with_sizes(x, lengths, _POSITION) for x in tensors]
        pairs = {c: [halves[i] for halves in cut] for i, c in enumerate(held)}
        sends = [(after[c], x) for c in held if after[c] != member for x in pairs[c]]
        wanted = [c for c in numbers if after[c] == member]
        come = [c for c in wanted if before[c] != member]
        pairs |= {c: [_room(x, self.chunks[c][1]) for x in tensors] for c in come}
        receives = [(before[c], x) for c in come for x in pairs[c]]
        self.mesh.exchange(self.axes, sends, receives)()
        return [torch.cat(x, _POSITION) for x in zip(*(pairs[c] for c in wanted), strict=True)]

    def positions(self, device: torch.device) -> Tensor:
        """Return the positions that this rank works on."""
        own = self.of(self.mesh.index(self.axes))
        return torch.cat([torch.arange(s, s + n, device=device) for s, n in own])


def _intervals(lengths: Sequence[int]) -> list[Interval]:
    return [(sum(lengths[:i]), n) for i, n in enumerate(lengths)]


def _room(x: Tensor, length: int) -> Tensor:
    """Return an empty tensor like another, with a number of positions."""
    return x.new_empty(*x.shape[:_POSITION], length, *x.shape[_POSITION + 1 :])


# With all keys on every rank


def _mask(parts: _Parts, k: Tensor, causal: bool) -> list[Tensor]:
    """Return which keys each query of this rank reads, where not all."""
    keys = torch.arange(k.shape[_POSITION], device=k.device)
    return [keys <= parts.positions(k.device)[:, None]] if causal else []


def balanced_attention(
    mesh: Mesh,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    axes: Axes,
    causal: bool = False,
    scale: float | None = None,
    balanced: bool = False,
    whole_s: int,
) -> Tensor:
    mesh.count("balanced_attention", q)
    parts = _Parts(mesh, axes, whole_s, balanced)
    (q,) = parts.exchanged([q])
    y = scaled_dot_product_attention(q, k, v, *_mask(parts, k, causal), scale=scale)
    return parts.exchanged([y], back=True)[0]


def balanced_attention_gradient(
    mesh: Mesh,
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    axes: Axes,
    causal: bool = False,
    scale: float | None = None,
    balanced: bool = False,
    whole_s: int,
) -> tuple[Tensor, ...]:
    mesh.count("balanced_attention_gradient", q)
    parts = _Parts(mesh, axes, whole_s, balanced)
    dy, q = parts.exchanged([dy, q])
    mask = _mask(parts, k, causal)
    dq, dk, dv = scaled_dot_product_attention_gradient(dy, q, k, v, *mask, scale=scale)
    return (*parts.exchanged([dq], back=True), dk, dv)


# With keys that pass round


@dataclass(frozen=True)
class _Scores:
    """The scores of parts of queries and keys, `[batch, head of keys, group, query, key]`."""

    causal: bool
    scale: float

    def blocks(
        self, q: Tensor, k: Tensor, queries: Sequence[Interval], keys: Sequence[Interval]
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the scores of each interval of queries with each of keys that it reads."""
        for (first, rows), at in zip(queries, _offsets(queries), strict=True):
            for (key, columns), seen in zip(keys, _offsets(keys), strict=True):
                if self.causal and key > first + rows - 1:
                    continue
                scores = q[..., at, :] @ k[:, :, None, seen].mT * self.scale
                if self.causal and key + columns - 1 > first:
                    reader = torch.arange(first, first + rows, device=q.device)
                    read = torch.arange(key, key + columns, device=q.device) <= reader[:, None]
                    scores = scores.masked_fill(~read, float("-inf"))
                yield at, seen, scores


def _offsets(intervals: Sequence[Interval]) -> list[slice]:
    """Return where intervals are in their concatenation."""
    return [slice(s, s + n) for s, n in _intervals([n for _, n in intervals])]


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return tensors of queries by heads of keys, in at least 32 bits."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.reshape(x.shape[0], heads, -1, *x.shape[_POSITION:])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _passed(parts: _Parts, tensors: Tensors, source: int) -> Callable[[], list[Tensor]]:
    """Start to pass tensors on to the next rank; those that come are of the part of `source`."""
    member, count = parts.mesh.index(parts.axes), len(parts.slices)
    found = [_room(x, parts.length(source)) for x in tensors]
    sends = [((member + 1) % count, x) for x in tensors]
    wait = parts.mesh.exchange(parts.axes, sends, [((member - 1) % count, x) for x in found])

    def arrived() -> list[Tensor]:
        wait()
        return found

    return arrived


def ring_attention(
    mesh: Mesh,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    axes: Axes,
    causal: bool = False,
    scale: float | None = None,
    balanced: bool = False,
    whole_s: int,
    keys: int,
) -> tuple[Tensor, Tensor]:
    """Return attention, and the logarithm of the sum of the exponentials of each query."""
    mesh.count("ring_attention", q)
    queries, of_keys = (_Parts(mesh, axes, n, balanced) for n in (whole_s, keys))
    (own,) = queries.exchanged([q])
    k, v = of_keys.exchanged([k, v])
    member, count = mesh.index(axes), len(queries.slices)
    rows = _by_head(own, k.shape[1])
    scores = _Scores(causal, q.shape[-1] ** -0.5 if scale is None else scale)
    total = rows.new_zeros(*rows.shape[:-1], v.shape[-1])
    sums, peak = rows.new_zeros(rows.shape[:-1]), rows.new_full(rows.shape[:-1], float("-inf"))
    for turn in range(count):
        source = (member - turn) % count
        is_last = turn == count - 1
        ahead = None if is_last else _passed(of_keys, (k, v), (source - 1) % count)
        blocks = scores.blocks(rows, _wide(k), queries.of(member), of_keys.of(source))
        for at, seen, found in blocks:
            before, largest = peak[..., at], torch.maximum(peak[..., at], found.amax(-1))
            shift = torch.where(largest.isfinite(), largest, 0.0)
            weights, fade = torch.exp(found - shift[..., None]), torch.exp(before - shift)
            sums[..., at] = sums[..., at] * fade + weights.sum(-1)
            part = weights @ _wide(v)[:, :, None, seen]
            total[..., at, :] = total[..., at, :] * fade[..., None] + part
            peak[..., at] = largest
        if ahead is not None:
            k, v = ahead()
    empty = sums == 0
    sums = torch.where(empty, 1.0, sums)
    shape = (*own.shape[:3], v.shape[-1])
    y = (total / sums[..., None]).reshape(shape).to(q.dtype)
    logs = torch.where(empty, 0.0, peak + torch.log(sums)).reshape(shape[:-1])
    y, logs = queries.exchanged([y, logs], back=True)
    return y, logs


def ring_attention_gradient(
    mesh: Mesh,
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    logs: Tensor,
    *,
    axes: Axes,
    causal: bool = False,
    scale: float | None = None,
    balanced: bool = False,
    whole_s: int,
    keys: int,
) -> tuple[Tensor, ...]:
    """Return the gradients by queries, keys and values; those of keys follow the keys."""
    mesh.count("ring_attention_gradient", q)
    queries, of_keys = (_Parts(mesh, axes, n, balanced) for n in (whole_s, keys))
    mean = (_wide(dy) * _wide(y)).sum(-1)
    own = queries.exchanged([q, dy, logs, mean])
    k, v = of_keys.exchanged([k, v])
    member, count = mesh.index(axes), len(queries.slices)
    rows = [_by_head(x, k.shape[1]) for x in own]
    scores = _Scores(causal, q.shape[-1] ** -0.5 if scale is None else scale)
    dq = torch.zeros_like(rows[0])
    dk, dv = torch.zeros_like(_wide(k)), torch.zeros_like(_wide(v))
    for turn in range(count):
        source = (member - turn) % count
        is_last = turn == count - 1
        ahead = None if is_last else _passed(of_keys, (k, v), (source - 1) % count)
        back = _passed(of_keys, (dk, dv), source) if turn else None
        dk, dv = torch.zeros_like(_wide(k)), torch.zeros_like(_wide(v))
        part = (_wide(k), _wide(v))
        blocks = scores.blocks(rows[0], part[0], queries.of(member), of_keys.of(source))
        for block in blocks:
            _add_gradients(rows, part, (dq, dk, dv), block, scores.scale)
        if back is not None:
            dk, dv = (a + b for a, b in zip((dk, dv), back(), strict=True))
        if ahead is not None:
            k, v = ahead()
    if count > 1:
        dk, dv = _passed(of_keys, (dk, dv), member)()
    dq = dq.reshape(own[0].shape).to(q.dtype)
    found = [*queries.exchanged([dq], back=True), *of_keys.exchanged([dk, dv], back=True)]
    return tuple(x.to(q.dtype) for x in found)


def _add_gradients(
    rows: Tensors,
    part: Tensors,
    totals: Tensors,
    block: tuple[slice, slice, Tensor],
    scale: float,
) -> None:
    """Add the gradients that a block of queries and keys gives."""
    at, seen, scores = block
    q, dy = (x[..., at, :] for x in rows[:2])
    logs, mean = (x[..., at, None] for x in rows[2:])
    k, v = (x[:, :, None, seen] for x in part)
    dq, dk, dv = totals
    weights = torch.exp(scores - logs)
    change = weights * (dy @ v.mT - mean) * scale
    dq[..., at, :] += change @ k
    dk[:, :, seen] += (change.mT @ q).sum(2)
    dv[:, :, seen] += (weights.mT @ dy).sum(2)
