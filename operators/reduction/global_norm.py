"""The norm of all gradients of a step, and gradients that are scaled down to it.

References
----------
Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.ir.values import POSITIVE, check_choice
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.notation import summed
from shardwright.operators.rule import Rule, ShardView

SUM_TYPES = ("float32", "float64")


def sum_type(parameters: Iterable[TensorType]) -> str:
    """Return the type in which squares of gradients are added up: float16 is too narrow for them.

    Examples
    --------
    >>> sum_type([TensorType("float16", (2,)), TensorType("float32", ())])
    'float32'
    """
    return SUM_TYPES[any(parameter.dtype == SUM_TYPES[1] for parameter in parameters)]


@register
class SumSquares(OperatorInfo):
    """The sum of the squares of all elements, in ``dtype``."""

    name = "sum_squares"
    defaults: ClassVar = {"dtype": "float32"}
    flops_per_point = 2.0
    examples = (
        Example(("f64[4, 6]",), {"dtype": "float64"}),
        Example(("f64[]",), {"dtype": "float64"}),
    )

    def make_rule(self) -> Rule:
        """Sum over all dimensions."""
        return summed(self.operand_types[0].shape)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the sum."""
        check_choice("dtype", self.attributes["dtype"], SUM_TYPES)
        return (self.attributes["dtype"],)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Square and add; a program that runs in another floating-point type stays in it."""
        is_declared = operands[0].dtype == numpy_dtype(self.operand_types[0].dtype)
        dtype = np.dtype(self.attributes["dtype"]) if is_declared else operands[0].dtype
        wide = operands[0].astype(dtype, copy=False)
        with np.errstate(over="ignore"):  # an infinite norm makes gradients zero
            return np.asarray(np.sum(np.square(wide)), dtype)


@register
class ClipByNorm(OperatorInfo):
    """A tensor times ``clip_norm`` / max(n, ``clip_norm``); the second operand is n squared."""

    name = "clip_by_norm"
    notation = "..., -> ..."
    defaults: ClassVar = {"clip_norm": 1.0}
    linear = ((0,),)
    examples = (Example(("f64[4, 6]", "f64[]"), {"clip_norm": 0.5}, {1: (1, 9)}),)

    def make_rule(self) -> Rule:
        """Scale elements in any layout."""
        POSITIVE.check("clip_norm", self.attributes["clip_norm"])
        return super().make_rule()

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Scale."""
        tensor, total = operands
        limit = total.dtype.type(self.attributes["clip_norm"])
        factor = limit / np.maximum(np.sqrt(total), limit)
        with np.errstate(invalid="ignore"):  # a dynamic loss scale skips a step that overflows
            return np.asarray(tensor * factor, tensor.dtype)
