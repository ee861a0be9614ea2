"""Softmax along dimensions that stay whole."""

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
from shardwright.operators.notation import resolve
from shardwright.operators.reduction.reduce import reduced_axes
from shardwright.operators.rule import Rule, ShardView


class AlongAxis(OperatorInfo):
    """An operator on tensors of one shape that mixes elements along ``axis`` alone."""

    defaults: ClassVar = {"axis": -1}
    flops_per_point = 5.0

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that stay whole."""
        return reduced_axes(self.attributes["axis"], self.operand_types[0].rank)

    def make_rule(self) -> Rule:
        """Keep the shape, and the named dimensions whole."""
        shapes = [operand.shape for operand in self.operand_types]
        names = " ".join(f"i{d}" + "^" * (d in self.axes) for d in range(len(shapes[0])))
        return resolve(f"{', '.join([names] * len(shapes))} -> {names}", shapes)


class AlongAxisGradient(AlongAxis):
    """The gradient of an operator along an axis, from the cotangent and its result or operand."""

    linear = ((0,),)


def softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Return exp(x) over its sum."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Return the logarithm of the softmax."""
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


@register
class Softmax(AlongAxis):
    """Exponentials over their sum."""

    name = "softmax"
    of_reals = True
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6, 2]",), {"axis": 1}),
        Example(("f64[4, 3, 2]",), {"axis": (1, 2)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Shift by the maximum, so that nothing overflows."""
        return softmax(operands[0], self.axes)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the result for backward."""
        axis = self.attributes["axis"]
        return [build.emit("softmax_gradient", at.cotangents[0], at.results[0], axis=axis)]


@register
class SoftmaxGradient(AlongAxisGradient):
    """The gradient of a softmax, from the cotangent and the result."""

    name = "softmax_gradient"
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return y (dy - sum(dy y))."""
        dy, y = operands
        return y * (dy - (dy * y).sum(axis=self.axes, keepdims=True))


@register
class LogSoftmax(AlongAxis):
    """The logarithm of the softmax."""

    name = "log_softmax"
    of_reals = True
    examples = (Example(("f64[4, 6]",)), Example(("f64[4, 6, 2]",), {"axis": 1}))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Shift by the maximum, so that nothing overflows."""
        return log_softmax(operands[0], self.axes)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the result for backward."""
        axis = self.attributes["axis"]
        return [build.emit("log_softmax_gradient", at.cotangents[0], at.results[0], axis=axis)]


@register
class LogSoftmaxGradient(AlongAxisGradient):
    """The gradient of a logarithm of a softmax, from the cotangent and the result."""

    name = "log_softmax_gradient"
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return dy - exp(y) sum(dy)."""
        dy, y = operands
        return dy - np.exp(y) * dy.sum(axis=self.axes, keepdims=True)
