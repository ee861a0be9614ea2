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
from shardwright.operators.attention.reach import RESTRICTIONS, Reach, causal_imbalance
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.rule import Form, Rule, ShardView

SCORES_AT_ONCE = 1 << 21  # elements


def _weights(scores: Array, sinks: Array | None) -> tuple[Array, Array | None]:
    """Return the softmax of each row, zeros in a fully masked row; and the weights of sinks."""
    peak = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        peak = np.maximum(peak, sinks)
    shift = np.where(np.isfinite(peak), peak, 0)
    e = np.exp(scores - shift)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        rest = np.exp(sinks - shift)
        total = total + rest
        return np.asarray(e / total, scores.dtype), np.asarray(rest / total, scores.dtype)
    return np.asarray(e / np.where(total == 0, 1, total), scores.dtype), None


class Attention(Product, Reach):
    """The base of attention and its gradient.

    Batch ``b``, heads ``h`` and queries ``s`` may be split; keys ``t`` stay whole, since every
    query reads them all, and so do their features ``d``, since a score is not linear in a part of
    them. The features ``e`` of the values may be split, but every part recomputes all scores. ``g``
    consecutive heads of queries share a head of keys and values.

    A mask ``[batch, head, query, key]`` may follow the values, each dimension but the last whole or
    one. A key is ignored where it is false; a floating-point mask is added to the scores. A query
    without keys gives zero.

    With ``causal`` the query at position i reads the keys up to position i; of these, with a
    ``window``, the last ``window``, and with a ``chunk`` those of its own chunk of so many
    positions. 0 means neither. ``scale`` multiplies the scores; None means 1 / sqrt(d). A
    ``soft_cap`` c bounds the scaled scores s by c tanh(s / c); 0 means none. With ``sinks`` the
    last operand has a score for every head of queries that takes part in each softmax and has no
    value; then there is no mask.

    With ``documents`` a row of queries has several documents, one behind the other: the operand
    after the values has the position of each query in its document, ``[batch, query]``, beyond
    whose start nothing is read; then there is no mask. Its number is the length that is priced: of
    the document of a token, in the mean over tokens.
    """

    defaults: ClassVar = {**Reach.defaults, **Product.defaults}
    passes: ClassVar[tuple[int, int]]  # products over d, and over e, for every score

    @property
    def written(self) -> dict[str, Any]:
        """The attributes, without restrictions that do not apply."""
        return {n: v for n, v in super().written.items() if RESTRICTIONS.get(n, ()) != v}

    def resolve_with_heads(self, notation: str) -> Rule:
        """Return the rule of a notation in which ``H`` stands for the heads of queries.

        Raises
        ------
        IRError
            If the heads of keys cannot be shared evenly.
        """
        self.check_restrictions()
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

        Model flops are counted so by convention (Chowdhery et al., "PaLM", 2022, appendix B). Of a
        window or a chunk, as many keys count as it has.
        """
        scores = self._rows * self.rule.sizes["s"] * self.span
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

    def imbalance(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the work of the rank with the last queries over its share, where causal."""
        axes, queries = operands[self.first].splits[2], self.rule.sizes["s"]
        if not axes or not self.attributes["causal"]:
            return 1.0
        extents = tuple(mesh.sizes[axis] for axis in axes)
        return causal_imbalance(queries, self.rule.sizes[self.keys], extents, self.reach)

    def generate_strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Omit strategies that split ``e``: they repeat work that the cost would divide."""
        return tuple(s for s in super().generate_strategies(mesh, kinds) if "e" not in s.axes)

    def blocks(self, view: ShardView, starts: Array | None = None) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of local queries, each with the interval of the keys that it reads."""
        b, h, g, s, t = (view.sizes.get(factor, 1) for factor in "bhgst")
        count = max(1, SCORES_AT_ONCE // (b * h * g * t))
        if self.span < t:
            count = min(count, self.span)
        for start in range(0, s, count):
            stop = min(start + count, s)
            end = min(view.starts["s"] + stop, t) if self.attributes["causal"] else t
            if starts is None:
                begin = int(self.first_keys(np.asarray(view.starts["s"] + start)))
            else:
                begin = int(starts[..., start:stop, :].min(initial=end))
            begin = min(begin, end)
            yield slice(start, stop), slice(begin, end)

    @staticmethod
    def by_head(x: Array, view: ShardView) -> Array:
        """Return tensors of queries by heads of keys: ``[b, h, g, s, ...]``."""
        h, g = view.sizes["h"], view.sizes.get("g", 1)
        return x.reshape(x.shape[0], *((h, g) if x.shape[1] > 1 else (1, 1)), *x.shape[2:])

    def scaled(self, scores: Array) -> Array:
        """Multiply by ``scale``."""
        scale: Any = self.attributes["scale"]
        return scores * (self.rule.sizes["d"] ** -0.5 if scale is None else scale)

    def block_scores(self, q: Array, k: Array) -> Array:
        """Return the scores of a block, before anything is masked."""
        scores, cap = self.product(q, np.swapaxes(k, -1, -2)[:, :, None]), self.soft_cap
        found = self.scaled(scores)
        return cap * np.tanh(found / cap) if cap else found

    def summed(self, scores: Array, rows: Array) -> Array:
        """Return scores' @ rows for each head of keys, summed over the heads of queries at it."""
        b, h, g, s, t = scores.shape
        flat = scores.reshape(b, h, g * s, t)
        return self.product(np.swapaxes(flat, -1, -2), rows.reshape(b, h, g * s, -1))

    @property
    def soft_cap(self) -> float:
        """The bound of the scores; 0 for none."""
        return float(self.attributes["soft_cap"])


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
        Example(
            ("f64[1, 2, 6, 2]", "f64[1, 2, 6, 2]", "f64[1, 2, 6, 3]"),
            {"causal": True, "window": 2, "soft_cap": 0.5},
        ),
        Example(
            ("f64[1, 4, 6, 2]", "f64[1, 2, 6, 2]", "f64[1, 2, 6, 2]", "f64[4]"),
            {"causal": True, "chunk": 4, "sinks": True},
        ),
        Example(
            ("f64[2, 4, 6, 2]", "f64[2, 2, 6, 2]", "f64[2, 2, 6, 2]", "i32[2, 6]"),
            {"causal": True, "documents": 3},
            {3: (0, 6)},
        ),
        Example(
            ("f64[1, 2, 4, 2]", "f64[1, 2, 4, 2]", "f64[1, 2, 4, 2]", "i32[1, 4]", "f64[2]"),
            {"causal": True, "window": 3, "documents": 2, "sinks": True},
            {3: (0, 4)},
        ),
    )

    def make_rule(self) -> Rule:
        """Keep the keys whole, or pass them round, where all scores and keys are read as they are.

        The mark ``halves`` balances the queries where the keys are whole.
        """
        last = f", {self.last_notation}" if self.last_notation else ""
        rule = self.resolve_with_heads(f"b H s d^, b h t^ d^, b h t^ e{last} -> b H s e")
        if self.has_mask or any(self.attributes[n] for n in RESTRICTIONS):
            return rule
        balanced = self.attributes["causal"] and rule.sizes["s"] == rule.sizes["t"]
        attributes = {**self.written, "balanced": balanced}
        forms = [Form("t", "s", "ring_attention", attributes, ("logsumexp",))]
        forms += [Form("halves", "s", "balanced_attention", attributes)] if balanced else []
        return replace(rule, forms=tuple(forms))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute block by block of queries."""
        q, k, v = operands[:3]
        q = self.by_head(q, view)
        mask = self.by_head(operands[3], view) if self.has_mask else None
        sinks = self.sinks_by_head(operands, view)
        starts = self.first_in_documents(operands, view)
        out = np.empty((*q.shape[:-1], v.shape[-1]), v.dtype)
        for block, seen in self.blocks(view, starts):
            first = view.starts["s"] + block.start
            scores = self.block_scores(q[:, :, :, block], k[:, :, seen])
            own = None if starts is None else starts[..., block, :]
            masked = self.masked(scores, first, seen, _of_block(mask, block, seen), own)
            weights, _ = _weights(masked, sinks)
            out[:, :, :, block] = self.product(weights, v[:, :, None, seen])
        return out.reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operator = "scaled_dot_product_attention_gradient"
        found = build.emit_all(operator, at.cotangents[0], *at.operands, **self.written)
        without = (None,) * (len(at.operands) - len(found))  # a mask of truths, or positions
        return [*found[:3], *without, *found[3:]]


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
        Example(
            ("f64[1, 2, 6, 3]", "f64[1, 2, 6, 2]", "f64[1, 2, 6, 2]", "f64[1, 2, 6, 3]"),
            {"causal": True, "window": 2, "soft_cap": 0.5},
        ),
        Example(
            (
                "f64[1, 4, 6, 2]",
                "f64[1, 4, 6, 2]",
                "f64[1, 2, 6, 2]",
                "f64[1, 2, 6, 2]",
                "f64[4]",
            ),
            {"causal": True, "chunk": 4, "sinks": True},
        ),
        Example(
            (
                "f64[2, 4, 6, 2]",
                "f64[2, 4, 6, 2]",
                "f64[2, 2, 6, 2]",
                "f64[2, 2, 6, 2]",
                "i32[2, 6]",
            ),
            {"causal": True, "documents": 3},
            {4: (0, 6)},
        ),
        Example(
            (
                *("f64[1, 2, 4, 2]",) * 4,
                "i32[1, 4]",
                "f64[2]",
            ),
            {"causal": True, "window": 3, "documents": 2, "sinks": True},
            {4: (0, 4)},
        ),
    )

    def make_rule(self) -> Rule:
        """Contract the factors that a result lacks."""
        last = self.last_notation
        taken = f", {last}" * bool(last)
        left = ", H" * self.has_sinks or f", {last}" * self.adds_mask
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
        sinks, starts = self.sinks_by_head(operands, view), self.first_in_documents(operands, view)
        dsinks = None if sinks is None else np.zeros_like(sinks)
        for block, seen in self.blocks(view, starts):
            first = view.starts["s"] + block.start
            rows = (q[:, :, :, block], dy[:, :, :, block])
            scores = self.block_scores(rows[0], k[:, :, seen])
            own = None if starts is None else starts[..., block, :]
            masked = self.masked(scores, first, seen, _of_block(mask, block, seen), own)
            weights, of_sinks = _weights(masked, sinks)
            dv[:, :, seen] += self.summed(weights, rows[1])
            slope = self.product(rows[1], np.swapaxes(v[:, :, None, seen], -1, -2))
            mean = (slope * weights).sum(axis=-1, keepdims=True)
            change = weights * (slope - mean)
            if dmask is not None:
                _add_summed(dmask[..., block if dmask.shape[3] > 1 else slice(None), seen], change)
            if dsinks is not None:
                _add_summed(dsinks, -mean * of_sinks)
            if self.soft_cap:
                change = change * (1 - (scores / self.soft_cap) ** 2)
            dscores = self.scaled(change)
            dq[:, :, :, block] = self.product(dscores, k[:, :, None, seen])
            dk[:, :, seen] += self.summed(dscores, rows[0])
        found = [dq, dk, dv, *(x for x in (dmask, dsinks) if x is not None)]
        return tuple(x.reshape(s) for x, s in zip(found, view.result_shapes, strict=True))


def _add_summed(total: Array, terms: Array) -> None:
    """Add terms to a total, summed over the dimensions in which it is one."""
    ones = tuple(i for i, n in enumerate(total.shape) if n == 1)
    total += terms.sum(axis=ones, keepdims=True)
