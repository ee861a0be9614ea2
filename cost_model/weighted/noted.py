"""Weighted prices that note what they price: how long which resources are occupied, and when."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.roofline import second_prices
from shardwright.cost_model.weighted.intervals import Kind, parts_of
from shardwright.cost_model.weighted.loads import Place, add_seconds
from shardwright.cost_model.weighted_profile import WeightedMoves, computing_place
from shardwright.ir.layout import Layout
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NotedPrices:
    """The weighted prices of nodes of one kind, which note the seconds by place.

    Parameters
    ----------
    moves : WeightedMoves
        The prices of communication of this kind.
    seconds : dict
        The seconds by place, of all that was priced.
    """

    moves: WeightedMoves
    seconds: dict[Place, float] = field(default_factory=dict)

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the weighted seconds of a computing operator, and note them."""
        prices = second_prices(self.moves.mesh, self.moves.cluster)
        levels, kind = computing_place(info, self.moves.mesh, self.moves.kind)
        return self.note(levels, kind, prices.operator_cost(info, operands, results))

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the weighted seconds of a communication operator, and note them."""
        levels, seconds = self.moves.occupied(operator, axes, local_bytes)
        return np.array([self.note(levels, self.moves.kind, each) for each in seconds.tolist()])

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further weighted seconds of one whose parts are copied, and note them."""
        levels, seconds = self.moves.packed(operator, axes, local_bytes)
        return np.array([self.note(levels, self.moves.kind, each) for each in seconds.tolist()])

    def note(self, levels: set[int], kind: Kind, seconds: float) -> float:
        """Note that the links of some levels are occupied, and return the weighted seconds."""
        weights = self.moves.weights
        links = tuple(1 + level for level in sorted(levels))
        parts = parts_of(kind, len(weights.intervals), weights.passes)
        add_seconds(self.seconds, links, kind, parts, seconds)
        return weights.of(levels, kind) * seconds
