"""The limits of a search, handed down whole from the compiler to the solver."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from shardwright.solver.methods import DEFAULT_SECONDS
from shardwright.solver.work import Budget

Progress = Callable[[float, float, float], None]
"""Called with (seconds of work, cost, lower bound) while a search runs."""


@dataclass(frozen=True)
class SearchOptions:
    """The limits of a search.

    Parameters
    ----------
    memory_limit : float, optional
        Bytes that one rank may hold; a method that does not keep the limit ignores it.
    budget : Budget
        What the search may spend.
    gap : float
        Relative gap between cost and lower bound at which the search stops.
    progress : callable, optional
        Follows the search.
    effort : float
        What the user asked for, for messages.
    """

    memory_limit: float | None = None
    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_SECONDS))
    gap: float = 0.0
    progress: Progress | None = None
    effort: float = 1.0

    @property
    def limit_bytes(self) -> float:
        """The memory limit; infinite where there is none."""
        return inf if self.memory_limit is None else self.memory_limit
