"""DualPipeV as software runs it: what pairs hide, and bounds of its plans with errors in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from shardwright.compiler.evaluation import plan_bounds
from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.evaluation.in_flight import backward_passes
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.software import software
from shardwright.dataflow.schedule_paths import Pair
from shardwright.dataflow.schedules import Schedule, Segment
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import CLUSTER
from tests.extent import first

MIXTURE = (
    "mixtral:layers=8,hidden=512,heads=4,kv_heads=2,inner=1024,experts=4,sequence=512,"
    "vocabulary=8000"
)
RANKS = "data=2,expert=2,micro_batch=1"
PLANS = (
    f"pipeline=2,{RANKS},chunks=2,schedule=dualpipe_v",
    f"pipeline=4,{RANKS},chunks=2,schedule=dualpipe_v,zero=1",
    f"pipeline=2,{RANKS},chunks=2,schedule=dualpipe_v,recompute=full",
    f"pipeline=2,{RANKS},chunks=2,schedule=dualpipe_v,zero=3",
)


def slow(factor: float, links_factor: float) -> Cluster:
    """Return a cluster whose devices and links take so many times as long: launches are nothing."""
    device, levels = CLUSTER.device, CLUSTER.levels
    peaks = {name: one / factor for name, one in device.peak_flops.items()}
    less = {"peak_flops": peaks, "memory_bandwidth": device.memory_bandwidth / factor}
    links = [one.model_copy(update={"bandwidth": one.bandwidth / links_factor}) for one in levels]
    own = {"device": device.model_copy(update=less), "levels": tuple(links)}
    return CLUSTER.model_copy(update=own)


@cache
def priced(named: str = "megatron-core+dualpipe_v", links_factor: float = 100) -> EvaluatedModel:
    whole = training_definition(MIXTURE, 32, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    return EvaluatedModel(whole.graph, slow(100, links_factor), asked, software(named))


def ratios(text: str, links_factor: float = 100) -> tuple[float, float]:
    """Return the bounds of a plan over what it takes: of its step, and of its memory."""
    own, plan = priced(links_factor=links_factor), NamedPlan.parse(text)
    devices = plan.pipeline * 2
    bound, found = replace(own, _parts={}).bound(plan, devices), evaluated(own, plan, devices)
    assert bound is not None
    assert found is not None
    simulated = replace(bound, is_simulated=True)
    assert bound.seconds <= simulated.seconds
    held = found.evaluation.in_order.peak_bytes
    return simulated.seconds / found.seconds, bound.memory_bytes / held


@pytest.mark.parametrize("plan", first(2, PLANS))
def test_no_plan_takes_less_than_its_bounds(plan: str) -> None:
    in_time, in_memory = ratios(plan)
    assert 0.6 < in_time <= 1 + 1e-9
    assert 0.9 < in_memory <= 1 + 1e-9


def test_pairs_hide_exchanges_with_little_more_in_flight_than_without_pairs() -> None:
    steps, held = {}, {}
    for order in ("zero_bubble_v", "dualpipe_v", "1f1b_pairs"):
        chunks = 1 if order == "1f1b_pairs" else 2
        plan = NamedPlan.parse(f"pipeline=4,{RANKS},chunks={chunks},schedule={order}")
        found = evaluated(priced(), plan, 8)
        assert found is not None
        steps[order], held[order] = found.seconds, found.evaluation.in_order.peak_bytes
    assert steps["dualpipe_v"] < 0.97 * steps["zero_bubble_v"]
    assert held["zero_bubble_v"] < held["dualpipe_v"] < held["1f1b_pairs"]


def _one_more(schedule: Schedule) -> Sequence[Any]:
    return [
        [(at, flight._replace(passes=tuple(n + 1 for n in flight.passes))) for at, flight in own]
        for own in backward_passes(schedule)
    ]


def _after_each_other(
    bound: Bound, schedule: Schedule, durations: Mapping[Segment, float]
) -> dict[Pair, float]:
    pairs = plan_bounds.pairs_of(schedule)
    return {pair: sum(durations[segment] for segment in pair) for pair in pairs}


@pytest.mark.parametrize(
    ("where", "name", "wrong", "of"),
    [(plan_bounds, "backward_passes", _one_more, 1), (Bound, "_beside", _after_each_other, 0)],
)
def test_errors_in_the_bounds_are_caught(
    where: Any, name: str, wrong: Callable[..., Any], of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch too many in flight, and passes of pairs one after the other."""
    plan, links_factor = PLANS[0], 300  # an exchange takes about as long as the products
    assert ratios(plan, links_factor)[of] <= 1 + 1e-9
    monkeypatch.setattr(where, name, wrong)
    assert ratios(plan, links_factor)[of] > 1.01


@pytest.mark.long
def test_it_is_tried_of_divided_experts_where_the_software_has_it() -> None:
    def tried(named: str) -> list[NamedPlan]:
        own = priced(named)
        plans = [one.plan for one in family(own, 8, micro_batches=(1, 4), tensors=(1,))]
        return [one for one in plans if one.order == "dualpipe_v"]

    plans = tried("megatron-core+dualpipe_v")
    assert {one.micro_batch for one in plans} == {1}  # of 4 samples there are too few for a V
    assert all(one.expert > 1 and one.chunks == 2 for one in plans)
    assert not tried("megatron-core")  # which lacks it
    assert not tried("torchtitan")  # which runs no pairs
