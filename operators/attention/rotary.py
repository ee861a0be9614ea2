"""Rotary embedding: positions as rotations of pairs of features (Su et al., 2021)."""

from typing import Any, ClassVar

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

# The angles of longer sequences; defaults are left out of the text.
_STRETCH: dict[str, Any] = {"factor": 1.0, "ramp": (), "by_frequency": False, "amplitude": 1.0}


@register
class RotaryEmbedding(OperatorInfo):
    """Turn pair ``i`` of the features at a position by ``position base ** (-2 i / features)``.

    The operand is ``[..., position, feature]``; positions count from ``start``, or are a second
    operand ``[batch, position]`` of whole numbers, for ``[batch, head, position, feature]``. The
    pairs are features ``i`` and ``i + features / 2``, or with ``interleaved`` the features ``2 i``
    and ``2 i + 1``. ``reverse`` rotates backwards.

    For sequences that are longer than those of the first training, frequencies are divided by
    ``factor``. With a ``ramp``, a share r of each stays as it is: r grows from 0 to 1 between its
    two numbers, which are indices of pairs (Peng et al., "YaRN", 2023), or ``by_frequency``
    frequencies (Llama 3.1). ``amplitude`` multiplies the result.
    """

    name = "rotary_embedding"
    of_reals = True
    defaults: ClassVar = {
        "base": 10000.0,
        "interleaved": False,
        "start": 0,
        "reverse": False,
        **_STRETCH,
    }
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (
        Example(("f64[2, 4, 6]",), {"base": 100.0}),
        Example(("f64[2, 3, 4]",), {"base": 10.0, "interleaved": True, "start": 5}),
        Example(
            ("f64[2, 3, 8]",), {"base": 10.0, "factor": 4.0, "ramp": (3.0, 0.5), "amplitude": 1.2}
        ),
        Example(
            ("f64[2, 3, 8]",),
            {"base": 10.0, "factor": 4.0, "ramp": (0.1, 0.6), "by_frequency": True},
        ),
        Example(("f64[2, 2, 3, 4]", "i32[2, 3]"), {"base": 10.0}, {1: (0, 9)}),
    )

    def make_rule(self) -> Rule:
        """Keep pairs together: of interleaved ones the number may be split."""
        shape = self.operand_types[0].shape
        if len(shape) < 2 or shape[-1] % 2:
            raise IRError(
                f"the shape is {shape}, expected [..., position, feature] with an even number of "
                "features"
            )
        shapes, rows, own = [x.shape for x in self.operand_types], "... s", ""
        if len(shapes) > 1:
            positions = self.operand_types[1]
            if positions.is_float or len(shape) != 4:
                raise IRError(
                    f"positions are {positions} for a shape of {shape}, expected whole numbers "
                    "[batch, position] for [batch, head, position, feature]"
                )
            rows, own = "b h s", ", b s"
        if self.attributes["interleaved"]:
            sizes = {"d": shape[-1] // 2, "pair": 2}
            return resolve(f"{rows} (d pair^){own} -> {rows} (d pair)", shapes, sizes)
        return resolve(f"{rows} d^{own} -> {rows} d", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Rotate the local pairs by the local positions."""
        x, features = operands[0], self.operand_types[0].shape[-1]
        interleaved = self.attributes["interleaved"]
        pairs = np.arange(x.shape[-1] // 2) + (view.starts["d"] if interleaved else 0)
        if len(operands) > 1:
            positions = operands[1][:, None] + self.attributes["start"]
        else:
            positions = np.arange(x.shape[-2]) + view.starts["s"] + self.attributes["start"]
        angles = positions[..., None] * self._frequencies(pairs, features)
        amplitude = self.attributes["amplitude"]
        cos, sin = (np.asarray(amplitude * turn(angles), x.dtype) for turn in (np.cos, np.sin))
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

    def _frequencies(self, pairs: Array, features: int) -> Array:
        """Return the angle of a position at each pair."""
        frequencies = np.asarray(self.attributes["base"] ** (-2.0 * pairs / features))
        factor, ramp = self.attributes["factor"], self.attributes["ramp"]
        if factor == 1:
            return frequencies
        kept: Array | float = 0.0
        if ramp:
            place = frequencies if self.attributes["by_frequency"] else pairs
            kept = np.clip((place - ramp[0]) / (ramp[1] - ramp[0]), 0, 1)
        return frequencies * (kept + (1 - kept) / factor)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Rotate the cotangent backwards."""
        own = {n: v for n, v in self.attributes.items() if _STRETCH.get(n) != v}
        attributes = {**own, "reverse": not self.attributes["reverse"]}
        operands = (at.cotangents[0], *at.operands[1:])
        dx = build.emit("rotary_embedding", *operands, **attributes)
        return [dx, *(None for _ in at.operands[1:])]
