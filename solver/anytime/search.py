"""The anytime search: the best assignment within a budget, with a bound.

1. Presolve (`presolve`), then the costs and memory rows of the rest as flat arrays (`graph`).
2. Prices and messages raise the bound; assignments decoded from them are repaired and improved
   (`dual_ascent`, `message_passing`, `local_search`).
3. If the rest is small enough, CP-SAT closes the gap (`gap_closing`, `cpsat_finish`).
4. Otherwise large neighbourhoods are searched until the budget is spent (`large_neighbourhoods`).
"""

from __future__ import annotations

import math

import numpy as np

from shardwright.solver.anytime.bounded_search import BoundedSearch, new_incumbent
from shardwright.solver.anytime.dual_ascent import DualAscent
from shardwright.solver.anytime.flat import Flat, flatten
from shardwright.solver.anytime.graph import build_graph, build_rows
from shardwright.solver.anytime.large_neighbourhoods import LargeNeighbourhoods, close_gap
from shardwright.solver.anytime.local_search import LocalSearch, descend, exchange
from shardwright.solver.anytime.message_passing import diffuse
from shardwright.solver.anytime.presolve import Presolved, presolve
from shardwright.solver.evaluate import evaluate
from shardwright.solver.methods import MOMENT, SolveOptions
from shardwright.solver.problem import MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution
from shardwright.solver.work import SECONDS_OF

RESERVE = 0.02
"""Share of the budget that is kept for evaluating the answer."""

ASCENT_SHARE, SHARED_ASCENT_SHARE, SHORT_ASCENT_SHARE = 0.4, 0.2, 0.15
"""Share of the budget for the ascent: with one worker; with several, of which one continues it in
the background; and where CP-SAT may close the gap."""

FIRST_CLOSING_SHARE, IMPROVING_SHARE, CLOSING_SHARE = 0.05, 0.15, 0.5
"""Shares of the budget for a first run of CP-SAT, for large neighbourhoods, and the next run."""


def solve_anytime(problem: Problem, options: SolveOptions) -> Solution:
    """Return the best assignment found within the budget, and a lower bound."""
    budget = options.budget.share(1 - RESERVE)
    whole = flatten(problem)
    budget.charge(SECONDS_OF.flat_entry * len(whole.tables))
    reduced = presolve(whole, lambda: not budget.is_spent)
    flat = reduced.flat
    incumbent = new_incumbent(flat.constant, budget, options.progress, options.gap)
    incumbent.how = "presolve, message passing"
    if reduced.infeasible:
        incumbent.raise_bound(math.inf)
    else:
        if not budget.work.is_counted:
            warm_up()
        graph, rows = build_graph(flat), build_rows(flat)
        search = BoundedSearch(graph, rows, incumbent, options.seed, options.workers)
        run(search, flat, options.budget.seconds)
    assignment = None
    if incumbent.assignment is not None:
        assignment = tuple(reduced.lift(incumbent.assignment).tolist())
        judged = evaluate(problem, assignment)
        assert judged.feasible, "the incumbent is not feasible"
        incumbent.cost = judged.cost
    return incumbent.solution(assignment, _statistics(problem, reduced))


def _statistics(problem: Problem, reduced: Presolved) -> dict[str, float]:
    statistics: dict[str, float] = {
        "variables": len(problem.variables),
        "variables_after_presolve": len(reduced.flat.size),
        "pairs_after_presolve": len(reduced.flat.first),
        "strategies_after_presolve": len(reduced.flat.unary),
    }
    for reduction in reduced.reductions:
        statistics[reduction.name] = statistics.get(reduction.name, 0) + 1
    return statistics


def run(search: BoundedSearch, flat: Flat, seconds: float) -> None:
    """Search the presolved problem until the gap is closed or the budget is spent.

    The shares of its phases are of so many seconds.
    """
    if search.solve_trivial():
        return
    search.start()
    if not search.small:
        share = ASCENT_SHARE if search.workers == 1 else SHARED_ASCENT_SHARE
        search.raise_bound(share * seconds)
        LargeNeighbourhoods(search, flat).run(math.inf)
        return
    search.raise_bound(SHORT_ASCENT_SHARE * seconds)
    close_gap(search, FIRST_CLOSING_SHARE * seconds)
    incumbent = search.incumbent
    while not incumbent.closed and incumbent.remaining > MOMENT:
        LargeNeighbourhoods(search, flat).run(IMPROVING_SHARE * seconds)
        close_gap(search, CLOSING_SHARE * seconds)
        if incumbent.assignment is None:
            search.raise_bound(IMPROVING_SHARE * seconds)


def warm_up() -> None:
    """Compile all inner loops on a tiny problem, before the time of a clock is short.

    Where work is counted, each is compiled when it is needed first.
    """
    table = np.array([[0, 2], [1, 0]])
    use = MemoryUse(np.array([1, 2]), 0, 1)
    variables = tuple(Variable(name, np.array([1, 0]), (use,)) for name in ("first", "second"))
    flat = flatten(Problem(variables, (Pair(0, 1, table),), 3))
    graph, rows = build_graph(flat), build_rows(flat)
    ascent = DualAscent(graph, rows)
    ascent.step(1.0)
    diffuse(graph, graph.unary, ascent.messages.pieces, 1)
    local = LocalSearch(graph, rows)
    state = local.start(np.zeros(2, np.int64))
    descend(graph, rows, state, True)
    exchange(graph, rows, state, local.trail, np.arange(2), 1)
