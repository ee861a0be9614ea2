"""What a plan says of its budget: that it ended the whole search, or shares of it parts of it."""

from collections.abc import Sequence

import pytest

from shardwright.ir.decisions import Decisions
from shardwright.ir.mesh import Mesh
from shardwright.search.budget_note import BudgetNote, says_so
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.solver.work import Budget

WHOLE = "exact; the budget ended the search"


def result(seconds: float = 1.0) -> SearchResult:
    """Return a result with a gap."""
    return SearchResult(
        (), Decisions(Mesh(()), {}, {}), 2.0, 1.0, "feasible", 0.0, seconds, "exact"
    )


def said(ended: Sequence[tuple[str, float]], used: float) -> str:
    """Return what a plan says where parts ended by shares of 120 seconds, some of which passed."""
    note = BudgetNote(Budget(120.0))
    shares = [(part, note.budget.within(share)) for part, share in ended]
    note.budget.charge(used)
    for part, share in shares:
        note.is_late(share, part)
    return note.noted_in(result()).how


@pytest.mark.parametrize(
    ("ended", "used", "expected"),
    [
        ([], 24.0, "exact"),
        ([("the bound", 30.0)], 24.0, "exact"),
        (
            [("the bound", 21.0), ("plans", 10.0), ("plans", 15.0)],
            24.0,
            "exact; a share of the budget ended the bound after 21 s, plans after 15 s; "
            "24 of 120 s of work were spent",
        ),
        ([("the bound", 21.0), ("candidates", 120.0)], 120.5, WHOLE),
        ([("the bound", 21.0)], 120.5, WHOLE),
    ],
)
def test_a_plan_says_what_the_budget_ended(
    ended: list[tuple[str, float]], used: float, expected: str
) -> None:
    assert said(ended, used) == expected


def test_a_search_of_the_solver_has_a_share() -> None:
    note, limits = BudgetNote(Budget(120.0)), SearchOptions(budget=Budget(30.0))
    note.note_end_of(result(1.0), limits)
    assert not note.has_ended_a_search
    note.note_end_of(result(30.0), limits)
    found = note.noted_in(result())
    assert says_so(found)
    assert "a share of the budget ended a search of the solver after 30 s; " in found.how
    assert note.noted_in(found) is found
