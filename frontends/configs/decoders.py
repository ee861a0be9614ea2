"""``config.json`` of a decoder: from its fields to a description, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from shardwright.frontends.common.errors import MOST_REPEATED
from shardwright.frontends.configs import hybrids
from shardwright.frontends.configs.architecture import (
    Architecture,
    Attention,
    FeedForward,
    GatedDelta,
    GroupedQuery,
    Latent,
    Layer,
    Norm,
)
from shardwright.frontends.configs.feed_forwards import FeedForwards
from shardwright.frontends.configs.kinds import CONDITIONAL, Kind, kinds
from shardwright.frontends.configs.reading import Fields
from shardwright.frontends.configs.ropes import Rope, ropes

# What the user may call fields, as the models of the zoo do.
SIZES: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head": "head_dim",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
    "epsilon": "rms_norm_eps",
    "base": "rope_theta",
}
# Fields with an entry for every layer; fewer layers have the first ones.
PER_LAYER = ("layer_types", "no_rope_layers", "layers_block_type", "hybrid_override_pattern")
_DROPOUT = "the model has no dropout there, expected 0"
_DROPOUTS = (
    *("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "residual_dropout"),
    "embedding_dropout",
)
_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_LINEAR = "linear_attention"


def architecture(kind: str, fields: Fields) -> Architecture:
    """Return the decoder that fields describe.

    Raises
    ------
    ModelError
        If a field has a value that is not supported, or fields contradict each other.
    """
    own = kinds()[kind]
    for usual, name in own.names.items():
        if name in fields.left:
            fields.left[usual] = fields.left.pop(name)
    for name in (*(n for n in CONDITIONAL if n not in own.defaults), *own.ignored):
        if name in fields.left and not fields.left[name]:
            fields.drop((name,))
        if name in fields.left:
            why = f"`{kind}` has no such field, its class in transformers ignores it"
            raise fields.reading.refused(name, fields.left[name], why)
    return _Reader(kind, own, fields).architecture()


def defaults(kind: str) -> Mapping[str, Any]:
    """Return what the configuration class of a kind has where a file has no field."""
    return kinds()[kind].defaults


class _Reader:
    """Takes the fields of one file."""

    def __init__(self, name: str, kind: Kind, fields: Fields) -> None:
        self.name, self.kind, self.fields, self.reading = name, kind, fields, fields.reading
        self.further: tuple[Layer, ...] = ()
        further = hybrids.further_kinds(fields) if name == "nemotron_h" else []
        self.kinds = hybrids.layer_kinds(fields) if name == "nemotron_h" else []
        self.further_kinds = further
        if self.kinds:
            fields.left["num_hidden_layers"] = len(self.kinds)
        self.hidden = fields.count("hidden_size")
        self.count = fields.count("num_hidden_layers")
        if self.count > MOST_REPEATED:
            what = f"`num_hidden_layers` is {self.count:,}, expected at most {MOST_REPEATED:,}"
            raise fields.reading.error(what)
        self.heads = fields.count("num_attention_heads")
        self.kv_heads = fields.count("num_key_value_heads", self.heads)
        self.longest = fields.count("max_position_embeddings", 2048)
        self.epsilon = fields.number(kind.epsilon, 1e-6)
        self.norm = Norm(kind.norm, self.epsilon, kind.from_one)
        self.biases = [self._bias(own) for own in kind.biases]
        self.parts = FeedForwards(name, kind, fields, self.hidden, self.biases[2])

    def _bias(self, own: str | bool) -> bool:
        """Return a truth value, or that of a field; a second part may have the same one."""
        if isinstance(own, bool):
            return own
        value = self.fields.flag(own)
        self.fields.left[own] = value
        return value

    def architecture(self) -> Architecture:
        """Return the description."""
        fields, kind = self.fields, self.kind
        parallel = self._parallel()
        layers = self._mixed() if self.kinds else self._layers()
        factors = {name: fields.positive(own, 1.0) for name, own in kind.scales.items()}
        factors.pop("attention", None)
        divided = factors.pop("divided_logits", 1.0)
        if self.name.startswith("gemma"):
            factors["embedding_scale"] = self.hidden**0.5
        if divided != 1:
            factors["logit_scale"] = 1 / divided
        for name in _DROPOUTS:
            fields.only(name, (0, None), _DROPOUT, 0)
        fields.only("pretraining_tp", (1,), "products are not cut in parts", 1)
        fields.drop(("is_decoder",))
        fields.only("use_bidirectional_attention", (False, None), "attention is causal", False)
        for own_bias in kind.biases:
            if isinstance(own_bias, str):
                fields.left.pop(own_bias, None)
        return Architecture(
            self.name,
            self.hidden,
            fields.count("vocab_size"),
            layers,
            self.norm,
            kind.norms,
            parallel,
            tied=fields.flag("tie_word_embeddings"),
            head_bias=kind.head_bias,
            logit_cap=self._cap("final_logit_softcapping"),
            further=self.further or layers[-1:],
            **factors,
        )

    def _layers(self) -> tuple[Layer, ...]:
        """Return layers of attention and a feed-forward."""
        attentions = self._attentions(self._layer_types())
        parts = self.parts.all(self.count)
        return tuple(Layer(*pair) for pair in zip(attentions, parts, strict=True))

    def _mixed(self) -> tuple[Layer, ...]:
        """Return layers that are one of several parts each."""
        fields = self.fields
        fields.left["layer_norm_epsilon"] = self.epsilon
        space = hybrids.state_space(fields)
        fields.only("sliding_window", (None,), "attention has no window")
        head = fields.count("head_dim", self.hidden // self.heads)
        fields.only("attention_head_dim", (head,), f"`head_dim` is {head}", head)
        attention = GroupedQuery(**self._common(head), rotary=None)
        activation = self.parts.activation()
        inner = fields.count("intermediate_size")
        parts = {
            "linear_attention": Layer(space, None),
            "full_attention": Layer(attention, None),
            "mlp": Layer(None, FeedForward(inner, activation, False, self.biases[2])),
            "moe": Layer(None, self.parts.experts(self.kind.experts or {}, activation)),
        }
        for name in ("first_k_dense_replace", "moe_layer_freq"):
            fields.take(name)
        self.further = tuple(parts[kind] for kind in self.further_kinds)
        return tuple(parts[kind] for kind in self.kinds)

    def _cap(self, name: str) -> float:
        return self.fields.number(name, 0.0)

    def _parallel(self) -> Literal[0, 1, 2]:
        """Return the norms of layers with parallel parts; 0 where they are not parallel."""
        own = self.kind
        if own.parallel_field and not self.fields.flag(own.parallel_field):
            return 0
        return self._falcon() if self.name == "falcon" else own.parallel

    def _falcon(self) -> Literal[0, 1, 2]:
        """Read how many heads share keys, and where the norms are."""
        fields = self.fields
        fields.only("alibi", (False,), "positions turn queries and keys", False)
        new = fields.flag("new_decoder_architecture")
        shared = fields.flag("multi_query", True)
        parallel = fields.flag("parallel_attn", True)
        norms = fields.take("num_ln_in_parallel_attn", 2 if new else 1)
        if not new and shared:
            self.kv_heads = 1
        if not parallel and not new:
            return 0
        return 2 if norms == 2 else 1

    # Attention

    def _layer_types(self) -> list[str]:
        """Return the type of every layer: what the file lists, else the rule of its class."""
        fields, kind = self.fields, self.kind
        self.window = 0
        if fields.left.get("sliding_window") is not None:
            self.window = fields.whole("sliding_window", 0)
        if not fields.flag("use_sliding_window", True):
            self.window = 0
        self.chunk = fields.whole("attention_chunk_size", 0)
        pattern = fields.take("sliding_window_pattern")
        pattern = fields.take("_sliding_window_pattern", pattern)  # as transformers 5 writes it
        late = fields.whole("max_window_layers", self.count)
        self.knows = self._positions()
        interval = fields.count("full_attention_interval", 4)
        listed = fields.names("layer_types")
        if listed:
            return self._listed(listed)
        window = self.window
        if kind.windows == "pattern" and window and not (isinstance(pattern, int) and pattern > 0):
            raise self.reading.error(
                f"`sliding_window_pattern` is `{pattern}`, expected an integer of at least 1"
            )
        rules: dict[str, Callable[[int], bool]] = {
            "": lambda i: False,
            "all": lambda i: True,
            "late": lambda i: i >= late,
            "early": lambda i: i % 2 == 0 and i < late,
            "pattern": lambda i: bool((i + 1) % pattern),
            "no_rope": lambda i: not self.knows[i],
        }
        if kind.windows == "linear":
            return [_LINEAR if (i + 1) % interval else _FULL for i in range(self.count)]
        if kind.windows == "chunks":
            return [_CHUNKED if knows and self.chunk else _FULL for knows in self.knows]
        rule = rules[kind.windows]
        return [_SLIDING if window and rule(i) else _FULL for i in range(self.count)]

    def _listed(self, types: list[str]) -> list[str]:
        """Return the listed types of layers.

        Raises
        ------
        ModelError
            If a type has no form here, or the list contradicts other fields.
        """
        error = self.reading.error
        if len(types) != self.count:
            raise error(
                f"`layer_types` has {len(types)} entries and `num_hidden_layers` is {self.count}"
            )
        for name, size, length in (
            (_SLIDING, "sliding_window", self.window),
            (_CHUNKED, "attention_chunk_size", self.chunk),
        ):
            if name in types and not length:
                raise error(f"`layer_types` has `{name}`, and there is no `{size}`", "add it")
        linear = {_LINEAR} if self.kind.windows == "linear" else set()
        unknown = set(types) - {_FULL, _SLIDING, _CHUNKED} - linear
        if unknown:
            raise error(
                f"`layer_types` has `{min(unknown)}`, of which the decoder of the zoo has no form"
            )
        return types

    def _positions(self) -> list[bool]:
        """Return which layers turn queries and keys by positions."""
        interval = self.fields.whole("no_rope_layer_interval", 0)
        listed = self.fields.numbers("no_rope_layers") or []
        if listed:
            if len(listed) != self.count or not set(listed) <= {0, 1}:
                raise self.reading.error(
                    f"`no_rope_layers` is `{listed}`, expected 0 or 1 for each of {self.count} "
                    "layers"
                )
            return [bool(one) for one in listed]
        return [not interval or bool((i + 1) % interval) for i in range(self.count)]

    def _attentions(self, types: list[str]) -> list[Attention]:
        head = self.fields.left.get("head_dim")
        if self.kind.latent:
            self.fields.left.pop("head_dim", None)
            if self.kv_heads != self.heads:
                raise self.reading.refused(
                    "num_key_value_heads",
                    self.kv_heads,
                    f"latent attention has as many as of queries, {self.heads}",
                )
            return [self._latent()] * self.count
        if head is None and self.hidden % self.heads:
            raise self.reading.error(
                f"`hidden_size` is {self.hidden} and `num_attention_heads` is {self.heads}: heads "
                "do not share it evenly",
                "add `head_dim`",
            )
        head = self.fields.count("head_dim", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise self.reading.error(
                f"`num_attention_heads` is {self.heads} and `num_key_value_heads` is "
                f"{self.kv_heads}, which does not divide it"
            )
        turned = self._ropes([one for one in types if one != _LINEAR])
        delta = self._delta() if _LINEAR in types else None
        common = self._common(head)
        temperature = self._temperature()
        # Their layers without a window know no positions.
        plain = self.name == "cohere2" or (self.name == "exaone4" and self.window > 0)
        found: list[Attention] = []
        for i, type_ in enumerate(types):
            if delta is not None and type_ == _LINEAR:
                found.append(delta)
                continue
            knows = self.knows[i] and not (plain and type_ == _FULL)
            rope = turned[type_]
            own: dict[str, Any] = {
                "rotary": rope.rotary(head, self.kind.interleaved) if knows else None,
                "window": self.window if type_ == _SLIDING else 0,
                "chunk": self.chunk if type_ == _CHUNKED else 0,
                "temperature": rope.temperature if knows else temperature,
            }
            if self.kind.query_norm == "turned" and not knows:
                own["norm"] = None
            found.append(GroupedQuery(**{**common, **own}))
        return found

    def _delta(self) -> GatedDelta:
        fields = self.fields
        return GatedDelta(
            fields.count("linear_num_key_heads"),
            fields.count("linear_num_value_heads"),
            fields.count("linear_key_head_dim"),
            fields.count("linear_value_head_dim"),
            fields.count("linear_conv_kernel_dim"),
            self.epsilon,
        )

    def _temperature(self) -> tuple[float, int, int] | None:
        """Return the factor of queries in layers that know no positions (Llama 4)."""
        fields = self.fields
        tuned = fields.flag("attn_temperature_tuning")
        factor, length = fields.number("attn_scale", 0.1), fields.count("floor_scale", 8192)
        return (factor, length, 1) if tuned else None

    def _common(self, head: int) -> dict[str, Any]:
        """Return what the attention of all layers has in common."""
        fields, kind = self.fields, self.kind
        scale: float | None = None
        if "query_pre_attn_scalar" in fields.left:
            scale = fields.positive("query_pre_attn_scalar", 1.0) ** -0.5
        if "attention" in kind.scales:
            scale = fields.positive(kind.scales["attention"], 1.0)
            fields.left[kind.scales["attention"]] = scale
        normalized = bool(kind.query_norm)
        if kind.query_norm_field:
            normalized = fields.flag(kind.query_norm_field)
        for name in {"use_qk_norm", "qk_layernorm"} - {kind.query_norm_field}:
            fields.only(name, (False, None), "queries and keys are not normalized", False)
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head": head,
            "bias": self.biases[0],
            "out_bias": self.biases[1],
            "norm": self.norm if normalized else None,
            "norms_at": kind.query_norm or "heads",
            "soft_cap": self._cap("attn_logit_softcapping"),
            "sinks": self.name == "gpt_oss",
            "scale": scale,
            "gated": kind.gated_attention,
        }

    def _latent(self) -> Latent:
        fields = self.fields
        rank = fields.whole("q_lora_rank", 0)
        plain, turned = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
        whole = plain + turned
        fields.only("qk_head_dim", (whole,), f"the other fields make {whole}", whole)
        rope = self._ropes([_FULL])[_FULL]
        interleaved = fields.flag("rope_interleave", True)
        return Latent(
            self.heads,
            rank,
            fields.count("kv_lora_rank"),
            plain,
            turned,
            fields.count("v_head_dim"),
            rope.rotary(turned, interleaved),
            rope.scale(whole),
            fields.flag("attention_bias"),
        )

    def _ropes(self, types: Sequence[str]) -> dict[str, Rope]:
        own = self.name in ("gemma3_text", "olmo3")  # stretched in layers without a window alone
        plain = frozenset([_SLIDING]) if own else frozenset()
        return ropes(self.fields, types, self.kind.theta, self.longest, plain)
