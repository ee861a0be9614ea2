"""The CP-SAT finish of the exact search: the 0/1 model of a network.

Costs are rounded to integers, finely enough that the rounding of all terms together is far below
the gap that counts as optimal; the bound is lowered by all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.solver.integer_model import IntegerModel
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.methods import SolveOptions
from shardwright.solver.network import Network
from shardwright.solver.problem import Array

COST_RANGE = 2.0**50
"""The costs are scaled so that the greatest total is this."""

USE_RANGE = 2.0**40
"""Memory uses that are not integers are scaled so that the greatest total is this."""


@dataclass(frozen=True)
class NetworkAnswer:
    """A lower bound on the network's cost, and the best choice found."""

    lower_bound: float
    choice: list[int] | None


class NetworkModel:
    """The 0/1 model of a network.

    Parameters
    ----------
    network : Network
    rows : MemoryRows
    least_cost : float
        A lower bound that is known already.
    """

    def __init__(self, network: Network, rows: MemoryRows, least_cost: float) -> None:
        self.model = IntegerModel()
        self._constant = 0.0
        unary, tables = self._reparametrise(network)
        costs = [value for cost in unary for value in cost.tolist()]
        for table in tables.values():
            costs += table[np.isfinite(table)].tolist()
        self._terms = len(costs)
        self._scale = COST_RANGE / (sum(costs) or 1.0)
        for cost in unary:
            self.model.add_variable(np.ones(len(cost), dtype=bool), self._rounded(cost))
        for ends, table in tables.items():
            self.model.add_pair(*ends, np.isfinite(table), self._rounded(table))
        least = (least_cost - self._constant) * self._scale - self._terms
        self.model.minimise(least=int(np.clip(np.floor(least), 0, COST_RANGE)))
        for row in range(len(rows)):
            self._add_row(rows, row)

    def _reparametrise(self, network: Network) -> tuple[list[Array], dict[tuple[int, int], Array]]:
        """Move the minima of the tables into the cost vectors, and theirs into the constant."""
        unary = [cost.copy() for cost in network.unary]
        tables = {}
        for (first, second), table in network.tables.items():
            by_row = table.min(axis=1)
            by_column = (table - by_row[:, None]).min(axis=0)
            unary[first] += by_row
            unary[second] += by_column
            reduced = table - by_row[:, None] - by_column
            if reduced.any():
                tables[first, second] = reduced
        for cost in unary:
            self._constant += float(cost.min())
        return [cost - cost.min() for cost in unary], tables

    def _rounded(self, costs: Array) -> Array:
        """Return costs as integers; forbidden entries, which have no literal, as 0."""
        finite = np.where(np.isfinite(costs), costs, 0.0)
        return np.asarray(np.rint(finite * self._scale).astype(np.int64))

    def _add_row(self, rows: MemoryRows, row: int) -> None:
        live = np.flatnonzero((rows.first <= row) & (row < rows.last))
        extra = [rows.usages[use] - rows.lowest[use] for use in live]
        top = max(sum(float(values.max()) for values in extra), 1e-300)
        exact = all(bool((values == np.floor(values)).all()) for values in extra)
        scale = 1.0 if exact and top < COST_RANGE else USE_RANGE / top
        amounts = [
            (int(rows.variables[use]), strategy, math.floor(value * scale))
            for use, values in zip(live, extra, strict=True)
            for strategy, value in enumerate(values.tolist())
        ]
        self.model.add_row(amounts, int(np.floor(rows.capacity[row] * scale)))

    def solve(self, hint: Sequence[int | None] | None, options: SolveOptions) -> NetworkAnswer:
        """Search within the budget of the options."""
        if hint is not None:
            self.model.hint(hint)
        answer = self.model.solve(options)
        if answer.infeasible:
            return NetworkAnswer(np.inf, None)
        rounding = self._terms / self._scale
        bound = self._constant + answer.bound / self._scale - rounding
        return NetworkAnswer(bound, answer.choice)
