"""Modules of transformers as their users have them: with caches, and parts that structure finds."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402
from shardwright.ir.graph import Graph  # noqa: E402
from shardwright.ir.text import to_text  # noqa: E402
from shardwright.passes.recompute import Recompute  # noqa: E402

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 48,
    "max_position_embeddings": 16,
}
LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 12,
    "num_experts_per_tok": 2,
}


def module_of(name: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, **fields)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def imported(module: Any, **more: Any) -> Graph:
    ids = torch.zeros(2, 8, dtype=torch.int64)
    return import_module(module, {"input_ids": ids, "labels": ids, **more}).graph


def test_caches_of_keys_and_values_are_no_results_of_a_training_step():
    module = module_of("Llama")
    assert module.config.use_cache
    found = imported(module)
    assert module.config.use_cache  # the user's module is as it was
    assert to_text(found) == to_text(imported(module_of("Llama", use_cache=False)))
    with pytest.raises(ModelError, match="leave `use_cache=True` out"):
        imported(module, use_cache=True)


def test_parts_of_blocks_are_found_in_imported_modules():
    graph = imported(module_of("DeepseekV3", **LATENT))

    def cells(part: str) -> set[str]:
        marks = set(Recompute(part).run(graph).recomputed)
        scopes = {node.scope.split("/", 2)[-1] for node in graph.nodes if node.name in marks}
        return {"/".join(scope.split("/")[1:]) for scope in scopes}

    assert cells("layernorm") == {"input_layernorm", "post_attention_layernorm"}
    assert cells("shared_experts") == {
        "mlp/shared_experts",
        *(f"mlp/shared_experts/{one}" for one in ("gate_proj", "up_proj", "act_fn", "down_proj")),
    }
    assert cells("moe_act") == {"mlp/experts", "mlp/experts/act_fn"}
    assert {"self_attn/q_b_proj", "self_attn/kv_b_proj"} <= cells("mla_up_proj")
    down = {"self_attn/q_a_proj", "self_attn/kv_a_proj_with_mqa", "self_attn/o_proj"}
    assert not down & cells("mla_up_proj")
    assert {"mlp/gate_proj", "mlp/down_proj"} <= cells("mlp")
    assert not any("experts" in cell for cell in cells("mlp"))
