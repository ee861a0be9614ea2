"""Plans of one stage within ever tighter memory limits, where the gap to the bound stays wide.

The cost of a plan by weights of the resources is at most its overlapped step. So the least such
cost within some memory bounds the steps of all plans that take no more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardwright.compiler.attempts import Attempts
from shardwright.compiler.fitting import Attempt
from shardwright.compiler.limits.tighter import SHARE, Within, is_small, within_tighter_limits
from shardwright.ir.errors import NoPlanError


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
        known = self.attempts.request.space  # built in any case
        if not is_small(sum(known.problem.sizes)):
            return
        searches = self._searches()
        if not is_small(sum(searches.space.problem.sizes)):
            return

        def search(memory_limit: float) -> Within[Attempt] | None:
            try:
                found = searches.attempt(replace(limits, memory_limit=memory_limit))
            except NoPlanError:
                return None
            return Within(found.result.lower_bound, found.result.memory_bytes, found)

        for found in within_tighter_limits(search, limits.limit_bytes, shortest, limits.gap):
            if found.fits(limits.limit_bytes):
                yield found

    def _searches(self) -> Attempts:
        """Return the searches in their share of the budget, which decide what is recomputed."""
        attempts = self.attempts
        budget = attempts.budget.share(SHARE)
        return replace(attempts, recomputes=attempts.request.recomputes, budget=budget)
