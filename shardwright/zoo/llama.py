"""Llama 3 and Mixtral: decoders with shared heads, gated feed-forwards and experts."""

from dataclasses import replace

from shardwright.frontends.configs.architecture import (
    Architecture,
    Experts,
    FeedForward,
    GroupedQuery,
    Layer,
    Norm,
    Rotary,
)
from shardwright.ir.errors import ModelError
from shardwright.tracing import Definition
from shardwright.zoo.decoder import decoder
from shardwright.zoo.tuning.sizes import WHOLE, Tuning


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
    tuning: Tuning = WHOLE,
) -> Definition:
    """Llama 3 (Meta, 2024), by default the one of 8B parameters."""
    attention = _attention(hidden, heads, kv_heads, head, base)
    norm = Norm(epsilon=epsilon)
    attention = replace(attention, bias=qkv_bias, norm=norm if qk_norm else None)
    architecture = Architecture(
        "llama",
        hidden,
        vocabulary,
        (Layer(attention, FeedForward(inner, gate)),) * layers,
        norm,
        tied=tied,
        embedding_scale=hidden**0.5 if scaled else 1.0,
    )
    return decoder(architecture, batch, sequence, dtype, tuning)


def mixtral(
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    inner: int = 14336,
    experts: int = 8,
    top_k: int = 2,
    capacity: float = 1.25,
    batch: int = 8,
    sequence: int = 4096,
    vocabulary: int = 32_000,
    base: float = 1_000_000.0,
    balance: float = 0.02,
    dtype: str = "float32",
    tuning: Tuning = WHOLE,
) -> Definition:
    """Mixtral 8x7B (Jiang et al., 2024): of eight experts, every token goes through two.

    Slots of an expert are `capacity` times its share of the choices; with 0 no token is dropped.
    """
    attention = _attention(hidden, heads, kv_heads, 0, base)
    each, slots = FeedForward(inner), capacity or None
    routed = Experts(experts, top_k, each, balance=balance, capacity=slots)
    layer = Layer(attention, routed)
    norm = Norm(epsilon=1e-5)
    architecture = Architecture("mixtral", hidden, vocabulary, (layer,) * layers, norm)
    return decoder(architecture, batch, sequence, dtype, tuning)


def _attention(hidden: int, heads: int, kv_heads: int, head: int, base: float) -> GroupedQuery:
    if not head and hidden % heads:
        raise ModelError(
            f"a hidden size of {hidden}, {heads} heads of queries and {kv_heads} of keys do not "
            "divide each other"
        )
    return GroupedQuery(heads, kv_heads, head or hidden // heads, rotary=Rotary(base))
