"""Items: the values and constants that names of an ONNX graph stand for."""

from dataclasses import dataclass
from math import prod

import numpy as np

from shardwright.frontends.onnx.stored import Stored
from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is known when the model is imported.

    Parameters
    ----------
    data : array or Stored
        Its elements, or where they are stored.
    dtype : str
        Its element type.
    name : str
        Its name in the model, or empty.
    trained : bool
        Whether it becomes a trained parameter, which is never folded.
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


# A value of our graph, a constant, a sequence, or an input that is left out.
Item = Value | Constant | tuple["Item", ...] | None
# A converter returns one item, or a list of several.
Result = Item | Array | list[Item | Array]


def items_of(result: Result) -> tuple[Item, ...]:
    """Return the result of a converter as items; a list holds several results."""
    return tuple(map(as_item, result)) if isinstance(result, list) else (as_item(result),)


def as_item(result: Item | Array) -> Item:
    """Return an array as a constant, and any other item unchanged."""
    return Constant(result, result.dtype.name) if isinstance(result, np.ndarray) else result
