"""Dual ascent: a price on every row of memory, raised where the memory is exceeded.

    bound(prices, messages)  =  constant + message bound of c_v + sum of prices over v's uses
                                - sum over rows of price * capacity

After each sweep of the messages the prices follow the excess of the decoded assignment (Polyak's
subgradient step towards the best cost known, on a running mean of the excess); the messages stay
valid at other prices. The mean has to be long: rows that are close in time take turns at the peak,
and the prices would oscillate between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardwright.solver.anytime.compiled import compiled
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.message_passing import ROUNDING, Messages
from shardwright.solver.memory_rows import round_prices
from shardwright.solver.problem import Array

MOMENTUM = 0.9
"""Share of the running mean of the excess that stays at each step."""

PATIENCE = 6
"""Steps without a better bound before they become shorter."""

LAST_PATIENCE = 40
"""Steps without a better bound before the ascent returns to the best prices."""

GROWTH, SHRINKING, RETURNING = 1.05, 0.8, 0.5
"""Factors of the step length: after a better bound, without one, and after a return."""

FIRST_LENGTH, LONGEST, SHORTEST = 0.3, 1.0, 1e-4


@dataclass
class Checkpoint:
    """The state of the ascent at its best bound."""

    bound: float
    prices: Array
    messages: tuple[Array, Array]
    excess: Array | None
    length: float


class DualAscent:
    """Prices and messages that raise the bound, step by step."""

    def __init__(self, graph: Graph, rows: Rows) -> None:
        self.graph, self.rows = graph, rows
        self.messages = Messages(graph)
        self.prices = np.zeros(len(rows.capacity))
        self.excess: Array | None = None
        self.length = FIRST_LENGTH
        self.checkpoint = self._save(-math.inf)
        self.failures = 0

    def step(self, target: float) -> float:
        """Sweep once and move the prices; return the bound, without the constant."""
        bound = self.sweep()
        self.failures += 1
        if bound > self.best:
            self.length = min(self.length * GROWTH, LONGEST)
            self.checkpoint, self.failures = self._save(bound), 0
        elif self.failures > LAST_PATIENCE:
            self.checkpoint.length = max(self.checkpoint.length * RETURNING, SHORTEST)
            self.restore_prices()
        elif self.failures % PATIENCE == 0:
            self.length = max(self.length * SHRINKING, SHORTEST)
        if len(self.prices):
            self._move(max(target - self.best, 1e-6 * abs(bound)))
        return bound

    @property
    def best(self) -> float:
        """The best bound so far."""
        return self.checkpoint.bound

    def _save(self, bound: float) -> Checkpoint:
        return Checkpoint(bound, self.prices, self.messages.save(), self.excess, self.length)

    def restore(self) -> None:
        """Return to the best prices, with the messages that gave the bound there."""
        self.restore_prices()
        self.messages.restore(self.checkpoint.messages)

    def restore_prices(self) -> None:
        """Return to the best prices; the messages stay, as they have improved since."""
        self.prices, self.excess = self.checkpoint.prices, self.checkpoint.excess
        self.length, self.failures = self.checkpoint.length, 0

    def marginals(self) -> Array:
        """Return for each strategy a lower bound on its cost above the best bound.

        All chains through a variable end a pass with shares of its D_v, so its strategy a costs
        D_v(a) - min D_v more than the bound of the pass before at the same prices.
        """
        self.restore()
        self.sweep()
        return np.maximum(self.messages.marginals - 2 * self.messages.error, 0.0)

    @property
    def converged(self) -> bool:
        """Whether the steps have become too short to raise the bound further."""
        return self.checkpoint.length <= SHORTEST or not len(self.prices)

    def sweep(self) -> float:
        """Sweep the messages; return the bound at the current prices."""
        unary = self.priced()
        bound = self.messages.sweep(unary)
        # No `@`: threads of a linear algebra library would compete for the cores.
        spent = math.fsum((self.prices * self.rows.capacity).tolist())
        return bound - spent - ROUNDING * (abs(bound) + abs(spent))

    def priced(self) -> Array:
        """Return the costs of the variables and of their memory at the current prices."""
        return priced_unary(self.graph, self.rows, self.prices)

    def _move(self, gap: float) -> None:
        """Move the prices along the mean excess."""
        excess = used(self.rows, self.messages.choice) - self.rows.capacity
        if self.excess is not None:
            excess = MOMENTUM * self.excess + (1 - MOMENTUM) * excess
        self.excess = excess
        direction = np.where((self.prices > 0) | (excess > 0), excess, 0.0)
        square = float((direction * direction).sum())
        if square > 0:
            prices = self.prices + self.length * gap / square * direction
            self.prices = round_prices(np.maximum(prices, 0.0))


@compiled
def priced_unary(graph: Graph, rows: Rows, prices: Array) -> Array:
    """Return the cost of each strategy and of its memory at these prices."""
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
    """Return the memory that an assignment uses in each row, above the base."""
    change = np.zeros(len(rows.capacity) + 1)
    for k in range(len(rows.owner)):
        amount = rows.amount[rows.place[k] + choice[rows.owner[k]]]
        change[rows.first[k]] += amount
        change[rows.last[k]] -= amount
    return np.cumsum(change)[:-1]
