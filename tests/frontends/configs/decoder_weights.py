"""The weights of modules of transformers by the names of the zoo's decoder."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwright.frontends.configs.architecture import (
    Architecture,
    Attention,
    Experts,
    GatedDelta,
    GroupedQuery,
    StateSpace,
)

Array = np.ndarray
# By part of a layer: what modules of transformers call it, the first that is there.
_NORMS = {
    "before": {
        "norm1": ("input_layernorm", "ln_attn"),
        "norm2": ("post_attention_layernorm", "ln_mlp"),
    },
    "after": {
        "norm1_after": ("post_attention_layernorm",),
        "norm2_after": ("post_feedforward_layernorm",),
    },
    "both": {
        "norm1": ("input_layernorm",),
        "norm1_after": ("post_self_attn_layernorm", "post_attention_layernorm"),
        "norm2": ("pre_feedforward_layernorm", "post_attention_layernorm"),
        "norm2_after": ("post_feedforward_layernorm", "post_mlp_layernorm"),
    },
}
_PARTS = {
    "query": ("q_proj", "q_b_proj"),
    "query_down": ("q_a_proj",),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "down": ("kv_a_proj_with_mqa",),
    "key_value": ("kv_b_proj",),
    "projection": ("o_proj", "dense"),
    "query_norm": ("q_norm", "q_a_layernorm"),
    "key_norm": ("k_norm",),
    "norm": ("kv_a_layernorm",),
}
_GATED = {"gate": ("gate_proj",), "up": ("up_proj",), "down": ("down_proj",)}
_PLAIN = {
    "mapping": ("up_proj", "fc1", "c_fc", "dense_h_to_4h"),
    "projection": ("down_proj", "fc2", "c_proj", "dense_4h_to_h"),
}


class Weights:
    """Takes arrays by the names of transformers, and keeps them by those of the zoo."""

    def __init__(self, arrays: Mapping[str, Array], architecture: Architecture) -> None:
        self.arrays, self.own = dict(arrays), architecture
        self.found: dict[str, Array] = {}
        words = _one(arrays, "embed_tokens", "word_embeddings", "embed_in", "embeddings")
        self._take("embedding.embedding_table", words)
        ends = ("model.norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")
        self._norm("norm", _one(arrays, *ends))
        if not architecture.tied:
            head = _one(arrays, "lm_head", "embed_out")
            self.found["head"] = self.arrays.pop(f"{head}.weight")
            if architecture.head_bias:
                self.found["head_bias"] = self.arrays.pop(f"{head}.bias")
        self.arrays.pop("lm_head.weight", None)
        for i, layer in enumerate(architecture.layers):
            place = next(n for n in arrays if (f".{i}." in n and "layers." in n) or f".h.{i}." in n)
            root = place[: place.index(f".{i}.") + len(f".{i}.")]
            if layer.attention is None or layer.feed_forward is None:
                own = "norm2" if layer.attention is None else "norm1"
                self._norm(f"blocks.{i}.{own}", f"{root}norm")
                root = f"{root}mixer."
            for name, others in _NORMS[architecture.norms].items():
                self._norm(f"blocks.{i}.{name}", self._first(root, others))
            if layer.attention is not None:
                self._attention(f"blocks.{i}.attention", root, layer.attention)
            if layer.feed_forward is None:
                continue
            if isinstance(layer.feed_forward, Experts):
                self._experts(i, root, layer.feed_forward)
            else:
                self._dense(f"blocks.{i}.feed_forward", root, layer.feed_forward.gated)

    def _first(self, root: str, names: tuple[str, ...]) -> str | None:
        places = ("", "self_attn.", "attention.", "self_attention.", "mlp.", "feed_forward.")
        for name in names:
            for place in places:
                if f"{root}{place}{name}.weight" in self.arrays:
                    return f"{root}{place}{name}"
        return None

    def _take(self, name: str, other: str | None) -> None:
        if other is not None:
            self.found[name] = self.arrays.pop(f"{other}.weight")

    def _norm(self, name: str, other: str | None) -> None:
        if other is None:
            return
        self.found[f"{name}.gamma"] = self.arrays.pop(f"{other}.weight")
        if f"{other}.bias" in self.arrays:
            self.found[f"{name}.beta"] = self.arrays.pop(f"{other}.bias")

    def _product(self, name: str, other: str) -> None:
        for kind in ("weight", "bias"):
            if f"{other}.{kind}" in self.arrays:
                self.found[f"{name}.{kind}"] = self.arrays.pop(f"{other}.{kind}")

    def _attention(self, name: str, root: str, kind: Attention) -> None:
        if isinstance(kind, GatedDelta):
            return self._delta(name, f"{root}linear_attn.", kind)
        if isinstance(kind, StateSpace):
            return self._space(name, root, kind)
        if isinstance(kind, GroupedQuery) and kind.gated:
            other = f"{root}self_attn.q_proj.weight"
            whole = self.arrays.pop(other).reshape(kind.heads, 2, kind.head, -1)
            self.found[f"{name}.gate.weight"] = whole[:, 1].reshape(kind.heads * kind.head, -1)
            self.arrays[other] = whole[:, 0].reshape(kind.heads * kind.head, -1)
        for part, others in _PARTS.items():
            other = self._first(root, others)
            if other is not None:
                both = self._norm if "norm" in part else self._product
                both(f"{name}.{part}", other)
        fused = self._first(root, ("qkv_proj", "query_key_value"))
        if fused is not None and isinstance(kind, GroupedQuery):
            self._fused(name, fused, kind)
        if f"{root}self_attn.sinks" in self.arrays:
            self.found[f"{name}.sinks"] = self.arrays.pop(f"{root}self_attn.sinks")
        if f"{root}self_attn.q_proj.weight" in self.arrays:
            self._product(f"{name}.query", f"{root}self_attn.q_proj")

    def _linear(self, name: str, root: str, last: str) -> None:
        self.found[f"{name}.step_bias"] = self.arrays.pop(f"{root}dt_bias")
        self.found[f"{name}.decay_log"] = self.arrays.pop(f"{root}A_log")
        self._product(f"{name}.projection", f"{root}{last}")

    def _parts(self, name: str, whole: Array, sizes: dict[str, int], end: str) -> None:
        parts = np.split(whole, np.cumsum([*sizes.values()])[:-1])
        self.found |= {f"{name}.{own}{end}": part for own, part in zip(sizes, parts, strict=True)}

    def _delta(self, name: str, root: str, kind: GatedDelta) -> None:
        self._linear(name, root, "out_proj")
        self._norm(f"{name}.norm", f"{root}norm")
        shared = kind.value_heads // kind.key_heads
        sizes = [kind.key, kind.key, shared * kind.value, shared * kind.value]
        for other, widths, names in (
            ("in_proj_qkvz", sizes, ("query", "key", "value", "gate")),
            ("in_proj_ba", [shared, shared], ("rate", "step")),
        ):
            whole = self.arrays.pop(f"{root}{other}.weight")
            by_head = whole.reshape(kind.key_heads, sum(widths), -1)
            parts = np.split(by_head, np.cumsum(widths)[:-1], axis=1)
            for own, part in zip(names, parts, strict=True):
                self.found[f"{name}.{own}.weight"] = part.reshape(-1, whole.shape[1])
        keys, values = kind.key_heads * kind.key, kind.value_heads * kind.value
        convs = {"query_conv": keys, "key_conv": keys, "value_conv": values}
        self._parts(name, self.arrays.pop(f"{root}conv1d.weight"), convs, ".weight")

    def _space(self, name: str, root: str, kind: StateSpace) -> None:
        self._linear(name, root, "out_proj")
        self.found[f"{name}.skip"] = self.arrays.pop(f"{root}D")
        self.found[f"{name}.scale"] = self.arrays.pop(f"{root}norm.weight")
        inner, shared = kind.heads * kind.head, kind.groups * kind.state
        sizes = {"gate": inner, "value": inner, "key": shared, "query": shared, "step": kind.heads}
        self._parts(name, self.arrays.pop(f"{root}in_proj.weight"), sizes, ".weight")
        convs = {"value_conv": inner, "key_conv": shared, "query_conv": shared}
        for end in ("weight", "bias"):
            self._parts(name, self.arrays.pop(f"{root}conv1d.{end}"), convs, f".{end}")

    def _fused(self, name: str, other: str, kind: GroupedQuery) -> None:
        """Take one product of queries, keys and values, in the order that each module has."""
        heads, few, head = kind.heads, kind.kv_heads, kind.head
        for part in ("weight", "bias"):
            if f"{other}.{part}" not in self.arrays:
                continue
            whole = self.arrays.pop(f"{other}.{part}")
            rest = whole.shape[1:]
            if other.endswith("qkv_proj"):
                q, k, v = np.split(whole, [heads * head, (heads + few) * head])
            else:  # by groups of heads that share keys
                by_group = whole.reshape(few, heads // few + 2, head, *rest)
                q, k, v = by_group[:, :-2], by_group[:, -2], by_group[:, -1]
            for own, x in (("query", q), ("key", k), ("value", v)):
                self.found[f"{name}.{own}.{part}"] = x.reshape(-1, *rest)

    def _dense(self, name: str, root: str, gated: bool) -> None:
        fused = self._first(root, ("gate_up_proj",))
        if fused is not None:
            gate, up = np.split(self.arrays.pop(f"{fused}.weight"), 2)
            self.found |= {f"{name}.gate.weight": gate, f"{name}.up.weight": up}
        for part, others in (_GATED if gated else _PLAIN).items():
            other = self._first(root, others)
            if other is not None:
                self._product(f"{name}.{part}", other)

    def _experts(self, i: int, root: str, kind: Experts) -> None:
        inner = f"blocks.{i}.feed_forward"
        name = inner if kind.shared is None else f"{inner}.experts"
        place = next(n for n in self.arrays if n.startswith(root) and "experts." in n)
        mlp = place[: place.index("experts.")]
        for other in ("gate", "router"):
            self._product(f"{name}.router", f"{mlp}{other}")
        for bias in (f"{mlp}{part}e_score_correction_bias" for part in ("gate.", "")):
            if bias in self.arrays:
                self.found[f"{name}.selection_bias"] = self.arrays.pop(bias)
        if kind.latent:
            for own, other in (("narrow", "fc1_latent_proj"), ("widen", "fc2_latent_proj")):
                self._product(f"{name}.{own}", f"{mlp}{other}")
        if not kind.each.gated:
            for part in ("up", "down"):
                whole = self.arrays.pop(f"{mlp}experts.{part}_proj")
                self.found[f"{name}.{part}.weight"] = whole.swapaxes(1, 2)
            self._dense(f"{inner}.shared", f"{mlp}shared_experts.", False)
            return
        both, down = (f"{mlp}experts.{part}_proj" for part in ("gate_up", "down"))
        whole, last = self.arrays.pop(both), self.arrays.pop(down)
        if f"{both}_bias" in self.arrays:  # gpt-oss: [input, output], gates and others in turn
            biases = self.arrays.pop(f"{both}_bias")
            halves = (whole[..., ::2], whole[..., 1::2])
            self.found[f"{name}.gate.bias"] = biases[:, ::2]
            self.found[f"{name}.up.bias"] = biases[:, 1::2]
            self.found[f"{name}.down.bias"] = self.arrays.pop(f"{down}_bias")
        elif kind.weighs_inputs:  # Llama 4: [input, output]
            halves = np.split(whole, 2, axis=2)
        else:
            halves = np.split(whole.swapaxes(1, 2), 2, axis=2)
            last = last.swapaxes(1, 2)
        self.found |= {f"{name}.gate.weight": halves[0], f"{name}.up.weight": halves[1]}
        self.found[f"{name}.down.weight"] = last
        if kind.shared is not None:
            shared = f"{mlp}shared_expert"
            shared += "s" * (f"{shared}s.up_proj.weight" in self.arrays)
            for part in ("gate", "up", "down"):
                self._product(f"{inner}.shared.{part}", f"{shared}.{part}_proj")
        if kind.shared_gate:
            self._product(f"{inner}.gate", f"{mlp}shared_expert_gate")


def _one(arrays: Mapping[str, Any], *names: str) -> str | None:
    for name in names:
        for other in arrays:
            if f".{name}.weight" in f".{other}" and ".layers." not in other and ".h." not in other:
                return other.removesuffix(".weight")
    return None


def weights(arrays: Mapping[str, Array], architecture: Architecture) -> dict[str, Array]:
    """Return arrays by the names of the zoo; every one of them has to have a place."""
    found = Weights(arrays, architecture)
    assert not found.arrays, sorted(found.arrays)
    return found.found
