"""The proof: what is left, as a 0/1 model for CP-SAT over costs from which the bound is taken out.

Prices and messages are rounded to multiples of 1 / scale; any values are valid ones, so that

    cost(x)  =  floor + ( sum of D_v(x_v) + sum of T_uv(x_u, x_v) + sum of price_t s_t ) / scale
    s_t      =  capacity_t - use_t(x)  >=  0        the memory left, of each row with a price

holds exactly, in integers, with D, T >= 0. Whatever is larger than the gap between the best cost
known and the floor cannot be in a better assignment: strategies and pairs whose D or T is, and
more memory left than the gap over the price. Rows without a price are added when they are broken.

    x_va  exactly one for each variable          y_uv,ab:  sum over b = x_ua, sum over a = x_vb
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from shardwright.solver.anytime.dual_ascent import priced_unary, used
from shardwright.solver.anytime.flat import ranges
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.message_passing import Messages, diffuse
from shardwright.solver.interruptible import solve_model
from shardwright.solver.problem import Array

DIFFUSIONS = 300

MOST_ENTRIES = 250_000
"""A larger model is not built."""

REACH = 2.0**58
"""No integer here is larger."""

ROWS_AT_ONCE = 12
"""Broken rows that are added to the model after each search."""

ROWS_AT_FIRST = 60


@dataclass
class Reparametrised:
    """The same costs, split anew: `floor` is a bound, the rest is not negative.

    All are integers in units of 1 / scale; an entry of at least `REACH` is forbidden.
    """

    scale: int
    floor: int
    prices: Array
    unary: Array
    tables: list[Array]


def reparametrise(
    graph: Graph, rows: Rows, prices: Array, messages: Messages | None, gap: float
) -> Reparametrised:
    """Split the costs anew by messages that are good at these prices; by none at first."""
    scale = 1 if messages is None else _scale(graph, rows, prices, gap)
    whole = np.round(prices * scale).astype(np.int64)
    total = _priced(graph, rows, whole, scale)
    if messages is not None:
        diffuse(graph, priced_unary(graph, rows, whole / scale), messages.pieces, DIFFUSIONS)
    spent = zip(whole.tolist(), rows.capacity.tolist(), strict=True)
    floor = -sum(price * limit for price, limit in spent)
    tables = []
    for e in range(len(graph.first)):
        ends = graph.first[e], graph.second[e]
        shape = graph.size[ends[0]], graph.size[ends[1]]
        entries = graph.tables[graph.place[e] : graph.place[e] + shape[0] * shape[1]]
        forbidden = entries >= graph.big
        table = np.where(forbidden, 0, entries).astype(np.int64).reshape(shape) * scale
        if messages is not None:
            one, other = (_whole(part, scale) for part in messages.of_pair(e))
            table = table - one[:, None] - other
            total[graph.offset[ends[0]] : graph.offset[ends[0] + 1]] += one
            total[graph.offset[ends[1]] : graph.offset[ends[1] + 1]] += other
        flat = table.ravel()
        least = int(flat[~forbidden].min()) if not forbidden.all() else 0
        floor += least
        tables.append(np.where(forbidden, int(REACH), flat - least))
    forbidden = graph.unary >= graph.big
    total[forbidden] = int(REACH)
    lowest = np.minimum.reduceat(total, graph.offset[:-1])
    floor += sum(lowest.tolist())
    total = np.where(forbidden, int(REACH), total - np.repeat(lowest, graph.size))
    return Reparametrised(scale, floor, whole, total, tables)


def _priced(graph: Graph, rows: Rows, prices: Array, scale: int) -> Array:
    """Return the variables' costs with their memory at these prices, in units of 1 / scale."""
    total = np.where(graph.unary >= graph.big, 0, graph.unary).astype(np.int64) * scale
    until = np.concatenate([[0], np.cumsum(prices)])
    for k in np.flatnonzero(until[rows.last] > until[rows.first]).tolist():
        v = rows.owner[k]
        amounts = rows.amount[rows.place[k] : rows.place[k] + graph.size[v]]
        total[graph.offset[v] : graph.offset[v + 1]] += amounts * (
            until[rows.last[k]] - until[rows.first[k]]
        )
    return total


def _scale(graph: Graph, rows: Rows, prices: Array, gap: float) -> int:
    """Return a power of two that keeps prices fine and all sums within 64 bits."""
    entries = int((graph.size[graph.first] * graph.size[graph.second]).sum())
    terms = len(graph.unary) + entries + len(prices) + 1  # CP-SAT adds up all of them
    wanted = 4.0
    if (prices > 0).any():
        wanted = max(wanted, 2.0**10 / float(np.median(prices[prices > 0])))
    priced = priced_unary(graph, rows, prices)[graph.unary < graph.big]
    tables = graph.tables[graph.tables < graph.big]
    largest = max(float(np.abs(part).max(initial=1.0)) for part in (priced, tables))
    most = min(REACH / (16 * largest), REACH / (max(gap, 1.0) * terms))
    return int(2.0 ** math.floor(math.log2(max(min(wanted, most), 1.0))))


def _whole(messages: Array, scale: int) -> Array:
    """Return messages in units of 1 / scale; any values are valid, so large ones are cut."""
    most = REACH / 64
    return np.clip(np.round(messages * scale), -most, most).astype(np.int64)


class IntegerModel:
    """The 0/1 model of all assignments that cost at most ``most`` (in units of 1 / scale)."""

    def __init__(
        self, graph: Graph, rows: Rows, costs: Reparametrised, keep: Array, most: int
    ) -> None:
        self.graph, self.rows, self.costs, self.most = graph, rows, costs, most
        self.model = cp_model.CpModel()
        self.literals: list[cp_model.IntVar | None] = [None] * len(keep)
        self.terms: list[cp_model.IntVar] = []
        self.weights: list[int] = []
        self.in_model: set[int] = set()
        keep = keep & (costs.unary <= most)
        for v in range(len(graph.size)):
            self._add_variable(v, keep)
        for e in range(len(graph.first)):
            self._add_pair(e)

    def _add_variable(self, v: int, keep: Array) -> None:
        span = range(self.graph.offset[v], self.graph.offset[v + 1])
        chosen = []
        for place in span:
            if keep[place]:
                self.literals[place] = literal = self.model.new_bool_var("")
                self._charge(literal, int(self.costs.unary[place]))
                chosen.append(literal)
        self.model.add_exactly_one(chosen)

    def _charge(self, variable: cp_model.IntVar, weight: int) -> None:
        if weight:
            self.terms.append(variable)
            self.weights.append(weight)

    def _add_pair(self, e: int) -> None:
        graph = self.graph
        one, other = (
            [
                (a, self.literals[graph.offset[v] + a])
                for a in range(graph.size[v])
                if self.literals[graph.offset[v] + a] is not None
            ]
            for v in (graph.first[e], graph.second[e])
        )
        table = self.costs.tables[e].reshape(-1, graph.size[graph.second[e]])
        part = table[np.ix_([a for a, _ in one], [b for b, _ in other])]
        if not part.any():
            return
        by_row: list[list[cp_model.IntVar]] = [[] for _ in one]
        by_column: list[list[cp_model.IntVar]] = [[] for _ in other]
        for i, j in zip(*np.nonzero(part <= self.most), strict=True):
            literal = self.model.new_bool_var("")
            by_row[i].append(literal)
            by_column[j].append(literal)
            self._charge(literal, int(part[i, j]))
        for sides, groups in ((one, by_row), (other, by_column)):
            for (_, literal), group in zip(sides, groups, strict=True):
                # Just what the literal says: one of the group, or not the literal.
                self.model.add_exactly_one([*group, ~literal])

    def add_row(self, t: int) -> None:
        """Add the memory limit at one time."""
        self.in_model.add(t)
        rows, graph = self.rows, self.graph
        alive = np.flatnonzero((rows.first <= t) & (t < rows.last))
        counts = graph.size[rows.owner[alive]]
        amounts = np.zeros(len(graph.unary), np.int64)
        places = ranges(graph.offset[rows.owner[alive]], counts)
        np.add.at(amounts, places, rows.amount[ranges(rows.place[alive], counts)])
        terms: list[cp_model.IntVar] = []
        weights: list[int] = []
        for place in np.flatnonzero(amounts).tolist():
            literal = self.literals[place]
            if literal is not None:
                terms.append(literal)
                weights.append(int(amounts[place]))
        price, capacity = int(self.costs.prices[t]), int(rows.capacity[t])
        used_here = cp_model.LinearExpr.weighted_sum(terms, weights)
        if price == 0:
            self.model.add(used_here <= capacity)
        else:
            left = self.model.new_int_var(0, min(capacity, self.most // price), "")
            self.model.add(used_here + left == capacity)
            self._charge(left, price)

    def solve(
        self,
        hint: Array | None,
        seconds: float,
        seed: int,
        workers: int,
        on_choice: Callable[[Array], object],
    ) -> tuple[int, str]:
        """Search; return a bound on the objective and how it ended.

        ``on_choice`` is told every assignment found, which may break rows that are not in the
        model. The bound is more than ``most`` if there is nothing at or below it.
        """
        if not self.model.has_objective():
            objective = cp_model.LinearExpr.weighted_sum(self.terms, self.weights)
            self.model.add(objective <= self.most)
            self.model.minimize(objective)
        untyped: Any = self.model  # `clear_hints` has no types
        untyped.clear_hints()
        if hint is not None:
            for v, place in enumerate((self.graph.offset[:-1] + hint).tolist()):
                for other in range(self.graph.offset[v], self.graph.offset[v + 1]):
                    literal = self.literals[other]
                    if literal is not None:
                        self.model.add_hint(literal, other == place)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(seconds, 0.01)
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        status = solve_model(solver, self.model, _Listener(self, on_choice))
        if status == cp_model.INFEASIBLE:
            return self.most + 1, "exhausted"
        bound = max(0, math.floor(solver.best_objective_bound))
        return bound, "exhausted" if status == cp_model.OPTIMAL else "stopped"

    def chosen(self, holds: Callable[[cp_model.IntVar], bool]) -> Array:
        """Return the assignment in which these literals hold."""
        graph = self.graph
        choice = np.zeros(len(graph.size), np.int64)
        for v in range(len(choice)):
            for a in range(graph.size[v]):
                literal = self.literals[graph.offset[v] + a]
                if literal is not None and holds(literal):
                    choice[v] = a
        return choice


class _Listener(cp_model.CpSolverSolutionCallback):
    """Hands on every assignment as it is found."""

    def __init__(self, model: IntegerModel, on_choice: Callable[[Array], object]) -> None:
        super().__init__()
        self.model, self.hand_on = model, on_choice

    def on_solution_callback(self) -> None:
        """Called by the solver."""
        self.hand_on(self.model.chosen(self.boolean_value))


class Finish:
    """Searches for anything better than what is known, until there is none.

    Parameters
    ----------
    graph, rows : Graph, Rows
    costs : Reparametrised
    keep : array of bool
        The strategies that may be in a better assignment.
    known : int
        The best cost known, without the problem's constant.
    on_choice : callable
        Told every assignment that fits.
    """

    def __init__(
        self,
        graph: Graph,
        rows: Rows,
        costs: Reparametrised,
        keep: Array,
        known: int,
        on_choice: Callable[[Array], object],
    ) -> None:
        self.rows, self.costs, self.on_choice = rows, costs, on_choice
        self.last: Array | None = None
        self.broken: Array | None = None
        most = costs.scale * (known - 1) - costs.floor
        self.model = IntegerModel(graph, rows, costs, keep, most)
        self.bound = costs.floor

    def run(
        self,
        hint: Array | None,
        tight: Array,
        remaining: Callable[[], float],
        seed: int,
        workers: int,
    ) -> bool:
        """Search; return whether nothing better than the last `on_choice` exists.

        ``tight`` are the rows to begin with; those with a price are always in.
        """
        first = np.concatenate([np.flatnonzero(self.costs.prices), tight])
        for t in np.unique(first).tolist():
            self.model.add_row(t)
        while remaining() > 0:
            self.last = self.broken = None
            bound, how = self.model.solve(hint, remaining(), seed, workers, self._sort)
            self.bound = max(self.bound, self.costs.floor + bound)
            if how == "stopped":
                return False
            if self.last is None or self.last is not self.broken:
                return True
            self._add_broken(self.last)
            hint = self.last
        return False

    def lower_bound(self) -> int:
        """Return what no assignment better than the one known costs less than."""
        return -((-self.bound) // self.costs.scale)

    def _sort(self, choice: Array) -> None:
        self.last = choice
        if (used(self.rows, choice) > self.rows.capacity).any():
            self.broken = choice
        else:
            self.on_choice(choice)

    def _add_broken(self, choice: Array) -> None:
        excess = used(self.rows, choice) - self.rows.capacity
        for _ in range(ROWS_AT_ONCE):
            worst = int(excess.argmax())
            if excess[worst] <= 0:
                break
            self.model.add_row(worst)
            near = slice(max(worst - len(excess) // 50, 0), worst + len(excess) // 50 + 1)
            excess[near] = 0
