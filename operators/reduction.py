"""Reductions over dimensions."""

from typing import ClassVar

import numpy as np

from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Array,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.rule import Rule, ShardView, resolve


def reduced_axes(axis: int | tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    """Return the dimensions that `axis` names, sorted; None names all."""
    if axis is None:
        return tuple(range(rank))
    axes = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted(a % rank for a in axes))


class Reduction(OperatorInfo):
    """A reduction over the dimensions ``axis`` (None: all)."""

    defaults: ClassVar = {"axis": None, "keep_dims": False}
    mark: ClassVar[str] = "+"
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6]",), {"axis": 1}),
        Example(("f64[4, 2, 6]",), {"axis": (0, -1), "keep_dims": True}),
    )

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced dimensions."""
        return reduced_axes(self.attributes["axis"], self.operand_types[0].rank)

    def make_rule(self) -> Rule:
        """Contract the reduced dimensions."""
        shape = self.operand_types[0].shape
        names = [f"i{d}" for d in range(len(shape))]
        left = " ".join(n + self.mark if d in self.axes else n for d, n in enumerate(names))
        kept = [n if d not in self.axes else "1" for d, n in enumerate(names)]
        if not self.attributes["keep_dims"]:
            kept = [n for n in kept if n != "1"]
        return resolve(f"{left} -> {' '.join(kept)}", [shape])


@register
class ReduceSum(Reduction):
    """Sum."""

    name = "reduce_sum"
    linear = ((0,),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up."""
        return np.asarray(operands[0].sum(axis=self.axes, keepdims=self.attributes["keep_dims"]))

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Spread the cotangent over the reduced dimensions."""
        return [
            build.emit(
                "spread",
                at.cotangents[0],
                like=at.operands[0],
                shape=at.operands[0].type.shape,
                axis=self.axes,
                keep_dims=self.attributes["keep_dims"],
            )
        ]


@register
class Spread(OperatorInfo):
    """The transpose of a sum: repeat a tensor along the dimensions ``axis`` of ``shape``."""

    name = "spread"
    defaults: ClassVar = {"shape": (), "axis": (), "keep_dims": False}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[4]",), {"shape": (4, 6), "axis": (1,)}),
        Example(("f64[4, 1]",), {"shape": (4, 6), "axis": (1,), "keep_dims": True}),
    )

    def make_rule(self) -> Rule:
        """Give the new dimensions factors of their own."""
        shape, axes = self.attributes["shape"], self.attributes["axis"]
        names = [f"i{d}" for d in range(len(shape))]
        left = ["1" if d in axes else n for d, n in enumerate(names)]
        if not self.attributes["keep_dims"]:
            left = [n for n in left if n != "1"]
        sizes = {names[d]: shape[d] for d in axes}
        notation = f"{' '.join(left)} -> {' '.join(names)}"
        return resolve(notation, [self.operand_types[0].shape], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Repeat."""
        x, axes = operands[0], self.attributes["axis"]
        if not self.attributes["keep_dims"]:
            x = np.expand_dims(x, tuple(axes))
        return np.broadcast_to(x, view.result_shapes[0])
