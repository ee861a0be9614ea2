"""The assignment that needs the least memory: what to tell a person whose model does not fit.

The peak is bounded from below by any weighted mean of the rows, with weights w >= 0 that sum to 1:

    min over x of  max over t of use_t(x)   >=   min over x of  sum over t of w_t use_t(x)

The weights are improved by cutting planes; what gap is left is closed by bisection on the limit,
each step an exact search for an assignment that fits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from ortools.linear_solver import pywraplp

from shardwright.solver.elimination import Elimination
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.dual import UNIT_ROUNDOFF
from shardwright.solver.exact.search import solve_exact
from shardwright.solver.memory import MemoryRows
from shardwright.solver.network import (
    Network,
    build_network,
    drop_dominated,
    drop_forbidden,
    fold_decided,
)
from shardwright.solver.problem import FORBIDDEN, Array, Problem
from shardwright.solver.solution import OPTIMALITY_GAP, Solution, relative_gap

ROUNDS = 60

CHEAPENING = 5.0
"""Seconds at most for the cost, once the least memory is known."""


def minimize_memory(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    gap: float = 0.0,
) -> Solution:
    """Return the cheapest of the assignments with the least peak memory use.

    With a ``gap``, a peak that is above the least by that share at most will do, and the cost does
    not matter.

    ``cost`` and ``lower_bound`` of the answer are the peak and a bound on it, in the unit of the
    memory uses; the memory limit of the problem is ignored. The cost of the assignment is
    ``evaluate(problem, solution.assignment).cost``.
    """
    started = time.monotonic()
    free = problem.limited(None)
    search = _PeakSearch(free, started + time_limit, gap)
    feasible = search.descend()
    if feasible:
        search.bisect(seed, workers)
        if not gap:
            search.cheapen(seed, workers)
    closed = relative_gap(search.peak, search.bound) <= OPTIMALITY_GAP
    return Solution(
        assignment=search.assignment,
        cost=search.peak,
        lower_bound=min(search.bound, search.peak),
        status=("optimal" if closed else "feasible") if feasible else "infeasible",
        how=search.how,
        seconds=time.monotonic() - started,
        statistics={"rounds": search.rounds},
    )


class _PeakSearch:
    """The least peak known, a bound on it, and an assignment that has it."""

    def __init__(self, problem: Problem, deadline: float, gap: float) -> None:
        self.problem = problem
        self.deadline = deadline
        self.gap = max(gap, OPTIMALITY_GAP)
        self.assignment: tuple[int, ...] | None = None
        self.peak, self.bound = math.inf, 0.0
        self.rounds = 0
        self.how = "variable elimination, memory prices"
        self.exact = True

    @property
    def remaining(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def closed(self) -> bool:
        return relative_gap(self.peak, self.bound) <= self.gap

    def offer(self, assignment: Sequence[int]) -> None:
        """Keep an assignment with a lower peak."""
        result = evaluate(self.problem, assignment)
        if result.feasible and result.peak_usage < self.peak:
            self.assignment, self.peak = tuple(assignment), result.peak_usage

    def descend(self) -> bool:
        """Improve the weights; return whether any assignment is allowed at all."""
        network = _without_costs(build_network(self.problem))
        network = drop_dominated(fold_decided(drop_forbidden(network)), respect_memory=True)
        if network.empty:
            self.peak = self.bound = math.inf
            return False
        rows = MemoryRows(network, -1.0)
        elimination = Elimination(network.sizes, network.tables)
        weights = np.ones(len(rows)) / max(len(rows), 1)
        cuts: list[Array] = []
        for self.rounds in range(1, ROUNDS + 1):
            unary, tokens = rows.priced(network, weights)
            relaxed = elimination.minimise(unary, list(network.tables.values()), tokens)
            if relaxed.value == math.inf:
                self.peak = self.bound = math.inf
                return False
            mean = relaxed.value + float(weights @ rows.base)
            terms = 2 * len(network.unary) + len(rows)
            self.bound = max(self.bound, mean - terms * UNIT_ROUNDOFF * abs(mean))
            self.offer(network.lift(relaxed.choice))
            if self.closed or self.remaining <= 0 or not len(rows):
                break
            cuts.append(rows.profile(relaxed.choice) + rows.base)
            height, weights = _best_weights(cuts)
            if height <= self.bound * (1 + OPTIMALITY_GAP):
                break
        self._round_bound(rows)
        return True

    def _round_bound(self, rows: MemoryRows) -> None:
        """A sum of integers is one."""
        if rows.exact:
            self.bound = math.ceil(self.bound)

    def bisect(self, seed: int, workers: int) -> None:
        """Halve the interval in which the least peak lies."""
        while not self.closed and self.remaining > 0:
            middle = (self.peak + self.bound) / 2
            if float(self.peak).is_integer() and float(self.bound).is_integer():
                middle = math.floor(middle)
            limited = replace(self.problem, memory_limit=middle)
            answer = solve_exact(_any_cost(limited), self.remaining, seed, workers)
            self.how = "variable elimination, memory prices, bisection"
            if answer.assignment is not None:
                self.offer(answer.assignment)
            elif answer.status == "infeasible":
                whole = float(self.peak).is_integer() and float(middle).is_integer()
                self.bound = middle + 1 if whole else middle
            else:
                return

    def cheapen(self, seed: int, workers: int) -> None:
        """Among the assignments with this peak, take the cheapest that can be found in time."""
        limited = replace(self.problem, memory_limit=self.peak)
        answer = solve_exact(limited, max(min(self.remaining, CHEAPENING), 0.0), seed, workers)
        if answer.assignment is not None and (
            answer.cost < evaluate(self.problem, self.assignment or ()).cost
        ):
            self.assignment = answer.assignment


def _without_costs(network: Network) -> Network:
    """Return the network with every allowed entry at zero."""

    def flat(array: Array) -> Array:
        return network.arrays.derive(
            ("allowed only", id(array)), lambda: np.where(np.isfinite(array), 0.0, np.inf)
        )

    return replace(
        network,
        unary=[flat(unary) for unary in network.unary],
        tables={ends: flat(table) for ends, table in network.tables.items()},
    )


def _any_cost(problem: Problem) -> Problem:
    """Return the problem of finding any assignment that fits."""
    shared: dict[int, Array] = {}

    def flat(array: Array) -> Array:
        key = id(array)
        if key not in shared:
            shared[key] = np.where(array < FORBIDDEN, 0.0, np.inf)
        return shared[key]

    return replace(
        problem,
        variables=tuple(
            replace(variable, cost=flat(variable.cost)) for variable in problem.variables
        ),
        pairs=tuple(replace(pair, table=flat(pair.table)) for pair in problem.pairs),
    )


def _best_weights(cuts: list[Array]) -> tuple[float, Array]:
    """Return the highest value that the cuts allow, and the weights where it is."""
    matrix = np.array(cuts)
    scale = float(matrix.max()) or 1.0
    solver = pywraplp.Solver.CreateSolver("GLOP")
    height = solver.NumVar(0.0, solver.infinity(), "height")
    weights = [solver.NumVar(0.0, 1.0, f"weight{row}") for row in range(matrix.shape[1])]
    solver.Add(sum(weights) == 1.0)
    for cut in matrix / scale:
        constraint = solver.Constraint(0.0, solver.infinity())
        constraint.SetCoefficient(height, -1.0)
        for weight, coefficient in zip(weights, cut, strict=True):
            constraint.SetCoefficient(weight, float(coefficient))
    solver.Maximize(height)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return -math.inf, np.zeros(matrix.shape[1])
    found = np.array([weight.solution_value() for weight in weights])
    return scale * solver.Objective().Value(), np.maximum(found, 0.0) / found.sum()
