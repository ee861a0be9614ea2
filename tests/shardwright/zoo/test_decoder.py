"""Decoders on several ranks: every kind of layer trains as on one device."""

from functools import cache

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.frontends import configs
from shardwright.tracing import Definition
from shardwright.zoo.decoder import decoder
from tests.equivalence import assert_equal, trained
from tests.extent import crossed, first

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 48,
    "max_position_embeddings": 64,
}
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
# The first few differ in their kinds of layers.
KINDS = {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3},
    "deepseek_v3": {
        **FEW,
        "num_key_value_heads": 4,
        "q_lora_rank": 6,
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    },
    "qwen3_next": {
        **FEW,
        "num_experts": 4,
        "shared_expert_intermediate_size": 12,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 4,
    },
    "nemotron_h": {
        **FEW,
        "num_hidden_layers": None,
        "hybrid_override_pattern": "ME*-",
        "mamba_num_heads": 4,
        "mamba_head_dim": 6,
        "n_groups": 2,
        "ssm_state_size": 5,
        "n_routed_experts": 6,
        "moe_shared_expert_intermediate_size": 10,
    },
    "cohere2": {"head_dim": None, "sliding_window": 3, "sliding_window_pattern": 2},
    "gemma2": {"sliding_window": 3},
    "olmo2": {"head_dim": None},
}
PLANS = (
    "tensor=2,data=2,zero=1,sequence_parallel",
    "context=2,data=2,zero=3",
    "tensor=2,pipeline=2,micro_batch=2,recompute=full",
)


@cache
def small(kind: str) -> Definition:
    fields = {"model_type": kind, **SMALL, **KINDS[kind]}
    found = configs.read_fields(kind, fields, {}).architecture
    assert found is not None
    return decoder(found, batch=4, sequence=8)


HIGHS = {"tokens": 48, "labels": 48}


@cache
def alone(kind: str) -> dict[str, np.ndarray]:
    return trained(
        compile(small(kind), 1, mode="stand_alone", optimizer="adam").plan.program, 1, HIGHS
    )


@pytest.mark.long
@pytest.mark.parametrize(("plan", "kind"), first(5, crossed(PLANS, KINDS)))
def test_a_plan_trains_as_one_device(kind: str, plan: str) -> None:
    program = compile(small(kind), 4, plan=plan, optimizer="adam").plan.program
    found = trained(program, 1, HIGHS)
    whole = alone(kind)
    assert_equal({n: x for n, x in found.items() if n in whole}, whole)
