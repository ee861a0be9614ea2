"""The incumbent: the best assignment so far, its cost, and the best lower bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardwright.solver.methods import Progress
from shardwright.solver.solution import OPTIMALITY_GAP, Solution, Status, relative_gap
from shardwright.solver.work import Budget

PRUNING_GAP = OPTIMALITY_GAP / 10
"""Minimum relative improvement; smaller ones are pruned."""

Assignment = TypeVar("Assignment")


@dataclass
class Incumbent(Generic[Assignment]):
    """The best assignment and the best lower bound so far.

    Parameters
    ----------
    budget : Budget
        What the search may spend; the seconds of its progress and answer are those spent.
    progress : callable, optional
        Called with (seconds, cost, lower bound) whenever one of them improves.
    allowed_gap : float
        The relative gap at which the search may stop.
    tolerance : float
        The relative gap that counts as optimal.
    whole : bool
        Whether all costs are integers: bounds are rounded up.
    constant : int
        The part of every cost that `offer` and `raise_bound` leave out.
    how : str
        The methods that gave the assignment and the bound.

    Attributes
    ----------
    set_aside : float
        Assignments that cost this or more have been pruned: the bound cannot exceed it.
    timed : bool
        Whether the budget ended a part of the search: more of it may give another answer.
    """

    budget: Budget
    progress: Progress | None = None
    allowed_gap: float = 0.0
    tolerance: float = OPTIMALITY_GAP
    whole: bool = False
    constant: int = 0
    how: str = ""
    assignment: Assignment | None = None
    cost: float = math.inf
    bound: float = -math.inf
    set_aside: float = math.inf
    timed: bool = False

    def offer(self, assignment: Assignment, cost: float) -> bool:
        """Keep a feasible assignment if it is the best so far; return whether it is."""
        if cost + self.constant >= self.cost:
            return False
        self.assignment = assignment
        self.cost = (round(cost) if self.whole else cost) + self.constant
        self._report()
        return True

    def raise_bound(self, bound: float) -> None:
        """Keep a lower bound on all assignments that have not been set aside."""
        bound = min(bound, self.set_aside)
        if self.whole and math.isfinite(bound):
            bound = math.ceil(bound)
        bound += self.constant
        if bound > self.bound:
            self.bound = bound
            self._report()

    def cutoff(self) -> float:
        """Return the cost that an assignment must stay below; set aside those that do not."""
        cutoff = self.cost - (0.5 if self.whole else PRUNING_GAP * abs(self.cost))
        self.set_aside = min(self.set_aside, cutoff)
        return cutoff

    def cutoff_at(self, share: float) -> float:
        """Return a cutoff that leaves this share of the gap to search."""
        if share >= 1:
            return self.cutoff()
        gap = self.cost - self.bound if math.isfinite(self.cost) else abs(self.bound)
        return self.bound + share * gap

    @property
    def target(self) -> float:
        """The best cost so far, without the constant."""
        return self.cost - self.constant

    @property
    def gap(self) -> float:
        """The gap between the best cost and the bound, relative to the cost."""
        return relative_gap(self.cost, self.bound)

    @property
    def closed(self) -> bool:
        """Whether the gap is small enough to stop."""
        return self.gap <= max(self.tolerance, self.allowed_gap)

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self.budget.left

    @property
    def status(self) -> Status:
        """What is known of the best assignment so far."""
        if self.assignment is None:
            return "infeasible" if self.bound == math.inf else "unknown"
        return "optimal" if self.gap <= self.tolerance else "feasible"

    def solution(
        self, assignment: tuple[int, ...] | None, statistics: Mapping[str, float]
    ) -> Solution:
        """Return the answer; ``assignment`` is the best one in terms of the whole problem."""
        return Solution(
            assignment=assignment,
            cost=self.cost,
            lower_bound=min(self.bound, self.cost),
            status=self.status,
            how=self.how,
            seconds=self.budget.spent,
            statistics=statistics,
            timed=self.timed,
        )

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.budget.spent, self.cost, min(self.bound, self.cost))
