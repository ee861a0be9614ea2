"""Large neighbourhoods: a part of the variables is searched anew, the rest stays.

A part is a small problem of its own (`parts`), so it gets what the whole gets: prices and
messages, local search, and CP-SAT on what their bound leaves. Parts are

- balls in the graph around a variable that costs more than its bound says it must,
- variables that share the memory of one time,
- stretches of the order in which the variables stand,
- all variables at once, but only with strategies that some assignment found before gives them
  (fusion): components that differ from the best known one come over where that gains and fits,
- all variables at once, but only with strategies that are nearly as good as any by the bound
  (likely): all that is not among these costs at least the bound and what the best of the others
  adds to it, so a search to the end raises the bound.

Which kind is taken next depends on what each has gained for its time so far.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from shardwright.solver.anytime.background_bound import Beside
from shardwright.solver.anytime.dual_ascent import used
from shardwright.solver.anytime.flat import Flat
from shardwright.solver.anytime.graph import build_graph, build_rows, carried, entries_left
from shardwright.solver.anytime.local_search import State, descend, exchange
from shardwright.solver.anytime.subproblem import Part, narrowed, part_of
from shardwright.solver.problem import Array

if TYPE_CHECKING:
    from shardwright.solver.anytime.search import Search

FIRST_SIZE, LARGEST_SIZE = 2000, 40_000
"""Strategies in a part; parts grow while they are solved to the end, and shrink otherwise."""

SECONDS = 2.0
"""For one part."""

ASCENT_SECONDS = 0.5
"""Of these, at most this long for the bound."""

LONGER, LONGEST_PART = 1.3, 0.1
"""A search over all variables that did not come to an end gets longer, up to this part of all."""

BETWEEN, ASCENT_AGAIN = 6, 3.0
"""After so many parts the bound is raised again, for some seconds if nobody does so beside: new
assignments come of it."""

COMBINED = 3
"""Assignments of the pool that a fusion takes."""

LEAST_RISE = 1 / 4
"""A search of the likely strategies is to prove at least this part of the gap."""

MOST_LIKELY_ENTRIES = 1_000_000
"""Of the tables between them: the presolve leaves a small part of that."""

FORGETTING = 0.6
"""How much of its record a kind of neighbourhood keeps when it is tried again."""


class Improvement:
    """Improves the best assignment of a search, part by part."""

    def __init__(self, search: Search, flat: Flat) -> None:
        self.search, self.flat = search, flat
        self.random = np.random.default_rng(search.seed)
        self.kinds = {
            "ball": self.ball,
            "competitors": self.competitors,
            "stretch": self.stretch,
        }
        self.actions = [*self.kinds, "fusion", "exchange", "likely"]
        self.size = dict.fromkeys(self.kinds, float(FIRST_SIZE))
        self.size["likely"] = max(FIRST_SIZE, len(search.graph.size))
        self.record = {action: (0.0, 1e-3) for action in self.actions}  # gain, seconds
        self.tried, self.workers = 0, search.workers
        self.seconds = {"fusion": SECONDS, "likely": SECONDS}
        self.longest = max(SECONDS, LONGEST_PART * search.incumbent.remaining)

    def run(self, seconds: float) -> None:
        """Improve until the time is over."""
        incumbent = self.search.incumbent
        until = min(time.monotonic() + seconds, incumbent.deadline)
        if incumbent.choice is None and not self.search.small:
            self.search.raise_bound(until - time.monotonic())
        if incumbent.choice is None:
            return
        self.settle()
        if self.search.small or self.search.workers == 1:
            self.act_until(until, None)
            return
        beside = Beside(self.search)
        self.workers = self.search.workers - 1
        try:
            self.act_until(until, beside)
        finally:
            beside.stop()

    def act_until(self, until: float, beside: Beside | None) -> None:
        """Take one action after the other."""
        incumbent = self.search.incumbent
        while time.monotonic() < until and not incumbent.closed:
            action = self.choose()
            before, begun = incumbent.cost - incumbent.bound, time.monotonic()
            self.act(action, until)
            gain, spent = self.record[action]
            self.record[action] = (
                FORGETTING * gain + float(before - incumbent.cost + incumbent.bound),
                FORGETTING * spent + time.monotonic() - begun,
            )
            self.tried += 1
            if self.tried % BETWEEN == 0 and not self.search.small:
                if beside is not None:
                    beside.hand_over()
                else:
                    seconds = min(ASCENT_AGAIN, until - time.monotonic())
                    self.search.raise_bound(seconds, patience=5)
                self.settle()

    def settle(self) -> None:
        """Take up the best prices; the slack of each variable tells where to look."""
        ascent = self.search.ascent
        ascent.go_back()
        ascent.sweep()
        self.state = self.search.local.start(self.best)

    @property
    def best(self) -> Array:
        """The best assignment known."""
        choice = self.search.incumbent.choice
        assert choice is not None
        return choice

    def choose(self) -> str:
        """Return an action: each in turn at first, then mostly what gained most for its time."""
        if self.tried < 2 * len(self.actions) or self.random.random() < 0.2:
            return self.actions[self.tried % len(self.actions)]
        rates = {action: gain / spent for action, (gain, spent) in self.record.items()}
        return max(self.actions, key=lambda action: rates[action])

    def act(self, action: str, until: float) -> None:
        """Try one neighbourhood."""
        seconds = self.seconds.get(action, SECONDS)
        deadline = min(time.monotonic() + seconds, until)
        if action == "exchange":
            self.exchange(deadline)
            return
        if action == "fusion":
            solved = self.fuse(deadline)
        elif action == "likely":
            solved = self.search_likely(deadline)
        else:
            solved = self.solve_part(self.kinds[action](), deadline)
        if action in self.seconds and not solved:
            self.seconds[action] = min(LONGER * seconds, self.longest)
        if action in self.size:
            grown = self.size[action] * (1.2 if solved else 0.8)
            self.size[action] = min(max(grown, FIRST_SIZE / 8), LARGEST_SIZE)

    def slack(self) -> Array:
        """Return, for each variable, how far its strategy is from the cheapest at the prices."""
        graph = self.search.graph
        return self.search.ascent.messages.marginals[graph.offset[:-1] + self.best]

    def seed_variable(self) -> int:
        """Draw a variable, one with much slack more likely."""
        weights = self.slack() + 1e-9 * self.search.graph.ceiling / len(self.best)
        weights = np.sqrt(weights)
        return int(self.random.choice(len(weights), p=weights / weights.sum()))

    def ball(self) -> Array:
        """Return variables around one, as they are reached."""
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
        """Return variables that use memory at one time, and some of their neighbours."""
        rows, graph = self.search.rows, self.search.graph
        prices = self.search.ascent.prices
        if not len(rows.owner) or not prices.any():
            return self.ball()
        t = int(self.random.choice(len(prices), p=prices / prices.sum()))
        alive = np.unique(rows.owner[(rows.first <= t) & (t < rows.last)])
        if not len(alive):
            return self.ball()
        weights = self.slack()[alive]
        order = np.argsort(-weights * self.random.random(len(alive)), kind="stable")
        ordered = alive[order]
        count = int(np.searchsorted(np.cumsum(graph.size[ordered]), self.size["competitors"])) + 1
        return np.sort(ordered[:count])

    def stretch(self) -> Array:
        """Return variables that follow one another."""
        graph = self.search.graph
        middle = graph.offset[self.seed_variable()] + self.random.integers(-1000, 1000)
        half = self.size["stretch"] / 2
        begin = int(np.searchsorted(graph.offset, middle - half))
        end = int(np.searchsorted(graph.offset, middle + half))
        begin = min(max(begin, 0), len(graph.size) - 1)
        return np.arange(begin, min(max(end, begin + 1), len(graph.size)))

    def solve_part(self, inside: Array, deadline: float) -> bool:
        """Search a part; return whether nothing better is in it, or something better was found."""
        search, ascent = self.search, self.search.ascent
        part = part_of(search.graph, search.rows, self.state, inside, ascent.prices)
        inner = self.inner(part, deadline)
        known = inner.incumbent.cost
        inner.raise_bound(ASCENT_SECONDS, patience=5)
        if inner.small:
            inner.close()
        if inner.incumbent.cost < known and inner.incumbent.choice is not None:
            self.take(inside, inner.incumbent.choice)
            return True
        return inner.incumbent.closed

    def inner(self, part: Part, deadline: float) -> Search:
        """Return the search of a part, which knows what the part has now."""
        kind = type(self.search)
        incumbent = type(self.search.incumbent)(0, deadline, None)
        inner = kind(part.graph, part.rows, incumbent, self.search.seed, self.workers)
        inner.offer(self.state.choice[part.inside])
        inner.ascent.prices = part.prices
        return inner

    def take(self, inside: Array, choice: Array) -> None:
        """Give the variables inside what was found for them, and descend."""
        better = self.best.copy()
        better[inside] = choice
        self.adopt(better)

    def adopt(self, choice: Array) -> None:
        """Go on from another assignment."""
        self.state = self.search.local.start(choice)
        descend(self.search.graph, self.search.rows, self.state, False)
        self.search.offer(self.state.choice)
        if not self.search.offer(self.state.choice) and not self.is_best(self.state):
            self.state = self.search.local.start(self.best)

    def is_best(self, state: State) -> bool:
        """Return whether a state is the best assignment known."""
        return bool((state.choice == self.best).all())

    def exchange(self, deadline: float) -> None:
        """Try changes with the repairs they need, a few variables at a time."""
        search, local = self.search, self.search.local
        order = self.random.permutation(len(self.best))
        begin, count = 0, 4
        while begin < len(order) and time.monotonic() < deadline:
            begun = time.monotonic()
            some = order[begin : begin + count]
            exchange(search.graph, search.rows, self.state, local.trail, some, 24)
            begin += count
            count = max(1, min(2 * count, int(count * 0.2 / (time.monotonic() - begun + 1e-6))))
        search.offer(self.state.choice)

    def fuse(self, deadline: float) -> bool:
        """Combine the best assignment with others; return whether it gained, or nothing could."""
        keep = np.zeros(len(self.flat.unary), bool)
        for choice in [self.best, *self.others()]:
            keep[self.flat.offset[:-1] + choice] = True
        incumbent = self.search.incumbent
        before = incumbent.cost
        bound = self.search_narrowed(keep, deadline)
        return incumbent.cost < before or bound >= before

    def search_likely(self, deadline: float) -> bool:
        """Search the strategies that the bound finds best; return whether that came to an end."""
        incumbent, ascent = self.search.incumbent, self.search.ascent
        marginals = ascent.marginals()
        gap = incumbent.target - ascent.best
        proven = incumbent.bound - incumbent.constant - ascent.best
        count = min(len(self.best) + int(self.size["likely"]), len(marginals) - 1)
        most = np.partition(marginals, count)[count]
        most = min(max(most, proven + LEAST_RISE * (gap - proven)), gap)
        keep = marginals < most
        keep[self.flat.offset[:-1] + self.best] = True
        if entries_left(self.search.graph, keep) > MOST_LIKELY_ENTRIES:
            return False
        bound = self.search_narrowed(keep, deadline)
        rest = ascent.best + most + incumbent.constant
        incumbent.raise_bound(min(bound, rest) - incumbent.constant)
        return bound >= min(rest, incumbent.cost)

    def search_narrowed(self, keep: Array, deadline: float) -> float:
        """Search with only these strategies; return a bound on what they allow."""
        search = self.search
        state = narrowed(self.flat, keep)
        if state.infeasible:
            return math.inf
        incumbent = type(search.incumbent)(state.flat.constant, deadline, None)
        incumbent.cost = search.incumbent.cost
        graph, rows = build_graph(state.flat), build_rows(state.flat)
        inner = type(search)(graph, rows, incumbent, search.seed, self.workers)
        if not inner.trivial():
            inner.ascent.prices = carried(search.ascent.prices, search.rows, rows)
            inner.raise_bound((deadline - time.monotonic()) / 2, patience=5)
            if inner.small:
                inner.close()
        if incumbent.choice is not None:
            self.adopt(state.lift(incumbent.choice))
        return incumbent.bound

    def others(self) -> list[Array]:
        """Return some of the pool, and some decoded at prices disturbed stretch by stretch."""
        search, ascent = self.search, self.search.ascent
        drawn = self.random.permutation(len(search.pool))[:COMBINED]
        chosen = [search.pool[k] for k in drawn.tolist()]
        prices = ascent.prices
        if len(prices):
            knots = max(2, min(20, len(prices)))
            factors = np.exp(self.random.normal(0.0, self.random.uniform(0.02, 0.3), knots))
            scale = np.interp(np.linspace(0, knots - 1, len(prices)), np.arange(knots), factors)
            saved = ascent.messages.save()
            ascent.prices = prices * scale
            for _ in range(4):
                ascent.sweep()
            found = ascent.messages.choice.copy()
            if (used(search.rows, found) <= search.rows.capacity).all():
                chosen.append(found)
            else:
                improved = search.local.improve(found, False)
                chosen += [found] if improved is None else [improved.choice, found]
            ascent.prices = prices
            ascent.messages.restore(saved)
            ascent.sweep()
        return chosen
