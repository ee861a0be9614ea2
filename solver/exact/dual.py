"""The Lagrangian dual: prices on memory, a lower bound, and assignments found at the prices.

For any prices p >= 0 on the rows,

    L(p) = min over x of  [ cost(x) + p . use(x) ]  -  p . capacity

is a lower bound on the cost of every assignment that fits. L is concave and piecewise linear, with
a piece for each assignment. The next prices maximise the pieces known so far (Kelley's cutting
planes), averaged with the best prices so far. With a single row that binds, which is usual, this is
a search on a line and ends after a few steps. So prices start on the row that is exceeded most, and
others get one once that row's price cannot raise the bound: with prices on many rows equal layers
differ, and share no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.linear_program import highest_prices
from shardwright.solver.memory_rows import MemoryRows, round_prices
from shardwright.solver.network import Network
from shardwright.solver.problem import Array, distinct

UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True)
class Piece:
    """One assignment as a linear function of the prices: ``constant + slope . p``."""

    constant: float
    slope: Array
    choice: list[int]

    @property
    def fits(self) -> bool:
        """Whether the assignment fits in every row."""
        return not (self.slope > 0).any()


@dataclass
class DualState:
    """The best prices so far, their bound, and every assignment found."""

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
        messages = sum(map(len, elimination.groups))  # each less its least entry, added later
        self._terms = 2 * len(network.unary) + len(network.tables) + len(rows.variables)
        self._terms += 2 * messages

    def evaluate(self, prices: Array, weight: float = 1.0) -> tuple[float, Piece]:
        """Return ``min of weight * cost + prices . use``, rounded down, and its assignment."""
        self.evaluations += 1
        unary, keys = self.rows.priced(self.network, prices, weight)
        if weight == 1.0:
            table_keys = self.network.table_keys
            relaxed = self.elimination.minimise(unary, self.tables, keys, table_keys)
        else:
            tables = [weight * table for table in self.tables]
            relaxed = self.elimination.minimise(unary, tables, keys)
        error = self._terms * UNIT_ROUNDOFF * self._magnitude(relaxed.value)
        return relaxed.value - error, self.piece(relaxed.choice)

    def _magnitude(self, value: float) -> float:
        """Return a bound on the sum of the absolute terms of a value; costs may be negative."""
        return abs(value) - 2 * self._negative

    @cached_property
    def _negative(self) -> float:
        """The least sum of the negative terms."""
        unary, tables = self.network.unary, self.tables
        least = {id(a): min(0.0, float(a.min())) for a in distinct([*unary, *tables])}
        return sum(least[id(cost)] for cost in unary) + sum(least[id(table)] for table in tables)

    def piece(self, choice: list[int]) -> Piece:
        """Return the linear function of an assignment."""
        slope = self.rows.profile(choice) - self.rows.capacity
        return Piece(self.network.cost(choice), slope, choice)


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
        Called with every assignment that fits; returns the best cost known.
    keep_going : callable
        False once the time is over.
    tolerance : float
        Relative improvement below which the search ends.
    """
    bound, start = dual.evaluate(np.zeros(len(dual.rows)))
    state = DualState(np.zeros(len(dual.rows)), bound, [start])
    best_cost = np.inf
    tried = [state.prices]
    if start.fits:
        on_fit(start)
        return state
    rows = [_most_exceeded(start.slope, dual.rows.capacity)]
    for iteration in range(iterations):
        prices = _next_prices(state, dual.rows.capacity, rows, tried, iteration, tolerance)
        if prices is None:
            break
        tried.append(prices)
        try:
            value, piece = dual.evaluate(prices)
        except OutOfTimeError:
            break
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


def _next_prices(
    state: DualState,
    capacity: Array,
    rows: list[int],
    tried: list[Array],
    iteration: int,
    tolerance: float,
) -> Array | None:
    """Return prices by which the bound may rise, with further rows where needed; None if none."""
    while True:
        highest, prices = _master(state.pieces, len(capacity), rows)
        if highest - state.bound > tolerance * abs(state.bound):
            if iteration % 3 and (prices > 0).sum() > 1:
                prices = (prices + state.prices) / 2
            prices = round_prices(prices)
            if not any(np.array_equal(prices, earlier) for earlier in tried):
                return prices
        further = _further_row(state, capacity, rows, tolerance)
        if further is None:
            return None
        rows.append(further)


def _further_row(
    state: DualState, capacity: Array, rows: list[int], tolerance: float
) -> int | None:
    """Return a row without a price that the best assignments at the best prices exceed, if any."""
    values = [piece.constant + float(piece.slope @ state.prices) for piece in state.pieces]
    least = min(values)
    best = [
        piece.slope
        for piece, value in zip(state.pieces, values, strict=True)
        if value <= least + tolerance * abs(least)
    ]
    slope = np.array(best).max(axis=0)
    slope[rows] = 0.0
    return _most_exceeded(slope, capacity) if (slope > 0).any() else None


def _most_exceeded(slope: Array, capacity: Array) -> int:
    """Return the row that is exceeded most, relative to what an assignment takes."""
    return int((slope / np.maximum(slope + capacity, 1.0)).argmax())


def _master(pieces: list[Piece], count: int, rows: list[int]) -> tuple[float, Array]:
    """Return the maximum over the prices of some rows of the lowest piece, and its place."""
    slopes = np.array([piece.slope[rows] for piece in pieces])
    constants = np.array([piece.constant for piece in pieces])
    prices = np.zeros(count)
    if len(rows) == 1:
        height, prices[rows[0]] = _highest_on_line(constants, slopes[:, 0])
    else:
        height, prices[rows] = highest_prices(constants, slopes)
    return height, prices


def _highest_on_line(constants: Array, slopes: Array) -> tuple[float, float]:
    """Return the maximum over p >= 0 of the minimum of ``constant + slope p``, and its place."""
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (constants[:, None] - constants) / (slopes - slopes[:, None])
    crossings = crossings[np.isfinite(crossings) & (crossings > 0)]
    if (slopes >= 0).all():  # no assignment fits yet: go far beyond every crossing
        steepest = np.abs(constants).max() / np.abs(slopes[slopes != 0]).min()
        return np.inf, max(float(crossings.max(initial=0.0)), steepest) * 2.0
    heights = (constants + crossings[:, None] * slopes).min(axis=1)
    best = int(heights.argmax())
    return float(heights[best]), float(crossings[best])
