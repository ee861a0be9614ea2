"""Decoders of text, built from a description: attention and feed-forward of every layer."""

from collections.abc import Iterator, Sequence

from shardwright import nn, ops
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
    Rotary,
    StateSpace,
)
from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.ir.values import NOT_NEGATIVE
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace
from shardwright.zoo.predictions import BalancedLoss, Depth, FurtherTokens
from shardwright.zoo.tuning.documents import IGNORED
from shardwright.zoo.tuning.sizes import WHOLE, Tuning

_INIT = "normal(0.02)"
_WEIGHT = 0.1  # of the loss of further tokens, in DeepSeek-V3 after its first 10e12 of 14.8e12


class SharedExperts(nn.Cell):
    """Routed experts, and a feed-forward through which every token goes."""

    def __init__(self, experts: nn.RoutedExperts, shared: nn.Cell, gate: nn.Cell | None) -> None:
        self.experts, self.shared, self.gate = experts, shared, gate
        self.sigmoid = None if gate is None else nn.Sigmoid()

    def construct(self, x: Tensor) -> Tensor:
        """Add what both make of a token."""
        shared = self.shared(x)
        if self.gate is not None and self.sigmoid is not None:
            shared = shared * self.sigmoid(self.gate(x))
        return self.experts(x) + shared


class Block(nn.Cell):
    """Attention and a feed-forward, each with normalizations and a residual connection."""

    def __init__(
        self,
        architecture: Architecture,
        attention: nn.Cell | None,
        feed_forward: nn.Cell | None,
        dtype: str,
    ) -> None:
        def norm(present: bool) -> nn.Cell | None:
            return norm_of(architecture.norm, architecture.hidden, dtype) if present else None

        before, after = (architecture.norms in (at, "both") for at in ("before", "after"))
        attends, feeds = attention is not None, feed_forward is not None
        self.norm1 = norm(before and attends)
        self.attention = attention
        self.norm1_after = norm(after and attends)
        self.norm2 = norm(before and feeds and architecture.parallel != 1)
        self.feed_forward = feed_forward
        self.norm2_after = norm(after and feeds)
        self.parallel, self.scale = architecture.parallel, architecture.residual_scale

    def construct(self, x: Tensor, *positions: Tensor) -> Tensor:
        """Attend, then feed forward; or both of the same sum."""
        attention, feed_forward = self.attention, self.feed_forward
        if attention is None or feed_forward is None:
            if attention is not None:
                return x + self._scaled(attention(self._normalized(x, self.norm1), *positions))
            if feed_forward is not None:
                return x + self._scaled(feed_forward(self._normalized(x, self.norm2)))
            return x
        read = self._normalized(x, self.norm1)
        made = attention(read, *positions)
        attended = self._scaled(self._normalized(made, self.norm1_after))
        if self.parallel:
            if self.norm2 is not None:
                read = self.norm2(x)
            return x + attended + self._scaled(feed_forward(read))
        x = x + attended
        made = feed_forward(self._normalized(x, self.norm2))
        return x + self._scaled(self._normalized(made, self.norm2_after))

    def _normalized(self, x: Tensor, norm: nn.Cell | None) -> Tensor:
        return x if norm is None else norm(x)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale


class Decoder(nn.Cell):
    """A decoder of text; `document` is the length of a token's document, 0 where a row is one."""

    def __init__(self, architecture: Architecture, dtype: str, document: int = 0) -> None:
        own, hidden = architecture, architecture.hidden
        self.embedding = nn.Embedding(own.vocabulary, hidden, _INIT, dtype)
        self.blocks, self.experts = _blocks(own, own.layers, dtype, document)
        self.norm = norm_of(own.norm, hidden, dtype)
        table = (own.vocabulary, hidden)
        self.head = None if own.tied else Parameter(initializer(_INIT, table, dtype))
        bias = initializer("zeros", (own.vocabulary,), dtype)
        self.head_bias = Parameter(bias) if own.head_bias else None
        self.matmul = ops.MatMul(transpose_b=True)
        self.factor, self.logit_scale = own.embedding_scale, own.logit_scale
        self.logit_cap = own.logit_cap
        self.tanh = ops.Tanh() if own.logit_cap else None

    def construct(self, tokens: Tensor, *positions: Tensor) -> Tensor:
        """Return the scores of the next token at every position; they may be in documents."""
        return self.scores(self.features(tokens, *positions))

    def words(self, tokens: Tensor) -> Tensor:
        """Return the features of words."""
        words = self.embedding(tokens)
        return words if self.factor == 1 else words * self.factor

    def features(self, tokens: Tensor, *positions: Tensor) -> Tensor:
        """Return what the head reads."""
        return self.norm(self.blocks(self.words(tokens), *positions))

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of all words."""
        table = self.embedding.embedding_table if self.head is None else self.head
        scores = self.matmul(features, table)
        if self.head_bias is not None:
            scores = scores + self.head_bias
        if self.logit_scale != 1:
            scores = scores * self.logit_scale
        if self.tanh is not None:
            scores = self.tanh(scores / self.logit_cap) * self.logit_cap
        return scores


def _blocks(
    architecture: Architecture, layers: Sequence[Layer], dtype: str, document: int = 0
) -> tuple[nn.SequentialCell, list[nn.RoutedExperts]]:
    """Return the blocks of some layers of a decoder, and their experts."""
    hidden, parts = architecture.hidden, [layer.feed_forward for layer in layers]
    experts = [_experts(hidden, one, dtype) for one in parts if isinstance(one, Experts)]
    waiting = iter(experts)

    def block(layer: Layer) -> Block:
        attention = _attention(hidden, layer.attention, dtype, document)
        return Block(architecture, attention, _feed_forward(hidden, layer, waiting, dtype), dtype)

    return nn.SequentialCell([block(layer) for layer in layers]), experts


def norm_of(norm: Norm, size: int, dtype: str) -> nn.Cell:
    """Return the cell of a normalization."""
    options = {"from_one": True} if norm.from_one else {}
    if norm.kind == "rms":
        return nn.RMSNorm(size, norm.epsilon, dtype, **options)
    has_bias = norm.kind == "layer"
    return nn.LayerNorm(size, norm.epsilon, dtype, has_bias=has_bias, **options)


def _rotation(rotary: Rotary) -> nn.Rotation:
    return nn.Rotation(**vars(rotary))


def _attention(hidden: int, kind: Attention | None, dtype: str, document: int) -> nn.Cell | None:
    if kind is None:
        return None
    if document and isinstance(kind, GatedDelta | StateSpace):
        raise ModelError(
            "`documents` are not known in layers of linear attention: their states go from one "
            "document of a row to the next",
            hint="give each document a row of its own",
        )
    if isinstance(kind, GatedDelta):
        heads, sizes = (kind.key_heads, kind.value_heads), (kind.key, kind.value)
        own = (kind.kernel, kind.epsilon, _INIT, dtype)
        return nn.GatedDeltaNet(hidden, heads, sizes, *own)
    if isinstance(kind, StateSpace):
        return nn.Mamba2(
            hidden,
            kind.heads,
            kind.head,
            kind.groups,
            kind.state,
            kind.kernel,
            conv_bias=kind.conv_bias,
            has_bias=kind.bias,
            least_step=kind.least_step,
            epsilon=kind.epsilon,
            weight_init=_INIT,
            dtype=dtype,
        )
    return _softmax_attention(hidden, kind, dtype, document)


def _softmax_attention(
    hidden: int, kind: GroupedQuery | Latent, dtype: str, document: int
) -> nn.Cell:
    if isinstance(kind, Latent):
        return nn.LatentAttention(
            hidden,
            kind.heads,
            (kind.query_rank, kind.kv_rank),
            (kind.plain, kind.turned, kind.value),
            _rotation(kind.rotary),
            scale=kind.scale,
            documents=document,
            has_bias=kind.bias,
            epsilon=kind.epsilon,
            weight_init=_INIT,
            dtype=dtype,
        )
    reach = nn.Reach(kind.window, kind.chunk, document, kind.soft_cap, kind.sinks, kind.scale)
    return nn.GroupedQueryAttention(
        hidden,
        kind.heads,
        kind.kv_heads,
        kind.head,
        rotary_base=None,
        weight_init=_INIT,
        dtype=dtype,
        has_bias=kind.bias,
        out_bias=kind.out_bias,
        rotation=None if kind.rotary is None else _rotation(kind.rotary),
        reach=reach,
        norms=_query_key_norms(kind, dtype),
        norms_at=kind.norms_at,
        gated=kind.gated,
        temperature=kind.temperature,
    )


def _query_key_norms(kind: GroupedQuery, dtype: str) -> tuple[nn.Cell, nn.Cell] | None:
    if kind.norm is None:
        return None
    if kind.norms_at == "turned":
        epsilon = kind.norm.epsilon
        first, second = (nn.RMSNorm(kind.head, epsilon, dtype, has_scale=False) for _ in range(2))
        return first, second
    whole = kind.norms_at == "all"
    sizes = [kind.head * (heads if whole else 1) for heads in (kind.heads, kind.kv_heads)]
    return norm_of(kind.norm, sizes[0], dtype), norm_of(kind.norm, sizes[1], dtype)


def _dense(hidden: int, kind: FeedForward, dtype: str) -> nn.Cell:
    if kind.gated:
        return nn.GatedFeedForward(
            hidden, kind.inner, kind.activation, _INIT, dtype=dtype, has_bias=kind.bias
        )
    sizes = (hidden, kind.inner)
    return nn.FeedForward(*sizes, 0.0, kind.activation, _INIT, _INIT, dtype, has_bias=kind.bias)


def _feed_forward(
    hidden: int, layer: Layer, routed: Iterator[nn.RoutedExperts], dtype: str
) -> nn.Cell | None:
    kind = layer.feed_forward
    if kind is None:
        return None
    if isinstance(kind, FeedForward):
        return _dense(hidden, kind, dtype)
    experts = next(routed)
    if kind.shared is None:
        return experts
    gate = nn.Dense(hidden, 1, _INIT, has_bias=False, dtype=dtype) if kind.shared_gate else None
    return SharedExperts(experts, _dense(hidden, kind.shared, dtype), gate)


def _experts(hidden: int, kind: Experts, dtype: str) -> nn.RoutedExperts:
    return nn.RoutedExperts(
        hidden,
        kind.each.inner,
        kind.count,
        kind.top_k,
        scores=kind.scores,
        groups=kind.groups,
        top_groups=kind.top_groups,
        selection_bias=kind.selection_bias,
        normalized=kind.normalized,
        scale=kind.scale,
        latent_size=kind.latent,
        latent_bias=kind.latent_bias,
        gated=kind.each.gated,
        weighs_inputs=kind.weighs_inputs,
        activation=kind.each.activation,
        has_bias=kind.each.bias,
        router_bias=kind.router_bias,
        capacity_factor=kind.capacity,
        weight_init=_INIT,
        dtype=dtype,
    )


def decoder(
    architecture: Architecture,
    batch: int = 8,
    sequence: int = 4096,
    dtype: str = "float32",
    tuning: Tuning = WHOLE,
    mtp: int = 0,
    mtp_weight: float = _WEIGHT,
    mtp_repeated: bool = False,
) -> Definition:
    """Return the training step of a decoder: cross entropy, and the balance of its experts.

    Parameters
    ----------
    architecture : Architecture
        What it is made of.
    batch, sequence : int
        The shape of the tokens.
    dtype : str
        Element type of the parameters.
    tuning : Tuning
        What of it is trained, and on what rows.
    mtp, mtp_weight, mtp_repeated
        How many tokens after the next one are predicted too, what the mean of their losses counts,
        and whether all of them have the same layers.

    Raises
    ------
    ModelError
        If LoRA has a target that the model has not, or alpha or targets and no rank; if documents
        do not fit a row, or a layer knows none; if further tokens are predicted in documents, or
        not in a row.
    OptionError
        If the rank or alpha is negative.
    """
    packed = tuning.packed(sequence)
    network = Decoder(architecture, dtype, packed.of_a_token if packed else 0)
    tuning.adapt(network, network.blocks)
    tokens = TensorType("int32", (batch, sequence))
    high = architecture.vocabulary
    own = (packed.positions(batch),) if packed else ()
    specs = (InputSpec("tokens", tokens, high), *own, InputSpec("labels", tokens, high))
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED if packed else None)
    balance = max(
        one.feed_forward.balance if isinstance(one.feed_forward, Experts) else 0.0
        for one in architecture.layers
    )
    name = architecture.name
    if mtp:
        _check_further(mtp, mtp_weight, sequence, bool(packed))
        made = [_depth(architecture, dtype) for _ in range(1 if mtp_repeated else mtp)]
        depths = made * mtp if mtp_repeated else made
        return trace(FurtherTokens(network, loss, balance, depths, mtp_weight), specs, name=name)
    if mtp_repeated or mtp_weight != _WEIGHT:
        raise ModelError("`mtp_weight` or `mtp_repeated` is given without `mtp`")
    if balance:
        return trace(BalancedLoss(network, loss, balance), specs, name=name)
    return trace(network, specs, loss_fn=loss, name=name)


def _check_further(mtp: int, weight: float, sequence: int, packed: bool) -> None:
    """Refuse predictions of further tokens that cannot be made."""
    NOT_NEGATIVE.check("mtp_weight", weight)
    if packed:
        raise ModelError("`mtp` predicts over the ends of `documents`", hint="leave one out")
    if not 0 < mtp < sequence:
        raise ModelError(f"`mtp` is {mtp}, and a row has {sequence} tokens")


def _depth(architecture: Architecture, dtype: str) -> Depth:
    """Return the layers that predict a further token."""
    hidden = architecture.hidden
    norms = [norm_of(architecture.norm, hidden, dtype) for _ in range(3)]
    product = nn.Dense(2 * hidden, hidden, _INIT, has_bias=False, dtype=dtype)
    return Depth(norms, product, *_blocks(architecture, architecture.further, dtype))
