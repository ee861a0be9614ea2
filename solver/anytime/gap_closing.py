"""Gap closing: CP-SAT runs until nothing better exists, on two forms of the costs in turn.

Where the bound is near the best cost, reparametrised costs close the gap at once; where it is far,
the original costs are better for the linear relaxation inside CP-SAT.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shardwright.solver.anytime.bounded_search import BoundedSearch
from shardwright.solver.anytime.cpsat_finish import Finish, GraphModel
from shardwright.solver.anytime.dual_ascent import used
from shardwright.solver.anytime.graph import entries_left
from shardwright.solver.anytime.reparametrisation import Reparametrisation, reparametrise
from shardwright.solver.methods import MOMENT, SolveOptions
from shardwright.solver.problem import Array
from shardwright.solver.work import SECONDS_OF, Budget

FIRST_SLICE = 4.0
"""Least seconds of work of a run."""

FIRST_SHARE = 1 / 8
"""Share of the gap that the first run searches; it doubles with every completed run."""

TIGHT_ROWS = 50
"""Most rows of the model at first; what others exceed is added after each search."""


class Kind(NamedTuple):
    """A kind of run.

    Parameters
    ----------
    whole_gap : bool
        Whether the whole gap is searched, or a share of it.
    original_costs : bool
        Whether the costs are the original ones, or reparametrised.
    time_share : float
        Share of the seconds left.
    """

    whole_gap: bool
    original_costs: bool
    time_share: float


KINDS = (Kind(False, False, 0.15), Kind(True, False, 0.5), Kind(True, True, 0.5))
"""The kinds of runs, tried in turn."""


def close_gap(search: BoundedSearch, seconds: float = math.inf) -> None:
    """Search with CP-SAT until the budget is spent or nothing better exists.

    The closer the cutoff is to the bound, the fewer strategies are possible. So a share of the gap
    comes first: either an assignment is found there, or the bound rises by that share. Where the
    time does not suffice for that, the whole gap is next, with either form of the costs.
    """
    incumbent = search.incumbent
    incumbent.how = "presolve, message passing, cp-sat"
    GapClosing(search).run(incumbent.budget.within(seconds))


class GapClosing:
    """The runs of CP-SAT on one search.

    Attributes
    ----------
    keep : array of bool
        The strategies that a better assignment can contain.
    """

    def __init__(self, search: BoundedSearch) -> None:
        self.search, self.incumbent = search, search.incumbent
        self.keep = np.ones(len(search.graph.unary), bool)

    def run(self, budget: Budget) -> None:
        """Take one run after the other."""
        incumbent = self.incumbent
        turn, share, too_large = 0, FIRST_SHARE, 0
        while budget.left > MOMENT and not incumbent.closed:
            kind = KINDS[turn % len(KINDS)]
            part = budget.within(max(FIRST_SLICE, kind.time_share * budget.left))
            before = incumbent.cost
            complete = self.search_gap(kind, 1.0 if kind.whole_gap else share, part, turn)
            incumbent.timed = incumbent.timed or not complete
            too_large = too_large + 1 if complete is None else 0
            if too_large == len(KINDS):
                break
            if complete:
                share = min(2 * share, 1.0)
            elif incumbent.cost < before:  # the gap has changed: start again
                turn += len(KINDS) - turn % len(KINDS)
            else:
                turn += 1

    def search_gap(self, kind: Kind, share: float, budget: Budget, turn: int) -> bool | None:
        """Search a share of the gap; return whether the search is complete.

        Returns None if even building the model would take too long.
        """
        search, incumbent = self.search, self.incumbent
        target = min(incumbent.target, search.graph.ceiling)
        costs = self._costs(kind, target)
        bound = incumbent.bound - incumbent.constant
        cutoff = math.ceil(bound + share * (target - bound))
        whole = share >= 1 or cutoff >= target
        if whole:
            cutoff = math.ceil(target)
        most = costs.scale * (cutoff - 1) - costs.floor
        entries = entries_left(search.graph, self.keep & (costs.unary <= most))
        if entries * SECONDS_OF.model_entry > budget.left:
            return None
        budget.charge(entries * SECONDS_OF.model_entry)
        finish = Finish(GraphModel(search.graph, search.rows, costs, self.keep, most), search.offer)
        options = SolveOptions(budget, search.seed + turn, search.workers)
        proven = finish.run(incumbent.assignment, self._tight_rows(), options)
        if proven:
            # Nothing else costs less than the cutoff; without an incumbent nothing fits at all.
            incumbent.raise_bound(incumbent.target if whole else min(incumbent.target, cutoff))
        else:
            incumbent.raise_bound(min(finish.lower_bound(), cutoff))
        return proven

    def _costs(self, kind: Kind, target: float) -> Reparametrisation:
        """Return the costs of a run; raise the bound and fix strategies by the reparametrised."""
        search, ascent = self.search, self.search.ascent
        ascent.restore()
        gap = target - ascent.best
        costs = reparametrise(search.graph, search.rows, ascent.prices, ascent.messages, gap)
        self.incumbent.raise_bound(-(-costs.floor // costs.scale))
        self.keep &= costs.unary <= costs.scale * (math.ceil(target) - 1) - costs.floor
        if kind.original_costs:
            free = np.zeros(len(ascent.prices))
            return reparametrise(search.graph, search.rows, free, None, gap)
        return costs

    def _tight_rows(self) -> Array:
        """Return rows in which little memory is left, not close to one another."""
        search, choice = self.search, self.incumbent.assignment
        if choice is None:
            return np.zeros(0, np.int64)
        left = (search.rows.capacity - used(search.rows, choice)).astype(np.float64)
        apart = len(left) // 100
        tight: list[int] = []
        while len(tight) < min(TIGHT_ROWS, len(left)):
            row = int(left.argmin())
            if left[row] == math.inf:
                break
            tight.append(row)
            left[max(row - apart, 0) : row + apart + 1] = math.inf
        return np.array(tight, dtype=np.int64)
