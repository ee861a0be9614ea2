"""What a plan says of the time limit: the whole search, or a share that ended a part of it."""

import time
from collections.abc import Sequence

import pytest

from shardwright.ir.decisions import Decisions
from shardwright.ir.mesh import Mesh
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.time_note import TimeNote, says_so

WHOLE = "exact; the time limit ended the search"


def result(seconds: float = 1.0) -> SearchResult:
    """Return a result with a gap."""
    return SearchResult(
        (), Decisions(Mesh(()), {}, {}), 2.0, 1.0, "feasible", 0.0, seconds, "exact"
    )


def said(ended: Sequence[tuple[str, float]], used: float) -> str:
    """Return what a plan says where parts ended by shares of 120 seconds, some of which passed."""
    note = TimeNote(began=time.perf_counter() - used)
    for part, share in ended:
        note.is_late(note.began + share, part)
    return note.noted_in(result(), 120.0).how


@pytest.mark.parametrize(
    ("ended", "used", "expected"),
    [
        ([], 24.0, "exact"),
        ([("the bound", 30.0)], 24.0, "exact"),
        (
            [("the bound", 21.0), ("plans", 10.0), ("plans", 15.0)],
            24.0,
            "exact; a share of the time limit ended the bound after 21 s, plans after 15 s; "
            "24 of 120 s were used",
        ),
        ([("the bound", 21.0), ("candidates", 120.0)], 120.5, WHOLE),
        ([("the bound", 21.0)], 120.5, WHOLE),
    ],
)
def test_a_plan_says_what_the_limit_ended(
    ended: list[tuple[str, float]], used: float, expected: str
) -> None:
    assert said(ended, used) == expected


def test_a_search_of_the_solver_has_a_share() -> None:
    note, limits = TimeNote(), SearchOptions(time_limit=30.0)
    note.note_end_of(result(1.0), limits)
    assert not note.has_ended_a_search
    note.note_end_of(result(30.0), limits)
    found = note.noted_in(result(), 120.0)
    assert says_so(found)
    assert "a share of the time limit ended a search of the solver after 30 s; " in found.how
    assert note.noted_in(found, 120.0) is found
