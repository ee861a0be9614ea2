"""Of plans that fit and are not told from the fastest one, the simplest is chosen."""

import pytest

from shardwright.compiler.evaluation.evaluated import evaluated, fastest
from shardwright.compiler.fit.simplest import kinds, simplest
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import GIB, model

DOES_NOT_FIT, FASTEST, OTHER, SLOWEST = (
    "data=8,micro_batch=2,recompute=full",
    "tensor=2,data=4,micro_batch=1,sequence_parallel",
    "tensor=2,pipeline=2,data=2,micro_batch=1,sequence_parallel",
    "tensor=8,data=1,micro_batch=4,sequence_parallel",
)


@pytest.mark.long
def test_the_simplest_is_that_of_all_that_fit_and_are_not_told_apart():
    own = model(2 * GIB, narrow=True)
    bounds = [own.bound(NamedPlan.parse(one), 8) for one in (DOES_NOT_FIT, FASTEST, OTHER, SLOWEST)]
    plans = [one for one in bounds if one is not None]
    known = {one.plan.text: evaluated(own, one.plan, 8) for one in plans}
    fits = {text: one.fits for text, one in known.items() if one is not None}
    assert fits == {DOES_NOT_FIT: False, FASTEST: True, OTHER: True, SLOWEST: True}
    best = fastest(own, plans)
    assert best is not None
    assert best.plan.text == FASTEST
    slowest = known[SLOWEST]
    assert slowest is not None
    share = slowest.seconds / best.seconds - 1
    assert share > 0.2
    assert simplest(own, plans, best, share / 2) is best
    assert simplest(own, plans, best, 2 * share).plan.text == SLOWEST
    assert kinds(slowest.plan) == 1
