"""The table of ONNX operators: from their type to a function that emits them in our IR."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.ir.graph import Value
from shardwright.operators.info import Array

if TYPE_CHECKING:
    from shardwright.frontends.onnx.call import Call


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is known when the model is imported.

    Parameters
    ----------
    array : array
        Its elements, as numpy holds them.
    dtype : str
        Its element type.
    name : str
        What the model calls it; empty if it does not.
    trained : bool
        Whether it becomes a parameter that is trained, and so must not be folded away.
    """

    array: Array
    dtype: str
    name: str = ""
    trained: bool = False


# What a name of an ONNX graph stands for: a value of ours, a constant, a sequence, or nothing.
Item = Value | Constant | tuple["Item", ...] | None
Result = Item | Array | list[Item | Array]
Converter = Callable[["Call"], Result]

CONVERTERS: dict[str, Converter] = {}
# What numpy makes of constants without elements, which no tensor of ours can be.
FOLDERS: dict[str, Callable[["Call", Sequence[Array]], Array]] = {}


class NeedsConstantError(Exception):
    """A converter needs the elements of a tensor that is computed only when the program runs.

    Parameters
    ----------
    name : str
        The tensor, as the model calls it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the elements of `{name}` must be known when the model is imported")
        self.name = name


class UnsupportedError(Exception):
    """A converter was asked for something that cannot be said in our IR.

    Parameters
    ----------
    what : str
        What it was asked for.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} cannot be imported")


def converts(*operators: str) -> Callable[[Converter], Converter]:
    """Put a function into the table, for each of the ONNX operators; a decorator."""

    def add(converter: Converter) -> Converter:
        for operator in operators:
            CONVERTERS[operator] = converter
        return converter

    return add
