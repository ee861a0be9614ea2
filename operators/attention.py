"""Attention, in memory that does not grow with the square of the sequence.

Queries are taken in blocks, as many as keep the scores of a block small; the gradient makes the
scores again instead of keeping them (Rabe and Staats, 2021; Dao et al., 2022).
"""

from collections.abc import Iterator
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Array,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.rule import ShardView
from shardwright.operators.softmax import softmax

_SCORES_AT_ONCE = 1 << 21  # elements


class Attention(OperatorInfo):
    """What attention and its gradient share.

    Batch ``b``, heads ``h`` and queries ``s`` may be split; keys ``t`` stay whole, since every
    query reads them all, and so do their features ``d``, since a score is not linear in a part of
    them. The features ``e`` of the values may be split, but every part makes all scores again.

    With ``causal`` the query at position i reads the keys up to position i. ``scale`` multiplies
    the scores; None stands for 1 / sqrt(d).
    """

    defaults: ClassVar = {"causal": False, "scale": None}
    passes: ClassVar[tuple[int, int]]  # products over d, and over e, for every score

    @property
    def flops(self) -> float:
        """Products of queries, keys and values, and five operations for each score."""
        sizes = self.rule.sizes
        scores = prod(sizes[factor] for factor in "bhst")
        over_d, over_e = self.passes
        return scores * (2.0 * (over_d * sizes["d"] + over_e * sizes["e"]) + 5.0)

    def generate_strategies(self, mesh: Mesh) -> tuple[Strategy, ...]:
        """Leave out those that split ``e``: they repeat work that a cost would take as shared."""
        return tuple(s for s in super().generate_strategies(mesh) if "e" not in s.axes)

    def blocks(self, view: ShardView) -> Iterator[tuple[slice, slice]]:
        """Give blocks of local queries, each with the keys that it reads."""
        b, h, s, t = (view.sizes[factor] for factor in "bhst")
        count = max(1, _SCORES_AT_ONCE // (b * h * t))
        for start in range(0, s, count):
            stop = min(start + count, s)
            seen = min(view.starts["s"] + stop, t) if self.attributes["causal"] else t
            yield slice(start, stop), slice(0, seen)

    def scaled(self, scores: Array) -> Array:
        """Multiply by ``scale``."""
        scale: Any = self.attributes["scale"]
        return scores * (self.rule.sizes["d"] ** -0.5 if scale is None else scale)

    def probabilities(self, q: Array, k: Array, first: int) -> Array:
        """Return the weights of the keys for a block of queries, the first at position `first`."""
        scores = self.scaled(np.matmul(q, np.swapaxes(k, -1, -2)))
        if self.attributes["causal"]:
            queries, keys = np.arange(first, first + q.shape[2]), np.arange(k.shape[2])
            scores = np.where(keys <= queries[:, None], scores, -np.inf)
        return softmax(scores)


@register
class ScaledDotProductAttention(Attention):
    """softmax(scale q k') v for every head, ``[batch, head, position, feature]``."""

    name = "scaled_dot_product_attention"
    notation = "b h s d^, b h t^ d^, b h t^ e -> b h s e"
    passes = (1, 1)
    examples = (
        Example(("f64[2, 2, 4, 3]", "f64[2, 2, 6, 3]", "f64[2, 2, 6, 5]")),
        Example(("f64[1, 2, 6, 3]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 2]"), {"causal": True}),
        Example(
            ("f64[2, 1, 6, 3]", "f64[2, 1, 4, 3]", "f64[2, 1, 4, 2]"),
            {"causal": True, "scale": 0.7},
        ),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Run over blocks of queries."""
        q, k, v = operands
        out = np.empty(view.result_shapes[0], v.dtype)
        for block, seen in self.blocks(view):
            first = view.starts["s"] + block.start
            weights = self.probabilities(q[:, :, block], k[:, :, seen], first)
            out[:, :, block] = np.matmul(weights, v[:, :, seen])
        return out

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Needs the operands alone."""
        operator = "scaled_dot_product_attention_gradient"
        return build.emit_all(operator, at.cotangents[0], *at.operands, **self.attributes)


@register
class ScaledDotProductAttentionGradient(Attention):
    """The gradients by q, k and v, from the cotangent and all three."""

    name = "scaled_dot_product_attention_gradient"
    notation = "b h s+ e+, b h s+ d^, b h t^ d^, b h t^ e+ -> b h s d, b h t d, b h t e"
    linear = ((0,),)
    passes = (3, 2)
    examples = (
        Example(("f64[2, 2, 4, 5]", "f64[2, 2, 4, 3]", "f64[2, 2, 6, 3]", "f64[2, 2, 6, 5]")),
        Example(
            ("f64[1, 2, 6, 5]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 3]", "f64[1, 2, 6, 5]"),
            {"causal": True},
        ),
    )

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Make the weights again, block by block."""
        dy, q, k, v = operands
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        for block, seen in self.blocks(view):
            first = view.starts["s"] + block.start
            weights = self.probabilities(q[:, :, block], k[:, :, seen], first)
            dv[:, :, seen] += np.matmul(np.swapaxes(weights, -1, -2), dy[:, :, block])
            slope = np.matmul(dy[:, :, block], np.swapaxes(v[:, :, seen], -1, -2))
            mean = (slope * weights).sum(axis=-1, keepdims=True)
            dscores = self.scaled(weights * (slope - mean))
            dq[:, :, block] = np.matmul(dscores, k[:, :, seen])
            dk[:, :, seen] += np.matmul(np.swapaxes(dscores, -1, -2), q[:, :, block])
        return dq, dk, dv
