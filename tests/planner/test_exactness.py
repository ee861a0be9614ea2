"""Answers about small models against all of their plans; and errors that are put in are caught.

More models are in `benchmarks/exactness.py`.
"""

import os
from dataclasses import replace
from functools import cache
from math import inf

import pytest

from tests.extent import ALL_CASES, first, long_after
from tests.planted import PLANTED
from tests.referee import Objective
from tests.refereed import Asked, asked, bests, plans_of, verdict

FEW = (174, 121, 34, 81)
"""One stage, two, three, and several numbers of micro-batches."""
PLANTED_IN = (174, 121, 39)
SEEDS = range(40) if os.environ.get(ALL_CASES) == "1" else ()


@cache
def known(seed: int) -> tuple[Asked, int, list[tuple[float, Objective, float]]]:
    """Return a question, how many plans there are, and the best of them within some limits."""
    question = asked(seed)
    plans = plans_of(question)
    return question, len(plans), [*bests(question, plans)] if plans else []


@pytest.mark.long
@pytest.mark.parametrize("seed", [*FEW, *SEEDS])
def test_claims_are_true_and_answers_are_the_best(seed: int) -> None:
    question, plans, limits = known(seed)
    assert plans > 1 or seed not in FEW
    for limit in limits:
        found = verdict(question, plans, *limit)
        assert not found.wrong
        # Several chunks have cuts and plans that are not tried, and a bound that says so.
        assert found.is_best or question.forms[0].chunks > 1


@pytest.mark.long
def test_a_plan_of_as_much_memory_as_one_that_does_not_fit_is_found() -> None:
    question, plans = asked(50), plans_of(asked(50))
    fitting = [limit for limit in bests(question, plans) if limit[1] == "serial"]
    assert verdict(question, len(plans), *fitting[1]).is_best


@pytest.mark.long
def test_chunks_of_a_group_are_planned_that_are_not_at_their_peaks_at_once() -> None:
    question, plans, limits = known(61)
    assert question.forms[0].chunks == 2
    fitting = [limit for limit in limits if limit[2] < inf]
    assert len(fitting) == 3
    assert all(verdict(question, plans, *limit).is_best for limit in fitting)


@cache
def in_a_v(seed: int) -> tuple[Asked, int, list[tuple[float, Objective, float]]]:
    """Return the same with stages in a V on two device groups."""
    question = asked(seed)
    (form,) = question.forms
    form = replace(form, groups=2, chunks=2, schedule="zero_bubble_v")
    question = replace(question, forms=(form,), devices=2 * form.mesh.size)
    plans = plans_of(question)
    return question, len(plans), [*bests(question, plans)]


@pytest.mark.parametrize("seed", long_after(1, first(3, [61, 40, 7, 13, 112])))
def test_claims_of_chunks_in_a_v_are_true(seed: int) -> None:
    question, plans, limits = in_a_v(seed)
    assert plans > 1
    assert any(best < inf for _, _, best in limits)
    assert not any(verdict(question, plans, *limit).wrong for limit in limits)


@pytest.mark.parametrize(
    "name",
    long_after(
        1, ["device groups are said to hold 20 % less", "reductions of gradients take no time"]
    ),
)
def test_an_error_about_chunks_in_a_v_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question, plans, limits = in_a_v(61)
    PLANTED[name](monkeypatch)
    assert any(verdict(question, plans, *limit).wrong for limit in limits)


@pytest.mark.long
@pytest.mark.parametrize("name", first(4, [*PLANTED]))
def test_an_error_that_is_put_in_is_caught(name: str) -> None:
    for seed in PLANTED_IN:
        question, plans, limits = known(seed)
        for limit in limits:
            with pytest.MonkeyPatch.context() as patch:
                PLANTED[name](patch)
                found = verdict(question, plans, *limit)
            if found.wrong or (found.status != "not found" and not found.is_best):
                return
    pytest.fail(f"nothing is wrong where {name}")
