"""Ever tighter memory limits: each just below the memory of the plan before.

The lower bound of all plans within a limit rises as the limit falls. Once it is at the step of the
fastest plan, no plan within less memory is faster. So the plans that a smaller limit of the user
would give are candidates within a larger one, too: more memory does not make the plan slower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

T = TypeVar("T")
SHARE = 1 / 4
"""Of the budget left that searches within tighter limits may take."""

_OPTIONS = 600  # of the problems of a plan up to which tighter limits are searched
_SEARCHES = 40  # at most


@dataclass(frozen=True)
class Within(Generic[T]):
    """What a search within a memory limit found.

    Parameters
    ----------
    lower_bound : float
        Of every plan that takes no more than the limit.
    memory_bytes : float
        The most that a plan found takes, by the account of the search.
    plan : object
        The plan.
    """

    lower_bound: float
    memory_bytes: float
    plan: T


def within_tighter_limits(
    search: Callable[[float], Within[T] | None],
    limit: float,
    shortest: Callable[[], float],
    gap: float,
) -> Iterator[T]:
    """Yield the plans of a memory limit and of tighter ones, while one of those may be faster.

    Parameters
    ----------
    search : callable
        Searches within a limit in bytes; None where it finds no plan.
    limit : float
        The limit of the user.
    shortest : callable
        Returns the step of the fastest plan so far.
    gap : float
        Relative gap to a lower bound up to which no faster plan is asked for.
    """
    for _ in range(_SEARCHES):
        found = search(limit)
        if found is None:
            return
        yield found.plan
        if relative_gap(shortest(), found.lower_bound) <= max(gap, OPTIMALITY_GAP):
            return
        limit = float(np.nextafter(found.memory_bytes, 0.0))


def is_small(options: int) -> bool:
    """Return whether tighter limits are searched for a plan of problems with so many options."""
    return options <= _OPTIONS
