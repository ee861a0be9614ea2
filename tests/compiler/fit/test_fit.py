"""What fits: the family, its front, the fewest devices, and estimates beside built plans."""

from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright.api import compile
from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.evaluated import evaluated, fastest, front
from shardwright.compiler.fit.family import family
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.fit.questions import (
    Longest,
    changes,
    fewest_devices,
    largest_micro_batch,
    least_devices,
    longest_sequence,
    on_devices,
)
from shardwright.compiler.fit.stored import StoredBytes
from shardwright.compiler.fit.training import training
from shardwright.cost_model.efficiency.memory_as_run import memory_as_run
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.memory import peak_memory
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import renamed
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.documents import timeline_of
from tests.compiler.fit.models import CLUSTER, GIB, TEXT, definition, model, priced
from tests.extent import first


def test_stored_bytes_are_those_of_mixed_precision_adam():
    assert model().stored == StoredBytes(4, 8, 2, 2, 2)
    wide = model(accumulate_type="float32", reduce_type="float32").stored
    assert (wide.gradient, wide.reduced, wide.total) == (4, 4, 18)
    assert model().elements == definition().parameter_count


@pytest.mark.parametrize(
    "plan",
    [
        "data=16,micro_batch=1,zero=3",
        "tensor=2,data=8,micro_batch=2,zero=1,sequence_parallel",
        "tensor=2,pipeline=2,data=4,micro_batch=1,chunks=2,schedule=interleaved,zero=2,"
        "sequence_parallel",
    ],
)
def test_an_estimate_is_near_the_built_plan(plan):
    one = Estimate(NamedPlan.parse(plan), model(), 16)
    built = compile(
        definition(),
        16,
        cluster=CLUSTER,
        plan=plan,
        precision="bfloat16",
        optimizer="adam",
        memory_limit=float("inf"),
    ).plan
    peak = peak_memory(built.program)
    assert one.memory_bytes == pytest.approx(peak.peak_bytes, rel=0.03)
    for group, held in zip(one.memory_of_groups, peak.by_group, strict=False):
        assert sum(group.values()) == pytest.approx(held, rel=0.05)
    assert one.refined_seconds == pytest.approx(built.document.objective, rel=0.25)


def test_a_model_whose_head_reads_several_layers_is_refused():
    graph = training_definition(TEXT.replace("layers=4", "layers=8"), 32, 1)[0].graph
    adds = [n for n in graph.nodes if n.operator == "add" and block_of(n.scope)]
    last = adds[-1]
    skip = replace(
        last,
        operands=(adds[-5].name, last.name),
        results=(replace(last.results[0], name="skip"),),
        scope="",
    )
    at = graph.nodes.index(last) + 1
    after = (renamed(node, {last.name: "skip"}) for node in graph.nodes[at:])
    graph = graph.with_nodes((*graph.nodes[:at], skip, *after))
    with pytest.raises(OptionError, match="reads several of them"):
        FitModel(graph, CLUSTER, CompileOptions())


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("plan", ["data=4,micro_batch=2,zero=3", "pipeline=2,data=2,micro_batch=1"])
def test_memory_of_models_of_few_layers_is_that_of_built_plans(layers, plan):
    own = training_definition(TEXT.replace("layers=4", f"layers={layers}"), 32, 1)[0]
    kinds = {"precision": "bfloat16", "optimizer": "adam"}
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    one = Estimate(NamedPlan.parse(plan), FitModel(own.graph, CLUSTER, asked), 4)
    built = peak_memory(compile(own, 4, cluster=CLUSTER, plan=plan, **kinds).plan.program)
    for group, held in zip(one.memory_of_groups, built.by_group, strict=False):
        assert sum(group.values()) == pytest.approx(held, rel=0.05)
    assert one.memory_bytes == pytest.approx(built.peak_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("name", "plan"),
    first(
        3,
        [
            ("megatron-core+separate_attention", "tensor=4,data=4,micro_batch=1,sequence_parallel"),
            ("nanotron", "pipeline=2,data=8,micro_batch=1,recompute=full,zero=1"),
            ("torchtitan", "tensor=2,data=8,micro_batch=1,zero=3,sequence_parallel"),
            ("megatron-core", "data=16,micro_batch=2,zero=2"),
            ("megatron-core", "pipeline=2,data=8,micro_batch=1,recompute=full,zero=1"),
            ("nanotron", "tensor=4,pipeline=2,data=2,micro_batch=2,sequence_parallel"),
        ],
    ),
)
def test_memory_is_what_the_software_keeps_where_that_is_more(name, plan):
    own, kinds = software(name), {"precision": "bfloat16", "optimizer": "adam"}
    one = Estimate(NamedPlan.parse(plan), priced(name), 16)
    built = compile(definition(), 16, cluster=CLUSTER, plan=plan, **kinds).plan
    program = peak_memory(built.program).peak_bytes
    kept = memory_as_run(built.program, own, CLUSTER.device).peak_bytes
    assert one.memory_bytes == pytest.approx(max(kept, program), rel=0.06)
    assert one.fits == (one.memory_bytes <= one.model.limit_bytes)


@pytest.mark.parametrize("sized", first(1, ["hidden=128", "hidden=1024"]))
def test_steps_of_a_software_are_near_those_of_built_plans(sized):
    """Of small layers the host sets the pace, of large ones the device."""
    text = TEXT.replace("hidden=1024", sized)
    own, run_by = training_definition(text, 32, 1)[0], software("megatron-core")
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    ideal = FitModel(own.graph, CLUSTER, asked)
    priced_so = FitModel(own.graph, CLUSTER, asked, run_by)
    for plan in ("data=16,micro_batch=1,recompute=full,zero=1", "tensor=2,data=8,micro_batch=2"):
        built = compile(own, 16, cluster=CLUSTER, plan=plan, precision="bfloat16", optimizer="adam")
        timed = timeline_of(replace(built, cluster=CLUSTER.run_by(run_by)), float("inf"))
        one = Estimate(NamedPlan.parse(plan), priced_so, 16).refined_seconds
        assert one == pytest.approx(timed.step_seconds, rel=0.2)
        if sized == "hidden=128":
            assert one > 1.5 * Estimate(NamedPlan.parse(plan), ideal, 16).refined_seconds


def test_reductions_take_the_time_of_their_type():
    plan = "tensor=4,data=4,micro_batch=1,recompute=full,sequence_parallel"
    own = software("megatron-core")
    quick = {name: getattr(own, name).with_value(0.0) for name in ("host", "collective", "step")}
    quick_one = own.model_copy(update=quick)
    run_by, steps = CLUSTER.run_by(quick_one), []
    for wide in ({}, {"accumulate_type": "float32", "reduce_type": "float32"}):
        kinds = {"precision": "bfloat16", **wide}
        asked = CompileOptions(optimizer=Optimizer("adam", {}), **kinds)
        built = compile(definition(), 16, cluster=CLUSTER, plan=plan, optimizer="adam", **kinds)
        timed = timeline_of(replace(built, cluster=run_by), float("inf"))
        one = Estimate(
            NamedPlan.parse(plan), FitModel(definition().graph, CLUSTER, asked, quick_one), 16
        )
        steps.append((one.refined_seconds, timed.step_seconds))
    longer = [wide - narrow for narrow, wide in zip(*steps, strict=True)]
    assert longer[0] == pytest.approx(longer[1], rel=0.2)
    assert longer[1] > 0.02 * steps[0][1]


def test_a_stage_waits_for_what_it_receives_as_a_software_runs_it():
    own, plan = software("megatron-core"), "pipeline=4,data=4,micro_batch=1,zero=1"
    slow = own.model_copy(update={"transfer": own.transfer.with_value(0.1)})
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    described = CLUSTER.run_by(slow)
    priced_so = FitModel(definition().graph, CLUSTER, asked, slow)
    kinds = {"precision": "bfloat16", "optimizer": "adam"}
    built = compile(definition(), 16, cluster=CLUSTER, plan=plan, **kinds)
    timed = timeline_of(replace(built, cluster=described), float("inf"))
    one = Estimate(NamedPlan.parse(plan), priced_so, 16)
    assert one.refined_seconds == pytest.approx(timed.step_seconds, rel=0.02)
    assert one.seconds == pytest.approx(timed.step_seconds, rel=0.1)


def test_plans_of_the_front_fit_and_none_beats_another():
    found = front(family(model(narrow=True), 16), 5)
    assert 2 <= len(found) <= 5
    assert all(one.fits for one in found)
    for one, other in pairwise(found):
        assert one.seconds <= other.seconds
        assert one.memory_bytes > other.memory_bytes


@pytest.mark.parametrize("named", first(1, ["ideal", "megatron-core"]))
def test_what_is_told_of_the_fastest_plan_is_what_its_compilation_takes(named):
    one = fastest(family(model(8 * GIB, named, narrow=True), 16))[0]
    where, run_by = one.model.cluster, one.model.software
    kinds = {"precision": "bfloat16", "optimizer": "adam", "memory_limit": 8 * GIB}
    built = compile(definition(), 16, cluster=where.for_programs_of(run_by), plan=one.plan, **kinds)
    timed = timeline_of(replace(built, cluster=where.run_by(run_by)), 8 * GIB)
    memory = built.plan.document.memory
    assert one.fits
    assert one.seconds == pytest.approx(timed.step_seconds, rel=1e-6)
    assert one.evaluation.step.memory.by_kind == pytest.approx(dict(memory.by_kind), rel=1e-6)


@pytest.mark.parametrize("limits", [(1, 2, 4, 8, 16)])
def test_more_memory_needs_no_more_devices(limits):
    counts = []
    for limit in limits:
        found = fewest_devices(model(limit * GIB, narrow=True))
        counts.append(10**9 if found is None else found.devices)
        assert least_devices(model(limit * GIB, narrow=True)) <= counts[-1]
    assert all(after <= before for before, after in pairwise(counts))
    assert counts[-1] < counts[0]


def test_the_fewest_devices_are_fewest():
    whole = model(2 * GIB, narrow=True)
    found = fewest_devices(whole)
    assert found is not None
    fewer = found.devices // 2
    assert fewer < least_devices(whole) or on_devices(whole, fewer).best is None


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


def test_money_is_rate_times_hours():
    found = training(2.0, 1_000_000, 1e12, 64, 2.5)
    hours = 1e12 / 1_000_000 * 2.0 / 3600
    assert found.money == pytest.approx(64 * 2.5 * hours)
    assert found.days == pytest.approx(hours / 24)
    assert training(2.0, 1_000_000, 1e12, 64, None).money is None


def test_one_micro_batch_accumulates_no_gradients():
    def of(zero, samples):
        plan = NamedPlan.parse(f"data=16,micro_batch={samples},zero={zero}")
        return Estimate(plan, model(), 16)

    whole = model().samples // 16
    assert of(1, whole).passes == 1
    assert of(1, whole).memory_bytes == of(2, whole).memory_bytes  # the same program
    assert of(0, whole).memory_by_kind["gradients"] < of(0, 1).memory_by_kind["gradients"]
