"""Heads that predict further tokens: every plan trains as one device, and what is refused."""

from functools import cache

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.ir.errors import ModelError
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.extent import first

SIZES = (
    "layers=2,hidden=16,heads=4,kv_heads=2,inner=24,batch=4,sequence=8,vocab_size=48,"
    "num_experts=4,num_experts_per_tok=2,moe_intermediate_size=12,head_dim=8,mtp=2"
)
MODEL = f"qwen3-30b-a3b:{SIZES},dtype=float64"
HIGHS = {"tokens": 48, "labels": 48}


@cache
def alone() -> dict[str, np.ndarray]:
    return trained(compile(MODEL, 1, mode="stand_alone", optimizer="adam").plan.program, 1, HIGHS)


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    first(
        2,
        [
            "tensor=2,pipeline=2,micro_batch=2,recompute=full",
            "context=2,data=2,micro_batch=1",
            "data=4,expert=4,zero=1",
            "tensor=2,data=2,zero=3,sequence_parallel",
        ],
    ),
)
def test_a_plan_trains_as_one_device(plan: str) -> None:
    found = trained(compile(MODEL, 4, plan=plan, optimizer="adam").plan.program, 1, HIGHS)
    whole = alone()
    assert_equal({n: x for n, x in found.items() if n in whole}, whole)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("mtp=8", "`mtp` is 8, and a row has 8 tokens"),
        ("mtp=1,documents=4", "`mtp` predicts over the ends of `documents`"),
        ("mtp_weight=0.3", "`mtp_weight` or `mtp_repeated` is given without `mtp`"),
        ("mtp_repeated=true", "`mtp_weight` or `mtp_repeated` is given without `mtp`"),
    ],
)
def test_what_cannot_be_predicted_is_refused(sizes: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(f"{MODEL.replace(',mtp=2', '')},{sizes}")


def test_experts_of_a_depth_that_is_used_twice_move_their_bias_once() -> None:
    fields = "n_routed_experts=4,num_experts_per_tok=2,moe_intermediate_size=12,n_group=1"
    latent = "q_lora_rank=6,kv_lora_rank=6,qk_nope_head_dim=6,qk_rope_head_dim=4,v_head_dim=6"
    sizes = (
        f"layers=1,hidden=16,heads=4,kv_heads=4,inner=24,batch=2,sequence=8,vocab_size=48,{fields}"
    )
    text = f"deepseek-v3:{sizes},{latent},topk_group=1,first_k_dense_replace=0,mtp=2"
    once, twice = (load(f"{text}{more}").graph for more in (",mtp_repeated=true", ""))
    assert [len(graph.updates) for graph in (once, twice)] == [2, 3]
