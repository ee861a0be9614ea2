"""The prices of which the cost of a node is made, by whoever prices or records a program."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.redistribution.exchange import Choices
from shardwright.ir.layout import Layout
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]


class NodePrices(Protocol):
    """The prices of which the cost of a node is made."""

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the cost of a computing operator on one rank."""
        ...

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the cost of a communication operator, for operands of several sizes."""
        ...

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further cost of one whose parts are copied (`moves.is_packed`)."""
        ...


@runtime_checkable
class ExchangePrices(Protocol):
    """Prices that know how often software sends a token for its choices of experts."""

    def exchange_costs(
        self, axes: tuple[str, ...], local_bytes: Floats, choices: Choices
    ) -> Floats:
        """Return the cost of an all-to-all of the rows of experts, by the bytes of all rows."""
        ...
