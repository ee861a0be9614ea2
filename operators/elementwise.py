"""Elementwise operators: arithmetic with broadcasting, unary mathematics, comparisons."""

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
from shardwright.operators.matmul import unbroadcast
from shardwright.operators.rule import ShardView


class Binary(OperatorInfo):
    """An operator on two tensors, point by point, broadcast like numpy."""

    notation = "..., ... -> ..."
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]")),
        Example(("f64[2, 1, 6]", "f64[4, 1]")),
    )


class Unary(OperatorInfo):
    """An operator on one tensor, point by point."""

    notation = "... -> ..."
    examples = (Example(("f64[4, 6]",)),)


@register
class Add(Binary):
    """Sum."""

    name = "add"
    linear = ((0, 1),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add."""
        return np.add(operands[0], operands[1])

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Pass the cotangent to both."""
        return [unbroadcast(build, at.cotangents[0], operand) for operand in at.operands]


@register
class Mul(Binary):
    """Product."""

    name = "mul"
    linear = ((0,), (1,))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        return np.multiply(operands[0], operands[1])

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Multiply by the other operand."""
        a, b = at.operands
        da = build.emit("mul", at.cotangents[0], b)
        db = build.emit("mul", at.cotangents[0], a)
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Scale(Unary):
    """Product with the constant ``factor``."""

    name = "scale"
    defaults: ClassVar = {"factor": 1.0}
    linear = ((0,),)
    examples = (Example(("f64[4, 6]",), {"factor": 1.5}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        x = operands[0]
        return x * x.dtype.type(self.attributes["factor"])

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Multiply by the same constant."""
        return [build.emit("scale", at.cotangents[0], factor=self.attributes["factor"])]


@register
class Relu(Unary):
    """The positive part."""

    name = "relu"

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Clip at zero."""
        return np.maximum(operands[0], 0)

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Pass the cotangent where the result is positive, so that only the result is kept."""
        return [build.emit("relu_gradient", at.cotangents[0], at.results[0])]


@register
class ReluGradient(Binary):
    """The cotangent where the second operand is positive."""

    name = "relu_gradient"
    linear = ((0,),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Mask."""
        return np.asarray(operands[0] * (operands[1] > 0))
