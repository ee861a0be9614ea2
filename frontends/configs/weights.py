"""Where a Hugging Face folder has the parameters of the zoo's decoder.

The names are those of modules of transformers. Some hold several parameters in one tensor: a
product of queries, keys and values, the gates of experts beside their other inputs, and so on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.frontends.configs.architecture import (
    Architecture,
    Attention,
    Experts,
    GatedDelta,
    GroupedQuery,
    Layer,
    StateSpace,
)
from shardwright.ir.errors import ModelError

Array = NDArray[np.generic]
# By part of a layer: what modules of transformers call it, the first that is there.
_NORMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
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
_PLACES = ("", "self_attn.", "attention.", "self_attention.", "mlp.", "feed_forward.")
_WORDS = ("embed_tokens", "word_embeddings", "embed_in", "embeddings")
_LAST_NORMS = ("model.norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")
_HEADS = ("lm_head", "embed_out")
_COMPUTED = "inv_freq"  # the end of buffers that old files have, and the zoo makes itself
_EACH = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}


@dataclass(frozen=True)
class Source:
    """Where a parameter is.

    Parameters
    ----------
    names : tuple of str
        The tensors, by the names of transformers: one, or that of each expert.
    view : callable, optional
        Makes the parameter of them; by default it is the one tensor as it is.
    """

    names: tuple[str, ...]
    view: Callable[..., Array] | None = None

    def of(self, arrays: Mapping[str, Array]) -> Array:
        """Return the parameter."""
        taken = [arrays[name] for name in self.names]
        return taken[0] if self.view is None else self.view(*taken)


def sources(names: Collection[str], architecture: Architecture) -> dict[str, Source]:
    """Return where the parameters of a decoder are, by their names in the zoo.

    Parameters
    ----------
    names : collection of str
        The tensors that there are.
    architecture : Architecture
        The decoder.

    Raises
    ------
    ModelError
        If a part is missing, or a tensor is of no part.
    """
    found = _Sources(names, architecture)
    if found.left:
        name = min(found.left)
        more = f" and {len(found.left) - 1} others" if len(found.left) > 1 else ""
        raise ModelError(f"the tensor `{name}`{more} of the weights is no part of the decoder")
    return found.found


class _Sources:
    """Takes tensors by the names of transformers, and notes them by those of the zoo."""

    def __init__(self, names: Collection[str], architecture: Architecture) -> None:
        self.left = {name for name in names if not name.endswith(_COMPUTED)}
        self.found: dict[str, Source] = {}
        self._one("embedding.embedding_table", f"{self._end(_WORDS)}.weight")
        self._norm("norm", self._end(_LAST_NORMS))
        if not architecture.tied:
            head = self._end(_HEADS)
            self._one("head", f"{head}.weight")
            if architecture.head_bias:
                self._one("head_bias", f"{head}.bias")
        self.left.discard("lm_head.weight")
        for i, layer in enumerate(architecture.layers):
            self._layer(i, layer, architecture.norms)

    def _layer(self, i: int, layer: Layer, norms: str) -> None:
        marks = (f"layers.{i}.", f".h.{i}.")
        place = min((n for n in self.left if any(mark in n for mark in marks)), default="")
        if not place:
            raise ModelError(f"the weights have no layer {i}, which the decoder has")
        root = place[: place.index(f".{i}.") + len(f".{i}.")]
        if layer.attention is None or layer.feed_forward is None:
            own = "norm2" if layer.attention is None else "norm1"
            self._norm(f"blocks.{i}.{own}", f"{root}norm")
            root = f"{root}mixer."
        for name, others in _NORMS[norms].items():
            self._norm(f"blocks.{i}.{name}", self._first(root, others))
        if layer.attention is not None:
            self._attention(f"blocks.{i}.attention", root, layer.attention)
        if isinstance(layer.feed_forward, Experts):
            self._experts(f"blocks.{i}.feed_forward", root, layer.feed_forward)
        elif layer.feed_forward is not None:
            self._dense(f"blocks.{i}.feed_forward", root, layer.feed_forward.gated)

    # Single tensors

    def _end(self, names: Sequence[str]) -> str:
        """Return which of some names a tensor outside of layers has, without `weight`."""
        for name in names:
            for other in sorted(self.left):
                inside = ".layers." in other or ".h." in other
                if f".{name}.weight" in f".{other}" and not inside:
                    return other.removesuffix(".weight")
        raise ModelError(f"the weights have no tensor `{names[0]}.weight`, which the decoder has")

    def _first(self, root: str, names: Sequence[str]) -> str | None:
        """Return the first module of some names in a layer."""
        modules = (f"{root}{place}{name}" for name in names for place in _PLACES)
        return next((one for one in modules if f"{one}.weight" in self.left), None)

    def _take(self, name: str, *others: str, view: Callable[..., Array] | None = None) -> None:
        """Note where a parameter is; several may be of one tensor."""
        missing = next((other for other in others if other not in self.left), None)
        if missing is not None:
            raise ModelError(f"the weights have no tensor `{missing}`, which is `{name}`")
        self.found[name] = Source(others, view)

    def _took(self, *names: str) -> None:
        self.left.difference_update(names)

    def _one(self, name: str, other: str) -> None:
        self._take(name, other)
        self._took(other)

    def _norm(self, name: str, other: str | None) -> None:
        for own, end in (("gamma", "weight"), ("beta", "bias")):
            if f"{other}.{end}" in self.left:
                self._one(f"{name}.{own}", f"{other}.{end}")

    def _product(self, name: str, other: str) -> None:
        for end in ("weight", "bias"):
            if f"{other}.{end}" in self.left:
                self._one(f"{name}.{end}", f"{other}.{end}")

    def _parts(self, name: str, other: str, sizes: Mapping[str, int], end: str) -> None:
        """Take parameters that are rows of one tensor, one after the other."""
        begin = 0
        for own, size in sizes.items():
            self._take(f"{name}.{own}.{end}", other, view=_rows(begin, begin + size))
            begin += size
        self._took(other)

    # Parts of a layer

    def _attention(self, name: str, root: str, kind: Attention) -> None:
        if isinstance(kind, GatedDelta):
            return self._delta(name, f"{root}linear_attn.", kind)
        if isinstance(kind, StateSpace):
            return self._space(name, root, kind)
        if isinstance(kind, GroupedQuery) and kind.gated:
            other, shape = f"{root}self_attn.q_proj.weight", (kind.heads, 2, kind.head)
            for own, half in (("query", 0), ("gate", 1)):
                self._take(
                    f"{name}.{own}.weight", other, view=_by_head(shape, slice(half, half + 1))
                )
            self._took(other)
        for part, others in _PARTS.items():
            found = self._first(root, others)
            if found is not None:
                take = self._norm if "norm" in part else self._product
                take(f"{name}.{part}", found)
        fused = self._first(root, ("qkv_proj", "query_key_value"))
        if fused is not None and isinstance(kind, GroupedQuery):
            self._fused(name, fused, kind)
        if f"{root}self_attn.sinks" in self.left:
            self._one(f"{name}.sinks", f"{root}self_attn.sinks")

    def _fused(self, name: str, other: str, kind: GroupedQuery) -> None:
        """Take one product of queries, keys and values, in the order that each module has."""
        heads, few, head = kind.heads, kind.kv_heads, kind.head
        sizes = {"query": heads * head, "key": few * head, "value": few * head}
        shared = heads // few
        by_group = {"query": (0, shared), "key": (shared, shared + 1)}
        by_group["value"] = (shared + 1, shared + 2)
        for end in ("weight", "bias"):
            whole = f"{other}.{end}"
            if whole in self.left and other.endswith("qkv_proj"):
                self._parts(name, whole, sizes, end)
            elif whole in self.left:  # by groups of heads that share keys
                for own, part in by_group.items():
                    view = _by_head((few, shared + 2, head), slice(*part))
                    self._take(f"{name}.{own}.{end}", whole, view=view)
                self._took(whole)

    def _linear(self, name: str, root: str) -> None:
        """Take what kinds of linear attention have in common."""
        self._one(f"{name}.step_bias", f"{root}dt_bias")
        self._one(f"{name}.decay_log", f"{root}A_log")
        self._product(f"{name}.projection", f"{root}out_proj")

    def _delta(self, name: str, root: str, kind: GatedDelta) -> None:
        self._linear(name, root)
        self._norm(f"{name}.norm", f"{root}norm")
        shared = kind.value_heads // kind.key_heads
        wide = [kind.key, kind.key, shared * kind.value, shared * kind.value]
        for product, widths, owns in (
            ("in_proj_qkvz", wide, ("query", "key", "value", "gate")),
            ("in_proj_ba", [shared, shared], ("rate", "step")),
        ):
            other, begin = f"{root}{product}.weight", 0
            for own, width in zip(owns, widths, strict=True):
                view = _by_head((kind.key_heads, sum(widths)), slice(begin, begin + width))
                self._take(f"{name}.{own}.weight", other, view=view)
                begin += width
            self._took(other)
        keys, values = kind.key_heads * kind.key, kind.value_heads * kind.value
        convs = {"query_conv": keys, "key_conv": keys, "value_conv": values}
        self._parts(name, f"{root}conv1d.weight", convs, "weight")

    def _space(self, name: str, root: str, kind: StateSpace) -> None:
        self._linear(name, root)
        self._one(f"{name}.skip", f"{root}D")
        self._one(f"{name}.scale", f"{root}norm.weight")
        inner, shared = kind.heads * kind.head, kind.groups * kind.state
        sizes = {"gate": inner, "value": inner, "key": shared, "query": shared, "step": kind.heads}
        self._parts(name, f"{root}in_proj.weight", sizes, "weight")
        convs = {"value_conv": inner, "key_conv": shared, "query_conv": shared}
        for end in ("weight", "bias"):
            if f"{root}conv1d.{end}" in self.left:
                self._parts(name, f"{root}conv1d.{end}", convs, end)

    def _dense(self, name: str, root: str, gated: bool) -> None:
        fused = self._first(root, ("gate_up_proj",))
        if fused is not None:
            for own, number in (("gate", 0), ("up", 1)):
                view = _of_halves(0, number)
                self._take(f"{name}.{own}.weight", f"{fused}.weight", view=view)
            self._took(f"{fused}.weight")
        for part, others in (_GATED if gated else _PLAIN).items():
            found = self._first(root, others)
            if found is not None:
                self._product(f"{name}.{part}", found)

    # Experts

    def _experts(self, name: str, root: str, kind: Experts) -> None:
        routed = name if kind.shared is None else f"{name}.experts"
        place = min((n for n in self.left if n.startswith(root) and "experts." in n), default="")
        if not place:
            raise ModelError(f"the weights have no experts in `{root}`, where the decoder has some")
        mlp = place[: place.index("experts.")].removesuffix("shared_")
        for other in ("gate", "router"):
            self._product(f"{routed}.router", f"{mlp}{other}")
        for bias in (f"{mlp}{part}e_score_correction_bias" for part in ("gate.", "")):
            if bias in self.left:
                self._one(f"{routed}.selection_bias", bias)
        if kind.latent:
            for own, other in (("narrow", "fc1_latent_proj"), ("widen", "fc2_latent_proj")):
                self._product(f"{routed}.{own}", f"{mlp}{other}")
        if any(n.startswith(f"{mlp}experts.0.") for n in self.left):
            self._each(routed, f"{mlp}experts.", kind)
        else:
            self._routed(routed, f"{mlp}experts.", kind)
        if kind.shared is not None:
            shared = next(
                (s for s in ("shared_experts.", "shared_expert.") if self._has(f"{mlp}{s}")), ""
            )
            self._dense(f"{name}.shared", f"{mlp}{shared}", kind.shared.gated)
        if kind.shared_gate:
            self._product(f"{name}.gate", f"{mlp}shared_expert_gate")

    def _has(self, root: str) -> bool:
        return any(name.startswith(root) for name in self.left)

    def _each(self, name: str, root: str, kind: Experts) -> None:
        """Take the products of experts of which each is a module."""
        for own, others in _EACH.items():
            if own == "gate" and not kind.each.gated:
                continue
            other = next((o for o in others if f"{root}0.{o}.weight" in self.left), others[0])
            every = [f"{root}{i}.{other}.weight" for i in range(kind.count)]
            self._take(f"{name}.{own}.weight", *every, view=_stacked)
            self._took(*every)

    def _routed(self, name: str, root: str, kind: Experts) -> None:
        """Take the products of experts in tensors of all of them."""
        if not kind.each.gated:
            for part in ("up", "down"):
                self._take(f"{name}.{part}.weight", f"{root}{part}_proj", view=_turned)
                self._took(f"{root}{part}_proj")
            return
        both, down = f"{root}gate_up_proj", f"{root}down_proj"
        biased = f"{both}_bias" in self.left
        for number, own in enumerate(("gate", "up")):
            if biased:  # gpt-oss: [input, output], gates and others in turn
                view: Callable[..., Array] = _in_turn(number)
                self._take(f"{name}.{own}.bias", f"{both}_bias", view=view)
            else:  # Llama 4: [input, output], others [output, input]
                view = _of_halves(2, number) if kind.weighs_inputs else _turned_half(number)
            self._take(f"{name}.{own}.weight", both, view=view)
        if biased:
            self._one(f"{name}.down.bias", f"{down}_bias")
        as_it_is = biased or kind.weighs_inputs
        self._take(f"{name}.down.weight", down, view=None if as_it_is else _turned)
        self._took(both, f"{both}_bias", down)


# How parameters are made of tensors


def _rows(begin: int, end: int) -> Callable[[Array], Array]:
    return lambda whole: whole[begin:end]


def _by_head(shape: tuple[int, ...], part: slice) -> Callable[[Array], Array]:
    """Return what takes a part of the second dimension, where the first has the given shape."""

    def view(whole: Array) -> Array:
        taken = whole.reshape(*shape, *whole.shape[1:])[:, part]
        return taken.reshape(-1, *whole.shape[1:])

    return view


def _of_halves(axis: int, number: int) -> Callable[[Array], Array]:
    return lambda whole: np.split(whole, 2, axis=axis)[number]


def _turned(whole: Array) -> Array:
    return whole.swapaxes(1, 2)


def _turned_half(number: int) -> Callable[[Array], Array]:
    return lambda whole: np.split(whole.swapaxes(1, 2), 2, axis=2)[number]


def _in_turn(number: int) -> Callable[[Array], Array]:
    return lambda whole: whole[..., number::2]


def _stacked(*each: Array) -> Array:
    """Return ``[expert, input, output]`` of the products ``[output, input]`` of experts."""
    return np.stack([one.T for one in each])


def modules(found: Mapping[str, Source]) -> Iterator[tuple[str, str]]:
    """Yield products that are one module of transformers, by the names of the zoo, and its name."""
    for name, source in found.items():
        product = name.removesuffix(".weight")
        if name != product and source.view is None and len(source.names) == 1:
            yield product, source.names[0].removesuffix(".weight")
