"""Parts and numbers of plans that other processes find: the same as without them."""

import os
from dataclasses import replace

import pytest

from shardwright.compiler.evaluation.ahead import Ahead, NumbersAsked
from shardwright.compiler.evaluation.evaluated import evaluated, fastest, front, least_memory
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.questions import changes, improved
from shardwright.ir.errors import ShardwrightWarning
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import GIB, model, priced

PLAN = NamedPlan.parse("data=4,micro_batch=1,zero=1")


def alone(*software: str) -> EvaluatedModel:
    """Return the model, of which nothing is known."""
    return replace(model(2 * GIB, *software, narrow=True), _parts={}, _shares={})


def told(one):
    return one.plan.text, one.devices, one.seconds, one.memory_bytes, one.fits


def answers(own: EvaluatedModel, devices: int):
    """Return what is told of a model on some devices."""
    plans = family(own, devices, (1, 2))
    best = fastest(own, plans)
    assert best is not None
    return (
        [(bound.plan.text, bound.seconds, bound.memory_bytes) for bound in plans],
        told(improved(best)),
        [(one.kind, one.text, told(one.then)) for one in changes(best)],
        told(least_memory(own, plans)),
        [told(one) for one in front(own, plans, 3)],
        told(fastest(own, plans, most=2)),
    )


@pytest.mark.long
def test_processes_find_the_same():
    one = answers(alone(), 4)
    own = alone()
    with own.by_workers(2):
        assert own.workers == 2
        assert answers(own, 4) == one
    assert own.workers == 0


def test_nothing_but_numbers_comes_from_a_process():
    own = alone()
    with own.by_workers(2):
        own.expect(PLAN, 4, ("seconds", "fits"))
        found = own.evaluation(PLAN, 4)
    assert "alone" not in vars(found)
    assert found.seconds == evaluated(alone(), PLAN, 4).seconds
    assert "alone" not in vars(found)
    assert found.program.nodes == evaluated(alone(), PLAN, 4).evaluation.program.nodes


def test_memory_is_not_found_of_a_step_that_is_too_long():
    for least in (1e-9, 1e9):
        own = alone("megatron-core")
        with own.by_workers(2):
            own.expect(PLAN, 4, ("seconds", "fits"), least)
            found = own.evaluation(PLAN, 4).known()
        assert "seconds" in found
        assert ("kept" in found) == (least > 1)


def test_memory_is_not_found_of_a_plan_that_does_not_fit():
    for gib in (2.0, 0.001):
        own = replace(model(gib * GIB, "megatron-core", narrow=True), _parts={}, _shares={})
        with own.by_workers(2):
            own.expect(PLAN, 4, ("seconds", "fits", "memory"))
            found = own.evaluation(PLAN, 4).known()
        assert {"seconds", "in_order"} <= found.keys()
        assert ("step" in found) == (gib > 1)


def test_a_question_about_parts_is_begun_once_and_told_so():
    own = alone()
    assert not own.expect_bound(PLAN, 4)
    with own.by_workers(2):
        assert own.expect_bound(PLAN, 4)
        assert not own.expect_bound(PLAN, 4)
        assert not own.is_busy
        assert not own.expect_bound(NamedPlan.parse("data=64,micro_batch=1"), 64)
        assert own.bound(PLAN, 4).seconds == alone().bound(PLAN, 4).seconds
        assert not own.expect_bound(PLAN, 4)


def test_one_process_begins_nothing():
    own = alone()
    with own.by_workers(1):
        own.expect(PLAN, 4, ("seconds",))
        assert own.workers == 0
        assert "alone" in vars(own.evaluation(PLAN, 4))


@pytest.mark.parametrize("ends", [1, 2])
def test_what_a_process_that_dies_was_asked_is_found_again(tmp_path, ends):
    own = alone()

    def answer(question):
        for number in range(ends):
            mark = tmp_path / str(number)
            if not mark.exists():
                mark.touch()
                os._exit(3)
        return own._answer(question)

    own._ahead = Ahead(answer, 2)
    own.expect(PLAN, 4, ("seconds",))
    with pytest.warns(ShardwrightWarning, match="the plan `data=4.* ended before its answer"):
        found = own.evaluation(PLAN, 4)
    own._ahead.close()
    assert found.seconds == evaluated(alone(), PLAN, 4).seconds


def test_a_plan_that_the_model_lacks_has_the_same_error():
    own, plan = alone(), NamedPlan.parse("data=64,micro_batch=1")
    with own.by_workers(2):
        own.expect(plan, 64, ("seconds",))
        assert evaluated(own, plan, 64) is None
    assert evaluated(alone(), plan, 64) is None


def test_a_question_is_begun_once():
    begun = Ahead(priced(narrow=True)._answer, 2)
    try:
        question = NumbersAsked(PLAN, 4, ("seconds",), 1.0)
        assert begun.is_open(question)
        begun.begin(question)
        assert not begun.is_open(question._replace(least=2.0))
        assert begun.take(question.key)["seconds"] > 0
        assert begun.take(question.key) is None
    finally:
        begun.close()
    assert not begun.is_open(question)
