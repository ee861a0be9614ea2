"""The 0/1 model of an assignment problem, solved by CP-SAT.

    x_va  exactly one for each variable            y_uv,ab  sum over b = x_ua, sum over a = x_vb
    each row:  sum of use . x <= capacity          minimise cost . x + table . y

All numbers are integers. The exact search (`exact.network_model`) and the anytime search
(`anytime.cpsat_finish`) scale their costs and choose what goes into the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from shardwright.solver.interruptible import solve_model
from shardwright.solver.methods import MOMENT, SolveOptions
from shardwright.solver.problem import Array
from shardwright.solver.work import SECONDS_OF

Literal = cp_model.IntVar


@dataclass(frozen=True)
class IntegerAnswer:
    """The answer of CP-SAT.

    Parameters
    ----------
    bound : float
        A lower bound on the objective.
    choice : list of int or None
        The best choice found, by variable.
    exhausted, infeasible : bool
        Whether the search is complete, and whether it has proven that there is no choice.
    """

    bound: float
    choice: list[int] | None
    exhausted: bool
    infeasible: bool


class IntegerModel:
    """A 0/1 model: a literal for every kept strategy and for every allowed pair of strategies."""

    def __init__(self) -> None:
        self.model = cp_model.CpModel()
        self.literals: list[list[Literal | None]] = []
        self._terms: list[Literal] = []
        self._weights: list[int] = []

    def add_variable(self, keep: Array, costs: Array) -> None:
        """Add a variable that takes exactly one of the kept strategies."""
        literals: list[Literal | None] = [None] * len(keep)
        for strategy in np.flatnonzero(keep).tolist():
            literals[strategy] = literal = self.model.new_bool_var("")
            self._charge(literal, int(costs[strategy]))
        self.model.add_exactly_one([literal for literal in literals if literal is not None])
        self.literals.append(literals)

    def add_pair(self, first: int, second: int, allowed: Array, costs: Array) -> None:
        """Add a table: a literal for every allowed entry between kept strategies."""
        rows, columns = self._kept(first), self._kept(second)
        part = np.ix_([a for a, _ in rows], [b for b, _ in columns])
        allowed, costs = allowed[part], costs[part]
        if allowed.all() and not costs.any():
            return
        by_row: list[list[Literal]] = [[] for _ in rows]
        by_column: list[list[Literal]] = [[] for _ in columns]
        for i, j in zip(*np.nonzero(allowed), strict=True):
            literal = self.model.new_bool_var("")
            by_row[i].append(literal)
            by_column[j].append(literal)
            self._charge(literal, int(costs[i, j]))
        for strategies, groups in ((rows, by_row), (columns, by_column)):
            for (_, strategy), group in zip(strategies, groups, strict=True):
                # One of the group if the strategy is chosen, none otherwise.
                self.model.add_exactly_one([*group, ~strategy])

    def _kept(self, variable: int) -> list[tuple[int, Literal]]:
        literals = enumerate(self.literals[variable])
        return [(strategy, literal) for strategy, literal in literals if literal is not None]

    def _charge(self, variable: Literal, weight: int) -> None:
        if weight:
            self._terms.append(variable)
            self._weights.append(weight)

    def minimise(self, least: int | None = None, most: int | None = None) -> None:
        """Set the objective, the sum of all costs so far, with known bounds on it."""
        objective = cp_model.LinearExpr.weighted_sum(self._terms, self._weights)
        if least is not None:
            self.model.add(objective >= least)
        if most is not None:
            self.model.add(objective <= most)
        self.model.minimize(objective)

    def add_row(self, amounts: Iterable[tuple[int, int, int]], capacity: int) -> None:
        """Constrain the sum of (variable, strategy, amount), of the chosen strategies."""
        self.model.add(self._use(amounts) <= capacity)

    def add_priced_row(
        self, amounts: Iterable[tuple[int, int, int]], capacity: int, price: int, most_left: int
    ) -> None:
        """Add a row whose unused memory, at most ``most_left``, costs ``price`` a unit."""
        left = self.model.new_int_var(0, min(capacity, most_left), "")
        self.model.add(self._use(amounts) + left == capacity)
        self._charge(left, price)

    def _use(self, amounts: Iterable[tuple[int, int, int]]) -> Any:
        terms: list[Literal] = []
        weights: list[int] = []
        for variable, strategy, amount in amounts:
            literal = self.literals[variable][strategy]
            if literal is not None and amount:
                terms.append(literal)
                weights.append(amount)
        return cp_model.LinearExpr.weighted_sum(terms, weights)

    def hint(self, choice: Sequence[int | None]) -> None:
        """Start the search from a choice; None leaves a variable open."""
        untyped: Any = self.model  # `clear_hints` has no types
        untyped.clear_hints()
        for literals, position in zip(self.literals, choice, strict=True):
            for strategy, literal in enumerate(literals):
                if literal is not None and position is not None:
                    self.model.add_hint(literal, strategy == position)

    def solve(
        self, options: SolveOptions, on_choice: Callable[[list[int]], object] | None = None
    ) -> IntegerAnswer:
        """Search; ``on_choice`` is called with every choice found."""
        solver = cp_model.CpSolver()
        budget = options.budget
        if budget.work.is_counted:
            units = max(budget.left, MOMENT) / SECONDS_OF.cpsat_unit
            solver.parameters.max_deterministic_time = units
        solver.parameters.max_time_in_seconds = max(budget.seconds_by_clock(), MOMENT)
        solver.parameters.num_workers = options.workers
        solver.parameters.random_seed = options.seed
        callback = None if on_choice is None else _Callback(self, on_choice)
        status = solve_model(solver, self.model, callback)
        budget.charge(solver.response_proto.deterministic_time * SECONDS_OF.cpsat_unit)
        solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        infeasible = status == cp_model.INFEASIBLE
        return IntegerAnswer(
            bound=math.inf if infeasible else solver.best_objective_bound,
            choice=self.chosen(solver.boolean_value) if solved else None,
            exhausted=infeasible or status == cp_model.OPTIMAL,
            infeasible=infeasible,
        )

    def chosen(self, holds: Callable[[Literal], bool]) -> list[int]:
        """Return the choice in which these literals hold."""
        return [
            next(
                (a for a, literal in enumerate(literals) if literal is not None and holds(literal)),
                0,
            )
            for literals in self.literals
        ]


class _Callback(cp_model.CpSolverSolutionCallback):
    """Hands on every choice when it is found."""

    def __init__(self, model: IntegerModel, on_choice: Callable[[list[int]], object]) -> None:
        super().__init__()
        self.model, self.on_choice = model, on_choice

    def on_solution_callback(self) -> None:
        """Hand on the choice; CP-SAT calls this."""
        self.on_choice(self.model.chosen(self.boolean_value))
