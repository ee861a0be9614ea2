"""Arithmetic on tensors, broadcast like numpy, and with constants."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.elementwise.functions import Binary, Unary, define
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
from shardwright.operators.operands import check_whole
from shardwright.operators.rule import Rule, ShardView, dimension

_NONZERO = (
    Example(("f64[4, 6]", "f64[4, 6]"), ranges={1: (0.5, 2.0)}),
    Example(("f64[2, 1, 6]", "f64[4, 1]"), ranges={1: (0.5, 2.0)}),
)


@register
class Add(Binary):
    """Sum."""

    name = "add"
    function = np.add
    is_commutative = True
    linear = ((0, 1),)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to both."""
        return [unbroadcast(build, at.cotangents[0], operand) for operand in at.operands]


@register
class Sub(Binary):
    """Difference."""

    name = "sub"
    function = np.subtract
    linear = ((0, 1),)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent on, and its negative."""
        a, b = at.operands
        db = build.emit("neg", unbroadcast(build, at.cotangents[0], b))
        return [unbroadcast(build, at.cotangents[0], a), db]


@register
class Mul(Binary):
    """Product."""

    name = "mul"
    function = np.multiply
    is_commutative = True
    linear = ((0,), (1,))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply by the other operand."""
        a, b = at.operands
        da = build.emit("mul", at.cotangents[0], b)
        db = build.emit("mul", at.cotangents[0], a)
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Div(Binary):
    """Quotient."""

    name = "div"
    function = np.divide
    of_reals = True
    linear = ((0,),)
    examples = _NONZERO

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Divide the cotangent; from the operands, because the quotient may be a partial sum."""
        a, b = at.operands
        da = build.emit("div", at.cotangents[0], b)
        db = build.emit("neg", build.emit("div", build.emit("mul", da, a), b))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class DivNoNan(Binary):
    """Quotient; zero where the divisor is zero."""

    name = "div_no_nan"
    of_reals = True
    linear = ((0,),)
    examples = _NONZERO

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Divide where the divisor is not zero."""
        a, b = operands
        nothing = b == 0
        return np.where(nothing, a.dtype.type(0), a / np.where(nothing, b.dtype.type(1), b))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Emit the gradient of a quotient."""
        a, b = at.operands
        da = build.emit("div_no_nan", at.cotangents[0], b)
        db = build.emit("neg", build.emit("div_no_nan", build.emit("mul", da, a), b))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Atan2(Binary):
    """The angle of the point with the first as height over the second."""

    name = "atan2"
    function = np.arctan2
    of_reals = True
    flops_per_point = 10.0
    examples = _NONZERO

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Turn the point by a right angle, over its squared distance; zero at the origin."""
        (a, b), dy = at.operands, at.cotangents[0]
        squares = build.emit("add", build.emit("square", a), build.emit("square", b))
        share = build.emit("div_no_nan", dy, squares)
        da = build.emit("mul", share, b)
        db = build.emit("neg", build.emit("mul", share, a))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class FloorDiv(Binary):
    """Quotient rounded down; piecewise constant, so without a gradient."""

    name = "floor_div"
    function = np.floor_divide
    examples = _NONZERO


@register
class Mod(Binary):
    """Remainder of `floor_div`, with the sign of the divisor."""

    name = "mod"
    function = np.mod
    examples = _NONZERO

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Differentiate ``a - floor_div(a, b) b``."""
        (a, b), dy = at.operands, at.cotangents[0]
        db = build.emit("neg", build.emit("mul", dy, build.emit("floor_div", a, b)))
        return [unbroadcast(build, dy, a), unbroadcast(build, db, b)]


@register
class SquaredDifference(Binary):
    """Square of the difference."""

    name = "squared_difference"
    flops_per_point = 2.0

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Subtract and square."""
        return np.square(operands[0] - operands[1])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply by twice the difference."""
        a, b = at.operands
        difference = build.emit("scale", build.emit("sub", a, b), factor=2.0)
        da = build.emit("mul", at.cotangents[0], difference)
        return [unbroadcast(build, da, a), build.emit("neg", unbroadcast(build, da, b))]


class Extremum(Binary):
    """The greater or the lesser of two.

    Where they are equal, the first takes the gradient, or with ``halves`` each a half of it. Where
    one is not a number neither does, or with ``both`` each takes the whole.
    """

    defaults: ClassVar = {"halves": False, "both": False}
    examples = (
        *Binary.examples,
        Example(("f64[4, 6]", "f64[4, 6]"), {"halves": True}),
        Example(("f64[4, 6]", "f64[4, 6]"), {"halves": True, "both": True}),
    )
    comparison: ClassVar[str]
    strictly: ClassVar[str]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to the selected operand."""
        (a, b), dy = at.operands, at.cotangents[0]
        pairs = ((a, b), (b, a))
        if self.attributes["both"]:
            found = [build.emit("logical_not", build.emit(self.strictly, y, x)) for x, y in pairs]
        elif self.attributes["halves"]:
            found = [build.emit(self.strictly, x, y) for x, y in pairs]
        else:
            found = [build.emit(self.comparison, a, b), build.emit(self.strictly, b, a)]
        da, db = (build.emit("mask", dy, is_selected) for is_selected in found)
        if self.attributes["halves"]:
            is_equal, half = build.emit("equal", a, b), build.emit("scale", dy, factor=0.5)
            da, db = (build.emit("where", is_equal, half, dx) for dx in (da, db))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Maximum(Extremum):
    """The greater of two."""

    name = "maximum"
    function = np.maximum
    is_commutative = True
    comparison, strictly = "greater_equal", "greater"


@register
class Minimum(Extremum):
    """The lesser of two."""

    name = "minimum"
    function = np.minimum
    is_commutative = True
    comparison, strictly = "less_equal", "less"


@register
class Neg(Unary):
    """Negative."""

    name = "neg"
    function = np.negative
    linear = ((0,),)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Negate."""
        return [build.emit("neg", at.cotangents[0])]


@register
class Scale(Unary):
    """Product with the constant ``factor``."""

    name = "scale"
    is_scaling = True
    defaults: ClassVar = {"factor": 1.0}
    linear = ((0,),)
    examples = (Example(("f64[4, 6]",), {"factor": 1.5}),)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the operand."""
        dtype = self.operand_types[0].dtype
        check_whole(self.name, "factor", self.attributes["factor"], dtype)
        return (dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        x = operands[0]
        return np.asarray(x * x.dtype.type(self.attributes["factor"]))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply by the same constant."""
        return [build.emit("scale", at.cotangents[0], factor=self.attributes["factor"])]


@register
class AddScalar(Unary):
    """Sum with the constant ``value``."""

    name = "add_scalar"
    defaults: ClassVar = {"value": 0.0}
    examples = (Example(("f64[4, 6]",), {"value": 1.5}),)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the operand."""
        dtype = self.operand_types[0].dtype
        check_whole(self.name, "value", self.attributes["value"], dtype)
        return (dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add."""
        x = operands[0]
        return np.asarray(x + x.dtype.type(self.attributes["value"]))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent."""
        return [at.cotangents[0]]


@register
class BiasAdd(OperatorInfo):
    """Add a vector along the dimension ``axis``."""

    name = "bias_add"
    defaults: ClassVar = {"axis": 1}
    linear = ((0, 1),)
    examples = (
        Example(("f64[4, 6]", "f64[6]")),
        Example(("f64[2, 4, 3]", "f64[4]")),
        Example(("f64[2, 4, 3]", "f64[3]"), {"axis": -1}),
    )

    @property
    def axis(self) -> int:
        """The dimension of the vector, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    def make_rule(self) -> Rule:
        """Share the factor of one dimension."""
        shapes = [operand.shape for operand in self.operand_types]
        dims = " ".join(f"d{i}" for i in range(len(shapes[0])))
        return resolve(f"{dims}, d{self.axis} -> {dims}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add."""
        x, bias = operands
        return np.add(x, bias.reshape(-1, *(1,) * (x.ndim - 1 - self.axis)))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum the cotangent over all other dimensions."""
        dy = at.cotangents[0]
        others = tuple(i for i in range(dy.type.rank) if i != self.axis)
        return [dy, build.emit("reduce_sum", dy, axis=others)]


@register
class Sign(Unary):
    """The sign, as -1, 0 or 1; piecewise constant, so without a gradient."""

    name = "sign"
    function = np.sign


class Rounding(Unary):
    """A whole number near the operand; piecewise constant, so without a gradient."""

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Round."""
        return np.asarray(self.function(operands[0]), operands[0].dtype)


@register
class Floor(Rounding):
    """The greatest whole number that is not greater."""

    name = "floor"
    function = np.floor


@register
class Ceil(Rounding):
    """The least whole number that is not less."""

    name = "ceil"
    function = np.ceil


@register
class Trunc(Rounding):
    """The nearest whole number towards zero."""

    name = "trunc"
    function = np.trunc


@register
class Round(Rounding):
    """The nearest whole number, of two equally near the even one."""

    name = "round"
    function = np.rint


@register
class Power(Binary):
    """The first to the power of the second."""

    name = "power"
    function = np.power
    examples = tuple(replace(example, ranges={0: (0.5, 2.0)}) for example in Binary.examples)
    flops_per_point = 10.0

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """By the base ``b a^(b - 1)``, by the exponent ``a^b log a``; zero where it is constant."""
        (a, b), dy = at.operands, at.cotangents[0]
        known = _not_zero(build, b)
        lower = build.emit("power", a, build.emit("add_scalar", known, value=-1.0))
        is_power = build.emit("not_equal", b, build.emit("zeros_like", b))
        slope = build.emit("mul", known, lower)
        slope = build.emit("where", is_power, slope, build.emit("zeros_like", slope))
        da = build.emit("mul", dy, slope)
        logarithm = build.emit("log", _not_zero(build, a))
        db = build.emit("mul", dy, build.emit("mul", at.results[0], logarithm))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


def _not_zero(build: Emitter, x: Value) -> Value:
    """Emit a tensor with ones in place of zeros."""
    is_zero = build.emit("equal", x, build.emit("zeros_like", x))
    return build.emit("where", is_zero, build.emit("ones_like", x), x)


_POSITIVE = (0.5, 2.0)

define("abs", "Absolute value.", np.abs, np.sign, of_reals=False)
define("square", "Square.", np.square, lambda x: 2 * x, of_reals=False)
define(
    "sqrt", "Square root.", np.sqrt, lambda y: 0.5 / y, keeps="result", domain=_POSITIVE, flops=4.0
)
define(
    "rsqrt",
    "Reciprocal of the square root.",
    lambda x: 1 / np.sqrt(x),
    lambda y: -0.5 * y * y * y,
    keeps="result",
    domain=_POSITIVE,
    flops=4.0,
)
define(
    "reciprocal",
    "Reciprocal.",
    lambda x: 1 / x,
    lambda y: -y * y,
    keeps="result",
    domain=_POSITIVE,
    flops=4.0,
)
define(
    "pow",
    "Power with the constant ``exponent``.",
    lambda x, exponent: np.power(x, exponent),
    lambda x, exponent: exponent * np.power(x, exponent - 1 if exponent else 0),  # zero at zero
    defaults={"exponent": 1.0},
    example={"exponent": 2.5},
    domain=_POSITIVE,
    flops=10.0,
)
