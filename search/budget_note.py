"""Whether the budget ended a search: with more of it, the plan or its bound may be another."""

from dataclasses import dataclass, field, replace

from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

_BUDGET_ENDED = "the budget ended"
ENDED = f"{_BUDGET_ENDED} the search"
"""What a plan says whose search was ended whole."""

SETTLED = "no further search would reduce the gap by much"
"""What a plan says whose search ended before the gap was closed, though something was left."""

INTERRUPTED = "interrupted"
"""What a plan says that is the best one of a search that the user ended."""

_BY_SOLVER = "a search of the solver"

# Parts of a search that several modules name.
BY_WEIGHTS = "the search by weights"
FOR_A_BOUND = "the search for a bound"


@dataclass
class BudgetNote:
    """Notes which parts of the search for one plan the budget ended.

    Parameters
    ----------
    budget : Budget
        What the whole search may spend.
    shares : dict of str to float
        Parts in which something that was still to be searched was left out, and after how many
        seconds of work.
    """

    budget: Budget = field(default_factory=Budget)
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def has_ended_a_search(self) -> bool:
        """Whether something that was still to be searched was left out."""
        return bool(self.shares)

    def note(self, part: str, seconds: float | None = None) -> None:
        """Note that a part of the search ended: after so many seconds of work, or now."""
        seconds = self.budget.spent if seconds is None else max(seconds, 0.0)
        self.shares[part] = max(seconds, self.shares.get(part, 0.0))

    def is_late(self, budget: Budget, part: str) -> bool:
        """Return whether nothing is left for what is next, and note that it is left out.

        Parameters
        ----------
        budget : Budget
            What this part of the search may spend.
        part : str
            What ends there, in words.
        """
        if budget.is_spent:
            self.note(part, budget.end - self.budget.begin)
        return budget.is_spent

    def note_end_of(self, result: SearchResult, limits: SearchOptions) -> None:
        """Note whether its budget ended the search of a result.

        A search may spend half of it without copies, and return what that found.
        """
        gap, seconds = relative_gap(result.cost, result.lower_bound), limits.budget.seconds
        is_near = gap <= max(limits.gap, OPTIMALITY_GAP)
        if result.timed or result.seconds >= seconds / (1 if is_near else 2):
            self.note(_BY_SOLVER, seconds)

    def noted_in(self, result: SearchResult) -> SearchResult:
        """Return a result that says which parts of its search the budget ended."""
        if not self.has_ended_a_search or says_so(result):
            return result
        used, limit = self.budget.spent, self.budget.seconds
        ended = ENDED
        if max(used, *self.shares.values()) < limit:
            parts = (f"{part} after {share:.3g} s" for part, share in self.shares.items())
            left_out = f"a share of {_BUDGET_ENDED} {', '.join(parts)}"
            ended = f"{left_out}; {used:.3g} of {limit:.3g} s of work were spent"
        return replace(result, how=f"{result.how}; {ended}")


def says_so(result: SearchResult) -> bool:
    """Return whether a result says that the budget ended its search."""
    return _BUDGET_ENDED in result.how
