"""The words for a plan: those of named plans are the plans' own."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.compiler.plans.parallelism import Parallelism
from shardwright.exports.degrees.nearest import in_full
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.answers.headline import divided, near_text
from tests.extent import first, long_after

GPT = "gpt:layers=4,hidden=32,heads=4,batch=16,sequence=16,vocabulary=64"
WORDS = {
    "data=8": ["data parallel over all 8", "no recomputation"],
    "data=8,zero=1": ["data parallel over all 8 with ZeRO-1", "no recomputation"],
    "data=8,zero=2,micro_batch=1": [
        "data parallel over all 8 with ZeRO-2",
        "2 micro-batches of 1 sample",
        "no recomputation",
    ],
    "data=8,zero=3": ["FSDP over all 8", "no recomputation"],
    "shard=4": [
        "data parallel over all 8",
        "HSDP: FSDP over 4, 2 copies",
        "no recomputation",
    ],
    "tensor=4,data=2,recompute=full": [
        "tensor parallel over 4",
        "data parallel over 2",
        "full recomputation of all 4 layers",
    ],
    "tensor=2,zero=3,sequence_parallel": [
        "tensor parallel over 2 with sequence parallelism",
        "FSDP over 4",
        "no recomputation",
    ],
    "context=2,data=4,zero=3": [
        "context parallel over 2",
        "data parallel over 4",
        "FSDP over all 8",
        "no recomputation",
    ],
    "pipeline=2,tensor=2,micro_batch=1,chunks=2": [
        "a pipeline of 2 device groups (interleaved, 2 stages each)",
        "tensor parallel over 2",
        "data parallel over 2",
        "8 micro-batches of 1 sample",
        "no recomputation",
    ],
}


@pytest.mark.parametrize("text", long_after(2, first(5, [*WORDS])))
def test_a_named_plan_is_told_by_its_own_degrees(text):
    plan = sw.compile(GPT, 8, plan=text, objective="serial").plan
    found = Parallelism.of(plan)
    assert in_full(found.named, 16, 8) == in_full(NamedPlan.parse(text), 16, 8)
    assert found.differences == ()
    assert divided(found, 8) == WORDS[text]
    assert near_text(plan.document, found) == ""


def test_a_table_that_is_gathered_once_hides_no_sharding():
    """The tied table is larger than all blocks, and read by two stages."""
    large = GPT.replace("vocabulary=64", "vocabulary=4096")
    plan = sw.compile(large, 8, plan="pipeline=2,zero=3,micro_batch=2", objective="serial").plan
    searched = replace(plan, document=plan.document.model_copy(update={"search": "exact"}))
    for one in (plan, searched):
        assert "FSDP over 4" in divided(Parallelism.of(one), 8)


@pytest.mark.long
def test_experts_are_told_apart_from_the_ranks_that_share_the_batch():
    model = "mixtral:layers=1,hidden=16,heads=4,kv_heads=2,inner=24,batch=8,sequence=8"
    plan = sw.compile(f"{model},vocabulary=50", 4, plan="data=4,expert=2", objective="serial").plan
    found = Parallelism.of(plan)
    assert found.named == NamedPlan.parse("data=4,expert=2")
    assert divided(found, 4)[0] == "expert parallel over 2"
    folded = "tensor=2,data=2,expert=4,expert_tensor=1,zero=1,sequence_parallel"
    plan = sw.compile(f"{model},vocabulary=50", 4, plan=folded, objective="serial").plan
    found = Parallelism.of(plan)
    assert found.named == NamedPlan.parse(folded)
    assert divided(found, 4)[1:3] == ["expert parallel over all 4", "each expert over 1"]


def test_a_searched_plan_says_which_named_one_it_is_near():
    plan = sw.compile(GPT, 8, search="data_parallel", mesh="8").plan
    found = Parallelism.of(plan)
    assert near_text(plan.document, found) == ("near the named plan `data=8`, in what degrees tell")


def test_what_a_searched_plan_does_otherwise_is_told():
    found = sw.compile(GPT, 8, plan="data=8", recompute="none", objective="serial").plan
    own = Parallelism.of(found)
    layers = own.recomputed
    other = replace(
        own,
        followed=0.9,
        otherwise=("head", "blocks/*/attention", "embedding"),
        divided=4,
        shard=1,
        zero=3,
        divided_share=0.75,
        recomputed=replace(layers, whole=1, others=2),
    )
    assert other.differences == (
        "10.0% of the products divided otherwise: `head`, `blocks/*/attention` and 1 more",
        "parameters divided over 4 of 8 ranks",
        "25.0% of the parameters stored otherwise",
        "1 of 4 layers recomputed",
        "parts of 2 layers recomputed",
    )
    assert divided(other, 8) == [
        "data parallel over all 8",
        "HSDP: FSDP over 4, 2 copies",
        "full recomputation of 1 of 4 layers, in part of 2",
    ]
    assert replace(other, followed=0.5).named is None


def test_a_loss_in_chunks_is_told():
    found = Parallelism.of(sw.compile(GPT, 4, plan="tensor=4", loss_chunks=4).plan)
    assert divided(found, 4) == [
        "tensor parallel over all 4",
        "no recomputation",
        "the loss in 4 chunks",
    ]
    assert found.differences == ()
