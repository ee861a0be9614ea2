"""The robust choice: least worst-case regret, its cases, and where it flips."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.compiler.evaluation.evaluated import evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.factors import Factors
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.robust import Error, errors_of, least_regret, robust
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.timeline import serial_timeline
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import CLUSTER, GIB, TEXT, model


@pytest.fixture(scope="module")
def own():
    return model(narrow=True)


@pytest.fixture(scope="module")
def plans(own):
    found = family(own, 8, micro_batches=(1,), tensors=(1,))
    small = (one for one in found if one.plan.recompute == "none" and one.plan.chunks == 1)
    return [one for one in small if one.plan.pipeline < 4]


@settings(max_examples=20, deadline=None)
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


@pytest.mark.long
def test_without_errors_the_fastest_plan_is_robust(own, plans):
    none = [Error(name, 1.0, 1.0) for name in ("compute", "node", "pod")]
    best = fastest(own, plans)
    found = robust(own, plans, [*none, Error("overlap", 0.0, 0.0)])
    assert best is not None
    assert found is not None
    assert found.plan.plan == best.plan
    assert found.choice.regrets[found.choice.chosen] == pytest.approx(0)


@pytest.mark.long
def test_the_robust_plan_regrets_no_more_than_the_fastest(own, plans):
    few = errors_of(CLUSTER, {}, 2)[1:]
    found = robust(own, plans, [Error("compute", 1.0, 1.0), *few])
    assert found is not None
    assert len(found.cases) == 9
    regrets = found.choice.regrets
    assert regrets[found.choice.chosen] <= regrets[0]
    assert all(one.fits for one in found.candidates)


@pytest.mark.long
def test_a_flip_is_where_another_plan_is_faster(own, plans):
    wide = [Error("compute", 1.0, 1.0), *(Error(name, 1.0, 30.0) for name in ("node", "pod"))]
    found = robust(own, plans, [*wide, Error("overlap", 0.0, 0.0)])
    assert found is not None
    flips = [flip for flip in found.flips if flip.plan is not None]
    assert flips
    for flip in flips:
        assert flip.factor is not None
        assert flip.error.low <= flip.factor <= flip.error.high
        assert flip.plan != found.candidates[0]


@pytest.mark.parametrize(
    "text",
    ["data=16,micro_batch=1,zero=3", "tensor=2,pipeline=2,data=4,micro_batch=1,sequence_parallel"],
)
def test_a_step_is_that_of_a_cluster_with_these_figures(text):
    """All figures twice: twice the step; links alone: what slower links take."""
    own = model(64 * GIB, narrow=True)
    one = evaluated(own, NamedPlan.parse(text), 16)
    assert one is not None
    twice = one.seconds_in(Factors(2.0, (2.0, 2.0)))
    assert twice == pytest.approx(2 * one.seconds, rel=1e-9)
    slow = one.seconds_in(Factors(links=(2.0, 2.0)))
    assert one.seconds < slow < twice
    serial = one.seconds_in(Factors(exposed=1.0))
    program, where = one.evaluation.program, own.cluster.used_by(16)
    assert serial == pytest.approx(serial_timeline(program, where).step_seconds, rel=1e-9)


def test_a_bound_waits_for_the_share_that_is_exposed_in_its_case():
    own, plan = model(64 * GIB, "torchtitan"), NamedPlan.parse("data=16,micro_batch=1,zero=3")
    one, bound = evaluated(own, plan, 16), own.bound(plan, 16)
    assert one is not None
    assert bound is not None
    cases = [Factors(links=(20.0, 20.0), exposed=share) for share in (0.0, None, 1.0)]
    found = [replace(bound, factors=case).seconds for case in cases]
    assert found[0] < found[1] < found[2]
    assert all(low <= one.seconds_in(case) for low, case in zip(found, cases, strict=True))


def test_slower_rings_of_a_torus_make_steps_longer():
    graph = training_definition(TEXT, 64, 1)[0].graph
    options = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, cluster("tpu-v5e:figures=datasheet").without_host(), options)
    one = evaluated(own, NamedPlan.parse("data=64,micro_batch=1"), 64)
    assert one is not None
    times = [
        one.seconds_in(Factors(links=links, exposed=1.0))
        for links in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
    ]
    assert min(times[1:]) > times[0] * (1 + 1e-6)
