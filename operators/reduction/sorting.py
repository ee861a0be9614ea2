"""Operators that sort elements along a dimension, which stays whole.

Values come with the positions they were taken from; equal ones keep their order.
"""

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
from shardwright.operators.rule import Rule, ShardView, dimension


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Return the positions of the elements in order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Reversed twice, so that equal elements keep their order.
    turned = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return x.shape[axis] - 1 - turned


class Ordered(OperatorInfo):
    """Values and their positions, in order along ``axis``."""

    flops_per_point = 10.0

    @property
    def axis(self) -> int:
        """The dimension, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    @property
    def kept(self) -> int:
        """Number of elements in the result along the dimension."""
        return self.operand_types[0].shape[self.axis]

    def make_rule(self) -> Rule:
        """Keep the dimension whole."""
        shape = self.operand_types[0].shape
        names = [f"d{i}" for i in range(len(shape))]
        left, right = list(names), list(names)
        left[self.axis], right[self.axis] = "v^", "k^"
        result = " ".join(right)
        return resolve(f"{' '.join(left)} -> {result}, {result}", [shape], {"k": self.kept})

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the operand and of positions."""
        return (self.operand_types[0].dtype, "int64")

    def ordered(self, x: Array, descending: bool) -> tuple[Array, Array]:
        """Return the first values in order, and their positions."""
        first = (*(slice(None),) * self.axis, slice(self.kept))
        positions = _order(x, self.axis, descending)[first]
        return np.take_along_axis(x, positions, self.axis), positions

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangents of the values to their positions."""
        x, axis = at.operands[0], self.axis
        size = x.type.shape[axis]
        operands = (at.cotangents[0], at.results[1])
        return [build.emit("gather_elements_gradient", *operands, like=x, axis=axis, size=size)]


@register
class Sort(Ordered):
    """All elements in ascending or ``descending`` order."""

    name = "sort"
    defaults: ClassVar = {"axis": -1, "descending": False}
    examples = (
        Example(("f64[4, 6]",)),
        Example(("i64[4, 6, 2]",), {"axis": 1, "descending": True}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, Array]:
        """Sort."""
        return self.ordered(operands[0], self.attributes["descending"])


@register
class TopK(Ordered):
    """The ``k`` greatest elements in descending order, or the least (``largest=False``)."""

    name = "top_k"
    defaults: ClassVar = {"k": 1, "axis": -1, "largest": True}
    examples = (
        Example(("f64[4, 6]",), {"k": 2}),
        Example(("i64[4, 6, 2]",), {"k": 3, "axis": 1, "largest": False}),
    )

    @property
    def kept(self) -> int:
        """Number of elements in the result along the dimension."""
        k: int = self.attributes["k"]
        size = self.operand_types[0].shape[self.axis]
        if not 1 <= k <= size:
            raise IRError(f"`k` is {k}, expected at most the {size} elements")
        return k

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, Array]:
        """Sort and cut."""
        return self.ordered(operands[0], self.attributes["largest"])
