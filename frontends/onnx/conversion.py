"""The part of the importer that converters use: items of the program, scopes, nested graphs."""

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto

from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array


@dataclass(frozen=True)
class Scope:
    """The names that a node can read, and the attributes of the enclosing function.

    Parameters
    ----------
    names : ChainMap of str to Item
        The item of each name; the innermost graph first.
    attributes : mapping of str to AttributeProto
        Attributes of the function that is inlined.
    opsets : mapping of str to int
        Version of each operator set.
    """

    names: ChainMap[str, Item]
    attributes: Mapping[str, AttributeProto]
    opsets: Mapping[str, int]

    def inside(self) -> "Scope":
        """Return the scope of a branch."""
        return replace(self, names=self.names.new_child())


class Conversion(ABC):
    """A graph that grows from ONNX nodes; the importer adds the walk over the nodes."""

    def __init__(self) -> None:
        self.emission = Emission()
        self._frozen: dict[int, tuple[Constant, Constant]] = {}

    @property
    def build(self) -> Builder:
        """The importer."""
        return self.emission.build

    # Items

    def value(self, item: Item) -> Value:
        """Return an item as a value of the program.

        Raises
        ------
        UnsupportedError
            If it is no tensor.
        """
        if isinstance(item, Value):
            return item
        if isinstance(item, Constant):
            return self.emission.enter(item)
        raise UnsupportedError("a sequence or an optional where a tensor is expected")

    def type(self, item: Item) -> TensorType:
        """Return the type of an item."""
        if isinstance(item, Constant):
            return TensorType(item.dtype, item.shape)
        return self.value(item).type

    def dtype(self, item: Item) -> str:
        """Return the element type of an item."""
        return item.dtype if isinstance(item, Constant) else self.value(item).type.dtype

    @staticmethod
    def item(array: Array, dtype: str) -> Item:
        """Return an array as a constant of an element type."""
        return Constant(np.asarray(array, numpy_dtype(dtype)), dtype)

    def constant(self, array: Array, dtype: str) -> Value:
        """Return the value of an array in an element type."""
        return self.value(self.item(array, dtype))

    def frozen(self, item: Item) -> Item:
        """Return an item as an untrained constant, one for each item."""
        if not isinstance(item, Constant) or not item.trained:
            return item
        if id(item) not in self._frozen:
            self._frozen[id(item)] = (item, replace(item, trained=False))
        return self._frozen[id(item)][1]

    def step(self) -> Value:
        """Return the number of the training step; emit its counter once."""
        return self.emission.step()

    # Nested graphs and operators

    @abstractmethod
    def branch(
        self, graph: GraphProto, scope: Scope, items: Sequence[Item] = ()
    ) -> tuple[Item, ...]:
        """Convert the body of a node, which may read the names around it."""

    @abstractmethod
    def run(
        self,
        operator: str,
        items: Sequence[Item],
        attributes: dict[str, Any],
        opset: int,
        scope: Scope,
    ) -> tuple[Item, ...]:
        """Convert an operator that is no node of the model, and return its results."""
