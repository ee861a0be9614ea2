"""Formulas: values of a program with the signs of arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.info import Emitter

Operand = Union["Term", float]


@dataclass(frozen=True)
class Term:
    """A value that emits an operator where it is computed with.

    Parameters
    ----------
    build : Emitter
        Emits the operators.
    value : Value
        The value.
    """

    build: Emitter
    value: Value

    @property
    def type(self) -> TensorType:
        """The type of the value."""
        return self.value.type

    def apply(self, operator: str, *others: "Term", **attributes: Any) -> "Term":
        """Emit an operator on the value, and on others."""
        values = (self.value, *(other.value for other in others))
        return Term(self.build, self.build.emit(operator, *values, **attributes))

    def number(self, number: float) -> "Term":
        """Return a number as a scalar of the element type."""
        fill = self.build.emit("fill", shape=(), dtype=self.type.dtype, value=float(number))
        return Term(self.build, fill)

    def __add__(self, other: Operand) -> "Term":
        if isinstance(other, Term):
            return self.apply("add", other)
        return self.apply("add_scalar", value=float(other))

    def __sub__(self, other: Operand) -> "Term":
        if isinstance(other, Term):
            return self.apply("sub", other)
        return self.apply("add_scalar", value=-float(other))

    def __mul__(self, other: Operand) -> "Term":
        if isinstance(other, Term):
            return self.apply("mul", other)
        return self.apply("scale", factor=float(other))

    def __truediv__(self, other: "Term") -> "Term":
        return self.apply("div", other)

    def __neg__(self) -> "Term":
        return self.apply("neg")

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: float) -> "Term":
        return -self + other

    def compare(self, operator: str, number: float) -> "Term":
        """Return where a comparison with a number holds."""
        return self.apply(operator, self.number(number))

    def where(self, condition: "Term", other: Operand) -> "Term":
        """Return the value where a condition is true, another one where it is false."""
        if not isinstance(other, Term):
            other = self.number(other)
        return condition.apply("where", self, other)

    def sum(self, axes: int | tuple[int, ...], keep_dims: bool = True) -> "Term":
        """Return the sum over dimensions, which stay as dimensions of one."""
        return self.apply("reduce_sum", axis=axes, keep_dims=keep_dims)

    def mean(self, axes: int | tuple[int, ...]) -> "Term":
        """Return the mean over dimensions, which stay as dimensions of one."""
        return self.apply("reduce_mean", axis=axes, keep_dims=True)

    def reshape(self, shape: Sequence[int]) -> "Term":
        """Return the value in another shape."""
        return self.apply("reshape", shape=tuple(shape))
