"""Whether the time limit ended a search: with more time, the plan or its bound may be another."""

import time
from dataclasses import dataclass, field, replace

from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_ENDED = "the time limit ended"
_BY_SOLVER = "a search of the solver"

# Parts of a search that several modules name.
BY_WEIGHTS = "the search by weights"
BY_RULE = "plans by rule"
FOR_A_BOUND = "the search for a bound"


@dataclass
class TimeNote:
    """Notes which parts of the search for one plan the time limit ended.

    Parameters
    ----------
    began : float
        The begin of the search, by `time.perf_counter`.
    shares : dict of str to float
        Parts in which something that was still to be searched was left out, and the seconds that
        each had.
    """

    began: float = field(default_factory=time.perf_counter)
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def has_ended_a_search(self) -> bool:
        """Whether something that was still to be searched was left out."""
        return bool(self.shares)

    def note(self, part: str, share: float | None = None) -> None:
        """Note that the time limit ended a part of the search: after its share, or now."""
        share = time.perf_counter() - self.began if share is None else max(share, 0.0)
        self.shares[part] = max(share, self.shares.get(part, 0.0))

    def is_late(self, deadline: float, part: str) -> bool:
        """Return whether no time is left for what is next, and note that it is left out.

        Parameters
        ----------
        deadline : float
            The end of this part of the search, by `time.perf_counter`.
        part : str
            What ends there, in words.
        """
        late = time.perf_counter() >= deadline
        if late:
            self.note(part, deadline - self.began)
        return late

    def note_end_of(self, result: SearchResult, limits: SearchOptions) -> None:
        """Note whether the time limit ended the search of a result.

        A search may take half of its time without copies, and return what that found.
        """
        gap = relative_gap(result.cost, result.lower_bound)
        is_near = gap <= max(limits.gap, OPTIMALITY_GAP)
        if result.timed or result.seconds >= limits.time_limit / (1 if is_near else 2):
            self.note(_BY_SOLVER, limits.time_limit)

    def noted_in(self, result: SearchResult, limit: float) -> SearchResult:
        """Return a result that says which parts of its search the time limit ended.

        Parameters
        ----------
        result : SearchResult
            The result.
        limit : float
            Seconds of the whole search.
        """
        if not self.has_ended_a_search or says_so(result):
            return result
        used = time.perf_counter() - self.began
        ended = f"{_ENDED} the search"
        if max(used, *self.shares.values()) < limit:
            parts = (f"{part} after {share:.3g} s" for part, share in self.shares.items())
            ended = f"a share of {_ENDED} {', '.join(parts)}; {used:.3g} of {limit:g} s were used"
        return replace(result, how=f"{result.how}; {ended}")


def says_so(result: SearchResult) -> bool:
    """Return whether a result says that the time limit ended its search."""
    return _ENDED in result.how
