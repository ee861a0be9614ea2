"""Llama 3 and Mixtral: decoders with shared heads, gated feed-forwards and experts."""

from dataclasses import dataclass

from shardwright import nn, ops
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace

_INIT = "normal(0.02)"


@dataclass(frozen=True)
class Variant:
    """What relatives of Llama do otherwise.

    Parameters
    ----------
    tied : bool
        Whether the head has the table of words.
    head : int
        Features of a head of attention; 0 where the heads share the hidden size.
    qkv_bias : bool
        Whether the products of queries, keys and values have biases (Qwen 2).
    qk_norm : bool
        Whether each head of queries and keys is normalized (Qwen 3).
    epsilon : float
        Of the normalizations.
    gate : str
        What the gates of feed-forwards go through: ``silu``, or ``gelu`` (Gemma).
    scaled : bool
        Whether words are multiplied by the square root of the hidden size (Gemma).
    """

    tied: bool = False
    head: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    epsilon: float = 1e-5
    gate: str = "silu"
    scaled: bool = False


class Block(nn.Cell):
    """Attention and a feed-forward, each with a normalization and a residual connection."""

    def __init__(
        self,
        hidden: int,
        attention: nn.GroupedQueryAttention,
        feed_forward: nn.Cell,
        dtype: str,
        epsilon: float,
    ) -> None:
        self.norm1 = nn.RMSNorm(hidden, epsilon, dtype)
        self.attention = attention
        self.norm2 = nn.RMSNorm(hidden, epsilon, dtype)
        self.feed_forward = feed_forward

    def construct(self, x: Tensor) -> Tensor:
        """Attend, then feed forward."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Decoder(nn.Cell):
    """A decoder of text; with `experts`, several feed-forwards of which tokens choose two."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        inner: int,
        vocabulary: int,
        base: float,
        dtype: str,
        experts: int = 0,
        capacity: float = 1.25,
        variant: "Variant | None" = None,
    ) -> None:
        own = Variant() if variant is None else variant

        def mixture() -> nn.MixtureOfExperts:
            sizes = (hidden, inner, experts)
            return nn.MixtureOfExperts(*sizes, 2, capacity, weight_init=_INIT, dtype=dtype)

        def block(i: int) -> Block:
            attention = nn.GroupedQueryAttention(
                hidden,
                heads,
                kv_heads,
                own.head or None,
                rotary_base=base,
                weight_init=_INIT,
                dtype=dtype,
                has_bias=own.qkv_bias,
                norm_epsilon=own.epsilon if own.qk_norm else None,
            )
            dense = nn.GatedFeedForward(hidden, inner, own.gate, weight_init=_INIT, dtype=dtype)
            feed_forward = self.experts[i] if experts else dense
            return Block(hidden, attention, feed_forward, dtype, own.epsilon)

        self.experts = [mixture() for _ in range(layers if experts else 0)]
        self.embedding = nn.Embedding(vocabulary, hidden, _INIT, dtype)
        self.blocks = nn.SequentialCell([block(i) for i in range(layers)])
        self.norm = nn.RMSNorm(hidden, own.epsilon, dtype)
        table = (vocabulary, hidden)
        self.head = None if own.tied else Parameter(initializer(_INIT, table, dtype))
        self.matmul = ops.MatMul(transpose_b=True)
        self.factor = hidden**0.5 if own.scaled else 1.0

    def construct(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        table = self.embedding.embedding_table if self.head is None else self.head
        words = self.embedding(tokens)
        if self.factor != 1:
            words = words * self.factor
        return self.matmul(self.norm(self.blocks(words)), table)


class BalancedLoss(nn.Cell):
    """Cross entropy plus a load-balancing loss of the experts."""

    def __init__(self, decoder: Decoder, balance: float) -> None:
        self.decoder = decoder
        self.loss = nn.CrossEntropyLoss()
        self.share = balance / len(decoder.experts)

    def construct(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        loss = self.loss(self.decoder(tokens), labels)
        for experts in self.decoder.experts:
            if experts.balance is not None:
                loss = loss + experts.balance * self.share
        return loss


def _text(batch: int, sequence: int, vocabulary: int) -> tuple[InputSpec, InputSpec]:
    tokens = TensorType("int32", (batch, sequence))
    return InputSpec("tokens", tokens, vocabulary), InputSpec("labels", tokens, vocabulary)


def llama(
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    inner: int = 14336,
    batch: int = 8,
    sequence: int = 8192,
    vocabulary: int = 128_256,
    base: float = 500_000.0,
    dtype: str = "float32",
    tied: bool = False,
    head: int = 0,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    epsilon: float = 1e-5,
    gate: str = "silu",
    scaled: bool = False,
) -> Definition:
    """Llama 3 (Meta, 2024), by default the one of 8B parameters; Mistral, Qwen, Gemma, Phi 3."""
    variant = Variant(tied, head, qkv_bias, qk_norm, epsilon, gate, scaled)
    sizes = (layers, hidden, heads, kv_heads, inner, vocabulary, base, dtype)
    network = Decoder(*sizes, variant=variant)
    specs = _text(batch, sequence, vocabulary)
    return trace(network, specs, loss_fn=nn.CrossEntropyLoss(), name="llama")


def mixtral(
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    inner: int = 14336,
    experts: int = 8,
    capacity: float = 1.25,
    batch: int = 8,
    sequence: int = 4096,
    vocabulary: int = 32_000,
    base: float = 1_000_000.0,
    balance: float = 0.02,
    dtype: str = "float32",
) -> Definition:
    """Mixtral 8x7B (Jiang et al., 2024): of eight experts, every token goes through two."""
    sizes = (layers, hidden, heads, kv_heads, inner, vocabulary, base, dtype)
    network = BalancedLoss(Decoder(*sizes, experts, capacity), balance)
    return trace(network, _text(batch, sequence, vocabulary), name="mixtral")
