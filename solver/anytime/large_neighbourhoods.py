"""Large neighbourhoods: some variables or strategies are searched again, the rest is fixed.

A neighbourhood is a small problem, so it gets the phases of the whole: prices and messages, local
search, and CP-SAT on the rest. The neighbourhoods are

- ball: variables around one that costs more than its bound requires;
- competitors: variables that use memory at the same time;
- stretch: consecutive variables;
- fusion: all variables, but only with strategies of a few assignments (fusion moves): components
  in which these differ from the incumbent replace its own where that gains and fits;
- likely: all variables, but only with strategies that are nearly optimal by the bound: an
  assignment with another strategy costs at least the bound plus the least marginal of the others,
  so a complete search raises the bound;
- exchange: a change that gains but does not fit, with the repair it needs.

The next kind is the one that has gained most for its time so far.
"""

from __future__ import annotations

import math

import numpy as np

from shardwright.solver.anytime.background_bound import BackgroundBound
from shardwright.solver.anytime.bounded_search import (
    BoundedSearch,
    new_incumbent,
)
from shardwright.solver.anytime.dual_ascent import used
from shardwright.solver.anytime.flat import Flat
from shardwright.solver.anytime.graph import build_graph, build_rows, carried, entries_left
from shardwright.solver.anytime.local_search import descend, exchange
from shardwright.solver.anytime.subproblem import Subproblem, presolve_restricted, subproblem_of
from shardwright.solver.methods import MOST_ENTRIES
from shardwright.solver.on_demand import gap_closing
from shardwright.solver.problem import Array
from shardwright.solver.work import SECONDS_OF, Budget

FIRST_SIZE, LARGEST_SIZE = 2000, 40_000
"""Strategies in a subproblem; it grows while the searches are complete, and shrinks otherwise."""

SECONDS = 2.0
"""Seconds of work of a subproblem at most."""

ASCENT_SECONDS = 0.5
"""Largest part of that for the bound."""

LONGER, LONGEST_SHARE = 1.3, 0.1
"""Growth of the seconds of an incomplete search over all variables, up to this share of all."""

PERIOD, ASCENT_AGAIN = 6, 3.0
"""After so many neighbourhoods the bound is raised again, for so many seconds unless in the
background: that gives new assignments."""

COMBINED = 3
"""Assignments of the pool that a fusion combines."""

LEAST_RISE = 1 / 4
"""Least share of the gap that a search of the likely strategies is to prove."""

FORGETTING = 0.6
"""Share of the record of a kind of neighbourhood that stays when it is tried again."""


def close_gap(search: BoundedSearch, seconds: float = math.inf) -> None:
    """Close the gap by CP-SAT, if it is open."""
    if not search.incumbent.closed:
        gap_closing.close_gap(search, seconds)


class LargeNeighbourhoods:
    """Improves the best assignment of a search, one neighbourhood at a time."""

    def __init__(self, search: BoundedSearch, flat: Flat) -> None:
        self.search, self.flat = search, flat
        self.random = np.random.default_rng(search.seed)
        self.kinds = {
            "ball": type(self).ball,
            "competitors": type(self).competitors,
            "stretch": type(self).stretch,
        }
        self.actions = [*self.kinds, "fusion", "exchange", "likely"]
        self.size = dict.fromkeys(self.kinds, float(FIRST_SIZE))
        self.size["likely"] = max(FIRST_SIZE, len(search.graph.size))
        self.record = {action: (0.0, 1e-3) for action in self.actions}  # gain, seconds
        self.tried, self.workers = 0, search.workers
        self.seconds = {"fusion": SECONDS, "likely": SECONDS}
        self.longest = max(SECONDS, LONGEST_SHARE * search.incumbent.remaining)

    def run(self, seconds: float) -> None:
        """Improve until the budget is spent."""
        incumbent = self.search.incumbent
        budget = incumbent.budget.within(seconds)
        if incumbent.assignment is None and not self.search.small:
            self.search.raise_bound(budget.left)
        if incumbent.assignment is None:
            return
        incumbent.timed = True  # the budget ends it
        self.restore()
        if self.search.small or self.search.workers == 1:
            self.act_until(budget, None)
            return
        background = BackgroundBound(self.search)
        self.workers = self.search.workers - 1
        try:
            self.act_until(budget, background)
        finally:
            background.stop()

    def act_until(self, budget: Budget, background: BackgroundBound | None) -> None:
        """Search one neighbourhood after the other."""
        incumbent = self.search.incumbent
        while not budget.is_spent and not incumbent.closed:
            action = self.choose()
            before, begun = incumbent.cost - incumbent.bound, budget.spent
            self.act(action, budget)
            gain, seconds = self.record[action]
            self.record[action] = (
                FORGETTING * gain + float(before - incumbent.cost + incumbent.bound),
                FORGETTING * seconds + budget.spent - begun,
            )
            self.tried += 1
            if self.tried % PERIOD == 0 and not self.search.small:
                self.raise_bound(budget, background)

    def raise_bound(self, budget: Budget, background: BackgroundBound | None) -> None:
        """Raise the bound again, or take over the progress of the background."""
        if background is not None:
            background.hand_over()
        else:
            self.search.raise_bound(min(ASCENT_AGAIN, budget.left), patience=5)
        self.restore()

    def restore(self) -> None:
        """Return to the best prices, whose marginals guide the choice of neighbourhoods."""
        ascent = self.search.ascent
        ascent.restore()
        ascent.sweep()
        self.state = self.search.local.start(self.best)

    @property
    def best(self) -> Array:
        """The incumbent's assignment."""
        choice = self.search.incumbent.assignment
        assert choice is not None
        return choice

    def choose(self) -> str:
        """Return a kind: each in turn at first, then mostly the one with the highest gain rate."""
        if self.tried < 2 * len(self.actions) or self.random.random() < 0.2:
            return self.actions[self.tried % len(self.actions)]
        rates = {action: gain / seconds for action, (gain, seconds) in self.record.items()}
        return max(self.actions, key=lambda action: rates[action])

    def act(self, action: str, budget: Budget) -> None:
        """Search one neighbourhood; adapt its size and its seconds."""
        seconds = self.seconds.get(action, SECONDS)
        part = budget.within(seconds)
        if action == "exchange":
            self.exchange(part)
            return
        if action == "fusion":
            complete = self.fuse(part)
        elif action == "likely":
            complete = self.search_likely(part)
        else:
            complete = self.search_subproblem(self.kinds[action](self), part)
        if action in self.seconds and not complete:
            self.seconds[action] = min(LONGER * seconds, self.longest)
        if action in self.size:
            size = self.size[action] * (1.2 if complete else 0.8)
            self.size[action] = min(max(size, FIRST_SIZE / 8), LARGEST_SIZE)

    def slack(self) -> Array:
        """Return the marginal of each variable's strategy at the best prices."""
        graph = self.search.graph
        return self.search.ascent.messages.marginals[graph.offset[:-1] + self.best]

    def seed_variable(self) -> int:
        """Draw a variable; a large slack makes it likely."""
        weights = self.slack() + 1e-9 * self.search.graph.ceiling / len(self.best)
        weights = np.sqrt(weights)
        return int(self.random.choice(len(weights), p=weights / weights.sum()))

    def ball(self) -> Array:
        """Return variables around one, breadth first."""
        graph, limit = self.search.graph, self.size["ball"]
        queue = [self.seed_variable()]
        seen, total, position = set(queue), 0, 0
        while position < len(queue) and total < limit:
            v = queue[position]
            position += 1
            total += int(graph.size[v])
            near = [
                *graph.second[graph.ahead[graph.ahead_start[v] : graph.ahead_start[v + 1]]],
                *graph.first[graph.behind[graph.behind_start[v] : graph.behind_start[v + 1]]],
            ]
            self.random.shuffle(near)
            for u in near:
                if u not in seen:
                    seen.add(u)
                    queue.append(u)
        return np.sort(np.array(queue[:position], dtype=np.int64))

    def competitors(self) -> Array:
        """Return variables that use memory at the same time."""
        rows, graph = self.search.rows, self.search.graph
        prices = self.search.ascent.prices
        if not len(rows.owner) or not prices.any():
            return self.ball()
        t = int(self.random.choice(len(prices), p=prices / prices.sum()))
        live = np.unique(rows.owner[(rows.first <= t) & (t < rows.last)])
        if not len(live):
            return self.ball()
        weights = self.slack()[live]
        order = np.argsort(-weights * self.random.random(len(live)), kind="stable")
        ordered = live[order]
        count = int(np.searchsorted(np.cumsum(graph.size[ordered]), self.size["competitors"])) + 1
        return np.sort(ordered[:count])

    def stretch(self) -> Array:
        """Return consecutive variables."""
        graph = self.search.graph
        middle = graph.offset[self.seed_variable()] + self.random.integers(-1000, 1000)
        half = self.size["stretch"] / 2
        begin = int(np.searchsorted(graph.offset, middle - half))
        end = int(np.searchsorted(graph.offset, middle + half))
        begin = min(max(begin, 0), len(graph.size) - 1)
        return np.arange(begin, min(max(end, begin + 1), len(graph.size)))

    def search_subproblem(self, free: Array, budget: Budget) -> bool:
        """Search over some variables; return whether the search is complete or has gained."""
        search, ascent = self.search, self.search.ascent
        part = subproblem_of(search.graph, search.rows, self.state, free, ascent.prices)
        inner = self.inner_search(part, budget)
        before = inner.incumbent.cost
        inner.raise_bound(ASCENT_SECONDS, patience=5)
        if inner.small:
            close_gap(inner)
        if inner.incumbent.cost < before and inner.incumbent.assignment is not None:
            better = self.best.copy()
            better[free] = inner.incumbent.assignment
            self.adopt(better)
            return True
        return inner.incumbent.closed

    def inner_search(self, part: Subproblem, budget: Budget) -> BoundedSearch:
        """Return the search of a subproblem, with the current assignment as incumbent."""
        incumbent = new_incumbent(0, budget)
        inner = BoundedSearch(part.graph, part.rows, incumbent, self.search.seed, self.workers)
        inner.offer(self.state.choice[part.free])
        inner.ascent.prices = part.prices
        return inner

    def adopt(self, choice: Array) -> None:
        """Descend from another assignment, and continue from the result if it is the best."""
        self.state = self.search.local.start(choice)
        descend(self.search.graph, self.search.rows, self.state, False)
        self.search.offer(self.state.choice)
        if not (self.state.choice == self.best).all():
            self.state = self.search.local.start(self.best)

    def exchange(self, budget: Budget) -> None:
        """Try changes with the repairs they need, a few variables at a time."""
        search, local = self.search, self.search.local
        order = self.random.permutation(len(self.best))
        begin, count = 0, 4
        while begin < len(order) and not budget.is_spent:
            begun = budget.spent
            some = order[begin : begin + count]
            exchange(search.graph, search.rows, self.state, local.trail, some, 24)
            begin += count
            budget.charge(SECONDS_OF.exchange * count)
            count = max(1, min(2 * count, int(count * 0.2 / (budget.spent - begun + 1e-6))))
        search.offer(self.state.choice)

    def fuse(self, budget: Budget) -> bool:
        """Combine the incumbent with others; return whether it gained or is optimal among them."""
        keep = np.zeros(len(self.flat.unary), bool)
        for choice in [self.best, *self.others()]:
            keep[self.flat.offset[:-1] + choice] = True
        incumbent = self.search.incumbent
        before = incumbent.cost
        bound = self.search_restricted(keep, budget)
        return incumbent.cost < before or bound >= before

    def search_likely(self, budget: Budget) -> bool:
        """Search the strategies with the least marginals; return whether that is complete."""
        incumbent, ascent = self.search.incumbent, self.search.ascent
        marginals = ascent.marginals()
        gap = incumbent.target - ascent.best
        proven = incumbent.bound - incumbent.constant - ascent.best
        count = min(len(self.best) + int(self.size["likely"]), len(marginals) - 1)
        most = np.partition(marginals, count)[count]
        most = min(max(most, proven + LEAST_RISE * (gap - proven)), gap)
        keep = marginals < most
        keep[self.flat.offset[:-1] + self.best] = True
        if entries_left(self.search.graph, keep) > MOST_ENTRIES:
            return False
        bound = self.search_restricted(keep, budget)
        others_bound = ascent.best + most + incumbent.constant
        incumbent.raise_bound(min(bound, others_bound) - incumbent.constant)
        return bound >= min(others_bound, incumbent.cost)

    def search_restricted(self, keep: Array, budget: Budget) -> float:
        """Search with only these strategies; return a lower bound on their assignments."""
        search = self.search
        budget.charge(SECONDS_OF.flat_entry * len(self.flat.tables))
        state = presolve_restricted(self.flat, keep)
        if state.infeasible:
            return math.inf
        incumbent = new_incumbent(state.flat.constant, budget)
        incumbent.cost = search.incumbent.cost
        graph, rows = build_graph(state.flat), build_rows(state.flat)
        inner = BoundedSearch(graph, rows, incumbent, search.seed, self.workers)
        if not inner.solve_trivial():
            inner.ascent.prices = carried(search.ascent.prices, search.rows, rows)
            inner.raise_bound(budget.left / 2, patience=5)
            if inner.small:
                close_gap(inner)
        if incumbent.assignment is not None:
            self.adopt(state.lift(incumbent.assignment))
        return incumbent.bound

    def others(self) -> list[Array]:
        """Return assignments of the pool, and one decoded at randomly disturbed prices."""
        drawn = self.random.permutation(len(self.search.pool))[:COMBINED]
        chosen = [self.search.pool[k] for k in drawn.tolist()]
        if len(self.search.ascent.prices):
            chosen += self.decode_disturbed()
        return chosen

    def decode_disturbed(self) -> list[Array]:
        """Return assignments decoded at prices disturbed by stretches, and improved."""
        search, ascent = self.search, self.search.ascent
        prices, saved = ascent.prices, ascent.messages.save()
        knots = max(2, min(20, len(prices)))
        factors = np.exp(self.random.normal(0.0, self.random.uniform(0.02, 0.3), knots))
        ascent.prices = prices * np.interp(
            np.linspace(0, knots - 1, len(prices)), np.arange(knots), factors
        )
        search.incumbent.budget.charge(5 * SECONDS_OF.swept_entry * search.entries)
        for _ in range(4):
            ascent.sweep()
        choice = ascent.messages.choice.copy()
        choices = [choice]
        if (used(search.rows, choice) > search.rows.capacity).any():
            improved = search.local.improve(choice, False)
            choices = [choice] if improved is None else [improved.choice, choice]
        ascent.prices = prices
        ascent.messages.restore(saved)
        ascent.sweep()
        return choices
