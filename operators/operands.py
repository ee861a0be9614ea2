"""What the operands of an operator may be, whatever its rule."""

from collections.abc import Sequence
from typing import Any

from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType


def check_operands(
    name: str, operands: Sequence[TensorType], *, of_reals: bool, reads_host: bool
) -> None:
    """Refuse operands that an operator cannot compute with.

    Parameters
    ----------
    name : str
        Name of the operator.
    operands : sequence of TensorType
        Their types.
    of_reals : bool
        Whether the first is of real numbers: of integers, its results would be cut to integers.
    reads_host : bool
        Whether it may be in host memory.

    Raises
    ------
    IRError
        If one is in host memory, where no operator computes, or of integers.
    """
    hosted = next((operand for operand in operands if operand.in_host), None)
    if hosted is not None and not reads_host:
        what = f"`{name}` reads {hosted}, expected the memory of the devices"
        raise IRError(what, hint="copy it with `from_host` first")
    if of_reals and operands and not operands[0].is_float:
        what = f"`{name}` computes with real numbers, the operand is {operands[0]}"
        raise IRError(what, hint="cast it to float32 first")


def check_whole(name: str, attribute: str, number: Any, dtype: str) -> None:
    """Refuse a number among integers, or truths, that is none of them.

    Parameters
    ----------
    name, attribute : str
        The operator, and its attribute that has the number.
    number : Any
        The number.
    dtype : str
        The element type that it meets.

    Raises
    ------
    IRError
        If it would be cut.
    """
    if TensorType(dtype, ()).is_float:
        return
    is_whole = isinstance(number, int) or float(number).is_integer()
    if is_whole and (dtype != "bool" or number in (0, 1)):
        return
    raise IRError(
        f"`{name}`: `{attribute}` is {number:g}, which no element of {dtype} is",
        hint="cast the tensor to float32 first",
    )
