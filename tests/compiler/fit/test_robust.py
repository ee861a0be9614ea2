"""The robust choice: least worst-case regret, its cases, and where it flips."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.compiler.fit.estimates import Factors
from shardwright.compiler.fit.evaluated import fastest
from shardwright.compiler.fit.family import family
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.fit.robust import Error, errors_of, least_regret, robust
from shardwright.cost_model.cluster import cluster
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.compiler.fit.models import CLUSTER, TEXT, model


@pytest.fixture(scope="module")
def plans():
    return family(model(narrow=True), 16)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda cases: st.lists(
            st.lists(st.floats(0.1, 10), min_size=cases, max_size=cases), min_size=1, max_size=5
        )
    )
)
def test_the_choice_has_the_least_worst_regret(seconds):
    best = [min(row[i] for row in seconds) for i in range(len(seconds[0]))]
    worst = [max(row[i] / best[i] - 1 for i in range(len(best))) for row in seconds]
    found = least_regret(seconds)
    assert worst[found.chosen] == min(worst)
    assert found.regrets == pytest.approx(worst)


def test_rates_of_data_sheets_are_only_missed():
    found = errors_of(CLUSTER, {}, 2)
    assert [error.name for error in found] == ["compute", "node", "pod", "overlap"]
    assert all(error.low == 1 for error in found[:3])


def test_fitted_rates_err_in_both_directions_and_stated_errors_hold():
    found = errors_of(cluster("a100-800g"), {"pod": 0.5, "overlap": 0.25}, 2)
    assert found[0] == Error("compute", 0.9, 1.1)
    assert found[2:] == [Error("pod", 0.5, 1.5), Error("overlap", 0.0, 0.25)]


def test_without_errors_the_fastest_plan_is_robust(plans):
    none = [Error(name, 1.0, 1.0) for name in ("compute", "node", "pod")]
    best = fastest(plans)[0]
    said = 0.25 if best.plan.tensor > 1 else 0.0
    found = robust(plans, [*none, Error("overlap", said, said)])
    assert found is not None
    assert found.plan.seconds <= best.seconds
    assert found.choice.regrets[found.choice.chosen] == pytest.approx(0)


def test_the_robust_plan_regrets_no_more_than_the_fastest(plans):
    found = robust(plans, errors_of(CLUSTER, {}, 2))
    assert found is not None
    assert len(found.cases) == 17
    regrets = found.choice.regrets
    assert regrets[found.choice.chosen] <= regrets[0]
    assert all(one.fits for one in found.candidates)


def test_a_flip_is_where_another_plan_is_faster(plans):
    wide = [Error(name, 1.0, 30.0) for name in ("compute", "node", "pod")]
    found = robust(plans, [*wide, Error("overlap", 0.0, 1.0)])
    assert found is not None
    flips = [flip for flip in found.flips if flip.plan is not None]
    assert flips
    for flip in flips:
        assert flip.factor is not None
        assert flip.error.low <= flip.factor <= flip.error.high
        assert flip.plan != found.candidates[0]


def test_slower_links_make_steps_no_shorter(plans):
    for one in plans[::97]:
        slow = replace(one, factors=replace(one.factors, links=(2.0, 2.0)))
        assert slow.seconds >= one.seconds
        assert replace(one, factors=replace(one.factors, compute=2.0)).seconds >= one.seconds


def test_slower_rings_of_a_torus_make_steps_longer():
    graph = training_definition(TEXT, 64, 1)[0].graph
    options = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    model = FitModel(graph, cluster("tpu-v5e").without_host(), options)
    plans = {one.plan.text: one for one in family(model, 64, tensors=(1,))}
    for text in ("data=64,micro_batch=1", "pipeline=4,data=16,micro_batch=1,schedule=1f1b"):
        times = [
            replace(plans[text], factors=Factors(links=links, exposed=1.0)).refined_seconds
            for links in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
        ]
        assert min(times[1:]) > times[0] * (1 + 1e-6), text
