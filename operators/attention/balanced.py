"""Causal attention of a sequence that is split, with all keys on every rank, balanced.

The last queries read most keys. So every rank first exchanges halves of its queries: of n ranks,
each takes the i-th and the i-th last of 2 n chunks of the sequence, reads all keys, and results are
exchanged back.

References
----------
Llama 3 (Meta, 2024), section 3.3.2.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.attention.reach import visible_pairs
from shardwright.operators.attention.ring import Online, OverRing, Parts
from shardwright.operators.communication.rings import Round, Turns, holding
from shardwright.operators.halo import Run, deal
from shardwright.operators.info import Array, Emitter, Gradients, Linearization, register
from shardwright.operators.rule import Rule, ShardView


def _parts(queries: int, extents: tuple[int, ...], balanced: bool) -> Parts:
    """Return how queries are divided."""
    return Parts(deal(queries, extents), balanced)


@lru_cache(maxsize=4096)
def _most_pairs(
    queries: int, keys: int, extents: tuple[int, ...], balanced: bool, causal: bool
) -> int:
    """Return the most pairs of a query and a key of any rank; searches ask many times."""
    parts = _parts(queries, extents, balanced)
    return max(
        sum(
            visible_pairs(start + count, keys, causal) - visible_pairs(start, keys, causal)
            for start, count in parts.of(member)
        )
        for member in range(prod(extents))
    )


class _WithAllKeys(OverRing):
    """The base of balanced attention and its gradient."""

    keys = "t"

    def queries(self, extents: Sequence[int]) -> Parts:
        """Return how the queries are divided."""
        return _parts(self.rule.sizes["s"], tuple(extents), bool(self.attributes["balanced"]))

    @property
    def all_keys(self) -> list[Run]:
        """The interval of all keys."""
        return [(0, self.rule.sizes["t"])]

    def busiest(self, heads: int, mesh: Mesh) -> float:
        """Return the operations of the rank with the most pairs of a query and a key."""
        queries, keys = self.rule.sizes["s"], self.rule.sizes["t"]
        extents = tuple(mesh.sizes[axis] for axis in self.axes)
        balanced, causal = (bool(self.attributes[name]) for name in ("balanced", "causal"))
        return heads * _most_pairs(queries, keys, extents, balanced, causal) * self.flops_per_score


@register
class BalancedAttention(_WithAllKeys):
    """Attention of an early and a late part of the queries on every rank, which has all keys."""

    name = "balanced_attention"
    of_reals = True
    whole, reads = "scaled_dot_product_attention", 3
    first = 0
    passes = (1, 1)

    def make_rule(self) -> Rule:
        """Keep the keys whole."""
        return self.resolve_with_heads("b H s d^, b h t^ d^, b h t^ e^ -> b H s e")

    def rounds(self, operands: Sequence[Layout], mesh: Mesh) -> Sequence[Round]:
        """Return the attention between the exchanges of halves."""
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        flops = self.busiest(sizes.heads, mesh)
        attention = Round(flops, sizes.queries + sizes.keys + sizes.results, 0.0)
        before, after = (self.exchanged(n, count) for n in (sizes.queries, sizes.results))
        return [*before, attention, *after]

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the halves of the queries, then those of the result."""
        sizes = self.local(operands, mesh)
        if not self.exchanged(1.0, mesh.extent(self.axes)):
            return 2 * sizes.rows
        return max(sizes.queries + 2 * sizes.rows, sizes.results)

    def turns(
        self, view: ShardView, member: int, extents: Sequence[int], *operands: Array
    ) -> Turns:
        """Attend to all keys at once."""
        queries, (k, v) = self.queries(extents), operands[1:]
        (q,) = yield from queries.gather(member, operands[:1])
        shape, q = (*q.shape[:3], v.shape[3]), self.by_head(q, view)
        online = Online.of(q, v.shape[3])
        self.attend(online, (q, k, v), queries.of(member), self.all_keys)
        yield from holding(q, online.total, online.peak, online.sums)
        result = online.results()[0].reshape(shape)
        return tuple((yield from queries.gather(member, (result,), back=True)))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operands = (at.cotangents[0], *at.operands)
        return build.emit_all("balanced_attention_gradient", *operands, **self.written)


@register
class BalancedAttentionGradient(_WithAllKeys):
    """The gradients by q, k and v, from the cotangent, q, k and v."""

    name = "balanced_attention_gradient"
    whole, reads = "scaled_dot_product_attention_gradient", 4
    linear = ((0,),)
    first = 1
    passes = (3, 2)

    def make_rule(self) -> Rule:
        """Contract the factors that a result lacks."""
        rule = self.resolve_with_heads(
            "b H s e^, b H s d^, b h t^ d^, b h t^ e^ -> b H s d, b h t d, b h t e"
        )
        sums = {factor: "sum" for factor in ("s", "g") if factor in rule.kinds}
        return replace(rule, kinds={**rule.kinds, **sums})

    def rounds(self, operands: Sequence[Layout], mesh: Mesh) -> Sequence[Round]:
        """Return the gradient between the exchanges of halves."""
        count, sizes = mesh.extent(self.axes), self.local(operands, mesh)
        flops = self.busiest(sizes.heads, mesh)
        gradient = Round(flops, 2 * (sizes.queries + sizes.keys) + sizes.results, 0.0)
        before = self.exchanged(sizes.queries + sizes.results, count)
        return [*before, gradient, *self.exchanged(sizes.queries, count)]

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the results that are computed again, with the halves of the queries."""
        sizes = self.local(operands, mesh)
        before = sizes.results + 2 * sizes.rows
        halves = sizes.queries + sizes.results
        if not self.exchanged(1.0, mesh.extent(self.axes)):
            return max(before - sizes.queries - sizes.keys, 2 * sizes.rows)
        return max(halves + before - sizes.queries - sizes.keys, halves + 2 * sizes.rows)

    def turns(
        self, view: ShardView, member: int, extents: Sequence[int], *operands: Array
    ) -> Turns:
        """Compute the weights again, then the gradients."""
        queries, (k, v) = self.queries(extents), operands[2:]
        dy, q = yield from queries.gather(member, operands[:2])
        shape = q.shape
        dy, q = self.by_head(dy, view), self.by_head(q, view)
        online, own = Online.of(q, v.shape[3]), queries.of(member)
        self.attend(online, (q, k, v), own, self.all_keys)
        yield from holding(q, dy, online.total, online.peak, online.sums)
        y, logs = online.results()
        rows = (q, dy, logs[..., None], (dy * y).sum(axis=-1)[..., None])
        dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
        self.add_gradients(rows, (k, v), (dq, dk, dv), own, self.all_keys)
        yield from holding(*rows, dq, dk, dv)
        held = (dk, dv)
        (dq,) = yield from queries.gather(member, (dq.reshape(shape),), back=True, meanwhile=held)
        return dq, dk, dv
