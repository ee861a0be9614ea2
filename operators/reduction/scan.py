"""Operators whose elements depend on their position along a dimension."""

from collections.abc import Callable
from dataclasses import replace
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
from shardwright.operators.reduction.softmax import AlongAxis, AlongAxisGradient
from shardwright.operators.rule import Rule, ShardView


@register
class CumulativeSum(AlongAxis):
    """The sum of all elements up to each along ``axis``.

    With ``exclusive`` the element itself is left out; with ``reverse`` sums run from the end.
    """

    name = "cumsum"
    defaults: ClassVar = {"axis": -1, "exclusive": False, "reverse": False}
    linear = ((0,),)
    flops_per_point = 1.0
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6, 2]",), {"axis": 1, "exclusive": True}),
        Example(("f64[4, 6]",), {"axis": 0, "exclusive": True, "reverse": True}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add."""
        x, axis = operands[0], self.axes[0]
        if self.attributes["reverse"]:
            x = np.flip(x, axis)
        total = np.cumsum(x, axis=axis, dtype=x.dtype)
        if self.attributes["exclusive"]:
            total = np.roll(total, 1, axis)
            np.moveaxis(total, axis, 0)[0] = 0
        return np.flip(total, axis) if self.attributes["reverse"] else total

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sums of the cotangent from the other end."""
        attributes = {**self.attributes, "reverse": not self.attributes["reverse"]}
        return [build.emit("cumsum", at.cotangents[0], **attributes)]


@register
class CumulativeProduct(AlongAxis):
    """The product of all elements up to each along ``axis``."""

    name = "cumprod"
    flops_per_point = 1.0
    examples = (
        Example(("f64[4, 6]",), ranges={0: (0.5, 2.0)}),
        Example(("f64[4, 3, 2]",), {"axis": 1}, {0: (-2.0, -0.5)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        return np.cumprod(operands[0], axis=self.axes[0], dtype=operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operand for backward."""
        dy, x = at.cotangents[0], at.operands[0]
        return [build.emit("cumprod_gradient", dy, x, axis=self.axes[0])]


@register
class CumulativeProductGradient(AlongAxisGradient):
    """The gradient of `cumprod`, from the cotangent and the operand."""

    name = "cumprod_gradient"
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]")),
        Example(("f64[4, 3, 2]", "f64[4, 3, 2]"), {"axis": 1}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply without division by the element, which may be zero."""
        dy, x = (np.moveaxis(operand, self.axes[0], 0) for operand in operands)
        result = np.ones_like(x)
        np.cumprod(x[:-1], axis=0, out=result[1:])
        sums = dy[-1]  # of the cotangents times the products since the element
        for i in reversed(range(len(x))):
            result[i] *= sums
            sums = dy[i - 1] + x[i] * sums
        return np.moveaxis(result, 0, self.axes[0])


@register
class CumulativeLogSumExp(AlongAxis):
    """The logarithm of the sum of the exponentials of all elements up to each along ``axis``."""

    name = "cumlogsumexp"
    of_reals = True
    flops_per_point = 20.0
    examples = (Example(("f64[4, 6]",)), Example(("f64[4, 3, 2]",), {"axis": 1}))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add one after the other."""
        return np.logaddexp.accumulate(operands[0], axis=self.axes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operand for backward."""
        dy, x = at.cotangents[0], at.operands[0]
        return [build.emit("cumlogsumexp_gradient", dy, x, axis=self.axes[0])]


@register
class CumulativeLogSumExpGradient(AlongAxisGradient):
    """The gradient of `cumlogsumexp`, from the cotangent and the operand."""

    name = "cumlogsumexp_gradient"
    flops_per_point = 40.0
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]")),
        Example(("f64[4, 3, 2]", "f64[4, 3, 2]"), {"axis": 1}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Go back from the end; no factor is over one."""
        dy, x = (np.moveaxis(operand, self.axes[0], 0) for operand in operands)
        sums = np.logaddexp.accumulate(x, axis=0)
        floor = np.where(np.isneginf(sums), 0, sums)  # there, all elements so far have no share
        result = np.exp(x - floor)
        total = dy[-1]
        for i in reversed(range(len(x))):
            result[i] *= total
            if i:
                total = dy[i - 1] + np.exp(sums[i - 1] - floor[i]) * total
        return np.moveaxis(result, 0, self.axes[0])


class CumulativeExtremum(AlongAxis):
    """The extremum of all elements up to each along ``axis``, and its last position."""

    flops_per_point = 1.0
    function: ClassVar[np.ufunc]
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 6]",)),
        Example(("i64[4, 6, 2]",), {"axis": 1}),
    )

    def make_rule(self) -> Rule:
        """Keep the dimension whole."""
        rule = super().make_rule()
        return replace(rule, results=rule.results * 2)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the operand and of positions."""
        return (self.operand_types[0].dtype, "int64")

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, Array]:
        """Compare."""
        x, axis = operands[0], self.axes[0]
        found = self.function.accumulate(x, axis=axis)
        shape = [-1 if d == axis else 1 for d in range(x.ndim)]
        places = np.arange(x.shape[axis]).reshape(shape)
        is_extreme = (x == found) | (x != x)  # what is no number stays the extremum
        last = np.maximum.accumulate(np.where(is_extreme, places, 0), axis=axis)
        return found, last

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangents of the extrema to their positions."""
        x, axis = at.operands[0], self.axes[0]
        how = {"axis": axis, "size": x.type.shape[axis]}
        operands = (at.cotangents[0], at.results[1])
        return [build.emit("gather_elements_gradient", *operands, name=None, like=x, **how)]


@register
class CumulativeMaximum(CumulativeExtremum):
    """The maximum of all elements up to each along ``axis``, and its last position."""

    name = "cummax"
    function = np.maximum


@register
class CumulativeMinimum(CumulativeExtremum):
    """The minimum of all elements up to each along ``axis``, and its last position."""

    name = "cummin"
    function = np.minimum


@register
class Reverse(AlongAxis):
    """The elements in opposite order along the dimensions ``axis``."""

    name = "reverse"
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (Example(("f64[4, 6]",)), Example(("f64[4, 3, 2]",), {"axis": (0, 2)}))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Reverse."""
        return np.flip(operands[0], self.axes)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Reverse the cotangent."""
        return [build.emit("reverse", at.cotangents[0], axis=self.attributes["axis"])]


class Triangle(OperatorInfo):
    """A triangle of matrices ``[..., m, n]``, with zeros elsewhere.

    ``diagonal`` is the offset of its edge from the main diagonal, to the right.
    """

    notation = "... m n -> ... m n"
    defaults: ClassVar = {"diagonal": 0}
    linear = ((0,),)
    flops_per_point = 0.0
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 6]",)),
        Example(("f64[2, 4, 4]",), {"diagonal": -1}),
    )
    compare: ClassVar[Callable[..., Array]]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare the global rows and columns of the local part."""
        x = operands[0]
        rows = view.starts["m"] + self.attributes["diagonal"] + np.arange(view.sizes["m"])
        columns = view.starts["n"] + np.arange(view.sizes["n"])
        return np.where(self.compare(columns, rows[:, None]), x, x.dtype.type(0))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """The same part of the cotangent."""
        return [build.emit(self.name, at.cotangents[0], **self.attributes)]


@register
class LowerTriangle(Triangle):
    """The triangle on and below a diagonal."""

    name = "tril"
    compare = np.less_equal


@register
class UpperTriangle(Triangle):
    """The triangle on and above a diagonal."""

    name = "triu"
    compare = np.greater_equal
