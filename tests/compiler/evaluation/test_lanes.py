"""Passes beside each other, told by the tasks of layers: as long as in the program of the plan."""

from dataclasses import replace

import pytest

from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.pipelines import step
from shardwright.dataflow.schedule_paths import pairs_of
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.evaluation.test_pairs_in_a_v import MIXTURE, slow
from tests.extent import first

ALONE = f"{MIXTURE},balance=0"
MODELS = (
    ALONE,
    "deepseek-v2-lite:num_hidden_layers=9,sequence=512",
    "qwen3-next-80b-a3b:num_hidden_layers=8,sequence=1024",
)
RANKS = "data=4,expert=4,micro_batch=1"
PLANS = (
    f"pipeline=2,{RANKS},chunks=2,schedule=interleaved_pairs,zero=1",
    f"pipeline=2,{RANKS},chunks=3,schedule=interleaved_pairs,recompute=operators",
    f"pipeline=2,tensor=2,{RANKS},expert_tensor=1,chunks=2,schedule=interleaved_pairs,"
    "recompute=layernorm,zero=1,sequence_parallel",
    f"pipeline=4,{RANKS},chunks=1,schedule=1f1b_pairs,recompute=full,zero=1",
)
UNTOLD = (
    f"pipeline=2,{RANKS},chunks=2,schedule=interleaved_pairs,zero=2",
    f"pipeline=2,{RANKS},chunks=2,schedule=interleaved_pairs,zero=3",
    f"pipeline=2,{RANKS},chunks=2,schedule=dualpipe_v,zero=1",
)


def asked(text: str, factor: float) -> EvaluatedModel:
    """Return a model on devices so slow that computation is longer than launches."""
    whole = training_definition(text, 64, 1)[0]
    options = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    return EvaluatedModel(whole.graph, slow(factor, factor), options, software("megatron-core"))


@pytest.mark.long
@pytest.mark.parametrize("factor", first(1, [100, 1]))
@pytest.mark.parametrize("text", MODELS)
@pytest.mark.parametrize("named", PLANS)
def test_pairs_of_passes_take_what_tasks_of_layers_tell(monkeypatch, text, named, factor):
    found, beside = [], step.beside

    def watched(*segments):
        both = beside(*segments)
        received = sum(one.received for one in segments)
        alone = sum(one.seconds - one.received for one in segments)
        found.append((max(one.seconds for one in both) - received, alone))
        return both

    monkeypatch.setattr(step, "beside", watched)
    own, plan = asked(text, factor), NamedPlan.parse(named)
    devices = plan.pipeline * plan.tensor * 4
    timed = evaluated(own, plan, devices)
    bound = own.bound(plan, devices)
    assert timed is not None
    assert bound is not None
    assert replace(bound, is_simulated=True).seconds <= timed.seconds * (1 + 1e-9)
    pairs = pairs_of(bound._schedule)
    assert len(pairs) == len(found) > 0
    for ((stage, _), *others), (seconds, alone) in zip(pairs, found, strict=True):
        told = bound._told_beside(stage, others[0][0])
        assert told is not None
        assert seconds == pytest.approx(min(told, alone), rel=1e-9)


@pytest.mark.parametrize("named", UNTOLD)
def test_tasks_of_layers_do_not_tell_what_data_ranks_move_nor_what_is_put_off(named):
    own, plan = asked(ALONE, 100), NamedPlan.parse(named)
    timed, bound = evaluated(own, plan, 8), own.bound(plan, 8)
    assert timed is not None
    assert bound is not None
    assert bound._told_beside(0, 0) is None
    assert replace(bound, is_simulated=True).seconds <= timed.seconds * (1 + 1e-9)


def test_tasks_of_layers_do_not_tell_what_is_summed_over_more_data_ranks():
    own, plan = asked(MIXTURE, 100), NamedPlan.parse(PLANS[0])
    for data, devices in ((4, 8), (8, 16)):
        wider = replace(plan, data=data)
        timed, bound = evaluated(own, wider, devices), own.bound(wider, devices)
        assert timed is not None
        assert bound is not None
        assert bound._told_beside(0, 0) is None
        assert replace(bound, is_simulated=True).seconds <= timed.seconds * (1 + 1e-9)
