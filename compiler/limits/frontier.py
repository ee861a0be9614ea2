"""Plans of ever tighter memory limits, where the gap to the lower bound stays wide.

The cost of a plan by weights of the resources is at most its overlapped step. So the least such
cost within some memory bounds the steps of all plans that take no more, and it rises as the memory
falls. The searches go down from the memory limit, each just below the memory of the plan before,
until no plan within less memory can be faster than the fastest plan. What a tighter limit would
give by these weights is then among the plans that were met, so more memory does not make it slower.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwright.compiler.attempts import Attempts
from shardwright.compiler.fitting import Attempt
from shardwright.ir.errors import NoPlanError
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_OPTIONS = 600  # of a problem up to which tighter limits are searched
_SEARCHES = 40  # at most
_SHARE = 1 / 4  # of the time left that they may take


@dataclass(frozen=True)
class MemoryFrontier:
    """The plans of the least cost by weights, from the memory limit downwards.

    Parameters
    ----------
    attempts : Attempts
        The searches by weights.
    """

    attempts: Attempts

    def plans(self, shortest: Callable[[], float]) -> Iterator[Attempt]:
        """Yield the plans that fit, until none within less memory is faster than `shortest`."""
        limits = self.attempts.limits
        searches, near = self._searches(), max(limits.gap, OPTIMALITY_GAP)
        known = self.attempts.request.space  # no larger, and built in any case
        if _is_large(known) or _is_large(searches.space):
            return
        memory_limit = limits.limit_bytes
        for _ in range(_SEARCHES):
            try:
                found = searches.attempt(replace(limits, memory_limit=memory_limit))
            except NoPlanError:
                break
            if found.fits(limits.limit_bytes):
                yield found
            if relative_gap(shortest(), found.result.lower_bound) <= near:
                break
            memory_limit = float(np.nextafter(found.result.memory_bytes, 0.0))

    def _searches(self) -> Attempts:
        """Return the searches in their share of the time, which decide what is recomputed."""
        now, attempts = time.perf_counter(), self.attempts
        end = now + _SHARE * max(attempts.deadline - now, 0.0)
        return replace(attempts, recomputes=attempts.request.recomputes, deadline=end)


def _is_large(space: SearchSpace) -> bool:
    return sum(space.problem.sizes) > _OPTIONS
