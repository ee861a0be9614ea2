"""The limits of a search, handed down whole from the compiler to the solver."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

Progress = Callable[[float, float, float], None]
"""Called with (seconds, cost, lower bound) while a search runs."""


@dataclass(frozen=True)
class SearchOptions:
    """The limits of a search.

    Parameters
    ----------
    memory_limit : float, optional
        Bytes that one rank may hold; a method that does not keep the limit ignores it.
    time_limit : float
        Seconds.
    gap : float
        Relative gap between cost and lower bound at which the search stops.
    progress : callable, optional
        Follows the search.
    asked_seconds : float, optional
        The time limit of the user, for messages, where only a part of it is left to this search.
    """

    memory_limit: float | None = None
    time_limit: float = 60.0
    gap: float = 0.0
    progress: Progress | None = None
    asked_seconds: float | None = None

    @property
    def limit_bytes(self) -> float:
        """The memory limit; infinite where there is none."""
        return inf if self.memory_limit is None else self.memory_limit

    @property
    def time_text(self) -> str:
        """The time limit of the user, in words."""
        asked = self.time_limit if self.asked_seconds is None else self.asked_seconds
        return f"the time limit of {asked:g} s"

    def since(self, begin: float) -> "SearchOptions":
        """Return the options with the time that is left of the limit, which began at `begin`."""
        return replace(self, time_limit=max(self.time_limit - (time.perf_counter() - begin), 0.0))
