"""Attention of a sequence that is split: keys and values pass round the ranks.

Queries, keys and values are split over the same axes. In every turn a rank attends to the part of
the keys that it holds while it passes this part on, and combines the results of the parts by their
largest scores and sums (the online softmax). In backward the gradients of a part of the keys follow
the part, and come home with one turn more.

With a causal mask the last queries read most keys. ``balanced``, every rank first exchanges halves
of its slices: of n ranks, each takes the i-th and the i-th last of 2 n chunks of the sequence, so
that in every turn all ranks have the same work; results are exchanged back.

References
----------
Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers for near-infinite context",
2023. For the balance Brandon et al., "Striped attention", 2023, and Llama 3 (Meta, 2024, section
3.3.2).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.attention.scaled_dot_product import SCORES_AT_ONCE, Attention
from shardwright.operators.communication.rings import (
    Exchange,
    Receive,
    RingOperator,
    Round,
    Turns,
)
from shardwright.operators.halo import Run, deal
from shardwright.operators.info import (
    Array,
    Emitter,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.rule import Rule, ShardView

_POSITION = 2  # the dimension of positions, in every operand


@dataclass(frozen=True)
class Parts:
    """How a sequence is divided between the members of a ring.

    Parameters
    ----------
    slices : tuple of (int, int)
        First position and length of the slice of each member.
    balanced : bool
        Whether members take an early and a late half slice each.
    """

    slices: tuple[Run, ...]
    balanced: bool

    @cached_property
    def chunks(self) -> list[Run]:
        """The halves of all slices."""
        halves = []
        for start, length in self.slices:
            first = length - length // 2
            halves += [(start, first), (start + first, length - first)]
        return halves

    def owners(self) -> tuple[list[int], list[int]]:
        """Return the member that has each chunk in its slice, and the one that works on it."""
        count = 2 * len(self.slices)
        return [c // 2 for c in range(count)], [min(c, count - 1 - c) for c in range(count)]

    def of(self, member: int) -> list[Run]:
        """Return the intervals of positions on which a member works."""
        if not self.balanced:
            return [self.slices[member]]
        return [self.chunks[member], self.chunks[-1 - member]]

    def gather(
        self,
        member: int,
        arrays: Sequence[Array],
        *,
        back: bool = False,
        meanwhile: tuple[Array, ...] = (),
    ) -> Generator[Exchange, Receive, list[Array]]:
        """Exchange halves, so that each member has what it works on, or its slices again.

        `meanwhile` are further arrays that it holds.
        """
        if not self.balanced or len(self.slices) == 1:
            return list(arrays)
        before, after = reversed(self.owners()) if back else self.owners()
        held = [c for c, owner in enumerate(before) if owner == member]
        cut = len(self.chunks) and self.chunks[held[0]][1]
        halves = [np.split(x, [cut], axis=_POSITION) for x in arrays]
        pieces = {c: tuple(x[i] for x in halves) for i, c in enumerate(held)}
        sends: dict[int, dict[int, tuple[Array, ...]]] = {}
        for c in held:
            if after[c] != member:
                sends.setdefault(after[c], {})[c] = pieces[c]
        wanted = [c for c, owner in enumerate(after) if owner == member]
        sources = {before[c] for c in wanted} - {member}
        receive = yield Exchange(sends, tuple(sorted(sources)), (*arrays, *meanwhile))
        for message in receive().values():
            pieces.update(message)
        columns = zip(*(pieces[c] for c in wanted), strict=True)
        return [np.concatenate(x, axis=_POSITION) for x in columns]


class OverRing(RingOperator, Attention):
    """The base of attention on a ring and its gradient."""

    defaults: ClassVar = {**Attention.defaults, "axes": (), "balanced": False}
    own = ("axes", "balanced")
    around = "s"
    keys = "s~"
    has_mask = False

    def _check_windows(self) -> None:
        """Accept the factor of the keys: the ranks pass them round."""

    def parts(self, extents: Sequence[int]) -> tuple[Parts, Parts]:
        """Return how queries, and keys, are divided."""
        balanced = bool(self.attributes["balanced"])
        sizes = self.rule.sizes["s"], self.rule.sizes[self.keys]
        queries, keys = (Parts(deal(size, tuple(extents)), balanced) for size in sizes)
        return queries, keys

    def blocks_of(
        self, rows: int, queries: Sequence[Run], keys: Sequence[Run]
    ) -> Iterator[tuple[slice, slice, Array | None]]:
        """Yield blocks of queries with an interval of keys, and the mask where it hides some."""
        for (first, count), at in zip(queries, _offsets(queries), strict=True):
            for (key, length), seen in zip(keys, _offsets(keys), strict=True):
                step = max(1, SCORES_AT_ONCE // max(1, rows * length))
                for start in range(0, count if length else 0, step):
                    stop = min(start + step, count)
                    mask = None
                    if self.attributes["causal"]:
                        if key > first + stop - 1:
                            continue
                        if key + length - 1 > first + start:
                            positions = np.arange(first + start, first + stop)
                            mask = np.arange(key, key + length) <= positions[:, None]
                    yield slice(at + start, at + stop), slice(seen, seen + length), mask

    def scores(self, q: Array, k: Array, mask: Array | None) -> Array:
        """Return the scores of a block, minus infinity where the mask hides a key."""
        found = self.scaled(self.product(q, np.swapaxes(k, -1, -2)[:, :, None]))
        return found if mask is None else np.where(mask, found, -np.inf)

    def attend(
        self,
        online: "Online",
        operands: tuple[Array, Array, Array],
        queries: Sequence[Run],
        keys: Sequence[Run],
    ) -> None:
        """Add a part of the keys to the softmax of the queries."""
        q, k, v = operands
        for block, seen, mask in self.blocks_of(prod(q.shape[:3]), queries, keys):
            scores = self.scores(q[:, :, :, block], k[:, :, seen], mask)
            online.add(block, scores, v[:, :, None, seen], self.product)

    def add_gradients(
        self,
        rows: Sequence[Array],
        part: tuple[Array, Array],
        totals: tuple[Array, Array, Array],
        queries: Sequence[Run],
        keys: Sequence[Run],
    ) -> None:
        """Add the gradients that one part of the keys and the own queries give each other."""
        (k, v), (dq, dk, dv) = part, totals
        for block, seen, mask in self.blocks_of(prod(dq.shape[:3]), queries, keys):
            q, dy, logs, mean = (x[:, :, :, block] for x in rows)
            weights = np.exp(self.scores(q, k[:, :, seen], mask) - logs)
            slope = self.product(dy, np.swapaxes(v[:, :, None, seen], -1, -2))
            change = self.scaled(weights * (slope - mean))
            dq[:, :, :, block] += self.product(change, k[:, :, None, seen])
            dk[:, :, seen] += self.summed(change, q)
            dv[:, :, seen] += self.summed(weights, dy)

    # Prices

    def local(self, operands: Sequence[Layout], mesh: Mesh) -> "Sizes":
        """Return the largest slices of a rank."""
        shapes = [
            layout.slice_shape(operand.shape, mesh)
            for layout, operand in zip(operands, self.operand_types, strict=True)
        ]
        q, k, v = shapes[self.first : self.first + 3]
        item = item_bytes(self.operand_types[self.first].dtype)
        rows = prod(q[:_POSITION])
        pairs = [float(q[2] * k[2])] * max(1, mesh.extent(self.axes))
        if self.attributes["balanced"]:
            half = -(-q[2] // 2)  # of the own part the diagonal, of any other one half
            pairs = [min(p, 2.0 * half * half + half * (i == 0)) for i, p in enumerate(pairs)]
        return Sizes(
            [rows * p * self.flops_per_score for p in pairs],
            float(item * prod(q)),
            float(item * rows * q[2] * v[3]),
            float(item * (prod(k) + prod(v))),
            4.0 * rows * q[2],
            rows,
        )

    def exchanged(self, nbytes: float, members: int) -> list[Round]:
        """Return the exchange of halves; of two ranks each keeps one."""
        if not self.attributes["balanced"] or members == 1:
            return []
        return [Round(0.0, 0.0, nbytes / 2 if members == 2 else nbytes)]


@dataclass(frozen=True)
class Sizes:
    """The work of each turn, and bytes of slices on a rank.

    Parameters
    ----------
    flops : list of float
        Operations of each turn.
    queries, results, keys, rows : float
        Bytes of the queries, of the result, of keys and values, of one number for each query.
    heads : int
        Heads of all samples.
    """

    flops: list[float]
    queries: float
    results: float
    keys: float
    rows: float
    heads: int


@dataclass(frozen=True)
class Online:
    """The softmax of rows whose scores come part by part.

    Parameters
    ----------
    peak, sums : array
        The largest score of each row, and the sum of the exponentials of the others less it.
    total : array
        The values, weighted by these exponentials.
    """

    peak: Array
    sums: Array
    total: Array

    @staticmethod
    def of(q: Array, features: int) -> "Online":
        """Return the start, for a number of features of the values."""
        rows = q.shape[:-1]
        total = np.zeros((*rows, features), q.dtype)
        return Online(np.full(rows, -np.inf, q.dtype), np.zeros(rows, q.dtype), total)

    def add(
        self,
        block: slice,
        scores: Array,
        values: Array,
        product: Callable[[Array, Array], Array],
    ) -> None:
        """Add a part of the keys to a block of queries; `product` multiplies by the values."""
        at = (slice(None),) * 3 + (block,)
        before = self.peak[at]
        after = np.maximum(before, scores.max(axis=-1))
        shift = np.where(np.isfinite(after), after, 0)
        weights, fade = np.exp(scores - shift[..., None]), np.exp(before - shift)
        self.sums[at] = self.sums[at] * fade + weights.sum(axis=-1)
        self.total[at] = self.total[at] * fade[..., None] + product(weights, values)
        self.peak[at] = after

    def results(self) -> tuple[Array, Array]:
        """Return the weighted values, and the logarithm of the sums; zeros for a row of no keys."""
        empty = self.sums == 0
        sums = np.where(empty, 1, self.sums)
        return self.total / sums[..., None], np.where(empty, 0, self.peak + np.log(sums))


def _offsets(intervals: Sequence[Run]) -> list[int]:
    """Return where each interval begins in their concatenation."""
    lengths = [0, *(length for _, length in intervals)]
    return [sum(lengths[: i + 1]) for i in range(len(intervals))]


def _passed(
    member: int, count: int, arrays: tuple[Array, ...], held: tuple[Array, ...]
) -> Generator[Exchange, Receive, Receive]:
    """Start to pass arrays on to the next member of the ring, which holds others meanwhile."""
    source = ((member - 1) % count,)
    return (yield Exchange({(member + 1) % count: {0: arrays}}, source, (*arrays, *held)))


def _arrived(receive: Receive) -> tuple[Array, ...]:
    """Return the arrays that the member before has passed on."""
    (message,) = receive().values()
    return message[0]


@register
class RingAttention(OverRing):
    """Attention with keys and values passed round; also returns log sums of the exponentials."""

    name = "ring_attention"
    of_reals = True
    whole, reads = "scaled_dot_product_attention", 3
    first = 0
    passes = (1, 1)

    def make_rule(self) -> Rule:
        """Split keys like queries."""
        return self.resolve_with_heads("b H s d^, b h s~ d^, b h s~ e^ -> b H s e, b H s")

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the queries; sums of exponentials have at least 32 bits."""
        dtype = self.operand_types[0].dtype
        return dtype, "float32" if item_bytes(dtype) < 4 else dtype

    def rounds(self, operands: Sequence[Layout], mesh: Mesh) -> Sequence[Round]:
        """Return a turn for each part of the keys, between the exchanges of halves."""
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        read = sizes.queries + sizes.keys + 2 * sizes.results
        turns = [
            Round(flops, read, sizes.keys if i < count - 1 else 0.0)
            for i, flops in enumerate(sizes.flops)
        ]
        before = self.exchanged(sizes.queries + sizes.keys, count)
        return [*before, *turns, *self.exchanged(sizes.results + sizes.rows, count)]

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the keys of two parts, and sums of rows; balanced, the halves of all, too."""
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        if count == 1:
            return 0.0
        balanced = bool(self.attributes["balanced"])
        parts = 2 if balanced or count > 2 else 1  # the own one is an operand, unless balanced
        return balanced * sizes.queries + parts * sizes.keys + sizes.rows

    def turns(
        self, view: ShardView, member: int, extents: Sequence[int], *operands: Array
    ) -> Turns:
        """Attend to the parts of the keys, the own first."""
        (queries, keys), count = self.parts(extents), prod(extents)
        (q,) = yield from queries.gather(member, operands[:1])
        k, v = yield from keys.gather(member, operands[1:], meanwhile=(q,))
        shape, q = (*q.shape[:3], v.shape[3]), self.by_head(q, view)
        total, sums = (
            np.zeros((*q.shape[:-1], v.shape[3]), q.dtype),
            np.zeros(q.shape[:-1], q.dtype),
        )
        peak = np.full(q.shape[:-1], -np.inf, q.dtype)
        for turn in range(count):
            receive = None
            if turn < count - 1:
                receive = yield from _passed(member, count, (k, v), (q, total, sums, peak))
            held = keys.of((member - turn) % count)
            for block, seen, mask in self.blocks_of(prod(q.shape[:3]), queries.of(member), held):
                scores = self.scores(q[:, :, :, block], k[:, :, seen], mask)
                before = peak[:, :, :, block]
                after = np.maximum(before, scores.max(axis=-1))
                shift = np.where(np.isfinite(after), after, 0).astype(q.dtype)
                weights, fade = np.exp(scores - shift[..., None]), np.exp(before - shift)
                sums[:, :, :, block] = sums[:, :, :, block] * fade + weights.sum(axis=-1)
                kept = total[:, :, :, block] * fade[..., None]
                total[:, :, :, block] = kept + self.product(weights, v[:, :, None, seen])
                peak[:, :, :, block] = after
            if receive is not None:
                k, v = _arrived(receive)
        empty = sums == 0  # a query without keys
        total /= np.where(empty, 1, sums)[..., None]
        logs = np.where(empty, 0, peak + np.log(np.where(empty, 1, sums)))
        results = [total.reshape(shape), logs.astype(q.dtype).reshape(shape[:3])]
        return tuple((yield from queries.gather(member, results, back=True)))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands and both results for backward."""
        operands = (at.cotangents[0], *at.operands, *at.results)
        return build.emit_all("ring_attention_gradient", *operands, **self.written)


@register
class RingAttentionGradient(OverRing):
    """The gradients by q, k and v, from the cotangent, q, k, v and both results."""

    name = "ring_attention_gradient"
    whole, reads = "scaled_dot_product_attention_gradient", 4
    after, past = RingAttention.name, 1
    linear = ((0,),)
    first = 1
    passes = (3, 2)

    def make_rule(self) -> Rule:
        """Contract the heads that share keys."""
        rule = self.resolve_with_heads(
            "b H s e^, b H s d^, b h s~ d^, b h s~ e^, b H s e, b H s -> "
            "b H s d, b h s~ d, b h s~ e"
        )
        return replace(rule, kinds={**rule.kinds, "g": "sum"}) if "g" in rule.kinds else rule

    def rounds(self, operands: Sequence[Layout], mesh: Mesh) -> Sequence[Round]:
        """Return a turn for each part of the keys, whose gradients follow one turn later."""
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        read = 2 * (sizes.queries + sizes.keys) + sizes.results
        turns = [
            Round(flops, read, sizes.keys * ((i < count - 1) + (i > 0)))
            for i, flops in enumerate(sizes.flops)
        ]
        home = [Round(0.0, 0.0, sizes.keys)] if count > 1 else []
        taken = sizes.queries + sizes.keys + sizes.results + 2 * sizes.rows
        before = self.exchanged(taken, count)
        return [*before, *turns, *home, *self.exchanged(sizes.queries + sizes.keys, count)]

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the keys of two parts, and their gradients: sent, received, and computed.

        The gradients of the own part are results. With two ranks, no part is ahead where gradients
        pass. Balanced, it has the halves of all that belongs to the queries, too.
        """
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        if count == 1:
            return 0.0
        balanced = bool(self.attributes["balanced"])
        halves = sizes.queries + sizes.results + sizes.rows
        return balanced * halves + sizes.rows + (4 if count > 2 else 3) * sizes.keys

    def turns(
        self, view: ShardView, member: int, extents: Sequence[int], *operands: Array
    ) -> Turns:
        """Compute the gradients part by part; those of the keys follow the keys."""
        (queries, keys), count = self.parts(extents), prod(extents)
        dy, q, k, v, y, logs = operands
        mean = (dy * y).sum(axis=-1)
        dy, q, logs, mean = yield from queries.gather(member, (dy, q, logs, mean))
        own = (dy, q, logs, mean)
        k, v = yield from keys.gather(member, (k, v), meanwhile=own)
        shape = q.shape
        rows = [self.by_head(x, view) for x in (q, dy, logs[..., None], mean[..., None])]
        dq, back = np.zeros_like(rows[0]), None
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        for turn in range(count):
            ahead = None
            if turn < count - 1:
                ahead = yield from _passed(member, count, (k, v), (*own, dq, dk, dv))
            if turn:
                before, dk, dv = (dk, dv), np.zeros_like(k), np.zeros_like(v)
                back = yield from _passed(member, count, before, (*own, k, v, dq, dk, dv))
            held = keys.of((member - turn) % count)
            self.add_gradients(rows, (k, v), (dq, dk, dv), queries.of(member), held)
            if back is not None:
                dk, dv = (a + b for a, b in zip((dk, dv), _arrived(back), strict=True))
            if ahead is not None:
                k, v = _arrived(ahead)
        if count > 1:
            dk, dv = _arrived((yield from _passed(member, count, (dk, dv), (dq,))))
        (dq,) = yield from queries.gather(
            member, (dq.reshape(shape),), back=True, meanwhile=(dk, dv)
        )
        dk, dv = yield from keys.gather(member, (dk, dv), back=True, meanwhile=(dq,))
        return dq, dk, dv
