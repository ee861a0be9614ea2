"""Printing while a program runs."""

from typing import ClassVar

import numpy as np

from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.notation import summed
from shardwright.operators.rule import Rule, ShardView


@register
class PrintValue(OperatorInfo):
    """Print ``message`` and the operand, or the part of it that a rank has; the result is 0.

    ``number`` tells two that print the same apart.
    """

    name = "print_value"
    result_dtype = "int64"
    defaults: ClassVar = {"message": "", "number": 0}
    flops_per_point = 0.0
    examples = (Example(("f64[4, 6]",)), Example(("i64[]",), {"message": "count:"}))

    def make_rule(self) -> Rule:
        """Sum zeros over all dimensions."""
        return summed(self.operand_types[0].shape)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Print."""
        print(*filter(None, [self.attributes["message"]]), operands[0], flush=True)
        return np.zeros((), np.int64)
