"""Drafts of the outer search: of the least estimate first, and below the best plan."""

from math import inf

import pytest

from shardwright.compiler.outer.configuration import Configuration
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.planner.choice.steps import NotFasterError
from tests.compiler.outer.test_outer_search import Drawn, PricedJudge, searched


def test_what_is_drafted_is_the_least_of_the_estimates_and_is_compiled_at_last():
    mesh = Mesh((MeshAxis("x", 4, 0),))
    one, two = (Configuration(mesh, count, 2, 1, "1f1b") for count in (4, 8))
    drawn = {one: Drawn((1.0, 1.0), 1.5), two: Drawn((1.0, 1.0), 1.4)}
    judge = PricedJudge(drawn, estimates={one: 1.2, two: 1.1})
    search, entries = searched(judge)
    assert judge.drafted[0] == two
    assert search.best.configuration == two
    assert search.best.found.cost == 1.4
    assert {entry.outcome for entry in entries} == {"compiled"}


def test_a_draft_that_is_not_expected_to_be_faster_leaves_its_bounds_to_others():
    one = Configuration(Mesh((MeshAxis("x", 8, 0),)), 1)
    two = Configuration(Mesh((MeshAxis("x", 4, 0),)), 8, 2, 1, "1f1b")
    drawn = {one: Drawn((1.0, 1.0), 1.4), two: Drawn((1.2, 1.5), 1.6)}
    judge = PricedJudge(drawn, estimates={one: 1.2, two: 1.3})
    draft, known = judge.draft, []

    def drafted(configuration, budget, below):
        known.append(below)
        if below < inf:
            raise NotFasterError("no plan of blocks is expected below")
        return draft(configuration, budget, below)

    judge.draft = drafted
    search, entries = searched(judge)
    assert known == [inf, pytest.approx(1.1 * 1.4)]
    assert (search.best.configuration, search.best.found.cost) == (one, 1.4)
    assert all(entry.outcome in ("compiled", "cut") for entry in entries)
