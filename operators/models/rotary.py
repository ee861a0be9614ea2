"""Rotary embedding: positions as rotations of pairs of features (Su et al., 2021)."""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
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
from shardwright.operators.rule import Rule, ShardView


@register
class RotaryEmbedding(OperatorInfo):
    """Turn pair ``i`` of the features at a position by ``position base ** (-2 i / features)``.

    The operand is ``[..., position, feature]``; positions count from ``start``. The pairs are
    features ``i`` and ``i + features / 2``, or with ``interleaved`` the features ``2 i`` and
    ``2 i + 1``. ``reverse`` rotates backwards.
    """

    name = "rotary_embedding"
    of_reals = True
    defaults: ClassVar = {"base": 10000.0, "interleaved": False, "start": 0, "reverse": False}
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (
        Example(("f64[2, 4, 6]",), {"base": 100.0}),
        Example(("f64[2, 3, 4]",), {"base": 10.0, "interleaved": True, "start": 5}),
    )

    def make_rule(self) -> Rule:
        """Keep pairs together: of interleaved ones the number may be split."""
        shape = self.operand_types[0].shape
        if len(shape) < 2 or shape[-1] % 2:
            raise IRError(
                f"the shape is {shape}, expected [..., position, feature] with an even number of "
                "features"
            )
        if self.attributes["interleaved"]:
            sizes = {"d": shape[-1] // 2, "pair": 2}
            return resolve("... s (d pair^) -> ... s (d pair)", [shape], sizes)
        return resolve("... s d^ -> ... s d", [shape])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Rotate the local pairs by the local positions."""
        x, features = operands[0], self.operand_types[0].shape[-1]
        interleaved = self.attributes["interleaved"]
        pairs = np.arange(x.shape[-1] // 2) + (view.starts["d"] if interleaved else 0)
        positions = np.arange(x.shape[-2]) + view.starts["s"] + self.attributes["start"]
        angles = positions[:, None] * self.attributes["base"] ** (-2.0 * pairs / features)
        cos, sin = (np.asarray(turn(angles), x.dtype) for turn in (np.cos, np.sin))
        if self.attributes["reverse"]:
            sin = -sin
        half = x.shape[-1] // 2
        first, second = (
            (np.s_[..., ::2], np.s_[..., 1::2])
            if interleaved
            else (np.s_[..., :half], np.s_[..., half:])
        )
        result = np.empty_like(x)
        result[first] = x[first] * cos - x[second] * sin
        result[second] = x[second] * cos + x[first] * sin
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Rotate the cotangent backwards."""
        attributes = {**self.attributes, "reverse": not self.attributes["reverse"]}
        return [build.emit("rotary_embedding", at.cotangents[0], **attributes)]
