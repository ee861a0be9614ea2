"""Feed-forwards and experts in a ``config.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.frontends.configs.architecture import Experts, FeedForward
from shardwright.frontends.configs.kinds import Kind
from shardwright.frontends.configs.reading import Fields

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


@dataclass(frozen=True)
class FeedForwards:
    """Takes the fields of feed-forwards.

    Parameters
    ----------
    name : str
        The ``model_type``.
    kind : Kind
        How it differs from Llama.
    fields : Fields
        The fields of the file.
    hidden : int
        Features of a token.
    bias : bool
        Whether products have biases.
    """

    name: str
    kind: Kind
    fields: Fields
    hidden: int
    bias: bool

    def all(self, count: int) -> list[FeedForward | Experts]:
        """Return the part of every layer."""
        fields, kind = self.fields, self.kind
        activation = self.activation()
        if kind.experts is None:
            inner = fields.count("intermediate_size", 4 * self.hidden)
            dense = FeedForward(inner, activation, kind.gated, self.bias)
            return [dense] * count
        routed = self.experts(kind.experts, activation)
        inner = 0
        if "intermediate_size" in fields.left:
            inner = fields.count("intermediate_size")
        if "intermediate_size_mlp" in fields.left:
            inner = fields.count("intermediate_size_mlp")
        among = self._listed(count)
        leading = fields.whole("first_k_dense_replace", 0)
        step = fields.whole("decoder_sparse_step", 1)
        fields.only("moe_layer_freq", (1,), "every layer after the dense ones has experts", 1)
        only = fields.numbers("mlp_only_layers") or []
        dense = FeedForward(inner, activation, bias=self.bias)
        found: list[FeedForward | Experts] = []
        for i in range(count):
            is_dense = i < leading or i in only or not step or bool((i + 1) % step)
            is_dense = is_dense or i not in among
            found.append(dense if is_dense else routed)
        if dense in found and not inner:
            raise self.fields.reading.error(
                "there is no `intermediate_size` for dense layers", "add it"
            )
        return found

    def _listed(self, count: int) -> Sequence[int]:
        """Return the layers that have experts, as Llama 4 says; others have other fields."""
        step = self.fields.count("interleave_moe_layer_step", 1)
        listed = self.fields.numbers("moe_layers")
        return range(step - 1, count, step) if listed is None else listed

    def activation(self) -> str:
        """Return the activation, by its name here."""
        fields, name = self.fields, self.kind.activation
        others = {"hidden_act", "hidden_activation"} - {name}
        for other in others:
            if self.name.startswith("gemma"):
                fields.drop((other,))
        found = fields.take(name, "silu")
        if self.name == "gemma" and found == "gelu":
            found = "gelu_new"
        if self.name == "gpt_oss":
            fields.only("swiglu_alpha", (1.702,), "the gate has this gain", 1.702)
            fields.only("swiglu_limit", (7.0,), "the gate is clamped there", 7.0)
            return "swigluoai"
        if not isinstance(found, str) or found not in _ACTIVATIONS:
            raise self.fields.reading.refused(name, found, f"expected {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[found]

    def experts(self, own: Mapping[str, Any], activation: str) -> Experts:
        """Return the experts of a layer, by what the kind says of them."""
        fields = self.fields
        scores = own.get("scores", "softmax")
        always = self.name in ("mixtral", "gpt_oss", "granitemoe", "minimax_m2")
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
        has_latent = fields.left.get("moe_latent_size") is not None
        latent = fields.count("moe_latent_size") if has_latent else 0
        fields.left.pop("moe_latent_size", None)
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
            FeedForward(shared, activation, gated, self.bias) if shared else None,
            bool(own.get("shared_gate")) and shared > 0,
            bool(own.get("weighs_inputs")),
            latent,
            self.bias,
            balance,
        )

    def _methods(self) -> None:
        """Take the fields that name how experts are chosen; there is one way for each kind."""
        fields, name = self.fields, self.name
        if name == "deepseek_v2":
            method = fields.take("topk_method", "greedy")
            grouped = method == "group_limited_greedy"
            if method not in ("greedy", "group_limited_greedy"):
                raise self.fields.reading.refused("topk_method", method, "expected greedy")
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
