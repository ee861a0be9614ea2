"""One equation of a jaxpr, as its converter sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.frontends.common.call import Emitting
from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.items import Constant, Item
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array


@dataclass
class Notes:
    """What converters remember of the equations before.

    Parameters
    ----------
    views : dict of str to Value
        The tensors that reshaped ones are made of.
    turned : dict of str to (Value, tuple of int)
        The tensor that a transposed one is made of, and the order of its dimensions.
    joined : dict of str to tuple of Value
        The tensors that a concatenated one is made of.
    spans : dict of str to (float, float)
        The least and the greatest number that integers can be.
    """

    views: dict[str, Value] = field(default_factory=dict)
    turned: dict[str, tuple[Value, tuple[int, ...]]] = field(default_factory=dict)
    joined: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)


class Call(Emitting):
    """An application of a primitive.

    Parameters
    ----------
    emission : Emission
        The graph that grows.
    primitive : str
        The primitive, such as ``dot_general``.
    operands : sequence of Item
        Its operands: values of the program, or constants.
    params : mapping of str
        The primitive's parameters.
    results : tuple of TensorType
        Types of its results.
    notes : Notes
        What is remembered of the equations before.
    """

    def __init__(
        self,
        emission: Emission,
        primitive: str,
        operands: Sequence[Item],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
        notes: Notes,
    ) -> None:
        super().__init__(emission, results, notes.views)
        self.primitive, self.operands, self.params = primitive, operands, params
        self.notes = notes

    def at(self, position: int) -> Value:
        """Return an operand as a value."""
        return self.value(self.operands[position])

    def values(self) -> tuple[Value, ...]:
        """Return all operands as values."""
        return tuple(map(self.value, self.operands))

    def known(self, position: int) -> Array | None:
        """Return the elements of an operand; None if they are not known at import."""
        item = self.operands[position]
        if isinstance(item, Constant) and not item.trained and not item.is_absent:
            return item.array
        return None

    def number(self, position: int) -> float | int | bool | None:
        """Return the number that all elements of an operand equal; None if they are not known."""
        array = self.known(position)
        if array is None or not array.size:
            return None
        first = array.ravel()[:1]
        found: float | int | bool = first[0].item()
        return found if array.size == 1 or bool((array == first).all()) else None
