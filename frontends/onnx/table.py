"""The table of ONNX operators: from their type to a function that emits them in our IR."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from shardwright.frontends.onnx.stored import Stored
from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape

if TYPE_CHECKING:
    from shardwright.frontends.onnx.call import Call


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is known when the model is imported.

    Parameters
    ----------
    data : array or Stored
        Its elements, as numpy holds them, or where they are stored.
    dtype : str
        Its element type.
    name : str
        What the model calls it; empty if it does not.
    trained : bool
        Whether it becomes a parameter that is trained, and so must not be folded away.
    """

    data: Array | Stored
    dtype: str
    name: str = ""
    trained: bool = False

    @property
    def array(self) -> Array:
        """The elements."""
        return self.data.read() if isinstance(self.data, Stored) else self.data

    @property
    def shape(self) -> Shape:
        """The shape."""
        return self.data.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.data.shape)

    @property
    def is_absent(self) -> bool:
        """Whether the elements are in a file that is missing."""
        return isinstance(self.data, Stored) and self.data.is_absent


# What a name of an ONNX graph stands for: a value of ours, a constant, a sequence, or nothing.
Item = Value | Constant | tuple["Item", ...] | None
Result = Item | Array | list[Item | Array]
Converter = Callable[["Call"], Result]

CONVERTERS: dict[str, Converter] = {}
# What numpy makes of constants without elements, which no tensor of ours can be.
FOLDERS: dict[str, Callable[["Call", Sequence[Array]], Array]] = {}


def converts(*operators: str) -> Callable[[Converter], Converter]:
    """Put a function into the table, for each of the ONNX operators; a decorator."""

    def add(converter: Converter) -> Converter:
        for operator in operators:
            CONVERTERS[operator] = converter
        return converter

    return add
