"""One node of an ONNX graph, as its converter sees it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.frontends.common.call import Emits
from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import NeedsConstantError, UnsupportedError
from shardwright.frontends.common.items import Constant, Item, as_item
from shardwright.frontends.onnx.conversion import Conversion, Scope
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array


class Call(Emits):
    """An application of an ONNX operator.

    Parameters
    ----------
    importer : Conversion
        The importer.
    operator : str
        The ONNX operator.
    items : sequence of Item
        Its inputs; None for an omitted input.
    attributes : mapping of str to object
        Its explicit attributes.
    opset : int
        Version of the operator set.
    outputs : int
        Number of its results.
    scope : Scope
        The names around the node, which its subgraphs may read.
    names : sequence of str
        Names of the inputs in the model.
    """

    def __init__(
        self,
        importer: Conversion,
        operator: str,
        items: Sequence[Item],
        attributes: dict[str, Any],
        opset: int,
        outputs: int,
        scope: Scope,
        names: Sequence[str],
    ) -> None:
        self.importer = importer
        self.operator = operator
        self.items = items
        self.attributes = attributes
        self.opset = opset
        self.outputs = outputs
        self.scope = scope
        self.names = names

    # Inputs

    def has(self, position: int) -> bool:
        """Return whether an input is present."""
        return position < len(self.items) and self.items[position] is not None

    @property
    def values(self) -> tuple[Value, ...]:
        """All inputs as values."""
        return tuple(self.value(i) for i in range(len(self.items)))

    def value(self, position: int) -> Value:
        """Return an input as a value of the program."""
        return self.importer.value(self.item(position))

    def frozen(self, position: int) -> Value:
        """Return an input as a value that is not trained, such as the statistics of a batch."""
        return self.importer.value(self.importer.frozen(self.item(position)))

    def item(self, position: int) -> Item:
        """Return an input as an item."""
        if not self.has(position):
            raise UnsupportedError(f"no input {position}")
        return self.items[position]

    def type(self, position: int) -> TensorType:
        """Return the type of an input."""
        return self.importer.type(self.item(position))

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        item = self.item(position)
        return item.shape if isinstance(item, Constant) else self.type(position).shape

    def dtype(self, position: int) -> str:
        """Return the element type of an input."""
        item = self.item(position)
        return self.importer.dtype(item)

    def known(self, position: int) -> bool:
        """Return whether an input is a constant."""
        return self.has(position) and isinstance(self.items[position], Constant)

    def array(self, position: int) -> Array:
        """Return the elements of an input.

        Raises
        ------
        NeedsConstantError
            If they are not known.
        """
        item = self.item(position)
        if not isinstance(item, Constant):
            raise NeedsConstantError(self.names[position])
        return item.array

    def ints(self, position: int) -> tuple[int, ...]:
        """Return the elements of an input as integers."""
        return tuple(int(n) for n in self.array(position).ravel())

    def number(self, position: int) -> Any:
        """Return the only element of an input as a Python number."""
        return self.array(position).reshape(()).item()

    # Attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def ints_of(self, name: str, position: int) -> tuple[int, ...] | None:
        """Return integers that are an attribute in older opsets and an input in newer ones."""
        if name in self.attributes:
            return tuple(self.attributes[name])
        return self.ints(position) if self.has(position) else None

    # Results

    @property
    def emission(self) -> Emission:  # type: ignore[override]
        """The graph that grows: another one while constants are computed."""
        return self.importer.emission

    def constant(self, data: Any, dtype: str) -> Value:
        """Return a constant as a value."""
        return self.importer.constant(np.asarray(data), dtype)

    def scalar(self, position: int) -> float | int | None:
        """Return the only element of a constant input; None if it has several or is trained."""
        item = self.items[position]
        if not isinstance(item, Constant) or item.trained or item.size != 1:
            return None
        number: float | int = item.array.reshape(()).item()
        return number

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a value in another shape."""
        shape = tuple(int(n) for n in shape)
        return value if value.type.shape == shape else self.emit("reshape", value, shape=shape)

    def run(self, operator: str, *items: Item | Array, **attributes: Any) -> Any:
        """Convert another ONNX operator in the place of this one, and return its first result."""
        plain = [as_item(item) for item in items]
        return self.importer.run(operator, plain, attributes, self.opset, self.scope)[0]
