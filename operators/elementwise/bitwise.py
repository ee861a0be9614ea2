"""Operators on the bits of integers, and on truths."""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.rule import ShardView


def _require_bits(info: OperatorInfo) -> None:
    if info.operand_types[0].is_float:
        raise IRError(f"{info.name}: the operand is {info.operand_types[0]}, integers have bits")


class Bitwise(Binary):
    """A function of the bits of two integers, or of two truths."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(("i64[4, 6]", "i64[4, 6]")),
        Example(("i32[2, 1, 6]", "i32[4, 1]")),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of both operands."""
        _require_bits(self)
        return (self.common_dtype(),)


@register
class BitwiseAnd(Bitwise):
    """Bits that are set in both."""

    name = "bitwise_and"
    is_commutative = True
    function = np.bitwise_and


@register
class BitwiseOr(Bitwise):
    """Bits that are set in one of two."""

    name = "bitwise_or"
    is_commutative = True
    function = np.bitwise_or


@register
class BitwiseXor(Bitwise):
    """Bits that are set in one, but not in both."""

    name = "bitwise_xor"
    is_commutative = True
    function = np.bitwise_xor


@register
class LeftShift(Bitwise):
    """The bits of the first, moved to the left by the second."""

    name = "left_shift"
    function = np.left_shift


@register
class RightShift(Bitwise):
    """The bits of the first, moved to the right by the second."""

    name = "right_shift"
    function = np.right_shift


@register
class Gcd(Bitwise):
    """Greatest common divisor."""

    name = "gcd"
    function = np.gcd


@register
class PopulationCount(Unary):
    """Number of bits set; of a negative number, in its two's complement."""

    name = "population_count"
    examples = (Example(("i32[4, 6]",)), Example(("i64[4, 6]",)))

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of small counts."""
        _require_bits(self)
        return ("uint8",)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Count in each byte, and add up."""
        x = np.ascontiguousarray(operands[0])
        of_byte = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
        counts = of_byte[x.view(np.uint8).reshape(*x.shape, x.itemsize)]
        return counts.sum(axis=-1).astype(np.uint8)


@register
class Invert(Unary):
    """Every bit inverted."""

    name = "invert"
    function = np.invert
    examples = (Example(("i64[4, 6]",)), Example(("bool[4, 6]",)))

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the operand."""
        _require_bits(self)
        return (self.operand_types[0].dtype,)
