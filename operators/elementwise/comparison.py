"""Comparisons, logic, and selection by truth values."""

from typing import ClassVar

import numpy as np

from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.rule import ShardView


class Truth(Binary):
    """An operator on two tensors whose result is true or false."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(("i64[4, 6]", "i64[4, 6]")),
        Example(("i64[2, 1, 6]", "i64[4, 1]")),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of truth values."""
        self.common_dtype()
        return ("bool",)


@register
class Equal(Truth):
    """Whether two are equal."""

    name = "equal"
    is_commutative = True
    function = np.equal


@register
class NotEqual(Truth):
    """Whether two differ."""

    name = "not_equal"
    is_commutative = True
    function = np.not_equal


@register
class Less(Truth):
    """Whether the first is less."""

    name = "less"
    function = np.less


@register
class LessEqual(Truth):
    """Whether the first is less or equal."""

    name = "less_equal"
    function = np.less_equal


@register
class Greater(Truth):
    """Whether the first is greater."""

    name = "greater"
    function = np.greater


@register
class GreaterEqual(Truth):
    """Whether the first is greater or equal."""

    name = "greater_equal"
    function = np.greater_equal


@register
class ApproximateEqual(Truth):
    """Whether two differ by less than ``tolerance``."""

    name = "approximate_equal"
    defaults: ClassVar = {"tolerance": 1e-5}
    examples = (Example(("f64[4, 6]", "f64[4, 6]"), {"tolerance": 0.5}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare the distance."""
        return np.asarray(np.abs(operands[0] - operands[1]) < self.attributes["tolerance"])


@register
class LogicalAnd(Truth):
    """Whether both are true."""

    name = "logical_and"
    is_commutative = True
    function = np.logical_and
    examples = (Example(("bool[4, 6]", "bool[4, 6]")),)


@register
class LogicalOr(Truth):
    """Whether one of two is true."""

    name = "logical_or"
    is_commutative = True
    function = np.logical_or
    examples = (Example(("bool[4, 6]", "bool[4, 6]")),)


@register
class LogicalXor(Truth):
    """Whether one of two is true, but not both."""

    name = "logical_xor"
    is_commutative = True
    function = np.logical_xor
    examples = (Example(("bool[4, 6]", "bool[4, 6]")),)


class Kind(Unary):
    """The base of predicates on one number."""

    result_dtype = "bool"


@register
class IsNan(Kind):
    """Whether the operand is NaN."""

    name = "is_nan"
    function = np.isnan


@register
class IsInf(Kind):
    """Whether the operand is infinite."""

    name = "is_inf"
    function = np.isinf


@register
class IsFinite(Kind):
    """Whether the operand is neither infinite nor NaN."""

    name = "is_finite"
    function = np.isfinite


@register
class LogicalNot(Unary):
    """Whether the operand is false."""

    name = "logical_not"
    result_dtype = "bool"
    function = np.logical_not
    examples = (Example(("bool[4, 6]",)),)


@register
class Mask(Binary):
    """The first operand where the second is true, zero elsewhere."""

    name = "mask"
    result_dtype = 0
    linear = ((0,),)
    examples = (
        Example(("f64[4, 6]", "bool[4, 6]")),
        Example(("f64[2, 4, 6]", "bool[4, 1]")),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply by the truth values."""
        return np.where(operands[1], operands[0], operands[0].dtype.type(0))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Mask the cotangent."""
        masked = build.emit("mask", at.cotangents[0], at.operands[1])
        return [unbroadcast(build, masked, at.operands[0]), None]


@register
class Where(OperatorInfo):
    """The second operand where the first is true, the third elsewhere."""

    name = "where"
    notation = "..., ..., ... -> ..."
    linear = ((1, 2),)
    examples = (
        Example(("bool[4, 6]", "f64[4, 6]", "f64[4, 6]")),
        Example(("bool[4, 1]", "f64[2, 4, 6]", "f64[6]")),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the choices."""
        return (self.common_dtype(first=1),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Choose."""
        return np.where(*operands)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to the chosen operand."""
        (chosen, a, b), dy = at.operands, at.cotangents[0]
        da = build.emit("mask", dy, chosen)
        db = build.emit("mask", dy, build.emit("logical_not", chosen))
        return [None, unbroadcast(build, da, a), unbroadcast(build, db, b)]
