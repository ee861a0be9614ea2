"""How a decoder differs from Llama, in names of fields and in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

NormKind = Literal["rms", "layer", "layer_without_bias"]
NormsAt = Literal["heads", "all", "turned"]


Windows = Literal["", "all", "late", "early", "pattern", "chunks", "no_rope", "linear"]


@dataclass(frozen=True)
class Kind:
    """A ``model_type``.

    Parameters
    ----------
    defaults : mapping
        What its configuration class in transformers has where a file has no field.
    names : mapping of str to str
        Its own names of fields, by the usual ones.
    biases : sequence of three
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
        With ``linear``, attention is linear in all but each n-th.
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
    gated_attention : bool
        Whether what is read is multiplied by a sigmoid of the token.
    head_bias : bool
        Whether the head has a bias.
    ignored : sequence of str
        Common fields that its class does not have.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    biases: Sequence[str | bool] = (False, False, False)
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
    gated_attention: bool = False
    head_bias: bool = False
    ignored: Sequence[str] = ()


# Fields that some classes have and others ignore: a kind that has one names it in its defaults.
CONDITIONAL = (
    *("sliding_window", "use_sliding_window", "sliding_window_pattern", "rope_local_base_freq"),
    *("attention_chunk_size", "no_rope_layers", "no_rope_layer_interval"),
    *("partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping"),
    *("query_pre_attn_scalar", "use_qk_norm", "qk_layernorm", "first_k_dense_replace"),
    *("decoder_sparse_step", "mlp_only_layers", "moe_layer_freq", "n_group", "topk_group"),
    *("intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step"),
    *("linear_conv_kernel_dim", "linear_num_key_heads", "full_attention_interval"),
    *("layers_block_type", "hybrid_override_pattern", "mamba_num_heads", "moe_latent_size"),
    *("attn_temperature_tuning", "floor_scale", "attn_scale"),
    *("norm_topk_prob", "n_shared_experts", "shared_expert_intermediate_size"),
    *("routed_scaling_factor", "rope_interleave", "clip_qkv", "topk_method", "scoring_func"),
)
