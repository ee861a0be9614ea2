"""Items: the values and constants that names of an imported graph stand for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape


@runtime_checkable
class StoredTensor(Protocol):
    """A tensor whose elements are read on use."""

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""

    @property
    def is_absent(self) -> bool:
        """Whether the elements are missing."""

    def read(self) -> Array:
        """Return the elements."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is known when the model is imported.

    Parameters
    ----------
    data : array or StoredTensor
        Its elements, or where they are stored.
    dtype : str
        Its element type.
    name : str
        Its name in the model, or empty.
    trained : bool
        Whether it becomes a trained parameter, which is never folded.
    """

    data: Array | StoredTensor
    dtype: str
    name: str = ""
    trained: bool = False

    @property
    def array(self) -> Array:
        """The elements."""
        return self.data.read() if isinstance(self.data, StoredTensor) else self.data

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
        """Whether the elements are missing."""
        return isinstance(self.data, StoredTensor) and self.data.is_absent


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


class InitialValues(Mapping[str, Array]):
    """The initial values of parameters, each read on use.

    Parameters
    ----------
    sources : mapping of str to array or StoredTensor
        The source of each value; missing ones are left out.
    """

    def __init__(self, sources: Mapping[str, Array | StoredTensor]) -> None:
        self._sources = {
            name: source
            for name, source in sources.items()
            if not (isinstance(source, StoredTensor) and source.is_absent)
        }

    def __getitem__(self, name: str) -> Array:
        source = self._sources[name]
        return source.read() if isinstance(source, StoredTensor) else source

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
