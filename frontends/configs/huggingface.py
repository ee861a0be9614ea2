"""``config.json`` of Hugging Face: architectures that are models of the zoo.

The names of fields are those of the configuration classes of `transformers`. A field of which the
zoo has no form is refused, unless it has the value by which it changes nothing.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.frontends.configs import decoders
from shardwright.frontends.configs.kinds import kinds
from shardwright.frontends.configs.reading import Fields, Reading
from shardwright.ir.files.reading import from_json

_NO_EFFECT = (
    *("_name_or_path", "auto_map", "bos_token_id", "eos_token_id"),
    *("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "transformers_version"),
    *("use_cache", "initializer_range", "initializer_factor", "layer_norm_epsilon"),
    *("layer_norm_eps", "gradient_checkpointing", "attn_implementation", "_attn_implementation"),
    *("_flash_attn_2_enabled", "output_attentions", "output_hidden_states", "return_dict"),
    *("id2label", "label2id", "problem_type", "task_specific_params", "summary_activation"),
    *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("scale_attn_weights", "n_ctx", "classifier_dropout", "cache_implementation"),
    *("ep_size", "aux_loss_alpha", "seq_aux", "initial_context_length"),
    *("max_window_layers", "experts_implementation"),
    "original_max_position_embeddings",  # beside that of `rope_scaling`, which is read
    *("finetuning_task", "directionality"),
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type", "num_labels", "torchscript", "output_past"),
    *("max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "num_beams"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "tokenizer_class"),
)
_USUAL = 8192  # tokens of a sample, where a model allows more: of most published pretraining
_PRECISIONS = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
_DROPOUT = "the model has no dropout there, expected 0"
_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")  # endings of classes with the zoo's heads


def read(where: str, values: Mapping[str, Any], sizes: Mapping[str, str]) -> Reading:
    """Return what a ``config.json`` says.

    Parameters
    ----------
    where : str
        The file.
    values : mapping
        Its fields.
    sizes : mapping of str to str
        Fields of a decoder that the user sets.

    Raises
    ------
    ModelError
        If the architecture is none of the zoo's, or a field is not supported.
    """
    kind = values.get("model_type")
    reading = Reading(where)
    if isinstance(kind, str) and kind in _WRAPPERS:
        return _inner(where, kind, values, sizes)
    if isinstance(kind, str) and kind in kinds():
        return _decoder(kind, where, values, sizes)
    if not isinstance(kind, str):
        raise reading.error(f"`model_type` is `{kind}`, expected a name", "add it")
    if kind not in _ARCHITECTURES:
        return _foreign(reading, values, sizes)
    fields = Fields(reading, values)
    fields.take("model_type")
    _ARCHITECTURES[kind](fields)
    return _finished(fields, f"the model `{reading.model}`")


def known() -> str:
    """Return the names of the architectures that are models of the zoo."""
    return ", ".join(sorted({*kinds(), *_WRAPPERS, *_ARCHITECTURES}))


def _foreign(reading: Reading, values: Mapping[str, Any], sizes: Mapping[str, str]) -> Reading:
    """Return what a file says of an architecture that is no model of the zoo: all its fields."""
    reading.model = "transformers"
    fields = Fields(reading, values)
    reading.options["precision"] = _precision(fields)
    _stored(fields)
    if "quantization_config" in fields.left:
        stored = fields.left["quantization_config"]
        raise reading.refused("quantization_config", stored, "weights of this kind are not trained")
    given = {name: _value(text) for name, text in sizes.items()}
    reading.fields = {**values, **given}
    longest = values.get("max_position_embeddings")
    reading.sizes["sequence"] = _USUAL if not isinstance(longest, int) else min(longest, _USUAL)
    return reading


def _finished(fields: Fields, what: str) -> Reading:
    """Read what all models have, and refuse fields that are left."""
    reading = fields.reading
    _classes(fields, what)
    reading.options["precision"] = _precision(fields)
    fields.drop(_NO_EFFECT)
    fields.end(f"{what} of the zoo has no such part")
    return reading


def _value(text: str) -> Any:
    """Return a field that the user gives as text."""
    try:
        return from_json(text)
    except ValueError:
        return text


def _inner(where: str, kind: str, values: Mapping[str, Any], sizes: Mapping[str, str]) -> Reading:
    """Return what a file says of the decoder within a model of images and text."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise Reading(where).error(
            f"`model_type` is `{kind}` and there is no `text_config`",
            "give the file of the whole model",
        )
    shared = {name: values[name] for name in ("torch_dtype", "dtype") if name in values}
    own = {"model_type": _WRAPPERS[kind], **shared, **text}
    found = read(where, own, sizes)
    others = sorted(set(values) - {*shared, "model_type", "text_config", "architectures"})
    found.notes.append(
        f"only the decoder of text (`text_config`) is the model; not read: {', '.join(others)}"
    )
    return found


def _classes(fields: Fields, what: str) -> None:
    """Refuse a class of another head than the zoo's, such as a classifier's."""
    for name in fields.names("architectures"):
        if not name.endswith(_HEADS):
            raise fields.reading.error(
                f"`architectures` has `{name}`: {what} of the zoo has a head for words",
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


def _length(fields: Fields, name: str, default: int) -> int:
    """Return the sequence: the longest that the model is made for, or the usual one."""
    longest = fields.count(name, default)
    length = min(longest, _USUAL)
    known = "the longest" if length == longest else f"of at most {longest} (`{name}`)"
    fields.reading.assumed["sequence"] = (
        f"the sequence has {length} tokens, {known}; `sequence=...` sets another"
    )
    return length


def _decoder(kind: str, where: str, values: Mapping[str, Any], sizes: Mapping[str, str]) -> Reading:
    """Return what a file says of a decoder, with fields that the user sets."""
    reading = Reading(where, model="decoder")
    known = {**decoders.defaults(kind), **values}
    fields = Fields(reading, {**known, **_set(reading, known, sizes)})
    fields.take("model_type")
    longest = fields.left.get("max_position_embeddings", 2048)
    reading.sizes["sequence"] = _length(fields, "max_position_embeddings", 2048)
    fields.left["max_position_embeddings"] = longest
    reading.architecture = decoders.architecture(kind, fields)
    _stored(fields)
    return _finished(fields, "the decoder")


def _stored(fields: Fields) -> None:
    """Read how a checkpoint is stored, and heads that predict further tokens: both are told."""
    found = fields.left.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    if method in ("fp8", "mxfp4"):
        fields.take("quantization_config")
        fields.reading.notes.append(
            f"the checkpoint is stored in {method} (`quantization_config`); the model is planned "
            "with the types of its training"
        )
    for name in ("num_nextn_predict_layers", "num_mtp_layers"):
        if fields.whole(name, 0):
            fields.reading.notes.append(
                f"`{name}`: heads that predict further tokens are left out, as transformers does; "
                "`mtp=1` adds one"
            )


def _set(reading: Reading, known: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that the user sets, by their own names or by the zoo's."""
    found: dict[str, Any] = {}
    for name, text in sizes.items():
        field = decoders.SIZES.get(name, name)
        if field not in known and name not in decoders.SIZES:
            names = [*decoders.SIZES, *known]
            near = difflib.get_close_matches(name, names, 1)
            raise reading.error(
                f"the model has no size `{name}`",
                f"did you mean `{near[0]}`?" if near else f"there are {', '.join(decoders.SIZES)}",
            )
        found[field] = _value(text)
    count = found.get("num_hidden_layers")
    if isinstance(count, int) and count > 0:
        for name in decoders.PER_LAYER:
            if isinstance(known.get(name), list) and len(known[name]) > count:
                found.setdefault(name, known[name][:count])
    return found


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


# Models of several parts, of which the decoder of text is one.
_WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
}
_ARCHITECTURES: Mapping[str, Callable[[Fields], None]] = {
    "gpt2": _gpt2,
    "bert": _bert,
}
