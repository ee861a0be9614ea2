"""Prices on memory: the Lagrangian bound, and good assignments on the way.

For any prices p >= 0 on the rows,

    L(p) = min over x of  [ cost(x) + p . use(x) ]  -  p . capacity

is a lower bound on the cost of every assignment that fits. L is concave and piecewise linear, a
piece for each assignment found; the next prices are where the pieces known so far allow the
highest value (Kelley's cutting planes), pulled halfway back to the best prices so far. With a
single row that matters, which is usual, this is a search on a line and ends after a few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from shardwright.solver.elimination import Elimination
from shardwright.solver.memory import MemoryRows, round_prices
from shardwright.solver.network import Network
from shardwright.solver.problem import Array

UNIT_ROUNDOFF = 2.0**-53

PRICE_RANGE = 1e4
"""Largest price, in units of the cost of the dearest assignment for all that a row can exceed."""


@dataclass(frozen=True)
class Piece:
    """One assignment, seen as a linear function of the prices: ``constant + slope . p``."""

    constant: float
    slope: Array
    choice: list[int]

    @property
    def fits(self) -> bool:
        """Whether the assignment respects every row."""
        return not (self.slope > 0).any()


@dataclass
class DualState:
    """The best prices so far, their bound, and every assignment met."""

    prices: Array
    bound: float
    pieces: list[Piece]


class Dual:
    """Evaluates the Lagrangian of one network.

    Parameters
    ----------
    network : Network
    rows : MemoryRows
    elimination : Elimination
        Of the network's structure.
    """

    def __init__(self, network: Network, rows: MemoryRows, elimination: Elimination) -> None:
        self.network = network
        self.rows = rows
        self.elimination = elimination
        self.tables = list(network.tables.values())
        self.evaluations = 0
        self._terms = 2 * len(network.unary) + len(network.tables) + len(rows.variables)

    def evaluate(self, prices: Array, weight: float = 1.0) -> tuple[float, Piece]:
        """Return ``min of weight * cost + prices . use``, rounded down, and its assignment."""
        self.evaluations += 1
        unary, tokens = self.rows.priced(self.network, prices, weight)
        tables = self.tables if weight == 1.0 else [weight * table for table in self.tables]
        relaxed = self.elimination.minimise(unary, tables, tokens)
        error = self._terms * UNIT_ROUNDOFF * self._magnitude(relaxed.value)
        return relaxed.value - error, self.piece(relaxed.choice)

    def _magnitude(self, value: float) -> float:
        """Return a bound on the sum of the absolute terms of a value (costs may be negative)."""
        negative = sum(min(0.0, float(cost.min())) for cost in self.network.unary)
        negative += sum(min(0.0, float(table.min())) for table in self.tables)
        return abs(value) - 2 * negative

    def piece(self, choice: list[int]) -> Piece:
        """Return the linear function that an assignment contributes."""
        cost = network_cost(self.network, choice)
        return Piece(cost, self.rows.profile(choice) - self.rows.capacity, choice)


def network_cost(network: Network, choice: list[int]) -> float:
    """Return the cost of a choice of remaining strategies."""
    cost = sum(float(unary[index]) for unary, index in zip(network.unary, choice, strict=True))
    return cost + sum(
        float(table[choice[first], choice[second]])
        for (first, second), table in network.tables.items()
    )


def maximise_bound(
    dual: Dual,
    on_fit: Callable[[Piece], float],
    keep_going: Callable[[], bool],
    iterations: int = 80,
    tolerance: float = 1e-6,
) -> DualState:
    """Raise the Lagrangian bound by cutting planes.

    Parameters
    ----------
    on_fit : callable
        Told of every assignment that fits; returns the best cost known.
    keep_going : callable
        False once time is up.
    tolerance : float
        Relative; the search ends when no more can be gained.
    """
    bound, start = dual.evaluate(np.zeros(len(dual.rows)))
    state = DualState(np.zeros(len(dual.rows)), bound, [start])
    best_cost = np.inf
    seen = [state.prices]
    if start.fits:
        on_fit(start)
        return state
    for iteration in range(iterations):
        highest, prices = _master(state.pieces, dual.rows.capacity)
        if highest - state.bound <= tolerance * abs(state.bound):
            break
        if iteration % 3 and (prices > 0).sum() > 1:
            prices = (prices + state.prices) / 2
        prices = round_prices(prices)
        if any(np.array_equal(prices, earlier) for earlier in seen):
            break
        seen.append(prices)
        value, piece = dual.evaluate(prices)
        bound = value - spent(prices, dual.rows.capacity)
        state.pieces.append(piece)
        if piece.fits:
            best_cost = on_fit(piece)
        if bound > state.bound:
            state.bound, state.prices = bound, prices
        if not keep_going() or best_cost <= state.bound + tolerance * abs(state.bound):
            break
    return state


def spent(prices: Array, capacity: Array) -> float:
    """Return ``prices . capacity``, rounded up."""
    terms = prices * capacity
    return float(terms.sum() + len(terms) * UNIT_ROUNDOFF * np.abs(terms).sum())


def _master(pieces: list[Piece], capacity: Array) -> tuple[float, Array]:
    """Return the highest value that all pieces allow, and where it is."""
    slopes = np.array([piece.slope for piece in pieces])
    constants = np.array([piece.constant for piece in pieces])
    rows = np.flatnonzero((slopes > 0).any(axis=0))
    prices = np.zeros(len(capacity))
    if len(rows) == 1:
        height, prices[rows[0]] = _highest_on_line(constants, slopes[:, rows[0]])
    else:
        height, prices[rows] = _highest(constants, slopes[:, rows])
    return height, prices


def _highest_on_line(constants: Array, slopes: Array) -> tuple[float, float]:
    """Return the maximum over p >= 0 of the minimum of ``constant + slope p``, and its place."""
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (constants[:, None] - constants) / (slopes - slopes[:, None])
    crossings = crossings[np.isfinite(crossings) & (crossings > 0)]
    if (slopes >= 0).all():  # nothing found fits yet: far beyond every crossing
        steepest = np.abs(constants).max() / np.abs(slopes[slopes != 0]).min()
        return np.inf, max(float(crossings.max(initial=0.0)), steepest) * 2.0
    heights = (constants + crossings[:, None] * slopes).min(axis=1)
    best = int(heights.argmax())
    return float(heights[best]), float(crossings[best])


def _highest(constants: Array, slopes: Array) -> tuple[float, Array]:
    """Return the same over several prices, by linear programming; everything is scaled to one."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    height = solver.NumVar(-solver.infinity(), solver.infinity(), "height")
    top = max(float(np.abs(constants).max()), 1e-300)
    scale = np.abs(slopes).max(axis=0)
    scale[scale == 0] = 1.0
    prices = [solver.NumVar(0.0, PRICE_RANGE, f"price{row}") for row in range(slopes.shape[1])]
    for constant, slope in zip(constants / top, slopes / scale, strict=True):
        constraint = solver.Constraint(-solver.infinity(), float(constant))
        constraint.SetCoefficient(height, 1.0)
        for price, coefficient in zip(prices, slope, strict=True):
            constraint.SetCoefficient(price, -float(coefficient))
    solver.Maximize(height)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return -np.inf, np.zeros(slopes.shape[1])
    found = np.array([price.solution_value() for price in prices])
    return top * solver.Objective().Value(), found * top / scale
