"""The CP-SAT finish of the anytime search: a 0/1 model over the reparametrised costs.

Only what a better assignment can contain is in the model (see `reparametrisation`): strategies and
pairs whose terms do not exceed the gap, and rows with a price. Other rows of memory are added when
an assignment exceeds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.solver.anytime.dual_ascent import used
from shardwright.solver.anytime.flat import ranges
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.reparametrisation import Reparametrisation
from shardwright.solver.integer_model import IntegerModel
from shardwright.solver.methods import SolveOptions
from shardwright.solver.problem import Array

ROWS_AT_ONCE = 12
"""Exceeded rows that are added to the model after each search."""


class GraphModel:
    """The 0/1 model of all assignments that cost at most ``most``, in units of 1 / scale.

    Parameters
    ----------
    graph, rows : Graph, Rows
    costs : Reparametrisation
    keep : array of bool
        The strategies that a better assignment can contain.
    most : int
    """

    def __init__(
        self, graph: Graph, rows: Rows, costs: Reparametrisation, keep: Array, most: int
    ) -> None:
        self.graph, self.rows, self.costs, self.most = graph, rows, costs, most
        self.model = IntegerModel()
        self.in_model: set[int] = set()
        self.has_objective = False
        keep = keep & (costs.unary <= most)
        for v in range(len(graph.size)):
            span = slice(graph.offset[v], graph.offset[v + 1])
            self.model.add_variable(keep[span], costs.unary[span])
        for e, (u, v) in enumerate(zip(graph.first.tolist(), graph.second.tolist(), strict=True)):
            table = costs.tables[e].reshape(-1, graph.size[v])
            self.model.add_pair(u, v, table <= most, table)

    def add_row(self, t: int) -> None:
        """Add the memory limit of a row; the memory left has its price."""
        self.in_model.add(t)
        price, capacity = int(self.costs.prices[t]), int(self.rows.capacity[t])
        if price:
            self.model.add_priced_row(self._amounts(t), capacity, price, self.most // price)
        else:
            self.model.add_row(self._amounts(t), capacity)

    def _amounts(self, t: int) -> Iterator[tuple[int, int, int]]:
        """Yield (variable, strategy, amount) of the memory in a row."""
        rows, graph = self.rows, self.graph
        live = np.flatnonzero((rows.first <= t) & (t < rows.last))
        counts = graph.size[rows.owner[live]]
        amounts = np.zeros(len(graph.unary), np.int64)
        places = ranges(graph.offset[rows.owner[live]], counts)
        np.add.at(amounts, places, rows.amount[ranges(rows.place[live], counts)])
        nonzero = np.flatnonzero(amounts)
        owners = np.searchsorted(graph.offset, nonzero, side="right") - 1
        strategies = nonzero - graph.offset[owners]
        return zip(owners.tolist(), strategies.tolist(), amounts[nonzero].tolist(), strict=True)

    def solve(
        self, hint: Array | None, options: SolveOptions, on_choice: Callable[[Array], object]
    ) -> tuple[int, bool]:
        """Search; return a bound on the objective, and whether the search is complete.

        ``on_choice`` is called with every assignment found, which may exceed rows that are not in
        the model. The bound is more than ``most`` if no assignment costs that or less.
        """
        if not self.has_objective:
            self.model.minimise(most=self.most)
            self.has_objective = True
        self.model.hint([None] * len(self.graph.size) if hint is None else hint.tolist())
        answer = self.model.solve(options, lambda choice: on_choice(np.array(choice, np.int64)))
        if answer.infeasible:
            return self.most + 1, True
        return max(0, math.floor(answer.bound)), answer.exhausted


@dataclass
class Finish:
    """Searches for assignments better than the incumbent until there is none.

    Parameters
    ----------
    model : GraphModel
        Of all assignments that are better.
    on_choice : callable
        Called with every assignment that fits.
    """

    model: GraphModel
    on_choice: Callable[[Array], object]

    def __post_init__(self) -> None:
        self.rows, self.costs = self.model.rows, self.model.costs
        self.last: Array | None = None
        self.exceeding: Array | None = None
        self.bound = self.costs.floor

    def run(
        self,
        hint: Array | None,
        tight: Array,
        options: SolveOptions,
    ) -> bool:
        """Search; return whether it is proven that nothing better than the last choice exists.

        ``tight`` are the rows in the model at first, besides those with a price.
        """
        first = np.concatenate([np.flatnonzero(self.costs.prices), tight])
        for t in np.unique(first).tolist():
            self.model.add_row(t)
        while not options.budget.is_spent:
            self.last = self.exceeding = None
            bound, complete = self.model.solve(hint, options, self._sort)
            self.bound = max(self.bound, self.costs.floor + bound)
            if not complete:
                return False
            if self.last is None or self.last is not self.exceeding:
                return True
            self._add_exceeded_rows(self.last)
            hint = self.last
        return False

    def lower_bound(self) -> int:
        """Return a lower bound on the cost of all assignments better than the incumbent."""
        return -((-self.bound) // self.costs.scale)

    def _sort(self, choice: Array) -> None:
        self.last = choice
        if (used(self.rows, choice) > self.rows.capacity).any():
            self.exceeding = choice
        else:
            self.on_choice(choice)

    def _add_exceeded_rows(self, choice: Array) -> None:
        """Add the rows that are exceeded most, not close to one another."""
        excess = used(self.rows, choice) - self.rows.capacity
        for _ in range(ROWS_AT_ONCE):
            worst = int(excess.argmax())
            if excess[worst] <= 0:
                break
            self.model.add_row(worst)
            near = slice(max(worst - len(excess) // 50, 0), worst + len(excess) // 50 + 1)
            excess[near] = 0
