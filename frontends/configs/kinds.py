"""The decoders of Hugging Face: how each differs from Llama, in names of fields and in parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.frontends.configs.architecture import NormKind, NormsAt

Windows = Literal["", "all", "late", "early", "pattern", "chunks", "no_rope"]


@dataclass(frozen=True)
class Kind:
    """A ``model_type``.

    Parameters
    ----------
    defaults : mapping
        What its configuration class in transformers has where a file has no field.
    names : mapping of str to str
        Its own names of fields, by the usual ones.
    biases : tuple of three
        Whether queries, keys and values, the last product of attention, and the feed-forward have
        biases: a truth value, or the field that says so.
    norm : str
        The kind of its normalizations.
    epsilon : str
        The field with what they add.
    from_one : bool
        Whether the scale of norms is one plus the parameter.
    norms : str
        Where parts are normalized: ``before``, ``after``, ``both``.
    parallel : int
        Norms of parallel parts, 0 for none.
    parallel_field : str
        The field that says whether parts are parallel; empty where they always are, or never.
    query_norm : str
        What is normalized of queries and keys: ``heads``, ``all``, ``turned``; empty for nothing.
    query_norm_field : str
        The field that says whether it is; empty where it always is.
    gated : bool
        Whether the feed-forward is.
    activation : str
        The field with its activation.
    windows : str
        Which layers have a window where no field lists them: ``all``; ``late`` ones, those from
        ``max_window_layers`` on; ``early`` ones, every second before; all but each n-th of a
        ``pattern``; layers that know positions have ``chunks``; those that know none, ``no_rope``.
    theta : float
        Base of the rotary embedding.
    interleaved : bool
        Whether a pair of turned features is side by side.
    latent : bool
        Whether attention has compressed keys and values.
    experts : mapping, optional
        Where feed-forwards are experts: the fields with their number (``count``) and size
        (``inner``), and what else `Experts` has, as a value.
    scales : mapping of str to str
        Fields with factors, by the factors of `Architecture` and ``attention``.
    head_bias : bool
        Whether the head has a bias.
    ignored : tuple of str
        Common fields that its class does not have.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    biases: tuple[str | bool, str | bool, str | bool] = (False, False, False)
    norm: NormKind = "rms"
    epsilon: str = "rms_norm_eps"
    from_one: bool = False
    norms: Literal["before", "after", "both"] = "before"
    parallel: Literal[0, 1, 2] = 0
    parallel_field: str = ""
    query_norm: NormsAt | Literal[""] = ""
    query_norm_field: str = ""
    gated: bool = True
    activation: str = "hidden_act"
    windows: Windows = ""
    theta: float = 10_000.0
    interleaved: bool = False
    latent: bool = False
    experts: Mapping[str, Any] | None = None
    scales: Mapping[str, str] = field(default_factory=dict)
    head_bias: bool = False
    ignored: tuple[str, ...] = ()


# Fields that some classes have and others ignore: a kind that has one names it in its defaults.
CONDITIONAL = (
    *("sliding_window", "use_sliding_window", "sliding_window_pattern", "rope_local_base_freq"),
    *("attention_chunk_size", "no_rope_layers", "no_rope_layer_interval"),
    *("partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping"),
    *("query_pre_attn_scalar", "use_qk_norm", "qk_layernorm", "first_k_dense_replace"),
    *("decoder_sparse_step", "mlp_only_layers", "moe_layer_freq", "n_group", "topk_group"),
    *("intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step"),
    *("attn_temperature_tuning", "floor_scale", "attn_scale"),
    *("norm_topk_prob", "n_shared_experts", "shared_expert_intermediate_size"),
    *("routed_scaling_factor", "rope_interleave", "clip_qkv", "topk_method", "scoring_func"),
)
_ALL = ("attention_bias", "attention_bias", "mlp_bias")
_ATTENTION = ("attention_bias", "attention_bias", False)
_QUERIES = ("attention_bias", False, False)
_WINDOW = {"sliding_window": 4096}
_NO_ROPE = {"use_sliding_window": False, "sliding_window": None, "no_rope_layers": None}
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "head_dim": 256,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
}
_SIGMOID = {"scores": "sigmoid", "selection_bias": True, "count": "n_routed_experts"}
_SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": None, "norm_topk_prob": False}
_ROUTED = {
    "n_group": None,
    "topk_group": None,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "moe_layer_freq": 1,
    "topk_method": None,
    "scoring_func": None,
    "norm_topk_prob": False,
}
_SMALL = {"inner": "moe_intermediate_size"}
_GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "divided_logits": "logits_scaling",
    "attention": "attention_multiplier",
}
_LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK3 = {
    **_LATENT,
    **_ROUTED,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "moe_intermediate_size": 2048,
    "rope_interleave": True,
}

KINDS: Mapping[str, Kind] = {
    "llama": Kind(biases=_ALL),
    "mistral": Kind({**_WINDOW, "num_key_value_heads": 8}, windows="all"),
    "ministral3": Kind(
        {"head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": None}, windows="all"
    ),
    "arcee": Kind({"hidden_act": "relu2", "rms_norm_eps": 1e-5}, biases=_ALL, gated=False),
    "qwen2": Kind(_QWEN_WINDOW, biases=(True, False, False), windows="late"),
    "qwen3": Kind(
        {**_QWEN_WINDOW, "head_dim": 128}, biases=_ATTENTION, windows="late", query_norm="heads"
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
        biases=_ALL,
        theta=2_000_000.0,
        windows="no_rope",
    ),
    "gemma": Kind(_GEMMA, biases=_ATTENTION, from_one=True),
    "gemma2": Kind(
        {
            **_GEMMA,
            **_WINDOW,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "sliding_window_pattern": 2,
        },
        biases=_ATTENTION,
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
        biases=_ATTENTION,
        from_one=True,
        norms="both",
        query_norm="heads",
        activation="hidden_activation",
        windows="pattern",
        theta=1_000_000.0,
    ),
    "olmo2": Kind({"rms_norm_eps": 1e-5}, biases=_ATTENTION, norms="after", query_norm="all"),
    "olmo3": Kind(
        {"rms_norm_eps": 1e-5, **_WINDOW, "sliding_window_pattern": 4},
        biases=_ATTENTION,
        norms="after",
        query_norm="all",
        windows="pattern",
        theta=500_000.0,
    ),
    "glm4": Kind(
        {"rms_norm_eps": 1.5625e-7, "head_dim": 128, "partial_rotary_factor": 0.5},
        biases=_QUERIES,
        norms="both",
        interleaved=True,
    ),
    "granite": Kind(biases=_ALL, scales=_GRANITE),
    "cohere": Kind(
        {
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625,
            "use_qk_norm": False,
        },
        biases=_ATTENTION,
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
        biases=_ATTENTION,
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
        biases=_ALL,
        norm="layer",
        epsilon="norm_eps",
        from_one=True,
        gated=False,
    ),
    "mixtral": Kind(
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
        },
        windows="all",
        theta=1_000_000.0,
        experts={"count": "num_local_experts", "inner": "intermediate_size"},
    ),
    "granitemoe": Kind(
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        biases=_ATTENTION,
        scales=_GRANITE,
        experts={
            "count": "num_local_experts",
            "inner": "intermediate_size",
            "scores": "softmax_after",
        },
    ),
    "olmoe": Kind(
        {
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "clip_qkv": None,
        },
        biases=_ATTENTION,
        query_norm="all",
        experts={"count": "num_experts", "inner": "intermediate_size"},
    ),
    "qwen2_moe": Kind(
        {
            **_QWEN_WINDOW,
            "qkv_bias": True,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4,
            "num_experts": 60,
            **_SPARSE,
        },
        biases=("qkv_bias", False, False),
        windows="early",
        experts={"count": "num_experts", **_SMALL, "shared_gate": True},
    ),
    "qwen3_moe": Kind(
        {
            **_QWEN_WINDOW,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_experts": 128,
            **_SPARSE,
        },
        names={"num_experts": "num_local_experts"},
        biases=_ATTENTION,
        windows="all",
        query_norm="heads",
        experts={"count": "num_experts", **_SMALL},
    ),
    "gpt_oss": Kind(
        {
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "num_key_value_heads": 8,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
        },
        biases=_ATTENTION,
        windows="pattern",
        theta=150_000.0,
        experts={
            "count": "num_local_experts",
            "inner": "intermediate_size",
            "scores": "softmax_after",
            "biased": True,
        },
    ),
    "llama4_text": Kind(
        {
            "head_dim": 128,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 16384,
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": True,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        biases=_ATTENTION,
        query_norm="turned",
        query_norm_field="use_qk_norm",
        windows="chunks",
        theta=500_000.0,
        interleaved=True,
        experts={
            "count": "num_local_experts",
            "inner": "intermediate_size",
            "scores": "sigmoid",
            "weighs_inputs": True,
        },
    ),
    "glm4_moe": Kind(
        {
            **_ROUTED,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": False,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        biases=_QUERIES,
        query_norm="heads",
        query_norm_field="use_qk_norm",
        experts={**_SIGMOID, **_SMALL},
    ),
    "deepseek_v2": Kind(
        {
            **_LATENT,
            **_ROUTED,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
        },
        biases=(False, False, "mlp_bias"),
        latent=True,
        interleaved=True,
        experts={"count": "n_routed_experts", **_SMALL},
    ),
    "deepseek_v3": Kind(_DEEPSEEK3, latent=True, interleaved=True, experts={**_SIGMOID, **_SMALL}),
    "kimi_k2": Kind(_DEEPSEEK3, latent=True, interleaved=True, experts={**_SIGMOID, **_SMALL}),
}
