"""Dropout and random numbers that do not depend on how the tensor is split."""

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
from shardwright.operators.models.random import global_index, uniform
from shardwright.operators.rule import ShardView

_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of a random number


@register
class Dropout(OperatorInfo):
    """Set elements to zero with the probability ``rate``, and scale the rest by 1 / (1 - rate).

    The mask is a function of ``seed``, ``key`` (the name of this use), the operand ``step`` and the
    global index of the element. The gradient recomputes it, so that no mask is saved for backward.
    """

    name = "dropout"
    of_reals = True
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
        x, rate = operands[0], self.attributes["rate"]
        kept = _drawn(self, view, int(operands[1])) >= rate
        return np.asarray(np.where(kept, x * (1 / (1 - rate)), 0), x.dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Drop the same elements."""
        return [build.emit("dropout", at.cotangents[0], at.operands[1], **self.attributes), None]


@register
class RandomUniform(OperatorInfo):
    """A random number in [0, 1) for each element of the first operand, which is not read.

    It is a function of ``seed``, ``key``, ``step`` and the global index, as the mask of `dropout`.
    """

    name = "random_uniform"
    notation = "..., -> ..."
    defaults: ClassVar = {"seed": 0, "key": "random"}
    stops_gradient = True
    flops_per_point = 20.0
    examples = (
        Example(("f64[4, 3, 6]", "i64[]")),
        Example(("f64[4, 6]", "i64[]"), {"seed": 3, "key": "layer1/random"}),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the first operand."""
        dtype = self.operand_types[0].dtype
        if dtype not in _BITS:
            raise IRError(f"`{self.name}`: numbers of type {dtype}, expected floating point")
        return (dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Draw the numbers of the local elements, rounded down: none is one."""
        steps = 2.0 ** _BITS[self.operand_types[0].dtype]
        drawn = np.floor(_drawn(self, view, int(operands[1])) * steps) / steps
        return np.asarray(drawn, operands[0].dtype)


def _drawn(info: OperatorInfo, view: ShardView, step: int) -> Array:
    """Return the random numbers of the local elements of the first operand."""
    factors = [dims[0] for dims in info.rule.operands[0]]
    region = [slice(view.starts[f], view.starts[f] + view.sizes[f]) for f in factors]
    index = global_index(info.operand_types[0].shape, region)
    return uniform(info.attributes["seed"], f"{info.attributes['key']}/{step}", index)
