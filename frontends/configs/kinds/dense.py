"""Decoders whose layers have one feed-forward each."""

from collections.abc import Mapping

from shardwright.frontends.configs.kinds.kind import (
    ALL,
    ATTENTION,
    GRANITE,
    QUERIES,
    QWEN_WINDOW,
    Kind,
)

_WINDOW = {"sliding_window": 4096}
_NO_ROPE = {"use_sliding_window": False, "sliding_window": None, "no_rope_layers": None}
_GEMMA = {
    "head_dim": 256,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
}

DENSE: Mapping[str, Kind] = {
    "llama": Kind(biases=ALL),
    "mistral": Kind({**_WINDOW, "num_key_value_heads": 8}, windows="all"),
    "ministral3": Kind(
        {"head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": None}, windows="all"
    ),
    "arcee": Kind({"hidden_act": "relu2", "rms_norm_eps": 1e-5}, biases=ALL, gated=False),
    "qwen2": Kind(QWEN_WINDOW, biases=(True, False, False), windows="late"),
    "qwen3": Kind(
        {**QWEN_WINDOW, "head_dim": 128}, biases=ATTENTION, windows="late", query_norm="heads"
    ),
    "phi3": Kind(
        {"rms_norm_eps": 1e-5, "sliding_window": None, "partial_rotary_factor": 1.0}, windows="all"
    ),
    "seed_oss": Kind(
        {"attention_bias": True, "head_dim": 128, "attention_dropout": 0.1},
        biases=("attention_bias", "attention_out_bias", "mlp_bias"),
    ),
    "ernie4_5": Kind(
        {"rms_norm_eps": 1e-5, "head_dim": 128, "tie_word_embeddings": True},
        biases=("use_bias", "use_bias", "use_bias"),
        theta=500_000.0,
        interleaved=True,
    ),
    "smollm3": Kind(
        {"tie_word_embeddings": True, "no_rope_layer_interval": 4, **_NO_ROPE},
        biases=ALL,
        theta=2_000_000.0,
        windows="no_rope",
    ),
    "gemma": Kind(_GEMMA, biases=ATTENTION, from_one=True),
    "gemma2": Kind(
        {
            **_GEMMA,
            **_WINDOW,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "sliding_window_pattern": 2,
        },
        biases=ATTENTION,
        from_one=True,
        norms="both",
        activation="hidden_activation",
        windows="pattern",
    ),
    "gemma3_text": Kind(
        {
            **_GEMMA,
            **_WINDOW,
            "query_pre_attn_scalar": 256,
            "final_logit_softcapping": None,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10_000.0,
        },
        biases=ATTENTION,
        from_one=True,
        norms="both",
        query_norm="heads",
        activation="hidden_activation",
        windows="pattern",
        theta=1_000_000.0,
    ),
    "olmo2": Kind({"rms_norm_eps": 1e-5}, biases=ATTENTION, norms="after", query_norm="all"),
    "olmo3": Kind(
        {"rms_norm_eps": 1e-5, **_WINDOW, "sliding_window_pattern": 4},
        biases=ATTENTION,
        norms="after",
        query_norm="all",
        windows="pattern",
        theta=500_000.0,
    ),
    "exaone4": Kind(
        {"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4},
        norms="after",
        query_norm="heads",
        windows="pattern",
    ),
    "glm4": Kind(
        {"rms_norm_eps": 1.5625e-7, "head_dim": 128, "partial_rotary_factor": 0.5},
        biases=QUERIES,
        norms="both",
        interleaved=True,
    ),
    "granite": Kind(biases=ALL, scales=GRANITE),
    "cohere": Kind(
        {
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625,
            "use_qk_norm": False,
        },
        biases=ATTENTION,
        norm="layer_without_bias",
        epsilon="layer_norm_eps",
        parallel=1,
        interleaved=True,
        theta=500_000.0,
        scales={"logit_scale": "logit_scale"},
    ),
    "cohere2": Kind(
        {
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625,
            **_WINDOW,
            "sliding_window_pattern": 4,
        },
        biases=ATTENTION,
        norm="layer_without_bias",
        epsilon="layer_norm_eps",
        parallel=1,
        interleaved=True,
        windows="pattern",
        scales={"logit_scale": "logit_scale"},
    ),
    "falcon": Kind(
        {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "activation": "gelu"},
        {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        biases=("bias", "bias", "bias"),
        norm="layer",
        epsilon="layer_norm_epsilon",
        activation="activation",
        gated=False,
        ignored=("head_dim",),
    ),
    "gpt_neox": Kind(
        {
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "use_parallel_residual": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.25,
        },
        {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        biases=("attention_bias", "attention_bias", True),
        norm="layer",
        epsilon="layer_norm_eps",
        parallel=2,
        parallel_field="use_parallel_residual",
        gated=False,
        ignored=("head_dim", "num_key_value_heads"),
    ),
    "phi": Kind(
        {
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu_new",
            "partial_rotary_factor": 0.5,
            "qk_layernorm": False,
        },
        biases=(True, True, True),
        norm="layer",
        epsilon="layer_norm_eps",
        parallel=1,
        gated=False,
        head_bias=True,
    ),
    "stablelm": Kind(
        {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "qk_layernorm": False},
        biases=("use_qkv_bias", False, False),
        norm="layer",
        epsilon="layer_norm_eps",
        parallel=1,
        parallel_field="use_parallel_residual",
        ignored=("head_dim",),
    ),
    "starcoder2": Kind(
        {
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "use_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": 2,
            "sliding_window": None,
        },
        biases=("use_bias", "use_bias", "use_bias"),
        norm="layer",
        epsilon="norm_epsilon",
        gated=False,
        windows="all",
    ),
    "nemotron": Kind(
        {"norm_eps": 1e-5, "hidden_act": "relu2", "partial_rotary_factor": 0.5},
        biases=ALL,
        norm="layer",
        epsilon="norm_eps",
        from_one=True,
        gated=False,
    ),
}
