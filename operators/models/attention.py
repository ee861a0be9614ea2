"""Attention, in memory that does not grow with the square of the sequence.

Blocks of queries keep the scores small; the gradient recomputes the scores instead of saving them
(Rabe and Staats, 2021; Dao et al., 2022).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.halo import deal
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Form, Rule, ShardView

SCORES_AT_ONCE = 1 << 21  # elements


def visible_pairs(queries: int, keys: int, causal: bool) -> int:
    """Return the number of pairs of a key and one of the first queries that reads it.

    >>> visible_pairs(3, 2, True)
    5
    """
    if not causal:
        return queries * keys
    growing = min(queries, keys)
    return growing * (growing + 1) // 2 + (queries - growing) * keys


def _weights(scores: Array) -> Array:
    """Return the softmax of each row; zeros in a fully masked row."""
    peak = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total), scores.dtype)


class Attention(OperatorInfo):
    """The base of attention and its gradient.

    Batch ``b``, heads ``h`` and queries ``s`` may be split; keys ``t`` stay whole, since every
    query reads them all, and so do their features ``d``, since a score is not linear in a part of
    them. The features ``e`` of the values may be split, but every part recomputes all scores. ``g``
    consecutive heads of queries share a head of keys and values.

    A mask ``[batch, head, query, key]`` may follow the values, each dimension but the last whole or
    one. A key is ignored where it is false; a floating-point mask is added to the scores. A query
    without keys gives zero.

    With ``causal`` the query at position i reads the keys up to position i. ``scale`` multiplies
    the scores; None means 1 / sqrt(d).
    """

    defaults: ClassVar = {"causal": False, "scale": None}
    first: ClassVar[int]  # the operand with the queries
    keys: ClassVar[str] = "t"  # the factor of the keys
    passes: ClassVar[tuple[int, int]]  # products over d, and over e, for every score

    @property
    def has_mask(self) -> bool:
        """Whether there is a mask."""
        return len(self.operand_types) > self.first + 3

    @property
    def adds_mask(self) -> bool:
        """Whether the mask is added to the scores, and so may have a gradient."""
        return self.has_mask and self.operand_types[-1].is_float

    def resolve_with_heads(self, notation: str) -> Rule:
        """Return the rule of a notation in which ``H`` stands for the heads of queries.

        Raises
        ------
        IRError
            If the heads of keys cannot be shared evenly.
        """
        shapes = [operand.shape for operand in self.operand_types]
        read = shapes[: self.first + 3 + self.has_mask]
        if len(shapes) < self.first + 3 or any(len(shape) != 4 for shape in read):
            raise IRError(
                f"queries, keys and values have the shapes {read}, expected four dimensions"
            )
        queries, keys = shapes[self.first][1], shapes[self.first + 1][1]
        if queries % keys:
            raise IRError(f"{queries} heads of queries cannot share {keys} heads of keys evenly")
        several = queries // keys
        if several == 1:
            return resolve(notation.replace("H", "h"), shapes)
        sizes = {"b": shapes[self.first][0], "h": keys, "g": several}
        return resolve(notation.replace("H", "(h g)"), shapes, sizes)

    def mask_notation(self) -> str:
        """Return the dimensions of the mask; a broadcast dimension has no factor."""
        sides = zip(self.operand_types[-1].shape, ("b", "H", "s"), strict=False)
        return " ".join(["1" if n == 1 else name for n, name in sides] + ["t^"])

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of queries, keys and values."""
        mask = self.operand_types[-1]
        if self.has_mask and mask.dtype not in ("bool", self.operand_types[0].dtype):
            raise IRError(f"{self.name}: the mask is {mask}, expected bool or floating point")
        return (self.operand_types[0].dtype,) * len(self.rule.results)

    @property
    def flops(self) -> float:
        """Count the products, and five operations, for each score that the kernel computes.

        The kernel is of the flash kind: with ``causal`` it skips the keys behind each query, about
        half of the scores. Scores that a mask operand hides are computed.
        """
        return self._rows * self.visible(0, self.rule.sizes["s"]) * self.flops_per_score

    @property
    def product_flops(self) -> float:
        """Count the products of all queries with all keys, whatever is masked.

        Model flops are counted so by convention (Chowdhery et al., "PaLM", 2022, appendix B).
        """
        scores = self._rows * self.rule.sizes["s"] * self.rule.sizes[self.keys]
        return scores * self._product_flops_per_score

    @property
    def flops_per_score(self) -> float:
        """Operations for each pair of a query and a key that it reads."""
        return self._product_flops_per_score + 5.0

    @property
    def _product_flops_per_score(self) -> float:
        over_d, over_e = self.passes
        return 2.0 * (over_d * self.rule.sizes["d"] + over_e * self.rule.sizes["e"])

    @property
    def _rows(self) -> int:
        return prod(self.rule.sizes.get(factor, 1) for factor in "bhg")

    def visible(self, start: int, stop: int) -> int:
        """Return the number of pairs of a query of an interval and a key that it reads."""
        keys = self.rule.sizes[self.keys]
        return visible_pairs(stop, keys, self.attributes["causal"]) - visible_pairs(
            start, keys, self.attributes["causal"]
        )

    def imbalance(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the work of the rank with the last queries over its share, where causal."""
        axes, queries = operands[self.first].splits[2], self.rule.sizes["s"]
        if not axes or not self.attributes["causal"]:
            return 1.0
        slices = deal(queries, tuple(mesh.sizes[axis] for axis in axes))
        busiest = max(self.visible(start, start + count) for start, count in slices)
        longest = max(count for _, count in slices)
        return busiest * queries / (self.visible(0, queries) * longest)

    def generate_strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Omit strategies that split ``e``: they repeat work that the cost would divide."""
        return tuple(s for s in super().generate_strategies(mesh, kinds) if "e" not in s.axes)

    def blocks(self, view: ShardView) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of local queries, each with its keys."""
        b, h, g, s, t = (view.sizes.get(factor, 1) for factor in "bhgst")
        count = max(1, SCORES_AT_ONCE // (b * h * g * t))
        for start in range(0, s, count):
            stop = min(start + count, s)
            seen = min(view.starts["s"] + stop, t) if self.attributes["causal"] else t
            yield slice(start, stop), slice(0, seen)

    @staticmethod
    def by_head(x: Array, view: ShardView) -> Array:
        """Return tensors of queries by heads of keys: ``[b, h, g, s, ...]``."""
        h, g = view.sizes["h"], view.sizes.get("g", 1)
        return x.reshape(x.shape[0], *((h, g) if x.shape[1] > 1 else (1, 1)), *x.shape[2:])

    def scaled(self, scores: Array) -> Array:
        """Multiply by ``scale``."""
        scale: Any = self.attributes["scale"]
        return scores * (self.rule.sizes["d"] ** -0.5 if scale is None else scale)

    def probabilities(self, q: Array, k: Array, first: int, mask: Array | None) -> Array:
        """Return the weights of the keys for a block of queries, the first at position `first`."""
        scores = self.scaled(np.matmul(q, np.swapaxes(k, -1, -2)[:, :, None]))
        if self.attributes["causal"]:
            queries, keys = np.arange(first, first + q.shape[3]), np.arange(k.shape[2])
            scores = np.where(keys <= queries[:, None], scores, -np.inf)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        return _weights(scores)


def _of_block(mask: Array | None, block: slice, seen: slice) -> Array | None:
    """Return the part of a mask, by heads of keys, for a block of queries."""
    if mask is None:
        return None
    return mask[..., block if mask.shape[3] > 1 else slice(None), seen]


@register
class ScaledDotProductAttention(Attention):
    """softmax(scale q k' + mask) v for every head, ``[batch, head, position, feature]``."""

    name = "scaled_dot_product_attention"
    of_reals = True
    first = 0
    passes = (1, 1)
    examples = (
        Example(("f64[2, 2, 4, 3]", "f64[2, 2, 6, 3]", "f64[2, 2, 6, 5]")),
        Example(("f64[1, 2, 6, 3]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 2]"), {"causal": True}),
        Example(
            ("f64[2, 1, 6, 3]", "f64[2, 1, 4, 3]", "f64[2, 1, 4, 2]"),
            {"causal": True, "scale": 0.7},
        ),
        Example(("f64[1, 4, 3, 2]", "f64[1, 2, 4, 2]", "f64[1, 2, 4, 3]")),
        Example(("f64[2, 2, 4, 2]", "f64[2, 1, 3, 2]", "f64[2, 1, 3, 2]", "bool[2, 1, 4, 3]")),
        Example(("f64[2, 4, 3, 2]", "f64[2, 2, 4, 2]", "f64[2, 2, 4, 2]", "f64[1, 4, 1, 4]")),
    )

    def make_rule(self) -> Rule:
        """Keep the keys whole, or pass them round, but with a mask, which has all keys.

        The mark ``halves`` balances the queries where the keys are whole.
        """
        mask = f", {self.mask_notation()}" if self.has_mask else ""
        rule = self.resolve_with_heads(f"b H s d^, b h t^ d^, b h t^ e{mask} -> b H s e")
        if self.has_mask:
            return rule
        balanced = self.attributes["causal"] and rule.sizes["s"] == rule.sizes["t"]
        attributes = {**self.attributes, "balanced": balanced}
        forms = [Form("t", "s", "ring_attention", attributes, ("logsumexp",))]
        forms += [Form("halves", "s", "balanced_attention", attributes)] if balanced else []
        return replace(rule, forms=tuple(forms))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute block by block of queries."""
        q, k, v = operands[:3]
        q = self.by_head(q, view)
        mask = self.by_head(operands[3], view) if self.has_mask else None
        out = np.empty((*q.shape[:-1], v.shape[-1]), v.dtype)
        for block, seen in self.blocks(view):
            first = view.starts["s"] + block.start
            of_block = _of_block(mask, block, seen)
            weights = self.probabilities(q[:, :, :, block], k[:, :, seen], first, of_block)
            out[:, :, :, block] = np.matmul(weights, v[:, :, None, seen])
        return out.reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operator = "scaled_dot_product_attention_gradient"
        found = build.emit_all(operator, at.cotangents[0], *at.operands, **self.attributes)
        return [*found, *(None,) * (len(at.operands) - len(found))]


@register
class ScaledDotProductAttentionGradient(Attention):
    """The gradients by q, k, v and an added mask, from the cotangent and all operands."""

    name = "scaled_dot_product_attention_gradient"
    linear = ((0,),)
    first = 1
    passes = (3, 2)
    examples = (
        Example(("f64[2, 2, 4, 5]", "f64[2, 2, 4, 3]", "f64[2, 2, 6, 3]", "f64[2, 2, 6, 5]")),
        Example(
            ("f64[1, 2, 6, 5]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 5]"),
            {"causal": True},
        ),
        Example(
            (
                "f64[1, 4, 3, 3]",
                "f64[1, 4, 3, 2]",
                "f64[1, 2, 4, 2]",
                "f64[1, 2, 4, 3]",
                "f64[1, 1, 3, 4]",
            )
        ),
    )

    def make_rule(self) -> Rule:
        """Contract the factors that a result lacks."""
        mask = self.mask_notation() if self.has_mask else ""
        taken, left = f", {mask}" * bool(mask), f", {mask}" * self.adds_mask
        notation = f"b H s e, b H s d^, b h t^ d^, b h t^ e{taken} -> b H s d, b h t d, b h t e"
        rule = self.resolve_with_heads(notation + left.replace("^", ""))
        sums = dict.fromkeys((f for f in rule.kinds if f not in "td"), "sum")
        return replace(rule, kinds={**rule.kinds, **sums})

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Recompute the weights, block by block."""
        dy, q, k, v = operands[:4]
        dy, q = self.by_head(dy, view), self.by_head(q, view)
        mask = self.by_head(operands[4], view) if self.has_mask else None
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        dmask = np.zeros_like(mask) if self.adds_mask and mask is not None else None
        for block, seen in self.blocks(view):
            first = view.starts["s"] + block.start
            of_block = _of_block(mask, block, seen)
            rows = (q[:, :, :, block], dy[:, :, :, block])
            weights = self.probabilities(rows[0], k[:, :, seen], first, of_block)
            dv[:, :, seen] += summed(weights, rows[1])
            slope = np.matmul(rows[1], np.swapaxes(v[:, :, None, seen], -1, -2))
            mean = (slope * weights).sum(axis=-1, keepdims=True)
            change = weights * (slope - mean)
            if dmask is not None:
                _add_summed(dmask[..., block if dmask.shape[3] > 1 else slice(None), seen], change)
            dscores = self.scaled(change)
            dq[:, :, :, block] = np.matmul(dscores, k[:, :, None, seen])
            dk[:, :, seen] += summed(dscores, rows[0])
        found = [dq, dk, dv] if dmask is None else [dq, dk, dv, dmask]
        return tuple(x.reshape(s) for x, s in zip(found, view.result_shapes, strict=True))


def summed(scores: Array, rows: Array) -> Array:
    """Return scores' @ rows for each head of keys, summed over the heads of queries at it."""
    b, h, g, s, t = scores.shape
    flat = scores.reshape(b, h, g * s, t)
    return np.matmul(np.swapaxes(flat, -1, -2), rows.reshape(b, h, g * s, -1))


def _add_summed(total: Array, terms: Array) -> None:
    """Add terms to a total, summed over the dimensions in which it is one."""
    ones = tuple(i for i, n in enumerate(total.shape) if n == 1)
    total += terms.sum(axis=ones, keepdims=True)
