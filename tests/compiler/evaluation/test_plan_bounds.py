"""Bounds of plans as training software runs them, beside their evaluated steps."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.factors import Factors
from shardwright.cost_model.efficiency.software import IDEAL, software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import CLUSTER
from tests.extent import long_after

DENSE = "llama:layers=4,hidden=64,heads=4,kv_heads=4,inner=128,sequence=32,vocabulary=128"


RUN_BY = (IDEAL, "megatron-core", "megatron-core+overlap", "torchtitan")
PLANS = (
    *("tensor=4,micro_batch=2", "tensor=2,context=2,micro_batch=2"),
    "tensor=2,pipeline=2,micro_batch=1,recompute=full",
    *("data=4,micro_batch=1", "data=4,micro_batch=1,zero=3", "pipeline=4,micro_batch=1"),
    "context=4,micro_batch=2",
)
CASES = ((1, 0.2), (1, 3), (0.5, 1), (0.05, 1), (0.05, 0.2), (0.05, 3), (3, 0.05), (3, 1))


@cache
def model(run_by: str) -> EvaluatedModel:
    """Return the model on pairs of devices, so that two levels connect four."""
    graph = training_definition(DENSE, 16, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    inner, *outer = CLUSTER.levels
    pairs = CLUSTER.model_copy(update={"levels": (inner.model_copy(update={"size": 2}), *outer)})
    return EvaluatedModel(graph, pairs, asked, software(run_by))


@pytest.mark.parametrize(("run_by", "text"), long_after(3, product(RUN_BY, PLANS)))
def test_a_bound_holds_where_operators_and_levels_have_factors_of_their_own(run_by, text):
    plan = NamedPlan.parse(text)
    bound, found = model(run_by).bound(plan, 4), evaluated(model(run_by), plan, 4)
    assert bound is not None
    assert found is not None
    for compute, links in CASES:
        for levels in ((links, links), (links, 1), (1, links)):
            case = Factors(compute, levels)
            own = replace(bound, factors=case, is_simulated=True)
            assert own.seconds <= found.seconds_in(case) * (1 + 1e-9), (case, text)


@pytest.mark.parametrize("compute", long_after(1, [0.5, 1.0, 2.0]))
def test_a_host_is_as_much_faster_as_all_figures(compute):
    """The factor of operators is that of the step where links have the same: also of the host."""
    graph = training_definition(DENSE, 16, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    case = Factors(compute, (compute, compute))
    for plan in map(NamedPlan.parse, ("data=4,micro_batch=1", "pipeline=4,micro_batch=1")):
        bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
        assert bound is not None
        assert found is not None
        step = found.seconds_in(case)
        assert 0.5 * step <= replace(bound, factors=case).seconds <= step * (1 + 1e-9)


ONE_PASS = (
    ("llama:layers=2,hidden=128,heads=4,kv_heads=4,inner=256,sequence=16,vocabulary=256", 4),
    ("gpt:layers=4,hidden=128,heads=4,sequence=16,vocabulary=256", 8),  # its ends share a weight
)


@pytest.mark.parametrize(("text", "devices"), long_after(1, ONE_PASS))
def test_copies_wait_for_the_backward_pass_where_there_is_one(text, devices):
    graph = training_definition(text, 8, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    groups = devices // 4
    stages = f"pipeline={groups},schedule=1f1b," if groups > 1 else ""
    for zero, samples in product(("", ",zero=1", ",zero=2", ",zero=3"), (1, 2)):
        plan = NamedPlan.parse(f"{stages}data=4,micro_batch={samples}{zero}")
        bound, found = own.bound(plan, devices), evaluated(own, plan, devices)
        assert bound is not None
        assert found is not None
        share = bound.memory_bytes / found.evaluation.in_order.peak_bytes
        assert share <= 1, plan.text
        if bound.passes == 1 and plan.zero < 3:
            assert share > 0.9, plan.text


GATHERED = (
    (
        "llama:layers=4,hidden=128,heads=4,kv_heads=4,inner=512,sequence=16,vocabulary=128",
        "pipeline=2,data=4,micro_batch=1,recompute=full,zero=3",
    ),
    (
        "mixtral:layers=4,hidden=64,heads=4,kv_heads=4,inner=256,experts=8,sequence=32,vocabulary=128",
        "pipeline=2,data=4,expert=2,micro_batch=1,recompute=full,zero=3",
    ),
    (  # each rank has experts of its own, which it does not gather
        "mixtral:layers=4,hidden=64,heads=4,kv_heads=4,inner=256,experts=8,sequence=32,vocabulary=128",
        "data=8,expert=8,micro_batch=1,recompute=full,zero=3",
    ),
)


@pytest.mark.parametrize(("text", "named"), long_after(1, GATHERED))
def test_what_a_layer_gathers_for_its_backward_pass_is_live_in_it(text, named):
    graph, plan = training_definition(text, 32, 1)[0].graph, NamedPlan.parse(named)
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    bound, found = own.bound(plan, 8), evaluated(own, plan, 8)
    assert bound is not None
    assert found is not None
    assert 0.97 < bound.memory_bytes / found.evaluation.in_order.peak_bytes <= 1


TIED = "llama:layers=4,hidden=128,heads=4,kv_heads=4,inner=256,sequence=16,vocabulary=256,tied=true"
HELD = (
    *("data=4,micro_batch=1,zero=2", "data=4,micro_batch=1,zero=3", "data=4,micro_batch=2,zero=1"),
    "pipeline=2,data=2,micro_batch=1,schedule=1f1b",
    "pipeline=2,data=2,micro_batch=1,schedule=1f1b,zero=3",
    "pipeline=2,data=2,micro_batch=1,chunks=2,schedule=interleaved,recompute=full,zero=2",
)
TYPES = (("lower", "lower"), ("lower", "float32"), ("float32", "float32"))


@pytest.mark.parametrize(("text", "types"), long_after(3, product(HELD, TYPES)))
def test_a_weight_of_both_ends_is_whole_through_all_passes(text, types):
    """Also where it is stored in parts; gradients may be converted before or after reductions."""
    graph, plan = training_definition(TIED, 16, 1)[0].graph, NamedPlan.parse(text)
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    asked = replace(asked, reduce_type=types[0], accumulate_type=types[1])
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
    assert bound is not None
    assert found is not None
    least = 0.93 if plan.recompute == "none" else 0.88  # ZeRO-3 gathers a layer beside
    assert least < bound.memory_bytes / found.evaluation.in_order.peak_bytes <= 1
    assert replace(bound, is_simulated=True).seconds <= found.seconds


@pytest.mark.long
@pytest.mark.parametrize("zero", [2, 3])
def test_what_is_made_of_weights_alone_is_there_once(zero):
    """Weights of norms, of which Gemma takes one more, are no activations of each micro-batch."""
    shape = "layers=4,hidden=64,heads=4,kv_heads=2,inner=128,sequence=16,vocabulary=128"
    graph = training_definition(f"gemma3-1b:{shape}", 16, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    plan = NamedPlan.parse(
        f"pipeline=2,data=2,micro_batch=2,chunks=2,schedule=interleaved,recompute=full,zero={zero}"
    )
    bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
    assert bound is not None
    assert found is not None
    assert 0.95 < bound.memory_bytes / found.evaluation.in_order.peak_bytes <= 1


RECEIVED = (
    "pipeline=4,data=1,micro_batch=1,schedule=1f1b",
    "pipeline=2,data=2,micro_batch=1,schedule=1f1b,recompute=full",
    "pipeline=2,data=2,micro_batch=1,chunks=2,schedule=interleaved,zero=1",
    "pipeline=4,data=1,micro_batch=2,schedule=zero_bubble",
)


@pytest.mark.parametrize("text", long_after(1, RECEIVED))
def test_stages_wait_for_what_they_receive(text):
    graph = training_definition(DENSE, 16, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    links = CLUSTER.with_links_slower_by([1e5] * len(CLUSTER.levels))
    own, plan = (
        EvaluatedModel(graph, links, asked, software("megatron-core")),
        NamedPlan.parse(text),
    )
    bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
    assert bound is not None
    assert found is not None
    share = replace(bound, is_simulated=True).seconds / found.seconds
    assert 0.85 < share <= 1 + 1e-9


@pytest.mark.parametrize("inner_factor", long_after(1, [1.0, 10.0, 30.0]))
def test_gathers_take_no_less_over_all_their_levels_whichever_is_slow(inner_factor):
    text = "llama:layers=4,hidden=1024,heads=4,kv_heads=4,inner=2048,sequence=32,vocabulary=64"
    graph = training_definition(text, 4, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    inner, *outer = CLUSTER.levels
    pairs = CLUSTER.model_copy(update={"levels": (inner.model_copy(update={"size": 2}), *outer)})
    slow = pairs.with_links_slower_by([100 * inner_factor] + [100.0] * len(outer))
    own = EvaluatedModel(graph, slow, asked, software("megatron-core"))
    plan = NamedPlan.parse("data=4,micro_batch=1,zero=1")
    bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
    assert bound is not None
    assert found is not None
    assert found.evaluation.as_run is not None
    gathers = sum(
        event.seconds
        for event in found.evaluation.as_run.record.events
        if event.node.operator == "all_gather"
    )
    (*levels, whole), *_ = bound._by_data_ranks.gathers()
    assert max(levels) < whole
    assert 0.98 * gathers < whole <= gathers
