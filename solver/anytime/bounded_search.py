"""A problem under search: its bound rises by dual ascent, its assignments by local search.

The whole problem is searched so (`search`), and every subproblem and restriction of it
(`large_neighbourhoods`); `gap_closing` and `background_bound` work on it too.
"""

from __future__ import annotations

import math

import numpy as np

from shardwright.solver.anytime.dual_ascent import DualAscent, used
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.local_search import LocalSearch
from shardwright.solver.incumbent import Incumbent
from shardwright.solver.methods import Progress
from shardwright.solver.problem import Array
from shardwright.solver.work import SECONDS_OF, Budget

LOCAL_SHARE = 0.3
"""Share of the seconds of the ascent for improving decoded assignments, with several workers."""

LOCAL_PERIOD = 3
"""Steps of the ascent from one decoded assignment to the next, with one worker or beside others."""

POOL = 6
"""Assignments that are kept to be combined."""

MOST_ENTRIES = 250_000
"""Largest number of table entries for CP-SAT."""


class BoundedSearch:
    """A problem, its bound and its assignments.

    Parameters
    ----------
    graph, rows : Graph, Rows
    incumbent : Incumbent
    seed, workers : int
    """

    def __init__(
        self, graph: Graph, rows: Rows, incumbent: Incumbent[Array], seed: int, workers: int
    ) -> None:
        self.graph, self.rows, self.incumbent = graph, rows, incumbent
        self.seed, self.workers = seed, workers
        self.local = LocalSearch(graph, rows)
        self.ascent = DualAscent(graph, rows)
        self.pool: list[Array] = []
        self.entries = int((graph.size[graph.first] * graph.size[graph.second]).sum())

    @property
    def small(self) -> bool:
        """Whether CP-SAT can close the gap."""
        return self.entries <= MOST_ENTRIES

    def solve_trivial(self) -> bool:
        """Solve a problem without choices or without room; return whether it was one."""
        if (self.rows.capacity < 0).any():
            self.incumbent.raise_bound(math.inf)
        elif len(self.graph.size) == 0:
            self.incumbent.offer(np.zeros(0, np.int64), 0.0)
            self.incumbent.raise_bound(0.0)
        else:
            return False
        return True

    def start(self) -> None:
        """Take one step of the ascent and decode it, however small the budget."""
        self.incumbent.raise_bound(self.ascent.step(self.target_guess()))
        self.decode()

    def raise_bound(self, seconds: float, patience: int = 60) -> None:
        """Step the ascent, and improve decoded assignments.

        Parameters
        ----------
        seconds : float
        patience : int
            Steps after the ascent has converged.
        """
        incumbent, ascent = self.incumbent, self.ascent
        budget = incumbent.budget.within(seconds)
        local_seconds, converged_steps, steps = 0.0, 0, 0
        while not incumbent.closed:
            if budget.is_spent:
                incumbent.timed = True
                break
            target = incumbent.target if incumbent.cost < math.inf else self.target_guess()
            budget.charge(SECONDS_OF.swept_entry * self.entries)
            bound = ascent.step(target)
            if bound > self.graph.ceiling:  # more than any assignment costs: there is none
                bound = math.inf
            incumbent.raise_bound(bound)
            converged_steps = converged_steps + 1 if ascent.converged else 0
            if converged_steps > patience:
                break
            spent, steps = budget.spent, steps + 1
            if self.workers == 1:
                due = steps % LOCAL_PERIOD == 0
            else:
                due = local_seconds <= LOCAL_SHARE * spent
            if due:
                self.decode()
                local_seconds += budget.spent - spent

    def target_guess(self) -> float:
        """Return a cost to aim at while no assignment is known."""
        best = self.ascent.best
        guess = best + max(abs(best), 1.0) if math.isfinite(best) else 1.0
        return min(guess, 2 * self.graph.ceiling)

    def decode(self) -> None:
        """Improve the assignment decoded from the messages."""
        self.incumbent.budget.charge(SECONDS_OF.decoded_entry * self.entries)
        state = self.local.improve(self.ascent.messages.choice)
        if state is not None:
            self.add_to_pool(state.choice)

    def add_to_pool(self, choice: Array) -> None:
        """Offer an assignment, and keep it to be combined with others."""
        self.offer(choice)
        self.pool = self.pool[-POOL + 1 :] + [choice]

    def offer(self, choice: Array) -> bool:
        """Make an assignment the incumbent if it fits, is allowed and is the best."""
        cost = self.local.cost(choice)
        if cost >= self.incumbent.target or not self.local.allowed(choice):
            return False
        if (used(self.rows, choice) > self.rows.capacity).any():
            return False
        return self.incumbent.offer(choice.copy(), cost)


def new_incumbent(
    constant: int, budget: Budget, progress: Progress | None = None, gap: float = 0.0
) -> Incumbent[Array]:
    """Return an incumbent for integer costs: it is optimal only where the bound meets the cost."""
    return Incumbent(budget, progress, gap, tolerance=0.0, whole=True, constant=constant)
