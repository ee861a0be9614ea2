"""The assignment with the least peak memory, for a model that does not fit.

The peak is bounded from below by any weighted mean of the rows, with weights w >= 0 that sum to 1:

    min over x of  max over t of use_t(x)   >=   min over x of  sum over t of w_t use_t(x)

Cutting planes improve the weights; bisection on the limit closes the remaining gap, with an exact
search for an assignment that fits at every step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from shardwright.solver.elimination import SMALLER, Elimination, OutOfSpaceError, Relaxed
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.dual import UNIT_ROUNDOFF
from shardwright.solver.exact.search import solve_exact
from shardwright.solver.incumbent import Incumbent
from shardwright.solver.linear_program import highest_weights
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.methods import DEFAULT_SECONDS, SolveOptions
from shardwright.solver.network import Network, build_network
from shardwright.solver.presolve import drop_dominated, drop_forbidden, fold_decided
from shardwright.solver.problem import FORBIDDEN, Array, Identity, Problem
from shardwright.solver.solution import OPTIMALITY_GAP, Solution
from shardwright.solver.work import Budget

COST_SECONDS = 5.0
"""Seconds of work for the cost, once the least memory is known."""


def minimize_memory(
    problem: Problem,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    workers: int = 1,
    gap: float = 0.0,
) -> Solution:
    """Return the cheapest of the assignments with the least peak memory.

    With a ``gap``, the first assignment whose peak is within that relative gap of the least one is
    returned, whatever its cost.

    ``cost`` and ``lower_bound`` of the answer are the peak and a bound on it, in the unit of the
    memory uses; the memory limit of the problem is ignored. The cost of the assignment is
    ``evaluate(problem, solution.assignment).cost``.
    """
    budget = Budget(DEFAULT_SECONDS) if budget is None else budget
    options = SolveOptions(budget, seed, workers, gap=gap)
    return _PeakSearch(problem.limited(None), options).run()


class _PeakSearch:
    """The search for the least peak; the incumbent's cost is the peak of its assignment."""

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self.problem, self.options = problem, options
        self.incumbent: Incumbent[tuple[int, ...]] = Incumbent(
            budget=options.budget,
            allowed_gap=options.gap,
            bound=0.0,
            how="variable elimination, memory prices",
        )
        self.rounds = 0

    def run(self) -> Solution:
        """Search until the gap is closed or the time is over."""
        if self.improve_weights():
            self.bisect()
            if not self.options.gap:
                self.lower_cost()
        return self.incumbent.solution(self.incumbent.assignment, {"rounds": self.rounds})

    def offer(self, assignment: Sequence[int]) -> None:
        """Keep an assignment with a lower peak."""
        result = evaluate(self.problem, assignment)
        if result.feasible:
            self.incumbent.offer(tuple(assignment), result.peak_usage)

    def improve_weights(self) -> bool:
        """Raise the bound by weights on the rows; return whether any assignment is allowed."""
        network = _without_costs(build_network(self.problem))
        network = fold_decided(drop_forbidden(network))
        network = drop_dominated(network, True, self.incumbent.budget)
        if network.empty:
            self.incumbent.raise_bound(math.inf)
            return False
        rows = MemoryRows(network, -1.0)
        elimination = Elimination(network.sizes, network.tables)
        elimination.budget = self.incumbent.budget.beyond()
        weights = np.ones(len(rows)) / max(len(rows), 1)
        cuts: list[Array] = []
        for self.rounds in count(1):  # every round but the last raises what a peak takes at least
            relaxed, elimination = _relaxed(network, elimination, rows.priced(network, weights))
            if relaxed.value == math.inf:
                self.incumbent.raise_bound(math.inf)
                return False
            self._raise_bound(network, rows, relaxed.value + float(weights @ rows.base))
            self.offer(network.lift(relaxed.choice))
            if self.incumbent.closed or self.incumbent.remaining <= 0 or not len(rows):
                break
            cuts.append(rows.profile(relaxed.choice) + rows.base)
            height, weights = highest_weights(np.array(cuts))
            if height <= self.incumbent.bound * (1 + OPTIMALITY_GAP):
                break
        if rows.exact:  # sums of integers are integers
            self.incumbent.raise_bound(math.ceil(self.incumbent.bound))
        return True

    def _raise_bound(self, network: Network, rows: MemoryRows, mean: float) -> None:
        """Raise the bound to a weighted mean of the rows, less its rounding error."""
        terms = 2 * len(network.unary) + len(rows)
        self.incumbent.raise_bound(mean - terms * UNIT_ROUNDOFF * abs(mean))

    def bisect(self) -> None:
        """Halve the interval of the least peak until the gap is closed."""
        incumbent = self.incumbent
        while not incumbent.closed and incumbent.remaining > 0:
            middle = (incumbent.cost + incumbent.bound) / 2
            if float(incumbent.cost).is_integer() and float(incumbent.bound).is_integer():
                middle = math.floor(middle)
            answer = self._solve_within(_any_cost(self.problem), middle, incumbent.budget)
            incumbent.how = "variable elimination, memory prices, bisection"
            if answer.assignment is not None:
                self.offer(answer.assignment)
            elif answer.status == "infeasible":
                whole = float(incumbent.cost).is_integer() and float(middle).is_integer()
                incumbent.raise_bound(middle + 1 if whole else middle)
            else:
                return

    def lower_cost(self) -> None:
        """Replace the assignment by the cheapest one of this peak that is found."""
        incumbent = self.incumbent
        budget = incumbent.budget.within(COST_SECONDS)
        answer = self._solve_within(self.problem, incumbent.cost, budget)
        if answer.assignment is not None and (
            answer.cost < evaluate(self.problem, incumbent.assignment or ()).cost
        ):
            incumbent.assignment = answer.assignment

    def _solve_within(self, problem: Problem, limit: float, budget: Budget) -> Solution:
        limited = problem.limited(limit)
        return solve_exact(
            limited, replace(self.options, budget=budget.within(budget.left), gap=0.0)
        )


def _relaxed(
    network: Network, elimination: Elimination, priced: tuple[list[Array], list[Hashable]]
) -> tuple[Relaxed, Elimination]:
    """Minimise with messages as large as the memory allows; smaller ones give a weaker bound."""
    unary, keys = priced
    while True:
        try:
            tables = list(network.tables.values())
            return elimination.minimise(unary, tables, keys, network.table_keys), elimination
        except OutOfSpaceError:
            limit, budget = elimination.message_limit // SMALLER, elimination.budget
            elimination = Elimination(network.sizes, network.tables, limit)
            elimination.budget = budget


def _without_costs(network: Network) -> Network:
    """Return the network with every allowed entry at zero."""

    def without_costs(array: Array) -> Array:
        return network.arrays.derive(
            "without costs", (array,), lambda: np.where(np.isfinite(array), 0.0, np.inf)
        )

    return replace(
        network,
        unary=[without_costs(unary) for unary in network.unary],
        tables={ends: without_costs(table) for ends, table in network.tables.items()},
    )


def _any_cost(problem: Problem) -> Problem:
    """Return the problem of finding any assignment that fits."""
    memo: dict[Identity, Array] = {}

    def without_costs(array: Array) -> Array:
        key = Identity(array)
        if key not in memo:
            memo[key] = np.where(array < FORBIDDEN, 0.0, np.inf)
        return memo[key]

    return replace(
        problem,
        variables=tuple(
            replace(variable, cost=without_costs(variable.cost)) for variable in problem.variables
        ),
        pairs=tuple(replace(pair, table=without_costs(pair.table)) for pair in problem.pairs),
    )
