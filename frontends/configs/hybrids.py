"""Layers of Nemotron-H: each is attention, a state space, a feed-forward, or experts."""

from collections.abc import Sequence
from typing import Any

from shardwright.frontends.configs.architecture import StateSpace
from shardwright.frontends.configs.reading import Fields

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}
_KINDS = frozenset(_LETTERS.values())
_NO_EFFECT = (  # on values or shapes: how it is computed, and how weights begin
    *("chunk_size", "expand", "mamba_ssm_cache_dtype", "residual_in_fp32", "num_logits_to_keep"),
    *("rescale_prenorm_residual", "time_step_max", "time_step_floor", "time_step_limit"),
    *("use_mamba_kernels", "moe_shared_expert_overlap"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),  # no positions
    *("norm_eps", "rms_norm_eps", "hidden_act"),  # its class has them by other names
)


def layer_kinds(fields: Fields) -> list[str]:
    """Return what every layer is, from a list or from a pattern of letters.

    Raises
    ------
    ModelError
        If there is neither, or a layer is something else.
    """
    pattern, listed = fields.take("hybrid_override_pattern"), fields.names("layers_block_type")
    fields.drop(_NO_EFFECT)
    fields.only("mamba_hidden_act", ("silu",), "convolutions are followed by silu", "silu")
    fields.only("mamba_proj_bias", (False,), "its class has `use_bias` instead", False)
    if not listed and not isinstance(pattern, str):
        raise fields.reading.error(
            "there is no `layers_block_type` and no `hybrid_override_pattern`", "add one of them"
        )
    found = _kinds(fields, listed, pattern)
    count = fields.take("num_hidden_layers", len(found))
    if count != len(found):
        raise fields.reading.error(
            f"`num_hidden_layers` is {count} and {len(found)} layers are listed"
        )
    return found


def further_kinds(fields: Fields) -> list[str]:
    """Return what each layer of a head that predicts a further token is.

    Raises
    ------
    ModelError
        If a layer is something else.
    """
    pattern, listed = fields.take("mtp_hybrid_override_pattern"), None
    if fields.left.get("mtp_layers_block_type") is not None:
        listed = fields.names("mtp_layers_block_type")
    fields.left.pop("mtp_layers_block_type", None)
    return _kinds(fields, listed, pattern if isinstance(pattern, str) else "*E")


def _kinds(fields: Fields, listed: Sequence[str] | None, pattern: Any) -> list[str]:
    """Return kinds of layers from a list, or from a pattern of letters."""
    found = [_OLDER.get(one, one) for one in listed or ()]
    if not listed:
        found = [_LETTERS.get(letter, letter) for letter in pattern]
    for one in found:
        if one not in _KINDS:
            raise fields.reading.error(
                f"a layer is `{one}`, expected {', '.join(sorted(_KINDS))}, or M, *, - and E"
            )
    return found


def state_space(fields: Fields) -> StateSpace:
    """Return the state space of its layers."""
    return StateSpace(
        fields.count("mamba_num_heads"),
        fields.count("mamba_head_dim"),
        fields.count("n_groups"),
        fields.count("ssm_state_size"),
        fields.count("conv_kernel"),
        fields.flag("use_conv_bias"),
        fields.flag("use_bias"),
        fields.number("time_step_min", 0.001),
        fields.number("layer_norm_epsilon", 1e-5),
    )
