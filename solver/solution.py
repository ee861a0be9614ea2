"""The answer of a solver: an assignment, its cost, a lower bound, and the methods behind both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwright.ir.rounding import EQUAL

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

OPTIMALITY_GAP = EQUAL
"""The relative gap between cost and lower bound up to which a cost counts as optimal."""


@dataclass(frozen=True)
class Solution:
    """An answer with its certificate.

    Parameters
    ----------
    assignment : tuple of int or None
        One strategy for each variable; ``None`` if no assignment was found.
    cost : float
        Of the assignment; ``inf`` if there is none.
    lower_bound : float
        No feasible assignment costs less.
    status : {"optimal", "feasible", "infeasible", "unknown"}
        `optimal` only if the bound equals the cost, `infeasible` only if that is proven.
    how : str
        The methods that gave the assignment and the bound.
    seconds : float
        Wall time.
    statistics : mapping of str to float
        Sizes of the problem and counts of the work.
    timed : bool
        Whether the clock ended a part of the search: another run may give another answer.
    """

    assignment: tuple[int, ...] | None
    cost: float
    lower_bound: float
    status: Status
    how: str
    seconds: float = 0.0
    statistics: Mapping[str, float] = field(default_factory=dict)
    timed: bool = False

    def __repr__(self) -> str:
        return f"<Solution {self.status}: cost {self.cost:g}, lower bound {self.lower_bound:g}>"

    @property
    def gap(self) -> float:
        """The largest possible distance of the cost from the optimum, relative to the cost."""
        return relative_gap(self.cost, self.lower_bound)


def relative_gap(cost: float, lower_bound: float) -> float:
    """Return ``(cost - bound) / |cost|``; 0 if they meet, ``inf`` if either is unknown."""
    if cost <= lower_bound:
        return 0.0
    if not (math.isfinite(cost) and math.isfinite(lower_bound)):
        return math.inf
    return (cost - lower_bound) / max(abs(cost), abs(lower_bound))
