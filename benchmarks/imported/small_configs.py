"""Small configurations of every architecture of transformers, by the names of their fields.

Sizes become those of a table, by the first pattern that the name of a field matches; sizes in lists
are divided; configurations inside of configurations likewise. What does not fit that way has its
sizes in `small_sizes.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 99
KEEP = ...  # in place of a size: that of the default configuration
# Smallest size that is made smaller, by patterns that no other rule has.
_LARGE = 33
# The new size, by a pattern of the name; a number that is smaller already stays.
_SIZES: Sequence[tuple[str, int]] = (
    (r"type_vocab_size", 2),
    (r"(^|_)vocab_size$|vocab_size_|_vocab(_size)?$|^n_tokens$", VOCABULARY),
    (r"index_n_heads", 16),  # fewer have sums of rectified scores that are all zero, which tie
    (r"(n|num)_?(key_value|kv)_?(attention_)?heads$|_kv_heads$|key_value_heads$", 2),
    (r"^n_group$|topk_group$|num_expert_groups?$", 1),
    (r"(n|num)_?(hash|experts|groups?)$", 4),
    (r"experts_per_tok|top_?k|_topk$|topk|moe_k$", 2),
    (r"(^|_)heads?$|num_(attention_)?heads|_attention_heads$|n_heads?$|_heads$", 4),
    (r"experts$", 4),
    (r"num_encoder_blocks", 0),  # as many as there are in lists
    (r"(^|_)(n_)?layers?$|num_hidden_layers|_layers$|^depth$|_depth$|num_.*blocks$|_layer$", 2),
    (r"max_window_layers|first_k_dense_replace", 1),
    (r"qk_rope_head_dim|rope_head_dim|rotary_dim", 4),
    (r"qk_head_dim", 12),
    (r"head_dim|head_size|dim_head|d_kv|^attention_head", 8),
    (r"lora_rank|_rank$", 16),
    (r"ffn|intermediate|d_ff|mlp_dim|n_inner|feedforward|mlp_hidden", 48),
    (r"max_(source_|target_)?position|n_positions|max_seq|max_2d_position|n_ctx", 128),
    (r"num_position_embeddings", 16),
    (r"chunk_(left|right)_context", 2),
    (r"num_pos_feats|pos_emb_(height|width)", 16),
    (r"index_kpool|index_block", 2),
    (r"patch_size$", 8),
    (r"image_size|pretrain_image|img_size|input_size$", 32),
    (r"num_mel_bins|n_mels|feature_size|mel_bins", 16),
    (r"state_size|d_state|n_state", 4),
    (r"chunk_size|chunk_length", 4),
    (r"sliding_window$|window_size|local_window|attention_window|block_length", 4),
    (r"index_topk", 4),
    (r"num_queries|num_query|num_latents|query_tokens", 6),
    (r"num_conv_pos_embeddings", 8),
    (r"num_conv_pos_embedding_groups", 4),
    (r"(image|vision|mm|audio)_seq_length|mm_tokens|tokens_per_image", 16),
    (r"num_frames", 4),
    (r"upsample_groups", 32),
    (r"upsample_initial_channel", 64),
    (r"codebook_size|num_embeddings", 32),
    (
        r"sampling_rate|_rate$|temperature|train_num_points|max_depth|_ms$|distance|_token|max_len",
        0,
    ),
    (
        r"hidden|d_model|n_embd|embed|_dims?$|^dim$|width|channels|_size$|features|emb_dim|latent",
        32,
    ),
)
_IDS = re.compile(r"_token_(id|index)$|_token_ids$|_id$|^(boi|eoi)_token")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Sizes of what some default configurations leave out.
_ABSENT = {
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "prediction_length": 8,
    "num_experts": 4,
    "vocab_size": VOCABULARY,
}
# Names of lists whose elements are sizes of features, which are divided.
_DIVIDED = re.compile(r"hidden_sizes|embed_dims?|channels|dims?$|conv_dim|hidden_dims|sizes$")
_DIVISOR = 8
# Sizes of networks of stages, each of half the side.
_STAGED = {"window_size": 2, "image_size": 64}
_DEPTHS = re.compile(r"^depths?$|_depths?$|layers_to|num_layers$|layers$|_blocks$")
_NUMBERS = re.compile(r"proj_layers$")  # of stages or layers, which stay
_CHOSEN = re.compile(r"(global_attn|attention|window_block)_ind|hook_ids$")  # numbers of layers
# Fields that a configuration derives from others.
_DERIVED = ("id2label", "label2id", "stage_names", "out_indices", "out_features")
_ABSENT_TOKENS = re.compile(r"^(image|video|audio)_token_(id|index)$")


class Tokens:
    """Numbers of special tokens in the small vocabulary, the same for the same number before."""

    def __init__(self) -> None:
        self.chosen: dict[int, int] = {}

    def number(self, before: int) -> int:
        """Return the number of a token."""
        if before < VOCABULARY - 30:
            return before
        return self.chosen.setdefault(before, VOCABULARY - 1 - len(self.chosen))


@dataclass
class Shape:
    """What a configuration says of its layers.

    Parameters
    ----------
    layers : int
        How many there are.
    order : list of int
        Those that are kept, where they have kinds.
    pyramid : bool
        Whether stages differ in their heads, and so in their widths.
    staged : bool
        Whether layers are stages with a width and a depth each.
    """

    layers: int
    order: list[int]
    pyramid: bool
    staged: bool


def small_config(kind: str, changes: Mapping[str, Any]) -> PretrainedConfig:
    """Return a small configuration of an architecture, with random sizes where none is known.

    Parameters
    ----------
    kind : str
        The name of the architecture, `model_type`.
    changes : mapping
        Sizes that the rules do not find, by name; a mapping for a configuration inside.
    """
    kinds: Any = CONFIG_MAPPING
    return _small(kinds[kind], kinds[kind](**_top(changes)), changes, Tokens())


def _top(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration cannot be made without."""
    return dict(changes.get("_default", {}))


def _small(
    kind: Any, whole: PretrainedConfig, changes: Mapping[str, Any], tokens: Tokens
) -> PretrainedConfig:
    return kind(**_arguments(whole, changes, tokens))


def _arguments(
    whole: PretrainedConfig, changes: Mapping[str, Any], tokens: Tokens
) -> dict[str, Any]:
    """Return the arguments that make a configuration small."""
    own = {k: v for k, v in vars(whole).items() if not k.startswith("_")}
    fields = getattr(type(whole), "__dataclass_fields__", {})
    layers = next((own[n] for n in _LAYERS if isinstance(own.get(n), int)), 0)
    results = _result_count(whole)
    order = _kept_layers(own, layers)
    lists = {n: v for n, v in own.items() if isinstance(v, (list, tuple))}
    pyramid = any("heads" in n and not len(v) == layers > 4 for n, v in lists.items())
    widths = [v for n, v in lists.items() if n in ("hidden_sizes", "depths")]
    staged = len(widths) == 2 and all(len(v) == layers for v in widths)
    shape = Shape(layers, order, pyramid, staged)
    made: dict[str, Any] = {}
    for name, value in own.items():
        if isinstance(value, PretrainedConfig):
            inner = _arguments(value, changes.get(name, {}), tokens)
            made[name] = {"model_type": value.model_type, **_set_outside(value), **inner}
        elif name in fields or name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            small = _smaller(name, value, shape, tokens)
            if small is not None and small != value:
                made[name] = small
    if order and any(name in own for name in ("layer_types", "layers_block_type")):
        for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
            if isinstance(own.get(name), list) and len(own[name]) == layers:
                made[name] = [own[name][i] for i in order]
    if "num_key_value_heads" in own and own["num_key_value_heads"] == own.get(
        "num_attention_heads"
    ):
        made["num_key_value_heads"] = made.get("num_attention_heads", own["num_attention_heads"])
    if results > 1:
        made |= _results(whole, layers, results)
    made |= {n: size for n, size in _ABSENT.items() if n in fields and own.get(n) is None}
    if own.get("is_encoder_decoder"):
        for name in ("decoder_start_token_id", "pad_token_id"):
            if own.get(name) is None:
                made[name] = 0
    for number, name in enumerate(n for n in fields if _ABSENT_TOKENS.search(n)):
        if own.get(name) is None:
            made[name] = tokens.number(10**9 + number)
    for name in ("use_cache", "use_kernels"):
        if name in fields:
            made[name] = False
    if "mrope_section" in (
        *(getattr(whole, "ignore_keys_at_rope_validation", None) or ()),
        *(own.get("rope_parameters") or ()),
    ):
        made["rope_parameters"] = {**(own.get("rope_parameters") or {}), "mrope_section": [2, 1, 1]}
    if "fullatt_block_indexes" in own:  # windows of so many pixels, but for some layers
        made |= {"window_size": 32, "fullatt_block_indexes": [1]}
    for name, value in changes.items():
        is_inner = isinstance(own.get(name), PretrainedConfig) and isinstance(value, Mapping)
        if value is KEEP:
            made.pop(name, None)
        elif name != "_default" and not (is_inner and "model_type" not in value):
            made[name] = value
    return made


def _set_outside(inner: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of an inner configuration that the outer one sets to other defaults."""
    default = vars(type(inner)())
    return {
        name: (_size(name, value) or value) if type(value) is int else value
        for name, value in vars(inner).items()
        if not name.startswith("_") and name not in _DERIVED
        if not isinstance(value, PretrainedConfig)
        if name not in default or default[name] != value
    }


def _result_count(whole: Any) -> int:
    """Return how many named results a backbone has."""
    names = getattr(whole, "out_features", None) or ()
    return len(names) if all(isinstance(name, str) for name in names) else 0


def _results(whole: Any, layers: int, count: int) -> dict[str, Any]:
    """Return the stages of a backbone whose results are taken: the same, or its last layers."""
    if not layers:
        return {"out_features": list(whole.out_features)}
    name = next(n for n in _LAYERS if hasattr(whole, n))
    chosen = [f"stage{number + 1}" for number in range(count)]
    return {name: count, "out_features": chosen, "out_indices": list(range(1, count + 1))}


def _kept_layers(own: Mapping[str, Any], layers: int) -> list[int]:
    """Return the layers that are kept: the first of each kind, at least two."""
    named = [
        own[name]
        for name in ("layer_types", "layers_block_type", "mlp_layer_types")
        if isinstance(own.get(name), list) and len(own[name]) == layers
    ]
    if not named:
        return []
    kinds = list(zip(*named, strict=True))
    first = sorted({kind: kinds.index(kind) for kind in kinds}.values())
    rest = [i for i in range(layers) if i not in first]
    return sorted(first + rest[: max(0, 2 - len(first))])


def _smaller(name: str, value: Any, shape: Shape, tokens: Tokens) -> Any:
    """Return the new value of a field; None where it stays."""
    if isinstance(value, bool) or value is None:
        return None
    if _IDS.search(name):
        if isinstance(value, int):
            return tokens.number(value) if value >= 0 else None
        if isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
            return [tokens.number(v) for v in value]
        return None
    if isinstance(value, int):
        if shape.order and name in _LAYERS:
            return len(shape.order)
        if shape.staged and name in _LAYERS:
            return value
        if shape.pyramid and _DIVIDED.search(name) and value >= 2 * _DIVISOR:
            return max(value // _DIVISOR, 4)
        if shape.pyramid and name in _STAGED:
            return _STAGED[name]
        return _size(name, value)
    if isinstance(value, (list, tuple)) and value:
        return _list(name, value, shape)
    return None


def _size(name: str, value: int) -> int | None:
    for pattern, size in _SIZES:
        if re.search(pattern, name):
            return min(value, size) if size else None
    return None


def _list(name: str, value: Sequence[Any], shape: Shape) -> Any:
    if shape.layers > 4 and len(value) == shape.layers:
        kept = [value[i] for i in shape.order or range(2)]
        return [_size(name, v) or v for v in kept] if "heads" in name else kept
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return None
    if _CHOSEN.search(name):
        return [min(v, 1) for v in value]
    if _DEPTHS.search(name) and not _NUMBERS.search(name):
        return [min(v, 1) for v in value]
    least = 3 if name == "stem_channels" else 16  # that begins with the channels of an image
    if _DIVIDED.search(name) and min(value) >= least:
        return [max(v // _DIVISOR, 4) if v >= 16 else v for v in value]
    return None
