"""What fits: the family, its bounds, its front, the fewest devices, beside built plans."""

from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from math import ceil
from random import Random
from typing import Any

import pytest

from shardwright.api import compile
from shardwright.compiler.evaluation import plan_bounds
from shardwright.compiler.evaluation.evaluated import evaluated, fastest, front, least_memory
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.evaluation.in_flight import backward_passes, put_off_last
from shardwright.compiler.evaluation.stored_bytes import StoredBytes
from shardwright.compiler.fit.questions import (
    Longest,
    changes,
    improved,
    largest_micro_batch,
    longest_sequence,
)
from shardwright.compiler.fit.training_time import training
from shardwright.cost_model.efficiency.software import software
from shardwright.dataflow.schedules import SCHEDULES, WEIGHTS, Schedule
from shardwright.ir.errors import OptionError
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.reports.documents import timeline_of
from tests.compiler.fit.models import CLUSTER, GIB, TEXT, definition, model, priced, slower
from tests.extent import first, long_after


def test_weights_of_4_bits_are_counted_as_they_are_stored() -> None:
    whole, packed = decoder(LORA), decoder(f"{LORA},lora_bits=4")
    assert packed.frozen_elements == whole.frozen_elements
    products = 4 * 512 * (512 + 256 + 256 + 512 + 3 * 1024)
    nested = 4 * sum(-(-n // 64 // 256) + 1 for n in (512 * 512, 512 * 256) * 2)
    nested += 4 * 3 * (-(-512 * 1024 // 64 // 256) + 1)
    saved = products * (2 - 1 / 2 - 1 / 64) - 4 * nested
    assert whole.least_bytes - packed.least_bytes == saved


def test_stored_bytes_are_those_of_mixed_precision_adam():
    assert model().stored == StoredBytes(4, 8, 2, 2, 2)
    wide = model(accumulate_type="float32", reduce_type="float32").stored
    assert (wide.gradient, wide.reduced) == (4, 4)
    assert model().elements == definition().parameter_count


MIXTURE = (
    "mixtral:layers=4,hidden=512,heads=4,kv_heads=2,inner=1024,experts=4,sequence=512,"
    "vocabulary=8000"
)


LORA = "llama:layers=4,hidden=512,heads=4,kv_heads=2,inner=1024,sequence=512,vocabulary=8000,lora=8"


@cache
def decoder(text: str) -> EvaluatedModel:
    whole = training_definition(text, 32, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    return EvaluatedModel(whole.graph, CLUSTER, asked)


@pytest.mark.long
@pytest.mark.parametrize(("named", "count"), [("ideal", 2), ("megatron-core", 1)])
@pytest.mark.parametrize("of", first(1, ["dense", "mixture", "lora"]))
def test_no_plan_takes_less_than_its_bounds(of, named, count):
    own = model(1e12, named) if of == "dense" else decoder({"mixture": MIXTURE, "lora": LORA}[of])
    plans = family(own, 16, micro_batches=(1, 2))
    for one in first(count, Random(1).sample(plans, 6)):
        found = evaluated(own, one.plan, 16)
        assert found is not None
        text, bound = one.plan.text, own.refined(one)
        assert bound is not None
        assert not bound.is_rough
        assert one.memory_bytes <= bound.memory_bytes * (1 + 1e-9), text
        assert one.seconds <= bound.seconds * (1 + 1e-9), text
        assert bound.memory_bytes <= found.evaluation.in_order.peak_bytes * (1 + 1e-9), text
        assert bound.seconds <= found.seconds * (1 + 1e-9), text


PAIRS = "pipeline=2,data=8,expert=4,micro_batch=1,chunks=2,schedule=interleaved_pairs,zero=1"


@pytest.mark.long
def test_passes_beside_each_other_take_no_less_than_their_bounds_and_hide_exchanges():
    whole = training_definition(MIXTURE, 64, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(whole.graph, slower(CLUSTER, 100), asked, software("megatron-core"))
    plan = NamedPlan.parse(PAIRS)
    rough, found = own.bound(plan, 16), evaluated(own, plan, 16)
    apart = evaluated(own, replace(plan, schedule="interleaved"), 16)
    assert rough is not None
    assert found is not None
    assert apart is not None
    bound = replace(rough, is_simulated=True)
    assert rough.seconds <= bound.seconds <= found.seconds < apart.seconds
    assert bound.memory_bytes <= found.evaluation.in_order.peak_bytes
    assert found.evaluation.in_order.peak_bytes > apart.evaluation.in_order.peak_bytes
    plans = [one.plan for one in family(own, 16, micro_batches=(1,))]
    assert plans.count(plan) == 1
    assert {one.order for one in plans} == {"1f1b", "interleaved", "interleaved_pairs"}
    own = EvaluatedModel(whole.graph, own.cluster, asked, software("megatron-core+unchunked_pairs"))
    orders = {one.plan.order for one in family(own, 16, micro_batches=(1,))}
    assert orders == {"1f1b", "interleaved", "1f1b_pairs", "interleaved_pairs"}


@pytest.mark.long
@pytest.mark.parametrize(("zero", "least"), [(2, 0.34), (3, 0.3)])
def test_a_bound_of_passes_beside_each_other_knows_what_data_ranks_move_in_each(zero, least):
    """Before its schedule is simulated it was 0.31 and 0.22 of the step on links so slow."""
    whole = training_definition(MIXTURE, 64, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    slow = [
        level.model_copy(update={"bandwidth": level.bandwidth / 300}) for level in CLUSTER.levels
    ]
    where = slower(CLUSTER, 100).model_copy(update={"levels": tuple(slow)})
    own = EvaluatedModel(whole.graph, where, asked, software("megatron-core"))
    plan = replace(NamedPlan.parse(PAIRS), zero=zero)
    bound, found = own.bound(plan, 16), evaluated(own, plan, 16)
    assert bound is not None
    assert found is not None
    assert least * found.seconds <= bound.seconds <= found.seconds


def test_a_device_waits_while_its_host_launches_on():
    own = model(1e12, "megatron-core", narrow=True)
    plan = NamedPlan.parse("tensor=2,data=2,micro_batch=1,zero=3,sequence_parallel")
    bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
    assert bound is not None
    assert found is not None
    assert bound.passes * sum(map(sum, bound._host)) + min(bound._exposed) > found.seconds
    assert bound.seconds <= found.seconds


@cache
def uneven(named: str) -> EvaluatedModel:
    """Return a model of 7 layers on devices so slow that launches are nothing."""
    text = "llama:layers=7,hidden=512,heads=4,kv_heads=4,inner=1408,sequence=1024,vocabulary=4000"
    whole = training_definition(text, 64, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    return EvaluatedModel(whole.graph, slower(CLUSTER, 1000), asked, software(named))


@pytest.mark.long
@pytest.mark.parametrize("named", ["ideal", "megatron-core"])
def test_bounds_of_uneven_stages_are_near_their_steps(named):
    """Gradients of parameters and of activations are added up in each pass: bounds know both."""
    own = uneven(named)
    for plan in map(NamedPlan.parse, UNEVEN):
        found, rough = evaluated(own, plan, 8), own.bound(plan, 8)
        assert found is not None
        assert rough is not None
        bound = replace(rough, is_simulated=True)
        assert rough.seconds <= bound.seconds
        assert 0.96 * found.seconds <= bound.seconds <= found.seconds, plan.text


UNEVEN = (
    "pipeline=4,data=2,micro_batch=1,zero=1",
    "pipeline=2,tensor=2,data=2,micro_batch=1,chunks=3,schedule=interleaved,sequence_parallel",
    "pipeline=4,data=2,micro_batch=1,schedule=zero_bubble,recompute=full",
    "pipeline=2,tensor=4,data=1,micro_batch=16,chunks=2,schedule=zero_bubble_v",
)


@pytest.mark.parametrize("named", long_after(1, ["ideal", "megatron-core"]))
@pytest.mark.parametrize("order", ["zero_bubble_v", "dualpipe_v"])
def test_errors_in_the_bounds_of_stages_in_a_v_are_caught(order, named, monkeypatch):
    """Gradients of weights that are not put off, and one more micro-batch in flight."""
    own, plan = uneven(named), replace(NamedPlan.parse(UNEVEN[-1]), schedule=order)
    found = evaluated(own, plan, 8)
    assert found is not None
    known = put_off_last, backward_passes

    def bounds(*functions: Any) -> tuple[float, float]:
        for function, of in zip(("put_off_last", "backward_passes"), functions, strict=True):
            monkeypatch.setattr(plan_bounds, function, of)
        bound = replace(own, _parts={}).bound(plan, 8)
        assert bound is not None
        return (
            bound.seconds / found.seconds,
            bound.memory_bytes / found.evaluation.in_order.peak_bytes,
        )

    def in_time(schedule: Schedule) -> Any:
        return ((),) * schedule.groups

    def one_more(schedule: Schedule) -> Any:
        return [
            [
                (at, flight._replace(passes=tuple(n + 1 for n in flight.passes)))
                for at, flight in own
            ]
            for own in backward_passes(schedule)
        ]

    assert max(bounds(*known)) <= 1
    assert bounds(in_time, backward_passes)[0] > 1
    assert bounds(put_off_last, one_more)[1] > 1


@pytest.mark.parametrize(
    "text",
    [
        "data=8,micro_batch=8",
        "pipeline=2,data=4,micro_batch=16,schedule=zero_bubble",
        "pipeline=2,data=4,micro_batch=16,chunks=2,schedule=zero_bubble_v",
    ],
)
def test_one_micro_batch_holds_no_less_than_its_bound(text):
    """It is no loop: no gradient is put off, and the table of embeddings is read once."""
    plan = NamedPlan.parse(text)
    bound, found = uneven("ideal").bound(plan, 8), evaluated(uneven("ideal"), plan, 8)
    assert bound is not None
    assert found is not None
    assert bound.passes == 1
    assert 0.9 < bound.memory_bytes / found.evaluation.in_order.peak_bytes <= 1


SMALL = {
    "gpt": "gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128",
    "mixtral": "mixtral:layers=4,hidden=64,heads=4,kv_heads=2,inner=128,experts=4,sequence=32,"
    "vocabulary=128",
}


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_no_stage_of_one_layer_holds_less_than_its_bound(name):
    """Sent tensors are as large as others here: each is held on one side of a cut alone."""
    whole = training_definition(SMALL[name], 16, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(whole.graph, priced(narrow=True).cluster, asked)
    plans = [one.plan for one in family(own, 4, micro_batches=(1, 2)) if one.plan.pipeline > 1]
    of_stages = [plan for plan in plans if plan.pipeline * plan.chunks == 4]
    put_off = [plan for plan in plans if WEIGHTS in SCHEDULES[plan.order].parts]
    drawn = [first(1, Random(2).sample(some, 4)) for some in (of_stages, put_off)]
    for plan in chain(*drawn):
        found, bound = evaluated(own, plan, 4), own.bound(plan, 4)
        assert found is not None
        assert bound is not None, plan.text
        assert bound.memory_bytes <= found.evaluation.in_order.peak_bytes * (1 + 1e-9), plan.text
        assert bound.seconds <= found.seconds * (1 + 1e-9), plan.text


def test_a_rough_bound_holds_no_more_where_few_samples_have_other_layouts():
    sizes = "layers=2,hidden=256,heads=4,kv_heads=2,inner=512,experts=8,sequence=256"
    text = f"mixtral:{sizes},vocabulary=4096"
    whole = training_definition(text, 64, 1)[0]
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(whole.graph, slower(CLUSTER, 1000), asked)
    plan = NamedPlan.parse("data=4,expert=4,micro_batch=1")
    rough, bound = own.rough_bound(plan, 4, 4), own.bound(plan, 4)
    assert rough is not None
    assert bound is not None
    assert rough.is_rough
    assert 0.8 * bound.memory_bytes <= rough.memory_bytes <= bound.memory_bytes


@pytest.mark.long
def test_frozen_weights_are_in_the_bounds():
    own = decoder(LORA)
    whole = training_definition(LORA.removesuffix(",lora=8"), 32, 1)[0]
    assert own.frozen_elements == whole.parameter_count
    assert own.least_bytes == 2 * own.frozen_elements + 12 * own.elements
    for text, ranks in (("data=4,micro_batch=1,zero=3", 4), ("data=2,tensor=2,micro_batch=1", 2)):
        plan = NamedPlan.parse(text)
        bound = own.bound(plan, 4)
        assert bound is not None
        assert bound.memory_by_kind["parameters"] >= 2 * own.frozen_elements / ranks
        assert bound.memory_bytes <= own.evaluation(plan, 4).in_order.peak_bytes


@pytest.mark.long
def test_the_fastest_plan_is_that_of_all_evaluations():
    limit = 2 * GIB
    own = model(limit, narrow=True)
    plans = family(own, 4, micro_batches=(1,), tensors=(1,))
    plans = first(len(plans) // 2, Random(3).sample(plans, len(plans)))
    best = fastest(own, plans)
    every = [evaluated(own, one.plan, 4) for one in plans]
    fitting = [one for one in every if one is not None and one.fits]
    assert 0 < len(fitting) < len(every)
    assert best is not None
    assert best.seconds == min(one.seconds for one in fitting)
    small = least_memory(own, plans)
    assert small is not None
    assert small.evaluation.fitted_bytes == min(
        one.evaluation.fitted_bytes for one in every if one is not None
    )


@pytest.mark.long
def test_what_has_a_rough_bound_alone_is_no_plan(monkeypatch):
    own = model(narrow=True)
    plans = family(own, 4, micro_batches=(1, 2), tensors=(1,))
    exact = {one.plan for one in plans if not one.is_rough}
    assert 0 < len(exact) < len(plans)
    monkeypatch.setattr(EvaluatedModel, "refined", lambda *_: None)
    best = fastest(own, plans)
    assert best is not None
    assert best.plan in exact


def test_models_with_few_layers_have_a_family():
    for layers in (2, 3):
        whole = training_definition(TEXT.replace("layers=4", f"layers={layers}"), 32, 1)[0]
        asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
        plans = family(EvaluatedModel(whole.graph, CLUSTER, asked), 4, (1,), (1,))
        assert {one.plan.pipeline for one in plans} == {1, 2}


@pytest.mark.long
def test_plans_of_the_front_fit_and_none_beats_another():
    found = front(model(narrow=True), family(model(narrow=True), 16), 5)
    assert 2 <= len(found) <= 5
    assert all(one.fits for one in found)
    for one, other in pairwise(found):
        assert one.seconds <= other.seconds
        assert one.memory_bytes > other.memory_bytes


@pytest.mark.long
@pytest.mark.parametrize("named", first(1, ["ideal", "megatron-core"]))
def test_what_is_told_of_the_fastest_plan_is_what_its_compilation_takes(named):
    own = model(8 * GIB, named, narrow=True)
    one = fastest(own, family(own, 4, micro_batches=(1, 2), tensors=(1, 2)))
    assert one is not None
    where, run_by = one.model.cluster, one.model.software
    kinds = {"precision": "bfloat16", "optimizer": "adam", "memory_limit": 8 * GIB}
    built = compile(definition(), 4, cluster=where.for_programs_of(run_by), plan=one.plan, **kinds)
    timed = timeline_of(replace(built, cluster=where.run_by(run_by)), 8 * GIB)
    memory = built.plan.document.memory
    assert one.fits
    assert one.seconds == pytest.approx(timed.step_seconds, rel=1e-6)
    assert one.evaluation.step.memory.by_kind == pytest.approx(dict(memory.by_kind), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("of", first(1, ["dense", "mixture", "lora"]))
def test_no_plan_holds_less_than_all_devices_must_together(of):
    own = model() if of == "dense" else decoder({"mixture": MIXTURE, "lora": LORA}[of])
    for devices, samples in ((1, (1,)), (4, (1, 8)), (32, (1, 2))):
        plans = family(own, devices, samples)
        least = min(one.memory_bytes for one in plans)
        passes = ceil(own.samples / (devices * max(samples)))
        assert 0 < own.least_held(devices, passes) <= least


def test_the_largest_micro_batch_is_the_last_that_fits():
    whole = model(3 * GIB, narrow=True)
    one = evaluated(whole, NamedPlan.parse("data=16,micro_batch=1,zero=3,recompute=full"), 16)
    assert one is not None
    largest = largest_micro_batch(one)
    assert largest is not None
    for size in (1, 2):
        other = evaluated(whole, replace(one.plan, micro_batch=size), 16)
        assert other is not None
        assert other.fits == (size <= largest)


@pytest.mark.parametrize("constant", [0, 5_000])
@pytest.mark.parametrize("square", [0.0, 0.01])
def test_the_longest_sequence_is_the_last_unit_that_fits(constant, square):
    def most(length: int) -> float:
        return constant + 10 * length + square * length**2

    limit = 20_000
    found = longest_sequence(256, most, limit)
    assert found.tokens is not None
    assert found.is_last
    assert most(found.tokens) <= limit < most(found.tokens + 32)


def test_no_sequence_fits():
    assert longest_sequence(64, lambda length: 10.0 + length, 10.0) == Longest(None, True)


def test_lengths_without_a_plan_do_not_fit():
    def most(length: int) -> float:
        return float(length) if length % 64 == 0 else float("inf")

    found = longest_sequence(64, most, 200)
    assert found.tokens is not None
    assert most(found.tokens) <= 200
    assert longest_sequence(64, lambda length: float("inf"), 200) == Longest(None, True)


def test_a_sequence_without_a_program_ends_the_search():
    def most(length: int) -> float:
        if length > 600:
            raise OptionError(f"a sequence of {length}", hint="none")
        return float(length)

    assert longest_sequence(256, most, 20_000) == Longest(512, False)


def test_a_search_that_is_cut_off_does_not_say_that_it_is_the_longest():
    found = longest_sequence(8, lambda length: float(length**0.5), 1e9)
    assert found.tokens is not None
    assert not found.is_last


@pytest.mark.long
def test_changes_differ_in_one_thing_and_are_named_plans():
    one = evaluated(model(narrow=True), NamedPlan.parse("data=16,micro_batch=1,zero=3"), 16)
    assert one is not None
    found = [*changes(one)]
    assert {"recomputation", "ZeRO", "devices"} <= {change.kind for change in found}
    for change in found:
        assert NamedPlan.parse(change.then.plan.text) == change.then.plan != one.plan
        if change.kind != "devices":
            assert change.then.devices == one.devices
    (hybrid,) = (change for change in found if "hybrid" in change.text)
    assert hybrid.then.plan.shard == 2
    assert hybrid.then.memory_bytes > one.memory_bytes


@pytest.mark.long
def test_no_change_of_an_improved_plan_is_faster():
    text = "tensor=2,micro_batch=1,recompute=full,sequence_parallel"
    one = evaluated(model(4 * GIB, narrow=True), NamedPlan.parse(text), 2)
    assert one is not None
    assert one.fits
    best = improved(one)
    assert best.fits
    assert best.seconds < one.seconds
    others = [change.then for change in changes(best) if change.then.devices == best.devices]
    assert others
    assert min(x.seconds for x in others if x.fits) >= best.seconds


@pytest.mark.long
def test_light_parts_of_a_mixture_are_tried_where_memory_is_short():
    whole = training_definition(MIXTURE, 64, 1)[0]
    light, plan = "layernorm+moe_act", NamedPlan.parse("data=16,expert=4,micro_batch=4,zero=1")

    def own(limit, recompute):
        asked = CompileOptions(
            precision="bfloat16", optimizer=Optimizer("adam", {}), memory_limit=limit
        )
        found = EvaluatedModel(whole.graph, CLUSTER, asked)
        return evaluated(found, replace(plan, recompute=recompute), 16)

    some, nothing = own(None, light), own(None, "none")
    assert some.seconds > nothing.seconds
    assert some.memory_bytes < nothing.memory_bytes
    limit = (some.memory_bytes + nothing.memory_bytes) / 2
    one = own(limit, "full")
    assert not own(limit, "none").fits
    assert light in {change.then.plan.recompute for change in changes(one)}
    assert improved(one).seconds <= some.seconds < one.seconds
    assert light in {bound.plan.recompute for bound in family(one.model, 16, (4,), (1,))}


def test_money_is_rate_times_hours():
    found = training(2.0, 1_000_000, 1e12, 64, 2.5)
    hours = 1e12 / 1_000_000 * 2.0 / 3600
    assert found.money == pytest.approx(64 * 2.5 * hours)
    assert found.days == pytest.approx(hours / 24)
    assert training(2.0, 1_000_000, 1e12, 64, None).money is None
