"""Decoders of the zoo from the configs of transformers: loss and gradients of its modules."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

import torch_compare as compare  # noqa: E402

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends import configs  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402
from shardwright.tracing import Definition  # noqa: E402
from shardwright.zoo import load  # noqa: E402
from tests.frontends.configs.decoder_weights import weights  # noqa: E402

SMALL = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 50.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 50.0,
}
NO_SHARED = {"num_key_value_heads": None}
HEAD = {"head_dim": 8}
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
LLAMA4 = {
    **HEAD,
    "intermediate_size_mlp": 20,
    "num_local_experts": 5,
    "no_rope_layer_interval": 2,
    "attention_chunk_size": 3,
    "floor_scale": 3,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 6,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True, **HEAD}),
    "llama3.1": ("Llama", {"rope_parameters": LLAMA3, **HEAD}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN, **HEAD}),
    "llama, linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": 3}),
    "mistral, all": ("Mistral", {"sliding_window": None}),
    "ministral3": (
        "Ministral3",
        {
            "rope_parameters": {
                **YARN,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 3,
            },
            **HEAD,
        },
    ),
    "arcee": ("Arcee", {}),
    "qwen2": ("Qwen2", {}),
    "qwen2, late windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", HEAD),
    "phi3": ("Phi3", {"sliding_window": 3}),
    "seed_oss": ("SeedOss", {"attention_dropout": 0.0, "residual_dropout": 0.0, **HEAD}),
    "ernie4_5": ("Ernie4_5", HEAD),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "gemma": ("Gemma", HEAD),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 3,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 0.3,
            **HEAD,
        },
    ),
    "gemma3_text": ("Gemma3Text", {"sliding_window": 3, "sliding_window_pattern": 2, **HEAD}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"sliding_window": 3}),
    "glm4": ("Glm4", HEAD),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    "cohere": ("Cohere", {}),
    "cohere2": ("Cohere2", {"sliding_window": 3, "sliding_window_pattern": 2}),
    "falcon": ("Falcon", {"parallel_attn": True}),
    "falcon, one after the other": ("Falcon", {"parallel_attn": False, "bias": True}),
    "falcon, new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt_neox": ("GPTNeoX", {"rotary_pct": 0.5, **NO_SHARED}),
    "gpt_neox, one after the other": (
        "GPTNeoX",
        {"use_parallel_residual": False, "rotary_pct": 1.0, **NO_SHARED},
    ),
    "phi": ("Phi", {}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm, parallel": (
        "StableLm",
        {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": 3}),
    "nemotron": ("Nemotron", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 5}),
    "granitemoe": ("GraniteMoe", {"num_local_experts": 5, "attention_multiplier": 0.3}),
    "olmoe": ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2Moe",
        {**FEW, "num_experts": 5, "shared_expert_intermediate_size": 12, "mlp_only_layers": [0]},
    ),
    "qwen2_moe, normalized": (
        "Qwen2Moe",
        {**FEW, "num_experts": 5, "shared_expert_intermediate_size": 12, "norm_topk_prob": True},
    ),
    "qwen3_moe": ("Qwen3Moe", {**FEW, **HEAD, "num_experts": 5, "norm_topk_prob": True}),
    "qwen3_moe, every second": (
        "Qwen3Moe",
        {**FEW, **HEAD, "num_experts": 5, "decoder_sparse_step": 2},
    ),
    "gpt_oss": (
        "GptOss",
        {
            **HEAD,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 3,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        {**FEW, **HEAD, "n_routed_experts": 6, "use_qk_norm": True, "attention_bias": True},
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **FEW,
            **HEAD,
            "num_experts": 5,
            "shared_expert_intermediate_size": 12,
            "partial_rotary_factor": 0.5,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 6,
            "linear_value_head_dim": 4,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            **FEW,
            **HEAD,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "num_hidden_layers": 4,
            "mamba_num_heads": 4,
            "mamba_head_dim": 6,
            "n_groups": 2,
            "ssm_state_size": 5,
            "chunk_size": 4,
            "n_routed_experts": 6,
            "moe_shared_expert_intermediate_size": 10,
        },
    ),
    "nemotron_h, latent experts": (
        "NemotronH",
        {
            **FEW,
            **HEAD,
            "layers_block_type": ["moe", "mlp", "moe"],
            "num_hidden_layers": 3,
            "moe_latent_size": 7,
            "mlp_bias": True,
            "n_routed_experts": 6,
            "moe_shared_expert_intermediate_size": 10,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {
            **HEAD,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5},
        },
    ),
    "dots1": (
        "Dots1",
        {
            **FEW,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "max_window_layers": 1,
            "sliding_window": 3,
            "norm_topk_prob": True,
        },
    ),
    "exaone4": ("Exaone4", {"sliding_window": 3, "sliding_window_pattern": 2}),
    "exaone4, all": (
        "Exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "llama4": ("Llama4Text", LLAMA4),
    "llama4, every second": (
        "Llama4Text",
        {**LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False},
    ),
    "deepseek_v2": ("DeepseekV2", {**FEW, **LATENT, "topk_method": "greedy"}),
    "deepseek_v2, groups": (
        "DeepseekV2",
        {
            **FEW,
            **LATENT,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek_v3": ("DeepseekV3", {**FEW, **LATENT, "n_group": 4, "topk_group": 2}),
    "deepseek_v3, one product of queries": (
        "DeepseekV3",
        {
            **FEW,
            **LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
}


def check_training(
    definition: Definition,
    initial: dict[str, np.ndarray],
    right: dict[str, np.ndarray],
    feed: dict[str, np.ndarray],
    loss: torch.Tensor,
) -> None:
    """Check the loss and the gradients of a model with some weights and inputs."""
    graph = Differentiate().run(definition.graph)
    wanted = [graph.outputs[0], *(gradient_name(n) for n in right)]
    found = compare.run(graph, {**definition.initial, **initial}, feed, wanted)
    assert compare.difference(found[wanted[0]], loss.detach().numpy()) < 1e-12
    least = max(float(np.abs(x).max()) for x in right.values()) * 1e-6
    for name, gradient in right.items():
        scale = max(least, float(np.abs(gradient).max()))
        assert np.abs(found[gradient_name(name)] - gradient).max() < 1e-9 * scale, name


@contextmanager
def wide() -> Iterator[None]:
    """Compute in float64 what is float32 otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with compare.WideFloats():
            yield
    finally:
        torch.set_default_dtype(before)


def made(kind: str, fields: dict[str, Any]) -> Any:
    """Return a module of transformers in float64, its weights all random."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **fields})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with wide():
        module = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        biases = (b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias"))
        for tensor in (*module.parameters(), *biases):
            tensor.add_(torch.randn_like(tensor), alpha=0.2)
    return module


def by_name(module: Any, kind: str) -> dict[str, np.ndarray]:
    named = dict(module.named_parameters())
    if kind == "data":
        named |= {n: b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias")}
    return {n: (p if kind == "data" else p.grad).detach().numpy() for n, p in named.items()}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_transformers(case: str, tmp_path: Any) -> None:
    module = made(*CASES[case])
    module.config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        definition = load(f"{path}:batch=2,sequence=7,dtype=float64")
    architecture = configs.read_model(str(path)).architecture
    assert architecture is not None
    tokens, labels = (torch.randint(3, 48, (2, 7)) for _ in range(2))
    with wide():
        logits = module(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    initial = weights(by_name(module, "data"), architecture)
    right = weights(by_name(module, "gradients"), architecture)
    own = {p.name: p.value.type.shape for p in definition.graph.parameters if p.trainable}
    assert {n: x.shape for n, x in initial.items() if n in right} == own
    feed = {"tokens": tokens.numpy(), "labels": labels.numpy()}
    check_training(definition, initial, right, feed, loss)
