"""The remaining gap, closed by CP-SAT: a 0/1 model of what is left of a network.

    x_va  exactly one for each variable            y_uv,ab  sum over b = x_ua, sum over a = x_vb
    each row:  sum of use . x <= capacity          minimise cost . x + table . y

Costs are rounded to integers, finely enough that the rounding of all terms together is far below
the gap that is called optimal; the bound is lowered by all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from shardwright.solver.interruptible import solve_model
from shardwright.solver.memory import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import Array

COST_RANGE = 2.0**50
"""The costs are scaled so that the greatest total is this."""

USE_RANGE = 2.0**40


@dataclass(frozen=True)
class IntegerAnswer:
    """A bound on the network's cost, and the best assignment found."""

    lower_bound: float
    choice: list[int] | None


class IntegerModel:
    """The 0/1 model of a network.

    Parameters
    ----------
    network : Network
    rows : MemoryRows
    least_cost : float
        A lower bound that is known already.
    """

    def __init__(self, network: Network, rows: MemoryRows, least_cost: float) -> None:
        self.network = network
        self.model = cp_model.CpModel()
        self.choose = [
            [self.model.new_bool_var(f"x{index},{strategy}") for strategy in range(size)]
            for index, size in enumerate(network.sizes)
        ]
        for literals in self.choose:
            self.model.add_exactly_one(literals)
        self._scale, self._constant = 1.0, 0.0
        self._literals: list[cp_model.IntVar] = []
        self._costs: list[float] = []
        self._add_costs(least_cost)
        for row in range(len(rows)):
            self._add_row(rows, row)

    def _add_costs(self, least_cost: float) -> None:
        unary = [cost.copy() for cost in self.network.unary]
        tables = {}
        for (first, second), table in self.network.tables.items():
            by_row = table.min(axis=1)
            by_column = (table - by_row[:, None]).min(axis=0)
            unary[first] += by_row
            unary[second] += by_column
            tables[first, second] = table - by_row[:, None] - by_column
        for literals, cost in zip(self.choose, unary, strict=True):
            self._constant += float(cost.min())
            self._literals += literals
            self._costs += [float(value) for value in cost - cost.min()]
        for ends, table in tables.items():
            if table.any():
                self._add_table(ends, table)
        self._scale = COST_RANGE / (sum(self._costs) or 1.0)
        whole = [round(cost * self._scale) for cost in self._costs]
        objective = cp_model.LinearExpr.weighted_sum(self._literals, whole)
        least = (least_cost - self._constant) * self._scale - len(whole)
        self.model.add(objective >= int(np.clip(np.floor(least), 0, COST_RANGE)))
        self.model.minimize(objective)

    def _add_table(self, ends: tuple[int, int], table: Array) -> None:
        first, second = (self.choose[index] for index in ends)
        by_row: list[list[cp_model.IntVar]] = [[] for _ in first]
        by_column: list[list[cp_model.IntVar]] = [[] for _ in second]
        for row, column in zip(*np.nonzero(np.isfinite(table)), strict=True):
            literal = self.model.new_bool_var(f"y{ends},{row},{column}")
            by_row[row].append(literal)
            by_column[column].append(literal)
            self._literals.append(literal)
            self._costs.append(float(table[row, column]))
        for whole, parts in [
            *zip(first, by_row, strict=True),
            *zip(second, by_column, strict=True),
        ]:
            self.model.add(sum(parts) == whole)

    def _add_row(self, rows: MemoryRows, row: int) -> None:
        alive = np.flatnonzero((rows.first <= row) & (row < rows.last))
        extra = [rows.usages[use] - rows.lowest[use] for use in alive]
        top = max(sum(float(values.max()) for values in extra), 1e-300)
        exact = all(bool((values == np.floor(values)).all()) for values in extra)
        scale = 1.0 if exact and top < COST_RANGE else USE_RANGE / top
        terms, amounts = [], []
        for use, values in zip(alive, extra, strict=True):
            for literal, value in zip(self.choose[rows.variables[use]], values, strict=True):
                if value > 0:
                    terms.append(literal)
                    amounts.append(int(np.floor(value * scale)))
        limit = int(np.floor(rows.capacity[row] * scale))
        self.model.add(cp_model.LinearExpr.weighted_sum(terms, amounts) <= limit)

    def solve(
        self, hint: Sequence[int | None] | None, time_limit: float, workers: int, seed: int
    ) -> IntegerAnswer:
        """Search for ``time_limit`` seconds."""
        if hint is not None:
            for literals, position in zip(self.choose, hint, strict=True):
                if position is None:
                    continue
                for strategy, literal in enumerate(literals):
                    self.model.add_hint(literal, strategy == position)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(time_limit, 0.01)
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        status = solve_model(solver, self.model)
        if status == cp_model.INFEASIBLE:
            return IntegerAnswer(np.inf, None)
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        choice = (
            [
                next(
                    place for place, literal in enumerate(literals) if solver.boolean_value(literal)
                )
                for literals in self.choose
            ]
            if found
            else None
        )
        rounding = len(self._costs) / self._scale
        bound = self._constant + solver.best_objective_bound / self._scale - rounding
        return IntegerAnswer(bound, choice)
