"""Operators as functions; those here are about shapes and constants."""

from collections.abc import Sequence
from typing import Any

from shardwright import ops as own
from shardwright.mindspore.ops import convolutions, functions, losses, reductions
from shardwright.mindspore.ops.formulas import FORMULAS, SAME
from shardwright.mindspore.ops.refusals import hold
from shardwright.mindspore.ops.shapes import SHAPES
from shardwright.tensor import Tensor


def shape(input_x: Tensor) -> tuple[int, ...]:
    """Return the sizes of the dimensions of a tensor."""
    return input_x.shape


class Shape:
    """The sizes of the dimensions of a tensor, as a primitive."""

    def __call__(self, input_x: Tensor) -> tuple[int, ...]:
        """Return the sizes."""
        return shape(input_x)


def tuple_len(input_x: Sequence[Any]) -> int:
    """Return the number of items of a tuple."""
    return len(input_x)


def make_range(*bounds: int) -> tuple[int, ...]:
    """Return whole numbers as a tuple, by the bounds that Python's ``range`` takes."""
    return tuple(range(*bounds))


def depend(value: Tensor, expr: Any) -> Tensor:
    """Return the first; what the second is computed for is part of the program without it."""
    hold(value)
    return value


class Depend:
    """Returns its first operand, as a primitive: an order of side effects is not needed here."""

    def __call__(self, value: Tensor, expr: Any) -> Tensor:
        """Return the first."""
        return depend(value, expr)


def scalar_to_tensor(input_x: float | bool, dtype: str = "float32") -> Tensor:
    """Return a number as a constant tensor without dimensions."""
    return Tensor(input_x, dtype)


def tuple_to_array(input_x: tuple[float, ...]) -> Tensor:
    """Return numbers as a constant tensor of one dimension, int64 where all are whole."""
    whole = all(isinstance(number, int) for number in input_x)
    return Tensor(input_x, "int64" if whole else "float32")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"no operator is called `{name}`")
    name = SAME.get(name, name)
    for table in (FORMULAS, SHAPES):
        if name in table:
            return table[name]
    parts = (functions, convolutions, losses, reductions)
    return getattr(next((part for part in parts if name in part.__all__), own), name)
