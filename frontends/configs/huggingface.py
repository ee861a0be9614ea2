"""``config.json`` of Hugging Face: architectures that are models of the zoo.

The names of fields are those of the configuration classes of `transformers`. A field of which the
zoo has no form is refused, unless it has the value by which it changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.frontends.configs.reading import Fields, Reading

_NO_EFFECT = (
    *("_name_or_path", "auto_map", "bos_token_id", "eos_token_id"),
    *("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "transformers_version"),
    *("use_cache", "initializer_range", "initializer_factor", "layer_norm_epsilon"),
    *("layer_norm_eps", "gradient_checkpointing", "attn_implementation", "_attn_implementation"),
    *("_flash_attn_2_enabled", "output_attentions", "output_hidden_states", "return_dict"),
    *("id2label", "label2id", "problem_type", "task_specific_params", "summary_activation"),
    *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("scale_attn_weights", "n_ctx", "max_window_layers"),
    *("output_router_logits", "router_jitter_noise", "finetuning_task", "directionality"),
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type", "num_labels", "torchscript", "output_past"),
    *("max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "num_beams"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "tokenizer_class"),
)
_PRECISIONS = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
_DROPOUT = "the model has no dropout there, expected 0"
_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")  # endings of classes with the zoo's heads


def read(where: str, values: Mapping[str, Any]) -> Reading:
    """Return what a ``config.json`` says.

    Raises
    ------
    ModelError
        If the architecture is none of the zoo's, or a field is not supported.
    """
    reading = Reading(where)
    fields = Fields(reading, values)
    kind = fields.take("model_type")
    if str(kind) not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        for name, why in _OTHERS.items():
            if str(kind) in name.split():
                raise reading.error(
                    f"`model_type` is `{kind}`: {why}, of which no model of the zoo is made",
                    f"there are {known}; or write the model in Python, or export it to ONNX",
                )
        raise reading.error(
            f"`model_type` is `{kind}`, which is no model of the zoo",
            f"there are {known}; or write the model in Python, or export it to ONNX",
        )
    _ARCHITECTURES[kind](fields)
    _classes(fields)
    reading.options["precision"] = _precision(fields)
    fields.drop(_NO_EFFECT)
    fields.end(f"the model `{reading.model}` of the zoo has no such part")
    return reading


def _classes(fields: Fields) -> None:
    """Refuse a class of another head than the zoo's, such as a classifier's."""
    for name in fields.names("architectures"):
        if not name.endswith(_HEADS):
            raise fields.reading.error(
                f"`architectures` has `{name}`: the model `{fields.reading.model}` of the zoo "
                "has a head for words",
                "remove it to plan the model with that head",
            )


def _precision(fields: Fields) -> str:
    """Return the type that a step is computed in, by either name of its field."""
    found = {name: fields.take(name) for name in ("torch_dtype", "dtype")}
    for name, dtype in found.items():
        if dtype is not None and str(dtype) not in _PRECISIONS:
            raise fields.reading.refused(name, dtype, f"expected {', '.join(_PRECISIONS)}")
    types = set(found.values()) - {None}
    if len(types) > 1:
        raise fields.reading.error(
            f"`torch_dtype` is `{found['torch_dtype']}` and `dtype` is `{found['dtype']}`",
            "keep one of them",
        )
    return _PRECISIONS[types.pop()] if types else "bfloat16"


def _length(fields: Fields, name: str) -> int:
    """Return the sequence: the longest that the model is made for."""
    length = fields.count(name)
    fields.reading.assumed["sequence"] = (
        f"the sequence is `{name}`, {length} tokens, the longest; `sequence=...` sets another"
    )
    return length


def _decoder(fields: Fields) -> None:
    """Read what llama, mistral and qwen have in common."""
    reading = fields.reading
    heads = fields.count("num_attention_heads")
    reading.model = "llama"
    reading.sizes = {
        "layers": fields.count("num_hidden_layers"),
        "hidden": fields.count("hidden_size"),
        "heads": heads,
        "kv_heads": fields.count("num_key_value_heads", heads),
        "inner": fields.count("intermediate_size"),
        "vocabulary": fields.count("vocab_size"),
        "sequence": _length(fields, "max_position_embeddings"),
        "base": fields.number("rope_theta", 10_000.0),
        "epsilon": fields.number("rms_norm_eps", 1e-6),
    }
    _head(fields)
    _window(fields)
    _rotation(fields)
    fields.only("hidden_act", ("silu",), "the gate goes through silu", "silu")
    fields.only("attention_dropout", (0, None), _DROPOUT, 0)
    fields.only("mlp_bias", (False, None), "the feed-forward has no biases", False)
    fields.only("pretraining_tp", (1,), "products are not cut in parts", 1)


def _head(fields: Fields) -> None:
    sizes = fields.reading.sizes
    if fields.left.get("head_dim") is None:
        return
    head = fields.count("head_dim")
    if head * sizes["heads"] != sizes["hidden"]:
        sizes["head"] = head


def _window(fields: Fields) -> None:
    """Read the window of attention, which the sequence may not exceed."""
    used = fields.flag("use_sliding_window", True)
    if fields.left.get("sliding_window") is not None:
        window = fields.count("sliding_window")
        fields.reading.window = window if used else None
    kinds = set(fields.names("layer_types"))
    if kinds - {"full_attention"}:
        raise fields.reading.refused("layer_types", sorted(kinds), "all layers attend to all")


def _rotation(fields: Fields) -> None:
    scaling = fields.take("rope_scaling", fields.take("rope_parameters"))
    if scaling is None:
        return
    if isinstance(scaling, dict) and "rope_theta" in scaling:
        own = Fields(fields.reading, scaling)
        fields.reading.sizes["base"] = own.number("rope_theta", 10_000.0)
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else scaling
    if kind not in (None, "default"):
        fields.reading.notes.append(
            f"`rope_scaling` ({kind}) changes the angles of positions, neither step nor memory; "
            "the model turns by plain angles"
        )


def _llama(fields: Fields) -> None:
    _decoder(fields)
    fields.only("attention_bias", (False,), "products of attention have no biases", False)
    fields.reading.sizes["tied"] = fields.flag("tie_word_embeddings")


def _qwen2(fields: Fields) -> None:
    fields.left.setdefault("use_sliding_window", False)
    _decoder(fields)
    fields.reading.sizes |= {"qkv_bias": True, "tied": fields.flag("tie_word_embeddings")}


def _qwen3(fields: Fields) -> None:
    fields.left.setdefault("use_sliding_window", False)
    fields.left.setdefault("head_dim", 128)
    _decoder(fields)
    fields.only("attention_bias", (False,), "products of attention have no biases", False)
    fields.reading.sizes |= {"qk_norm": True, "tied": fields.flag("tie_word_embeddings")}


def _phi3(fields: Fields) -> None:
    _decoder(fields)
    fields.only("attention_bias", (False,), "products of attention have no biases", False)
    fields.only("partial_rotary_factor", (1, None), "all features of a head are turned", 1)
    for name in ("resid_pdrop", "embd_pdrop"):
        fields.only(name, (0, None), _DROPOUT, 0)
    fields.drop(("original_max_position_embeddings",))
    sizes = fields.reading.sizes
    sizes["tied"] = fields.flag("tie_word_embeddings")
    fields.reading.notes.append(
        "queries, keys and values are products of their own, and so are gate and feed-forward; in "
        "the original one product each"
    )


def _gemma(fields: Fields) -> None:
    """Read the first Gemma: its weights of norms are written as one plus what it stores."""
    fields.left.setdefault("head_dim", 256)
    fields.left.setdefault("tie_word_embeddings", True)
    gelus = ("gelu", "gelu_pytorch_tanh")
    for name in ("hidden_activation", "hidden_act"):
        fields.only(name, (*gelus, None), "the gate goes through gelu", gelus[0])
    _decoder(fields)
    fields.only("attention_bias", (False,), "products of attention have no biases", False)
    fields.reading.sizes |= {
        "tied": fields.flag("tie_word_embeddings"),
        "gate": "gelu",
        "scaled": True,
    }


def _mixtral(fields: Fields) -> None:
    _decoder(fields)
    reading, sizes = fields.reading, fields.reading.sizes
    reading.model = "mixtral"
    if "head" in sizes or sizes.pop("epsilon") != 1e-5:
        reading.notes.append("norms have an epsilon of 1e-5, which changes neither step nor memory")
    if "head" in sizes:
        raise reading.refused("head_dim", sizes["head"], "heads share the hidden size")
    sizes["experts"] = fields.count("num_local_experts", 8)
    sizes["balance"] = fields.number("router_aux_loss_coef", 0.001)
    fields.only("num_experts_per_tok", (2,), "every token goes through two experts", 2)
    fields.only("tie_word_embeddings", (False,), "the head has its own table", False)
    reading.notes.append("experts have slots for 1.25 times their share; `capacity=...` sets it")


def _gpt2(fields: Fields) -> None:
    reading = fields.reading
    hidden = fields.count("n_embd", 768)
    reading.model = "gpt"
    dropouts = [fields.number(n, 0.1) for n in ("resid_pdrop", "embd_pdrop")]
    if dropouts[0] != dropouts[1]:
        raise reading.refused("embd_pdrop", dropouts[1], f"`resid_pdrop` is {dropouts[0]}")
    reading.sizes = {
        "layers": fields.count("n_layer", 12),
        "hidden": hidden,
        "heads": fields.count("n_head", 12),
        "vocabulary": fields.count("vocab_size", 50257),
        "sequence": fields.count("n_positions", 1024),
        "tied": fields.flag("tie_word_embeddings", True),
        "dropout": dropouts[0],
    }
    _no_dropout_of_scores(fields, "attn_pdrop", 0.1)
    fields.only("n_inner", (None, 4 * hidden), f"the feed-forward is {4 * hidden} wide")
    gelus = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
    fields.only("activation_function", gelus, "the feed-forward goes through gelu", "gelu_new")
    off = "attention has no such scale"
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        fields.only(name, (False,), off, False)
    fields.only("add_cross_attention", (False,), "there is no second input", False)


def _bert(fields: Fields) -> None:
    reading = fields.reading
    hidden = fields.count("hidden_size", 768)
    reading.model = "bert"
    reading.sizes = {
        "layers": fields.count("num_hidden_layers", 12),
        "hidden": hidden,
        "heads": fields.count("num_attention_heads", 12),
        "vocabulary": fields.count("vocab_size", 30522),
        "sequence": fields.count("max_position_embeddings", 512),
        "dropout": fields.number("hidden_dropout_prob", 0.1),
    }
    _no_dropout_of_scores(fields, "attention_probs_dropout_prob", 0.1)
    fields.only("intermediate_size", (4 * hidden,), f"expected {4 * hidden}", 4 * hidden)
    fields.only("hidden_act", ("gelu",), "the feed-forward goes through gelu", "gelu")
    fields.only("type_vocab_size", (2,), "there are two segments", 2)
    fields.only("position_embedding_type", ("absolute",), "positions have a table", "absolute")
    fields.only("is_decoder", (False,), "every position reads all others", False)
    fields.only("tie_word_embeddings", (True,), "the head has the table of words", True)
    reading.notes.append("the model has the head that restores words, and no pooler")


def _no_dropout_of_scores(fields: Fields, name: str, default: float) -> None:
    share = fields.number(name, default)
    if share:
        fields.reading.notes.append(
            f"`{name}` ({share:g}) is left out: attention is one kernel without dropout inside"
        )


_ARCHITECTURES: Mapping[str, Callable[[Fields], None]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma": _gemma,
    "mixtral": _mixtral,
    "gpt2": _gpt2,
    "bert": _bert,
}
# What architectures have that the zoo does not.
_OTHERS: Mapping[str, str] = {
    "qwen2_moe qwen3_moe olmoe": "its tokens go through more than two small experts",
    "deepseek_v2 deepseek_v3": "it has latent attention, and tokens go through many small experts",
    "gemma2 gemma3 gemma3_text": "it normalizes after each part too, and attends to windows",
    "gpt_neox gptj phi": "attention and feed-forward are side by side, and turn a part of a head",
    "falcon": "attention and feed-forward are side by side",
}
