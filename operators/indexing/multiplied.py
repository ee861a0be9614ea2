"""Operators that multiply all that is at one position; as in `scatter`, that may be split."""

import numpy as np

from shardwright.operators.indexing.gather import kept_inside
from shardwright.operators.indexing.scatter import ByTuples, IntoTensor
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView


@register
class ScatterNdMul(IntoTensor):
    """The first operand times slices at tuples of positions; those at one position multiply up."""

    name = "scatter_nd_mul"
    linear = ((0,),)
    examples = (
        Example(("f64[6, 4]", "i64[4, 1]", "f64[4, 4]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 2]", "i64[4, 2]", "f64[4, 2]"), ranges={1: (-1, 3)}),
        Example(
            ("i64[6, 2]", "i64[2, 4, 2]", "i64[2, 4]"), ranges={0: (-9, 9), 1: (0, 2), 2: (-3, 4)}
        ),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Copy and multiply."""
        x, positions, updates = operands
        index, inside = self.local(positions, view)
        result = x.copy()
        np.multiply.at(result, tuple(place[inside] for place in index), updates[inside])
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the cotangent, too; that of a slice by all others at its position."""
        (x, positions, updates), dy = at.operands, at.cotangents[0]
        dx = build.emit("scatter_nd_mul", dy, positions, updates)
        return [dx, None, build.emit("scatter_nd_mul_gradient", dy, x, positions, updates)]


@register
class ScatterNdMulGradient(ByTuples):
    """The cotangent of `scatter_nd_mul` by its slices."""

    name = "scatter_nd_mul_gradient"
    result_dtype = 3
    positions = (2,)
    linear = ((0,), (1,))
    examples = (
        Example(("f64[6, 4]", "f64[6, 4]", "i64[6, 1]", "f64[6, 4]"), ranges={2: (0, 2)}),
        Example(("f64[2, 6]", "f64[2, 6]", "i64[4, 2]", "f64[4]"), ranges={2: (0, 2)}),
    )

    def make_rule(self) -> Rule:
        """Let every rank serve the slices in its part."""
        tensor, positions, slices = self.of_gradient()
        notation = f"{tensor}, {tensor}, {positions}, {slices} -> {slices}"
        return resolve(notation, [operand.shape for operand in self.operand_types])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Divide the product of all by each, of those that are not zero."""
        dy, x, positions, updates = operands
        index, inside = self.local(positions, view)
        own, is_zero = tuple(place[inside] for place in index), updates == 0
        divisor = np.where(is_zero, 1, updates)
        product, zeros = x * dy, np.zeros(x.shape, np.int64)
        np.multiply.at(product, own, divisor[inside])
        np.add.at(zeros, own, is_zero[inside])
        others = np.where(zeros[index] > is_zero, 0, product[index] / divisor)
        deep = inside.reshape((*inside.shape, *(1,) * (x.ndim - len(index))))
        return kept_inside(others.astype(updates.dtype), deep)
