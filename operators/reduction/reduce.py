"""Reductions over dimensions."""

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
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


def reduced_axes(axis: int | tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    """Return the dimensions in `axis`, sorted; None means all."""
    if axis is None:
        return tuple(range(rank))
    axes = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted({dimension(a, rank) for a in axes}))


class Reduction(OperatorInfo):
    """A reduction over the dimensions ``axis`` (None: all)."""

    defaults: ClassVar[Attributes] = {"axis": None, "keep_dims": False}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6]",), {"axis": 1}),
        Example(("f64[4, 2, 6]",), {"axis": (0, -1), "keep_dims": True}),
    )

    @property
    def mark(self) -> str:
        """The mark of a reduced dimension in the rule."""
        return "+"

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The reduced dimensions."""
        return reduced_axes(self.attributes["axis"], self.operand_types[0].rank)

    @property
    def count(self) -> int:
        """Number of elements that reduce to one."""
        return prod(self.operand_types[0].shape[axis] for axis in self.axes)

    def make_rule(self) -> Rule:
        """Mark the reduced dimensions."""
        shape = self.operand_types[0].shape
        return resolve(f"{self.notation_of(shape)} -> {self.notation_of(shape, True)}", [shape])

    def notation_of(self, shape: tuple[int, ...], reduced: bool = False) -> str:
        """Return the dimensions of the operand, or of the result, in the notation of rules."""
        names = [f"i{d}" for d in range(len(shape))]
        if not reduced:
            return " ".join(n + self.mark if d in self.axes else n for d, n in enumerate(names))
        kept = ["1" if d in self.axes else n for d, n in enumerate(names)]
        return " ".join(n for n in kept if n != "1" or self.attributes["keep_dims"])

    def whole_axes(self, x: Array) -> Array:
        """Return a result with the reduced dimensions, of size one."""
        return x if self.attributes["keep_dims"] else np.expand_dims(x, self.axes)

    def spread(self, build: Emitter, at: Linearization) -> Value:
        """Emit the cotangent, repeated along the reduced dimensions."""
        operand, keep_dims = at.operands[0], self.attributes["keep_dims"]
        attributes = {"shape": operand.type.shape, "axis": self.axes, "keep_dims": keep_dims}
        return build.emit("spread", at.cotangents[0], like=operand, **attributes)


@register
class ReduceSum(Reduction):
    """Sum."""

    name = "reduce_sum"
    linear = ((0,),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add; integers in their own type."""
        x, keep_dims = operands[0], self.attributes["keep_dims"]
        return np.asarray(x.sum(axis=self.axes, keepdims=keep_dims), x.dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Spread the cotangent over the reduced dimensions."""
        return [self.spread(build, at)]


@register
class ReduceMean(Reduction):
    """Mean: every rank divides its sum by the whole count, so that partial means add up."""

    name = "reduce_mean"
    of_reals = True
    linear = ((0,),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add, and divide by the global count."""
        x = operands[0]
        total = x.sum(axis=self.axes, keepdims=self.attributes["keep_dims"])
        return np.asarray(total / x.dtype.type(self.count))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Spread the cotangent, divided by the global count."""
        return [build.emit("scale", self.spread(build, at), factor=1.0 / self.count)]


class Selection(Reduction):
    """The greatest or least element.

    With ``differentiable=False`` the reduced dimensions can be split and leave partial extrema;
    a gradient needs the extremum of the whole.
    """

    defaults: ClassVar[Attributes] = {**Reduction.defaults, "differentiable": True}
    extremum: ClassVar[str]
    examples: ClassVar[tuple[Example, ...]] = (
        *Reduction.examples,
        Example(("f64[4, 6]",), {"axis": 1, "differentiable": False}, constants=(0,)),
    )

    @property
    def mark(self) -> str:
        """Whole, or a partial extremum."""
        return "^" if self.attributes["differentiable"] else f"+{self.extremum}"

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare."""
        function = np.amax if self.extremum == "max" else np.amin
        keep_dims = self.attributes["keep_dims"]
        return np.asarray(function(operands[0], axis=self.axes, keepdims=keep_dims))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to the extrema."""
        attributes = dict(self.attributes)
        if not attributes.pop("differentiable"):
            return [None]
        return [build.emit(f"{self.name}_gradient", at.cotangents[0], *at.operands, **attributes)]


@register
class ReduceMax(Selection):
    """Greatest element."""

    name = "reduce_max"
    extremum = "max"


@register
class ReduceMin(Selection):
    """Least element."""

    name = "reduce_min"
    extremum = "min"


class Truths(Reduction):
    """A reduction of truths."""

    extremum: ClassVar[str]
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("bool[4, 6]",)),
        Example(("bool[4, 2, 6]",), {"axis": (0, -1), "keep_dims": True}),
    )

    @property
    def mark(self) -> str:
        """A partial extremum: false is less than true."""
        return f"+{self.extremum}"

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of truth values."""
        if self.operand_types[0].dtype != "bool":
            raise IRError(f"{self.name}: the operand is {self.operand_types[0]}, not truths")
        return ("bool",)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare."""
        function = np.any if self.extremum == "max" else np.all
        keep_dims = self.attributes["keep_dims"]
        return np.asarray(function(operands[0], axis=self.axes, keepdims=keep_dims))


@register
class ReduceAll(Truths):
    """True if all elements are true."""

    name = "reduce_all"
    extremum = "min"


@register
class ReduceAny(Truths):
    """True if at least one element is true."""

    name = "reduce_any"
    extremum = "max"


@register
class ReduceProd(Reduction):
    """Product of the elements."""

    name = "reduce_prod"

    @property
    def mark(self) -> str:
        """Whole: no communication multiplies."""
        return "^"

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        keep_dims = self.attributes["keep_dims"]
        return np.asarray(operands[0].prod(axis=self.axes, keepdims=keep_dims), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the cotangent by the product of the others."""
        return [
            build.emit("reduce_prod_gradient", at.cotangents[0], *at.operands, **self.attributes)
        ]


class ReductionGradient(Reduction):
    """From the cotangent and operand of a reduction, the gradient by the operand."""

    linear = ((0,),)
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[]", "f64[4, 6]")),
        Example(("f64[4]", "f64[4, 6]"), {"axis": 1}),
        Example(("f64[1, 2, 1]", "f64[4, 2, 6]"), {"axis": (0, -1), "keep_dims": True}),
    )

    @property
    def mark(self) -> str:
        """Whole: every element depends on all others."""
        return "^"

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced dimensions."""
        return reduced_axes(self.attributes["axis"], self.operand_types[1].rank)

    def make_rule(self) -> Rule:
        """Keep the reduced dimensions whole."""
        shapes = [operand.shape for operand in self.operand_types]
        reduced, full = self.notation_of(shapes[1], True), self.notation_of(shapes[1])
        return resolve(f"{reduced}, {full} -> {full}", shapes)


class SelectionGradient(ReductionGradient):
    """The cotangent where the extremum is; equal extrema share it evenly.

    Where the extremum is not a number, neither is the gradient.
    """

    extremum: ClassVar[str]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Recompute the extrema, which is cheaper than saving them for backward."""
        cotangent, x = operands
        function = np.amax if self.extremum == "max" else np.amin
        chosen = x == function(x, axis=self.axes, keepdims=True)
        count = chosen.sum(axis=self.axes, keepdims=True)
        share = self.whole_axes(cotangent) / np.maximum(count, 1)
        return np.where(chosen, share, np.where(count == 0, np.nan, 0)).astype(x.dtype)


@register
class ReduceMaxGradient(SelectionGradient):
    """The cotangent of `reduce_max`, where the greatest element is."""

    name = "reduce_max_gradient"
    extremum = "max"


@register
class ReduceMinGradient(SelectionGradient):
    """The cotangent of `reduce_min`, where the least element is."""

    name = "reduce_min_gradient"
    extremum = "min"


@register
class ReduceProdGradient(ReductionGradient):
    """The cotangent of `reduce_prod`, times the product of the other elements."""

    name = "reduce_prod_gradient"

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply prefix and suffix products, without division: elements may be zero."""
        cotangent, x = operands
        last = tuple(range(-len(self.axes), 0))
        moved = np.moveaxis(x, self.axes, last)
        flat = moved.reshape(*moved.shape[: x.ndim - len(last)], -1)
        one = np.ones_like(flat[..., :1])
        before = np.cumprod(np.concatenate([one, flat[..., :-1]], axis=-1), axis=-1)
        after = np.cumprod(np.concatenate([one, flat[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
        others = np.moveaxis((before * after).reshape(moved.shape), last, self.axes)
        return np.asarray(self.whole_axes(cotangent) * others, x.dtype)


@register
class ArgMax(Reduction):
    """Position of the greatest element along the one dimension ``axis``; the first among equals."""

    name = "argmax"
    result_dtype = "int64"
    function: ClassVar[Callable[..., Any]] = staticmethod(np.argmax)
    defaults: ClassVar = {"axis": -1, "keep_dims": False}
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6, 2]",), {"axis": 1, "keep_dims": True}),
    )

    @property
    def mark(self) -> str:
        """Whole: positions of parts cannot be reduced without values."""
        return "^"

    def make_rule(self) -> Rule:
        """Reduce one dimension.

        Raises
        ------
        IRError
            If there are several.
        """
        if len(self.axes) != 1:
            raise IRError(
                f"`{self.name}` finds positions along one dimension, `axis` is "
                f"{self.attributes['axis']} of a tensor of {self.operand_types[0].rank} dimensions"
            )
        return super().make_rule()

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Search."""
        x, keep_dims = operands[0], self.attributes["keep_dims"]
        return np.asarray(self.function(x, axis=self.axes[0], keepdims=keep_dims))


@register
class ArgMin(ArgMax):
    """Position of the least element along the one dimension ``axis``; the first among equals."""

    name = "argmin"
    function = staticmethod(np.argmin)


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
        """Assign new factors to the new dimensions."""
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
        x, shape = operands[0], view.result_shapes[0]
        if not self.attributes["keep_dims"]:
            axes = self.attributes["axis"]
            x = x.reshape([1 if d in axes else size for d, size in enumerate(shape)])
        return np.broadcast_to(x, shape)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum over the dimensions along which it is repeated."""
        how = {"axis": self.attributes["axis"], "keep_dims": self.attributes["keep_dims"]}
        return [build.emit("reduce_sum", at.cotangents[0], **how)]
