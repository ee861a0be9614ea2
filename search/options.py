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
    """

    memory_limit: float | None = None
    time_limit: float = 60.0
    gap: float = 0.0
    progress: Progress | None = None

    @property
    def limit_bytes(self) -> float:
        """The memory limit; infinite where there is none."""
        return inf if self.memory_limit is None else self.memory_limit

    def since(self, begin: float) -> "SearchOptions":
        """Return the options with the time that is left of the limit, which began at `begin`."""
        return replace(self, time_limit=max(self.time_limit - (time.perf_counter() - begin), 0.0))
