"""The base of elementwise operators: rules, examples, and functions of one real variable."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from shardwright.ir.attributes import Attributes
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
from shardwright.operators.operands import check_whole
from shardwright.operators.rule import ShardView


class Pointwise(OperatorInfo):
    """An operator point by point.

    Attributes
    ----------
    function : callable
        What it computes of arrays; an operator that has no such function has a kernel of its own.
    """

    function: ClassVar[Callable[..., Array]]

    def kernel(self, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
        """Apply the function."""
        return np.asarray(self.function(*operands))


class Binary(Pointwise):
    """An operator on two tensors, point by point, broadcast like numpy."""

    notation = "..., ... -> ..."
    result_dtype: ClassVar[int | str] = "common"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 6]", "f64[4, 6]")),
        Example(("f64[2, 1, 6]", "f64[4, 1]")),
    )


class Unary(Pointwise):
    """An operator on one tensor, point by point."""

    notation = "... -> ..."
    examples: ClassVar[tuple[Example, ...]] = (Example(("f64[4, 6]",)),)


class Function(Unary):
    """A function of one real variable; its gradient is the operator ``NAME_gradient``.

    Attributes
    ----------
    value : callable
        The function of an array; takes the attributes by name.
    keeps : str
        The tensor saved for backward: ``operand`` or ``result``.
    not_negative : tuple of str
        Attributes that must not be negative: the result then has the sign of the operand.
    bounds : tuple of str
        Attributes that are elements of the result.
    """

    value: ClassVar[Callable[..., Array]]
    keeps: ClassVar[str]
    not_negative: ClassVar[tuple[str, ...]]
    bounds: ClassVar[tuple[str, ...]]

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the operand; refuse attributes that do not fit."""
        for name in self.bounds:
            check_whole(self.name, name, self.attributes[name], self.operand_types[0].dtype)
        for name in self.not_negative:
            if self.attributes[name] < 0:
                number = self.attributes[name]
                raise IRError(f"{self.name}: `{name}` is {number:g}, expected at least 0")
        return super().make_dtypes()

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Apply the function."""
        return np.asarray(self.value(operands[0], **self.attributes), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the cotangent by the slope."""
        kept = at.operands[0] if self.keeps == "operand" else at.results[0]
        return [build.emit(f"{self.name}_gradient", at.cotangents[0], kept, **self.attributes)]


class FunctionGradient(Binary):
    """The first operand times the slope of a function at its saved tensor."""

    linear = ((0,),)
    slope: ClassVar[Callable[..., Array]]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        cotangent, kept = operands
        slope = self.slope(kept, **self.attributes)
        if slope.dtype == bool:  # no product: a cotangent that does not pass may be infinite
            return np.where(slope, cotangent, cotangent.dtype.type(0))
        return np.asarray(cotangent * slope, cotangent.dtype)


def define(
    name: str,
    summary: str,
    value: Callable[..., Array],
    slope: Callable[..., Array],
    *,
    keeps: str = "operand",
    defaults: Attributes | None = None,
    example: Attributes | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    flops: float = 1.0,
    not_negative: tuple[str, ...] = (),
    of_reals: bool = True,
    bounds: tuple[str, ...] = (),
) -> type[OperatorInfo]:
    """Define and register a function and its gradient, ``NAME_gradient``.

    Parameters
    ----------
    name, summary : str
        Name and one-line description of the operator.
    value : callable
        The function of an array; takes the attributes by name.
    slope : callable
        Its derivative, as a function of the saved tensor; true and false for 1 and 0.
    keeps : str
        The tensor saved for backward: ``operand`` or ``result``.
    defaults, example : mapping, optional
        Attributes of the operator, and attributes for its tests.
    domain : tuple of float
        The range of the tests.
    flops : float
        Floating-point operations for each element.
    not_negative : tuple of str
        Attributes that must not be negative.
    of_reals : bool
        Whether it has no integers.
    bounds : tuple of str
        Attributes that are elements of the result.
    """
    title = name.title().replace("_", "")
    shared = {"defaults": defaults or {}, "flops_per_point": flops, "of_reals": of_reals}
    one = Example(("f64[4, 6]",), example or {}, {0: domain})
    two = Example(("f64[4, 6]", "f64[4, 6]"), example or {}, {1: domain})
    function = {"name": name, "value": staticmethod(value), "keeps": keeps, "examples": (one,)}
    function |= {"not_negative": not_negative, "bounds": bounds}
    gradient = {"name": f"{name}_gradient", "slope": staticmethod(slope), "examples": (two,)}
    about = f"The slope of `{name}` times a cotangent, from the {keeps} of `{name}`."
    operator = type(title, (Function,), {"__doc__": summary, **function, **shared})
    register(
        type(f"{title}Gradient", (FunctionGradient,), {"__doc__": about, **gradient, **shared})
    )
    return register(operator)
