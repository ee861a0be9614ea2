"""From a problem to the best assignment that the time allows, with its bound.

1. presolve (`presolve`), and the costs and rows of what is left (`graph`);
2. prices and messages raise the bound; what they decode is repaired and improved (`ascent`,
   `local`);
3. what is small enough goes to CP-SAT until nothing better exists (`finish`);
4. what is not is improved part by part until the time is over.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable

import numpy as np

from shardwright.solver.anytime.dual_ascent import Ascent, used
from shardwright.solver.anytime.flat import Flat, flatten
from shardwright.solver.anytime.graph import Graph, Rows, build_graph, build_rows
from shardwright.solver.anytime.local_search import LocalSearch, descend, exchange
from shardwright.solver.anytime.message_passing import diffuse
from shardwright.solver.anytime.presolve import Presolved, presolve
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import Array, MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution, Status

Progress = Callable[[float, float, float], None]

RESERVE = 0.02
"""Part of the time that is kept for what comes after the search: the answer is evaluated."""

ASCENT_PART, SHARED_ASCENT_PART, SHORT_ASCENT_PART = 0.4, 0.2, 0.15
"""Part of the time for the bound, where CP-SAT cannot close the rest: with one worker, and with
several, of which one goes on with it; and where CP-SAT may close it."""

LOCAL_PART = 0.3
"""Part of that time for improving what is decoded."""

FIRST_CLOSING_PART, IMPROVING_PART, CLOSING_PART = 0.05, 0.15, 0.5
"""Parts of the time for a first try of CP-SAT, for improving what it left open, and for the next
try."""

MOMENT = 0.05
"""Seconds that are too short to begin anything."""

POOL = 6
"""Assignments that are kept to be combined."""

MOST_ENTRIES = 250_000
"""Of all tables together, what CP-SAT is given."""


class Incumbent:
    """The best assignment and the best bound so far, of the reduced problem."""

    def __init__(
        self, constant: int, deadline: float, progress: Progress | None, gap: float = 0.0
    ) -> None:
        self.constant, self.deadline, self.progress = constant, deadline, progress
        self.allowed_gap = gap
        self.started = time.monotonic()
        self.choice: Array | None = None
        self.cost = math.inf
        self.bound = -math.inf
        self.how = "presolve, message passing"

    def offer(self, choice: Array, cost: float) -> bool:
        """Keep an assignment that fits if it is the best; its cost is without the constant."""
        if cost + self.constant >= self.cost:
            return False
        self.choice, self.cost = choice.copy(), round(cost) + self.constant
        self._report()
        return True

    def raise_bound(self, bound: float) -> None:
        """Keep a better bound, without the constant; costs are integers."""
        if math.isfinite(bound):
            bound = math.ceil(bound) + self.constant
        if bound > self.bound:
            self.bound = bound
            self._report()

    @property
    def target(self) -> float:
        """The best cost known, without the constant."""
        return self.cost - self.constant

    @property
    def closed(self) -> bool:
        """Whether nothing better exists, or nothing that is as much better as was asked for."""
        if self.bound == math.inf or self.choice is None:
            return self.bound >= self.cost
        return self.cost - self.bound <= self.allowed_gap * abs(self.cost)

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def _report(self) -> None:
        if self.progress is not None:
            seconds = time.monotonic() - self.started
            self.progress(seconds, self.cost, min(self.bound, self.cost))


def solve_anytime(
    problem: Problem,
    time_limit: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    gap: float = 0.0,
) -> Solution:
    """Return the best assignment found within the time, and a bound on all.

    It ends where the cost is as near to the bound as `gap` says, relatively.
    """
    started = time.monotonic()
    deadline = started + time_limit * (1 - RESERVE)
    statistics: dict[str, float] = {"variables": len(problem.variables)}
    reduced = presolve(flatten(problem), lambda: time.monotonic() < deadline)
    flat = reduced.flat
    statistics |= {
        "variables_after_presolve": len(flat.size),
        "pairs_after_presolve": len(flat.first),
        "strategies_after_presolve": len(flat.unary),
    }
    for step in reduced.steps:
        statistics[step.what] = statistics.get(step.what, 0) + 1
    incumbent = Incumbent(flat.constant, deadline, progress, gap)
    incumbent.started = started
    if reduced.infeasible:
        incumbent.raise_bound(math.inf)
    else:
        warm_up()
        graph, rows = build_graph(flat), build_rows(flat)
        Search(graph, rows, incumbent, seed, workers).run(time_limit, flat)
    return _solution(problem, reduced, incumbent, started, statistics)


def warm_up() -> None:
    """Compile all inner loops on a tiny problem, not where the time is short."""
    table = np.array([[0, 2], [1, 0]])
    use = MemoryUse(np.array([1, 2]), 0, 1)
    variables = tuple(Variable(name, np.array([1, 0]), (use,)) for name in ("one", "other"))
    flat = flatten(Problem(variables, (Pair(0, 1, table),), 3))
    graph, rows = build_graph(flat), build_rows(flat)
    ascent = Ascent(graph, rows)
    ascent.step(1.0)
    diffuse(graph, graph.unary, ascent.messages.pieces, 1)
    local = LocalSearch(graph, rows)
    state = local.start(np.zeros(2, np.int64))
    descend(graph, rows, state, True)
    exchange(graph, rows, state, local.trail, np.arange(2), 1)


class Search:
    """The phases after the presolve."""

    def __init__(
        self, graph: Graph, rows: Rows, incumbent: Incumbent, seed: int, workers: int
    ) -> None:
        self.graph, self.rows, self.incumbent = graph, rows, incumbent
        self.seed, self.workers = seed, workers
        self.local = LocalSearch(graph, rows)
        self.ascent = Ascent(graph, rows)
        self.pool: list[Array] = []

    @property
    def small(self) -> bool:
        """Whether CP-SAT may close the gap."""
        sizes = self.graph.size
        entries = (sizes[self.graph.first] * sizes[self.graph.second]).sum()
        return bool(entries <= MOST_ENTRIES)

    def run(self, time_limit: float, flat: Flat) -> None:
        """Search until the time is over or nothing better exists."""
        if self.trivial():
            return
        # However short the time, something is tried.
        self.incumbent.raise_bound(self.ascent.step(self.guess()))
        self.decode()
        if not self.small:
            part = ASCENT_PART if self.workers == 1 else SHARED_ASCENT_PART
            self.raise_bound(part * time_limit)
            self.improve(flat, math.inf)
            return
        self.raise_bound(SHORT_ASCENT_PART * time_limit)
        self.close(FIRST_CLOSING_PART * time_limit)
        while not self.incumbent.closed and self.incumbent.remaining > MOMENT:
            self.improve(flat, IMPROVING_PART * time_limit)
            self.close(CLOSING_PART * time_limit)
            if self.incumbent.choice is None:
                self.raise_bound(IMPROVING_PART * time_limit)

    def improve(self, flat: Flat, seconds: float) -> None:
        """Improve the best assignment part by part."""
        improvement = importlib.import_module("shardwright.solver.anytime.large_neighbourhoods")
        improvement.Improvement(self, flat).run(seconds)

    def trivial(self) -> bool:
        """Answer what needs no search."""
        if (self.rows.capacity < 0).any():
            self.incumbent.raise_bound(math.inf)
        elif len(self.graph.size) == 0:
            self.incumbent.offer(np.zeros(0, np.int64), 0.0)
            self.incumbent.raise_bound(0.0)
        else:
            return False
        return True

    def close(self, seconds: float = math.inf) -> None:
        """Let CP-SAT search until the time is over or nothing better exists."""
        if not self.incumbent.closed:
            # Loading it takes half a second.
            importlib.import_module("shardwright.solver.anytime.gap_closing").close(self, seconds)

    def raise_bound(self, seconds: float, patience: int = 60) -> None:
        """Move the prices, and improve what is decoded."""
        incumbent, ascent = self.incumbent, self.ascent
        begun = time.monotonic()
        until = min(begun + seconds, incumbent.deadline)
        spent, still = 0.0, 0
        while time.monotonic() < until and not incumbent.closed:
            target = incumbent.target if incumbent.cost < math.inf else self.guess()
            bound = ascent.step(target)
            if bound > self.graph.ceiling:  # more than any assignment costs: there is none
                bound = math.inf
            incumbent.raise_bound(bound)
            still = still + 1 if ascent.settled else 0
            if still > patience:
                break
            now = time.monotonic()
            if spent <= LOCAL_PART * (now - begun):
                self.decode()
                spent += time.monotonic() - now

    def guess(self) -> float:
        """Return a cost to aim at while none is known."""
        best = self.ascent.best
        guess = best + max(abs(best), 1.0) if math.isfinite(best) else 1.0
        return min(guess, 2 * self.graph.ceiling)

    def decode(self) -> None:
        """Improve the assignment that the messages decode."""
        state = self.local.improve(self.ascent.messages.choice)
        if state is not None:
            self.keep(state.choice)

    def keep(self, choice: Array) -> None:
        """Offer an assignment, and keep it to be combined."""
        self.offer(choice)
        self.pool = self.pool[-POOL + 1 :] + [choice]

    def offer(self, choice: Array) -> bool:
        """Keep an assignment if it fits, is allowed and is the best."""
        cost = self.local.cost(choice)
        if cost >= self.incumbent.target or not self.local.allowed(choice):
            return False
        if (used(self.rows, choice) > self.rows.capacity).any():
            return False
        return self.incumbent.offer(choice, cost)


def _solution(
    problem: Problem,
    reduced: Presolved,
    incumbent: Incumbent,
    started: float,
    statistics: dict[str, float],
) -> Solution:
    """Return the answer; its cost is what the independent evaluation says."""
    assignment, cost = None, math.inf
    if incumbent.choice is not None:
        assignment = tuple(reduced.lift(incumbent.choice).tolist())
        judged = evaluate(problem, assignment)
        assert judged.feasible, "the search believed in an assignment that is not feasible"
        cost = judged.cost
    status: Status = "unknown"
    if assignment is not None:
        status = "optimal" if incumbent.bound >= cost else "feasible"
    elif incumbent.bound == math.inf:
        status = "infeasible"
    return Solution(
        assignment=assignment,
        cost=cost,
        lower_bound=min(incumbent.bound, cost),
        status=status,
        how=incumbent.how,
        seconds=time.monotonic() - started,
        statistics=statistics,
    )
