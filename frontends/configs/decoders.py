"""``config.json`` of a decoder: from its fields to a description, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from shardwright.frontends.configs import hybrids
from shardwright.frontends.configs.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    GatedDelta,
    GroupedQuery,
    Latent,
    Layer,
    Norm,
)
from shardwright.frontends.configs.kinds import CONDITIONAL, KINDS, Kind
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
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
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
    own = KINDS[kind]
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
    return KINDS[kind].defaults


class _Reader:
    """Takes the fields of one file."""

    def __init__(self, name: str, kind: Kind, fields: Fields) -> None:
        self.name, self.kind, self.fields, self.reading = name, kind, fields, fields.reading
        self.kinds = hybrids.layer_kinds(fields) if name == "nemotron_h" else []
        if self.kinds:
            fields.left["num_hidden_layers"] = len(self.kinds)
        self.hidden = fields.count("hidden_size")
        self.count = fields.count("num_hidden_layers")
        self.heads = fields.count("num_attention_heads")
        self.kv_heads = fields.count("num_key_value_heads", self.heads)
        self.longest = fields.count("max_position_embeddings", 2048)
        self.epsilon = fields.number(kind.epsilon, 1e-6)
        self.norm = Norm(kind.norm, self.epsilon, kind.from_one)
        self.biases = [self._bias(own) for own in kind.biases]

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
        factors = {name: fields.number(own, 1.0) for name, own in kind.scales.items()}
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
            **factors,
        )

    def _layers(self) -> tuple[Layer, ...]:
        """Return layers of attention and a feed-forward."""
        attentions = self._attentions(self._layer_types())
        parts = self._feed_forwards()
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
        activation = self._activation()
        inner = fields.count("intermediate_size")
        parts = {
            "linear_attention": Layer(space, None),
            "full_attention": Layer(attention, None),
            "mlp": Layer(None, FeedForward(inner, activation, False, self.biases[2])),
            "moe": Layer(None, self._experts(self.kind.experts or {}, activation)),
        }
        for name in ("first_k_dense_replace", "moe_layer_freq"):
            fields.take(name)
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
        if kind.windows == "pattern" and not (isinstance(pattern, int) and pattern > 0):
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
        listed = self.fields.take("no_rope_layers") or []
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
        found: list[Attention] = []
        for i, type_ in enumerate(types):
            if delta is not None and type_ == _LINEAR:
                found.append(delta)
                continue
            knows = self.knows[i] and not (self.name == "cohere2" and type_ == _FULL)
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
        scalar = fields.take("query_pre_attn_scalar")
        scale = None if scalar is None else float(scalar) ** -0.5
        if "attention" in kind.scales:
            scale = fields.number(kind.scales["attention"], 1.0)
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

    # Feed-forwards

    def _feed_forwards(self) -> list[FeedForward | Experts]:
        fields, kind = self.fields, self.kind
        activation = self._activation()
        if kind.experts is None:
            inner = fields.count("intermediate_size", 4 * self.hidden)
            dense = FeedForward(inner, activation, kind.gated, self.biases[2])
            return [dense] * self.count
        routed = self._experts(kind.experts, activation)
        inner = 0
        if "intermediate_size" in fields.left:
            inner = fields.count("intermediate_size")
        if "intermediate_size_mlp" in fields.left:
            inner = fields.count("intermediate_size_mlp")
        among = self._listed_experts()
        leading = fields.whole("first_k_dense_replace", 0)
        step = fields.whole("decoder_sparse_step", 1)
        fields.only("moe_layer_freq", (1,), "every layer after the dense ones has experts", 1)
        only = fields.take("mlp_only_layers") or []
        dense = FeedForward(inner, activation, bias=self.biases[2])
        found: list[FeedForward | Experts] = []
        for i in range(self.count):
            is_dense = i < leading or i in only or not step or bool((i + 1) % step)
            is_dense = is_dense or i not in among
            found.append(dense if is_dense else routed)
        if dense in found and not inner:
            raise self.reading.error("there is no `intermediate_size` for dense layers", "add it")
        return found

    def _listed_experts(self) -> Sequence[int]:
        """Return the layers that have experts, as Llama 4 says; others have other fields."""
        step = self.fields.count("interleave_moe_layer_step", 1)
        listed = self.fields.take("moe_layers")
        if listed is None:
            return range(step - 1, self.count, step)
        if not isinstance(listed, list) or not all(isinstance(one, int) for one in listed):
            raise self.reading.error(f"`moe_layers` is `{listed}`, expected a list of layers")
        return listed

    def _activation(self) -> str:
        fields, name = self.fields, self.kind.activation
        others = {"hidden_act", "hidden_activation"} - {name}
        for other in others:
            fields.left.pop(other, None) if self.name.startswith("gemma") else None
        found = fields.take(name, "silu")
        if self.name == "gemma" and found == "gelu":
            found = "gelu_new"
        if self.name == "gpt_oss":
            fields.only("swiglu_alpha", (1.702,), "the gate has this gain", 1.702)
            fields.only("swiglu_limit", (7.0,), "the gate is clamped there", 7.0)
            return "swigluoai"
        if found not in _ACTIVATIONS:
            raise self.reading.refused(name, found, f"expected {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[found]

    def _experts(self, own: Mapping[str, Any], activation: str) -> Experts:
        fields = self.fields
        scores = own.get("scores", "softmax")
        always = self.name in ("mixtral", "gpt_oss", "granitemoe")
        normalized = True if always else fields.flag("norm_topk_prob")
        self._methods()
        inner = fields.count(own["inner"])
        biased = bool(own.get("biased"))
        gated = self.kind.gated
        each = FeedForward(inner, activation, gated, biased)
        shared = 0
        if "moe_shared_expert_intermediate_size" in fields.left:
            shared = fields.count("moe_shared_expert_intermediate_size")
            fields.only("n_shared_experts", (1,), "there is one shared expert", 1)
        elif "shared_expert_intermediate_size" in fields.left:
            shared = fields.count("shared_expert_intermediate_size")
        elif fields.left.get("n_shared_experts") is not None:
            shared = inner * fields.whole("n_shared_experts", 0)
        elif own.get("weighs_inputs"):
            shared = inner
        groups = fields.count("n_group", 1)
        top_groups = fields.count("topk_group", groups)
        balance = fields.number("router_aux_loss_coef", 0.001)
        if not fields.flag("output_router_logits"):
            balance = 0.0
        return Experts(
            fields.count(own["count"]),
            fields.count("num_experts_per_tok"),
            each,
            scores,
            normalized,
            fields.number("routed_scaling_factor", 1.0),
            groups,
            top_groups,
            bool(own.get("selection_bias")),
            biased,
            FeedForward(shared, activation, gated, self.biases[2]) if shared else None,
            bool(own.get("shared_gate")) and shared > 0,
            bool(own.get("weighs_inputs")),
            balance,
        )

    def _methods(self) -> None:
        """Take the fields that name how experts are chosen; there is one way for each kind."""
        fields, name = self.fields, self.name
        if name == "deepseek_v2":
            method = fields.take("topk_method", "greedy")
            grouped = method == "group_limited_greedy"
            if method not in ("greedy", "group_limited_greedy"):
                raise self.reading.refused("topk_method", method, "expected greedy")
            if not grouped:
                fields.left.pop("n_group", None)
                fields.left.pop("topk_group", None)
            fields.only("scoring_func", ("softmax",), "scores are a softmax", "softmax")
            fields.left.pop("norm_topk_prob", None)
            return
        fields.only("topk_method", ("noaux_tc",), "experts are chosen without a loss", "noaux_tc")
        right = "sigmoid" if (self.kind.experts or {}).get("scores") == "sigmoid" else "softmax"
        fields.only("scoring_func", (right,), f"scores are a {right}", right)
        fields.only("router_jitter_noise", (0,), "there is no noise", 0)
        fields.only("clip_qkv", (None,), "queries, keys and values are not clipped")
