"""Dropout whose mask does not depend on how the tensor is split."""

from typing import ClassVar

import numpy as np

from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.models.random import global_index, uniform
from shardwright.operators.rule import ShardView


@register
class Dropout(OperatorInfo):
    """Set elements to zero with the probability ``rate``, and scale the rest by 1 / (1 - rate).

    The mask is a function of ``seed``, ``key`` (the name of this use), the operand ``step`` and the
    global index of the element. The gradient recomputes it, so that no mask is saved for backward.
    """

    name = "dropout"
    notation = "..., -> ..."
    defaults: ClassVar = {"rate": 0.5, "seed": 0, "key": "dropout"}
    linear = ((0,),)
    flops_per_point = 20.0
    examples = (
        Example(("f64[4, 3, 6]", "i64[]")),
        Example(("f64[4, 6]", "i64[]"), {"rate": 0.1, "seed": 3, "key": "layer1/dropout"}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Draw the numbers of the local elements."""
        x, step = operands
        factors = [dims[0] for dims in self.rule.operands[0]]
        region = [slice(view.starts[f], view.starts[f] + view.sizes[f]) for f in factors]
        index = global_index(self.operand_types[0].shape, region)
        rate, seed, key = (self.attributes[name] for name in ("rate", "seed", "key"))
        kept = uniform(seed, f"{key}/{int(step)}", index) >= rate
        return np.asarray(np.where(kept, x * (1 / (1 - rate)), 0), x.dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Drop the same elements."""
        return [build.emit("dropout", at.cotangents[0], at.operands[1], **self.attributes), None]
