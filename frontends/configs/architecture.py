"""What a decoder of text is made of, layer by layer: the description that the zoo builds from.

A description is data. Whoever reads a file of another system writes one; `zoo.decoder` builds it.
"""

from dataclasses import dataclass
from typing import Literal

from shardwright.frontends.configs.kinds.kind import NormKind, NormsAt


@dataclass(frozen=True)
class Norm:
    """A normalization of the last dimension.

    Parameters
    ----------
    kind : str
        ``rms``, ``layer``, or ``layer_without_bias``.
    epsilon : float
        Added to the mean square or to the variance.
    from_one : bool
        Whether its scale is one plus the parameter.
    """

    kind: NormKind = "rms"
    epsilon: float = 1e-6
    from_one: bool = False


@dataclass(frozen=True)
class Rotary:
    """How queries and keys are turned by positions; see `nn.Rotation`.

    Parameters
    ----------
    base, size, interleaved
        As `nn.Rotation` has them.
    factor, ramp, by_frequency, amplitude
        As the operator ``rotary_embedding`` has them.
    """

    base: float = 10_000.0
    size: int = 0
    interleaved: bool = False
    factor: float = 1.0
    ramp: tuple[float, float] | tuple[()] = ()
    by_frequency: bool = False
    amplitude: float = 1.0


@dataclass(frozen=True)
class GroupedQuery:
    """Attention in which heads of queries share heads of keys; see `nn.GroupedQueryAttention`.

    Parameters
    ----------
    heads, kv_heads, head : int
        Heads of queries, and of keys and values; features of a head.
    bias, out_bias : bool
        Biases of queries, keys and values; of the last product.
    norm : Norm, optional
        Of queries and keys; it has no scale where it is at ``turned`` ones.
    norms_at : str
        ``heads``, ``all`` or ``turned``.
    rotary : Rotary, optional
        None where the layer knows no positions.
    window, chunk, soft_cap, sinks, scale
        As `nn.Reach` has them.
    temperature : tuple of (float, int, int), optional
        Of the queries.
    gated : bool
        Whether what is read is multiplied by a sigmoid of the token.
    """

    heads: int
    kv_heads: int
    head: int
    bias: bool = False
    out_bias: bool = False
    norm: Norm | None = None
    norms_at: NormsAt = "heads"
    rotary: Rotary | None = Rotary()
    window: int = 0
    chunk: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    scale: float | None = None
    temperature: tuple[float, int, int] | None = None
    gated: bool = False


@dataclass(frozen=True)
class GatedDelta:
    """Linear attention by the gated delta rule; see `nn.GatedDeltaNet`."""

    key_heads: int
    value_heads: int
    key: int
    value: int
    kernel: int
    epsilon: float = 1e-6


@dataclass(frozen=True)
class StateSpace:
    """The state space of Mamba-2; see `nn.Mamba2`."""

    heads: int
    head: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    least_step: float = 0.0
    epsilon: float = 1e-5


@dataclass(frozen=True)
class Latent:
    """Attention with compressed keys and values; see `nn.LatentAttention`.

    Parameters
    ----------
    heads : int
        Heads.
    query_rank, kv_rank : int
        Features between the products of queries, 0 for one product, and of keys and values.
    plain, turned, value : int
        Features of a head: as they are, turned by positions, and of values.
    rotary : Rotary
        How they are turned.
    scale : float, optional
        Factor of the scores.
    bias : bool
        Whether the products that read tokens, and the last, have biases.
    epsilon : float
        Of its normalizations.
    """

    heads: int
    query_rank: int
    kv_rank: int
    plain: int
    turned: int
    value: int
    rotary: Rotary = Rotary(interleaved=True)
    scale: float | None = None
    bias: bool = False
    epsilon: float = 1e-6


Attention = GroupedQuery | Latent | GatedDelta | StateSpace


@dataclass(frozen=True)
class FeedForward:
    """Two products with an activation in between, or three where a gate multiplies.

    Parameters
    ----------
    inner : int
        Features inside.
    activation : str
        Its name for `nn.get_activation`.
    gated, bias : bool
        Whether there is a gate, and whether the products have biases.
    """

    inner: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """Feed-forwards of which every token goes through a few.

    Parameters
    ----------
    count, top_k : int
        How many there are, and how many a token goes through.
    each : FeedForward
        One of them.
    scores : str
        ``softmax`` or ``sigmoid`` of all, or ``softmax_after``, of the chosen ones alone.
    normalized : bool
        Whether the weights of a token add up to one.
    scale : float
        Factor of the weights.
    groups, top_groups : int
        Groups of experts, and in how many of them the experts of a token are.
    selection_bias : bool
        Whether a bias that has no gradient is added to the scores for the choice.
    router_bias : bool
        Whether the router has a trained bias.
    shared : FeedForward, optional
        One more, through which all tokens go.
    shared_gate : bool
        Whether a token decides by a sigmoid how much of it counts.
    weighs_inputs : bool
        Whether experts read tokens times their weights; see `nn.RoutedExperts`.
    latent : int
        Features to which a product narrows tokens before the experts, and from which another widens
        what they make; 0 where experts read tokens as they are.
    latent_bias : bool
        Whether these products have biases.
    balance : float
        Factor of the loss that balances the experts.
    capacity : float, optional
        Slots of an expert by its share of the choices; every choice has one unless given.
    """

    count: int
    top_k: int
    each: FeedForward
    scores: str = "softmax"
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    selection_bias: bool = False
    router_bias: bool = False
    shared: FeedForward | None = None
    shared_gate: bool = False
    weighs_inputs: bool = False
    latent: int = 0
    latent_bias: bool = False
    balance: float = 0.0
    capacity: float | None = None


@dataclass(frozen=True)
class Layer:
    """Attention and a feed-forward, or experts; some layers have one of the two."""

    attention: Attention | None
    feed_forward: FeedForward | Experts | None


@dataclass(frozen=True)
class Architecture:
    """A decoder of text.

    Parameters
    ----------
    name : str
        The name of its program.
    hidden, vocabulary : int
        Features of a token, and words.
    layers : tuple of Layer
        Its layers.
    norm : Norm
        Of the layers and of the end.
    norms : str
        Where a part is normalized: ``before``, ``after``, or ``both``.
    parallel : int
        Norms of layers in which attention and feed-forward both read the same sum: 1 or 2; 0 where
        the feed-forward comes after attention.
    tied, head_bias : bool
        Whether the head has the table of words, and a bias.
    embedding_scale, residual_scale, logit_scale : float
        Factors of words, of what a part adds, and of the scores.
    logit_cap : float
        Bound of the scores, by tanh; 0 for none.
    further : tuple of Layer
        Layers of each head that predicts a further token; a model has such heads only if asked for.
    """

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    norm: Norm = Norm()
    norms: Literal["before", "after", "both"] = "before"
    parallel: Literal[0, 1, 2] = 0
    tied: bool = False
    head_bias: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    further: tuple[Layer, ...] = ()
