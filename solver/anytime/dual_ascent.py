"""The Lagrangian bound: a price on every row of memory, raised where the memory is exceeded.

    bound(prices, messages)  =  constant + message bound of c_v + sum of prices over v's uses
                                - sum over rows of price * capacity

After each sweep the prices follow the excess of the decoded assignment (Polyak's step towards the
best cost known, on a running mean of the excess), and the messages stay: they remain valid. The
mean has to be long: rows that are close in time take turns at being the fullest, and the prices
would only follow them to and fro.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardwright.solver.anytime.compiled import compiled
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.message_passing import ROUNDING, Messages
from shardwright.solver.memory import round_prices
from shardwright.solver.problem import Array

MEMORY_OF_EXCESS = 0.9
"""How much of the running mean of the excess stays at each step."""

PATIENCE = 6
"""Steps without a better bound before they become shorter."""

LAST_PATIENCE = 40
"""Steps without a better bound before the best prices are taken up again."""

GROWTH, SHRINKING, RETURNING = 1.05, 0.8, 0.5

FIRST_LENGTH, LONGEST, SHORTEST = 0.3, 1.0, 1e-4


@dataclass
class Stand:
    """Where the ascent stood when its bound was best."""

    bound: float
    prices: Array
    messages: tuple[Array, Array]
    excess: Array | None
    length: float


class Ascent:
    """Prices and messages that raise the bound, step by step."""

    def __init__(self, graph: Graph, rows: Rows) -> None:
        self.graph, self.rows = graph, rows
        self.messages = Messages(graph)
        self.prices = np.zeros(len(rows.capacity))
        self.excess: Array | None = None
        self.length = FIRST_LENGTH
        self.stand = self._here(-math.inf)
        self.waited = 0

    def step(self, target: float) -> float:
        """Sweep once and move the prices; return the bound, without the constant."""
        bound = self.sweep()
        self.waited += 1
        if bound > self.best:
            self.length = min(self.length * GROWTH, LONGEST)
            self.stand, self.waited = self._here(bound), 0
        elif self.waited > LAST_PATIENCE:
            self.stand.length = max(self.stand.length * RETURNING, SHORTEST)
            self.return_to_prices()
        elif self.waited % PATIENCE == 0:
            self.length = max(self.length * SHRINKING, SHORTEST)
        if len(self.prices):
            self._move(max(target - self.best, 1e-6 * abs(bound)))
        return bound

    @property
    def best(self) -> float:
        """The best bound so far."""
        return self.stand.bound

    def _here(self, bound: float) -> Stand:
        return Stand(bound, self.prices, self.messages.save(), self.excess, self.length)

    def go_back(self) -> None:
        """Take up the best prices again, with the messages that gave the bound there."""
        self.return_to_prices()
        self.messages.restore(self.stand.messages)

    def return_to_prices(self) -> None:
        """Take up the best prices; the messages have come further since, so they stay."""
        self.prices, self.excess = self.stand.prices, self.stand.excess
        self.length, self.waited = self.stand.length, 0

    def marginals(self) -> Array:
        """Return for each strategy how much more than the best bound it costs at least.

        All chains through a variable end a pass with shares of its D_v, so its strategy a costs
        D_v(a) - min D_v more than the bound of the pass before at the same prices.
        """
        self.go_back()
        self.sweep()
        return np.maximum(self.messages.marginals - 2 * self.messages.error, 0.0)

    @property
    def settled(self) -> bool:
        """Whether no step is short enough to raise the bound further."""
        return self.stand.length <= SHORTEST or not len(self.prices)

    def sweep(self) -> float:
        """Return the bound at the current prices."""
        unary = self.priced()
        bound = self.messages.sweep(unary)
        # No `@`: threads of a linear algebra library would fight for the processor.
        spent = math.fsum((self.prices * self.rows.capacity).tolist())
        return bound - spent - ROUNDING * (abs(bound) + abs(spent))

    def priced(self) -> Array:
        """Return the costs of the variables with their memory at the current prices."""
        return priced_unary(self.graph, self.rows, self.prices)

    def _move(self, gap: float) -> None:
        excess = used(self.rows, self.messages.choice) - self.rows.capacity
        if self.excess is not None:
            excess = MEMORY_OF_EXCESS * self.excess + (1 - MEMORY_OF_EXCESS) * excess
        self.excess = excess
        direction = np.where((self.prices > 0) | (excess > 0), excess, 0.0)
        square = float((direction * direction).sum())
        if square > 0:
            prices = self.prices + self.length * gap / square * direction
            self.prices = round_prices(np.maximum(prices, 0.0))


@compiled
def priced_unary(graph: Graph, rows: Rows, prices: Array) -> Array:
    """Add to the costs what the memory of each strategy costs at these prices."""
    total = np.zeros(len(prices) + 1)
    for t in range(len(prices)):
        total[t + 1] = total[t] + prices[t]
    unary = graph.unary.copy()
    for k in range(len(rows.owner)):
        price = total[rows.last[k]] - total[rows.first[k]]
        if price > 0:
            begin = graph.offset[rows.owner[k]]
            for a in range(graph.size[rows.owner[k]]):
                unary[begin + a] += price * rows.amount[rows.place[k] + a]
    return unary


@compiled
def used(rows: Rows, choice: Array) -> Array:
    """Return the memory that an assignment uses in each row, above what is unavoidable."""
    change = np.zeros(len(rows.capacity) + 1)
    for k in range(len(rows.owner)):
        amount = rows.amount[rows.place[k] + choice[rows.owner[k]]]
        change[rows.first[k]] += amount
        change[rows.last[k]] -= amount
    return np.cumsum(change)[:-1]
