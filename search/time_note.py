"""Whether the time limit ended a search: with more time, the plan or its bound may be another."""

import time
from dataclasses import dataclass, replace

from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_ENDED = "the time limit ended the search"


@dataclass
class TimeNote:
    """Notes whether the time limit ended a part of the search for one plan.

    Parameters
    ----------
    has_ended_a_search : bool
        Whether something that was still to be searched was left out.
    """

    has_ended_a_search: bool = False

    def note(self) -> None:
        """Note that the time limit ended a search."""
        self.has_ended_a_search = True

    def is_late(self, deadline: float) -> bool:
        """Return whether no time is left for what is next, and note that it is left out.

        Parameters
        ----------
        deadline : float
            The end of the search, by `time.perf_counter`.
        """
        late = time.perf_counter() >= deadline
        if late:
            self.note()
        return late

    def note_end_of(self, result: SearchResult, limits: SearchOptions) -> None:
        """Note whether the time limit ended the search of a result.

        A search may take half of its time without copies, and return what that found.
        """
        gap = relative_gap(result.cost, result.lower_bound)
        is_near = gap <= max(limits.gap, OPTIMALITY_GAP)
        if result.timed or result.seconds >= limits.time_limit / (1 if is_near else 2):
            self.note()

    def noted_in(self, result: SearchResult) -> SearchResult:
        """Return a result that says whether the time limit ended a search."""
        if not self.has_ended_a_search or says_so(result):
            return result
        return replace(result, how=f"{result.how}; {_ENDED}")


def says_so(result: SearchResult) -> bool:
    """Return whether a result says that the time limit ended its search."""
    return _ENDED in result.how
