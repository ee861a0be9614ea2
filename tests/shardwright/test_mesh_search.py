"""The outer loop over shapes of the mesh takes the cheapest plan, and tells of the others."""

from itertools import pairwise

import pytest

import shardwright
from shardwright.ir.errors import InfeasibleError, NoPlanError, OptionError, StrategyError
from tests.extent import ANY_PLAN, first


@pytest.mark.long
def test_the_cheapest_shape_is_taken():
    model = "mlp:batch=64,hidden=256"
    found = shardwright.compile(model, 64, mesh="search", time_limit=600.0)
    assert set(found.objectives) == {"2x4x8", "8x2x4", "8x8"}
    for shape, objective in found.objectives.items():
        alone = shardwright.compile(model, 64, mesh=shape).plan.document
        assert alone.objective == pytest.approx(objective)
        assert found.plan.document.objective <= min(objective, alone.objective) * (1 + 1e-9)
    assert "x".join(map(str, found.plan.mesh.shape)) in found.objectives


def test_shapes_on_which_a_pin_cannot_be_are_left_out():
    pins = {"matmul_0": ((2, 1), (1, 4))}
    found = shardwright.compile("two_matmul", 512, mesh="search", strategies=pins)
    assert set(found.objectives) == {"64x2x4"}


@pytest.mark.long
def test_where_no_shape_will_do_the_reason_is_given():
    with pytest.raises(InfeasibleError, match=r"no plan fits .* every plan takes at least"):
        shardwright.compile("mlp:batch=8", 8, mesh="search", memory_limit=10.0, **ANY_PLAN)
    with pytest.raises(StrategyError, match="cannot be split"):
        shardwright.compile(
            "two_matmul", 64, mesh="search", strategies={"matmul_0": ((3, 1), (1, 1))}
        )


SMALL = "gpt:layers=1,hidden=16,heads=4,batch=4,sequence=8,vocabulary=32,dtype=float32"


@pytest.mark.long
@pytest.mark.parametrize("objective", first(1, ["overlapped", "serial"]))
def test_no_configuration_has_a_better_plan(objective):
    options = {"cluster": "h100-pod:figures=datasheet", "objective": objective, "gap": 0.0}
    model, costs = SMALL.replace("batch=4", "batch=2"), []
    for mesh in ("2x2x4", "2x8"):
        for count in (1, 2):
            try:
                plan = shardwright.compile(model, 16, mesh=mesh, micro_batches=count, **options)
            except NoPlanError:
                continue
            costs.append(plan.plan.document.objective)
    found = shardwright.compile(model, 16, mesh="search", micro_batches="search", **options)
    document = found.plan.document
    assert document.objective == pytest.approx(min(costs), rel=1e-9)
    assert document.lower_bound <= min(costs) * (1 + 1e-9)
    assert document.lower_bound == pytest.approx(
        min(found.search_trace.lower_bound, document.objective)
    )


def test_the_account_of_a_search():
    found = shardwright.compile(
        *(SMALL.replace("batch=4", "batch=2"), 4),
        cluster="cpu",
        mesh="search",
        micro_batches="search",
        explain_search=True,
        objective="serial",
        **ANY_PLAN,
    )
    trace = found.search_trace
    assert trace.best.micro_batches == found.plan.document.micro_batches
    assert [item.configuration.micro_batches for item in trace.tried] == [1, 2]
    assert trace.plans[0].cost == found.plan.document.objective
    assert trace.plans[0].differs == ()
    assert all(plan.differs for plan in trace.plans[1:])
    costs = [plan.cost for plan in trace.plans]
    assert costs == sorted(costs)
    assert len(trace.plans) == len(trace.tried)
    limits = [point.limit_bytes for point in trace.memory_points]
    assert limits == sorted(limits)
    assert len(limits) == 5
    assert trace.memory_price() == 0.0


@pytest.mark.long
def test_memory_has_a_price_where_it_is_short():
    free = shardwright.compile(SMALL, 4, cluster="cpu", mesh="2x2", objective="serial")
    limit = 0.9 * free.plan.document.memory.peak_bytes
    found = shardwright.compile(
        SMALL, 4, cluster="cpu", mesh="2x2", explain_search=True, memory_limit=limit,
        objective="serial",
    )  # fmt: skip
    points = found.search_trace.memory_points
    assert found.search_trace.memory_price() > 0
    for less, more in pairwise(points):
        assert less.lower_bound >= more.lower_bound
        if less.cost is not None:
            assert less.cost >= more.cost
    for point in points:
        if point.cost is not None:
            assert point.lower_bound <= point.cost * (1 + 1e-9)
            assert point.memory_bytes <= point.limit_bytes


@pytest.mark.parametrize("options", [{"explain_search": 1}, {"workers": -1}, {"workers": 1.5}])
def test_wrong_values_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        shardwright.compile(SMALL, 4, **options)
