"""Exact search: variable elimination, prices on memory, Pareto fronts, and CP-SAT.

1. Variable elimination without memory. If the optimum fits, it is the answer.
2. Otherwise prices on the memory rows give a bound and assignments that fit; coordinate descent and
   path relinking improve them. Where a rough gap is enough, that is tried before dominated
   strategies are dropped.
3. Pareto fronts search for an assignment below the incumbent.
4. Every strategy whose best assignment (at the best prices) does not beat the incumbent is fixed
   out; steps 2 to 4 repeat while that helps.
5. CP-SAT searches the rest.

Problems too wide for elimination within the time, or too large for CP-SAT, go to message passing
(`integer_scaling`).

Ties: the elimination takes the lowest strategy index among equal ones, variable by variable in
reverse elimination order; of equal assignments the first one found stays.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np

from shardwright.solver.elimination import (
    LEAST_MESSAGE,
    MESSAGE_LIMIT,
    SMALLER,
    WORK_PER_SECOND,
    Elimination,
    OutOfSpaceError,
    OutOfTimeError,
)
from shardwright.solver.evaluate import cost_if_feasible
from shardwright.solver.exact.coordinate_descent import descend
from shardwright.solver.exact.dual import Dual, DualState, Piece, maximise_bound
from shardwright.solver.exact.frontier import Frontier
from shardwright.solver.exact.integer_scaling import IS_FAST, solve_scaled
from shardwright.solver.exact.path_relinking import breadth_first, relink
from shardwright.solver.incumbent import Incumbent
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.methods import MOST_ENTRIES, ROUGH, SolveOptions
from shardwright.solver.network import Network, restrict
from shardwright.solver.on_demand import network_model
from shardwright.solver.presolve import allowed_network, drop_dominated
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution
from shardwright.solver.work import SECONDS_OF

WIDTHS = (200, 2000, 20_000)
"""States of a Pareto front: the next where a search with the one before hardly fixed strategies.

What is left after the last goes to CP-SAT."""

FIRST_SHARE = 1 / 64
"""Share of the gap that is searched at first."""

SHARE_GROWTH = 8
"""Factor on that share after a search that was complete and found nothing."""

PATIENCE, LONG_PATIENCE = 1 / 4, 3 / 4
"""Shares of the budget that one elimination may take: where others may follow, or hardly."""

PASSING = 2**11
"""Additions of an elimination that take as long as passing messages, for an entry of a table.

Layers of Llama 3 70B on a mesh of 8 x 2 x 4, recomputed or not, have 7 million entries: 0.45 s for
the 650 additions an entry that one elimination takes, 3 to 4 s for message passing, to the same
optimum. At twice, an elimination may take twice as long; at half, it is the same for these."""

RELINKED = 3
"""Assignments that fit, and that do not, between which paths are searched."""

MOST_FLAT_ENTRIES = 2**24
"""Largest number of table entries for message passing, where equal tables are not shared: 1 GiB."""

MOST_ROWS = 32
"""With more rows the fronts hardly prune."""

SHRINKING = 0.9
"""Fixing is repeated while it leaves at most this share of the strategies."""

FREE = np.zeros(0)
"""The prices of a network without memory rows."""


def solve_exact(problem: Problem, options: SolveOptions) -> Solution:
    """Return the cheapest assignment with a bound that proves how good it is."""
    return ExactSearch(problem, options).run()


class ExactSearch:
    """The phases of the exact search and what they share.

    Parameters
    ----------
    problem : Problem
    options : SolveOptions
    """

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self.problem, self.options = problem, options
        self.incumbent: Incumbent[tuple[int, ...]] = Incumbent(
            budget=options.budget,
            progress=options.progress,
            allowed_gap=options.gap,
            whole=_has_whole_costs(problem),
            how="variable elimination",
        )
        self.message_limit = MESSAGE_LIMIT
        self.statistics: dict[str, float] = {
            "variables": len(problem.variables),
            "pairs": len(problem.pairs),
        }

    def run(self) -> Solution:
        """Search until the gap is closed or the time is over."""
        size = len(self.problem.variables) + len(self.problem.pairs)
        self.incumbent.budget.charge(SECONDS_OF.network * size)
        network = allowed_network(self.problem)
        if network.empty:
            self.incumbent.raise_bound(math.inf)
        else:
            try:
                self._search(network)
            except OutOfTimeError:
                if self._passes_messages and self.in_time():
                    self._pass_messages()
        return self.incumbent.solution(self.incumbent.assignment, self.statistics)

    def _search(self, network: Network) -> None:
        elimination = self._without_memory(network)
        self.statistics["unlimited"] = float(self.incumbent.closed)
        if self._is_over:
            return
        if self.options.gap >= ROUGH and elimination.sizes == network.sizes:
            self._by_prices(network, elimination)
        if not self._is_over:
            self._with_memory(drop_dominated(network, True, self.incumbent.budget))

    @property
    def _is_over(self) -> bool:
        incumbent = self.incumbent
        return incumbent.closed or incumbent.bound == math.inf or not self.in_time()

    def offer(self, assignment: tuple[int, ...]) -> None:
        """Make a feasible assignment the incumbent if it is the best so far."""
        cost = cost_if_feasible(self.problem, assignment)
        if cost is not None:
            self.incumbent.offer(assignment, cost)

    def in_time(self) -> bool:
        """Return whether there is time left."""
        return self.incumbent.remaining > 0

    def _without_memory(self, network: Network) -> Elimination:
        """Solve the problem as if memory were free; often that is the answer."""
        free = replace(network, memory=[()] * len(network.unary), limit=np.inf)
        bound, assignment, elimination = self._relaxed(free)
        self.offer(assignment)
        self.incumbent.raise_bound(bound)
        self.statistics["messages"] = elimination.messages_computed
        self.statistics["largest_message"] = elimination.largest_message
        return elimination

    def _by_prices(self, network: Network, elimination: Elimination) -> None:
        """Raise the bound by prices, from what is known without memory."""
        rows = MemoryRows(network, network.limit)
        if len(rows) and not rows.hopeless:
            elimination.work = math.inf
            self.statistics |= {"strategies": sum(network.sizes), "memory_rows": len(rows)}
            with suppress(OutOfTimeError):
                PricedRound(self, Dual(network, rows, elimination)).price()

    def _relaxed(self, network: Network) -> tuple[float, tuple[int, ...], Elimination]:
        """Eliminate with messages as large as the time allows; smaller ones give a weaker bound.

        Where message passing is fast, it does better than smaller messages: `OutOfTimeError` is
        raised. Once nothing is left, the smallest messages are taken, whatever they cost.
        """
        share = PATIENCE if self._is_small else LONG_PATIENCE
        while True:
            if not self.in_time():
                self.message_limit = LEAST_MESSAGE
            elimination = Elimination(network.sizes, network.tables, self.message_limit)
            if not elimination.exact:
                network = drop_dominated(network, False, self.incumbent.budget)
                elimination = Elimination(network.sizes, network.tables, self.message_limit)
            if self.message_limit > LEAST_MESSAGE:
                elimination.work = _work_in(share * self.incumbent.budget.seconds)
                is_alone = self._passes_messages and self.problem.memory_limit is None
                if is_alone and elimination.message_entries <= MOST_FLAT_ENTRIES:
                    elimination.work = max(elimination.work, PASSING * self._entries)
                elimination.budget = self.incumbent.budget
            else:
                elimination.budget = self.incumbent.budget.beyond()
            dual = Dual(network, MemoryRows(network, np.inf), elimination)
            try:
                bound, piece = dual.evaluate(FREE)
                return bound, network.lift(piece.choice), elimination
            except OutOfTimeError:
                if self._passes_messages and self.in_time():
                    raise
                self.message_limit //= SMALLER

    def _with_memory(self, network: Network) -> None:
        """Raise the bound by prices, search fronts, fix strategies; leave the rest to CP-SAT."""
        widths = deque(WIDTHS)
        while not network.empty and widths:
            rows = MemoryRows(network, network.limit)
            if rows.hopeless:
                break
            self.statistics |= {"strategies": sum(network.sizes), "memory_rows": len(rows)}
            elimination = Elimination(network.sizes, network.tables, self.message_limit)
            elimination.budget = self.incumbent.budget
            if not len(rows) and not elimination.exact:
                break  # the bound would be the one without memory again
            try:
                smaller = PricedRound(self, Dual(network, rows, elimination)).run(widths[0])
            except OutOfSpaceError:
                self.message_limit //= SMALLER
                continue
            if smaller is None:
                return
            if sum(smaller.sizes) > SHRINKING * sum(network.sizes):
                widths.popleft()
            network = smaller
        self._finish(network)

    def _finish(self, network: Network) -> None:
        rows = MemoryRows(network, network.limit)
        if network.empty or rows.hopeless:
            self.incumbent.raise_bound(math.inf)
        elif self.in_time():
            self.incumbent.how += ", cp-sat"
            self._finish_by_integers(network, rows)

    def _finish_by_integers(self, network: Network, rows: MemoryRows) -> None:
        """Close the gap by CP-SAT, or by message passing where the model would be too large."""
        incumbent = self.incumbent
        if sum(table.size for table in network.tables.values()) > MOST_ENTRIES:
            if self._passes_messages:
                self._pass_messages()
            return
        model = network_model.NetworkModel(network, rows, incumbent.bound)
        best = incumbent.assignment
        hint = None if best is None else network.position_of(best)
        answer = model.solve(hint, self.options)
        if answer.choice is not None:
            self.offer(network.lift(answer.choice))
        incumbent.raise_bound(answer.lower_bound)

    @property
    def _passes_messages(self) -> bool:
        return IS_FAST and self._is_small

    @cached_property
    def _is_small(self) -> bool:
        """Whether the tables, each on its own, fit into memory, as message passing needs them."""
        return self._entries <= MOST_FLAT_ENTRIES

    @cached_property
    def _entries(self) -> int:
        """The entries of all tables, each on its own."""
        return sum(pair.table.size for pair in self.problem.pairs)

    def _pass_messages(self) -> None:
        """Search problems too wide for elimination and too large for CP-SAT."""
        incumbent = self.incumbent
        incumbent.how = "message passing"
        budget = incumbent.budget.within(incumbent.remaining)
        options = replace(self.options, budget=budget, progress=None)
        answer = solve_scaled(self.problem, incumbent.cost, options)
        if answer.assignment is not None:
            self.offer(answer.assignment)
        incumbent.raise_bound(answer.lower_bound)
        incumbent.timed = incumbent.timed or answer.timed


class PricedRound:
    """One round with memory: prices, then fronts, then fixing."""

    def __init__(self, search: ExactSearch, dual: Dual) -> None:
        self.search, self.dual, self.incumbent = search, dual, search.incumbent

    def run(self, width: int) -> Network | None:
        """Return the network without the strategies fixed out; None where the search is over."""
        state = self.price()
        if self.incumbent.closed:
            return None
        self._search_fronts(state, width)
        if self.incumbent.closed or not self.search.in_time():
            return None
        return self._fix(state)

    def _improve(self, choice: list[int]) -> None:
        """Descend from a choice that fits, and offer the result."""
        network = self.dual.network
        self.search.offer(network.lift(descend(network, self.dual.rows, choice)))

    def price(self) -> DualState:
        """Raise the bound by prices, and find assignments that fit."""

        def on_fit(piece: Piece) -> float:
            self._improve(piece.choice)
            return self.incumbent.cost

        self.incumbent.how = "variable elimination, memory prices"
        state = maximise_bound(self.dual, on_fit, self.search.in_time)
        self.incumbent.raise_bound(state.bound)
        self._relink(state)
        if self.incumbent.assignment is None:
            self._make_fit(state)
        return state

    def _relink(self, state: DualState) -> None:
        """Offer assignments on the paths between those that fit and those that do not."""
        network, rows = self.dual.network, self.dual.rows
        order = breadth_first(network)
        values = [piece.constant + float(piece.slope @ state.prices) for piece in state.pieces]
        cheapest = [state.pieces[i] for i in np.argsort(values, kind="stable")]
        fitting = [piece for piece in cheapest if piece.fits][:RELINKED]
        exceeding = [piece for piece in cheapest if not piece.fits][:RELINKED]
        for fit, cheap, path in product(fitting, exceeding, (order, order[::-1])):
            if self.incumbent.closed or not self.search.in_time():
                return
            self._improve(relink(network, rows, path, fit.choice, cheap.choice))

    def _make_fit(self, state: DualState) -> None:
        """Raise all prices, also of what is exceeded without one, until an assignment fits."""
        prices, capacity = state.prices, self.dual.rows.capacity
        if not prices.size:
            return
        if not prices.any():
            prices = np.full(len(prices), abs(state.bound) / max(float(capacity.max()), 1.0))
        for factor in (1.01, 1.1, 2.0, 10.0, 1e3, 1e6):
            if not self.search.in_time():
                return
            _, piece = self.dual.evaluate(prices * factor)
            if piece.fits:
                self._improve(piece.choice)
                return
            prices = np.where(piece.slope > 0, np.maximum(prices, prices.max()), prices)

    def _fix(self, state: DualState) -> Network:
        """Drop the strategies that cannot be part of a better assignment."""
        network, elimination = self.dual.network, self.dual.elimination
        if self.incumbent.assignment is None:
            return network
        value, _ = self.dual.evaluate(state.prices)
        if not elimination.can_complete:
            return network
        # `value` is rounded down by more than any marginal may be too high.
        margin = (value - state.bound) + self.incumbent.cutoff()
        error = abs(value) * 1e-12
        masks = (marginal < margin + error for marginal in elimination.marginals())
        keep = {index: mask for index, mask in enumerate(masks) if not mask.all()}
        return drop_dominated(restrict(network, keep), True, self.incumbent.budget)

    def _search_fronts(self, state: DualState, width: int) -> None:
        """Search with Pareto fronts on the rows with a price, and on those found violated.

        Fronts are short while the cutoff is near the bound, so the search starts with a share of
        the gap, which grows while nothing is found there.
        """
        dual, incumbent = self.dual, self.incumbent
        binding = [int(row) for row in np.flatnonzero(state.prices)]
        if not binding or not dual.elimination.can_complete:
            return
        dual.evaluate(state.prices)
        incumbent.how = "variable elimination, memory prices, fronts"
        share: float = FIRST_SHARE
        while not incumbent.closed and self.search.in_time() and len(binding) <= MOST_ROWS:
            frontier = Frontier(dual.network, dual.rows, state.prices, binding, dual.elimination)
            cutoff = incumbent.cutoff_at(share)
            answer = frontier.search(cutoff, width, self.search.in_time)
            incumbent.raise_bound(answer.bound)
            if answer.choice is None:
                if share >= 1:
                    return
                # States were set aside: no proof with this width, but perhaps a better assignment.
                share = 1 if answer.bound < cutoff else share * SHARE_GROWTH
                continue
            slope = dual.piece(answer.choice).slope
            if not (slope > 0).any():
                self._improve(answer.choice)
                return
            binding.append(int(slope.argmax()))


def _work_in(seconds: float) -> float:
    """Return the additions in some seconds, as a power of two: moments more or less are equal."""
    if seconds == math.inf:
        return math.inf
    return 2.0 ** math.floor(math.log2(max(seconds, 1e-3) * WORK_PER_SECOND))


def _has_whole_costs(problem: Problem) -> bool:
    arrays = [variable.cost for variable in problem.variables]
    arrays += [pair.table for pair in problem.pairs]
    return all(array.dtype.kind == "i" for array in arrays)
