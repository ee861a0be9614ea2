"""Attention of modern decoders: rotary positions, shared and compressed keys and values."""

from dataclasses import dataclass

import numpy as np

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense
from shardwright.nn.normalization import RMSNorm
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply


@dataclass(frozen=True)
class Rotation:
    """How queries and keys are turned by their positions (Su et al., 2021).

    Parameters
    ----------
    base : float
        Base of the angles.
    size : int
        Features of a head that are turned, the first ones; 0 for all.
    interleaved : bool
        Whether a pair is two features side by side, rather than one of each half.
    factor : float
        What frequencies are divided by for longer sequences.
    ramp : tuple of (float, float)
        Pairs, or ``by_frequency`` frequencies, between which they are less and less; () for none.
    amplitude : float
        Factor of what is turned.
    """

    base: float = 10000.0
    size: int = 0
    interleaved: bool = False
    factor: float = 1.0
    ramp: tuple[float, float] | tuple[()] = ()
    by_frequency: bool = False
    amplitude: float = 1.0


@dataclass(frozen=True)
class Reach:
    """Which keys a query of causal attention reads, and what is done to the scores.

    Parameters
    ----------
    window : int
        Positions that are read, up to the own one; 0 for all.
    chunk : int
        Positions of a chunk, beyond whose start nothing is read; 0 for no chunks.
    documents : int
        The length of a token's document that is priced, where a row has several of them and nothing
        is read of others; 0 where a row is one.
    soft_cap : float
        The bound of the scores, by tanh; 0 for none.
    sinks : bool
        Whether every head has a trained score that takes part in the softmax without a value.
    scale : float, optional
        Factor of the scores; 1 / sqrt(features of a head) unless given.
    """

    window: int = 0
    chunk: int = 0
    documents: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    scale: float | None = None


_EVERYTHING = Reach()


class _Turned(Cell):
    """The base of attention with rotary positions."""

    rotary: ops.Primitive | None
    turned: int  # features of a head
    reach: Reach

    def _rotate_by(self, rotation: Rotation | None, head: int) -> None:
        self.turned, self.rotary = head, None
        if rotation is not None:
            plain, own = vars(Rotation(rotation.base)), vars(rotation)
            more = {n: v for n, v in own.items() if v != plain[n] and n != "size"}
            self.rotary = ops.RotaryEmbedding(base=rotation.base, **more)
            self.turned = rotation.size or head

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Turn the first features of ``[batch, head, position, feature]``."""
        if self.rotary is None:
            return x
        own = () if positions is None else (positions,)
        if self.turned == x.shape[-1]:
            return self.rotary(x, *own)
        parts = (self.turned, x.shape[-1] - self.turned)
        first, rest = ops.SplitWithSize()(x, parts, axis=-1)
        return apply("concat", self.rotary(first, *own), rest, axis=3)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, *last: Tensor, causal: bool = True) -> Tensor:
        """Attend, and join the heads: ``[batch, position, (head feature)]``."""
        own = {name: value for name, value in vars(self.reach).items() if value}
        read = apply("scaled_dot_product_attention", q, k, v, *last, causal=causal, **own)
        batch, heads, length, features = read.shape
        return read.transpose((0, 2, 1, 3)).reshape((batch, length, heads * features))


def _by_head(x: Tensor, heads: int) -> Tensor:
    shape = (*x.shape[:2], heads, x.shape[2] // heads)
    return x.reshape(shape).transpose((0, 2, 1, 3))


class GroupedQueryAttention(_Turned):
    """Attention in which several heads of queries share one head of keys and values.

    Queries and keys are turned by their positions before they meet.

    Parameters
    ----------
    hidden_size : int
        Size of the last dimension.
    num_heads, num_kv_heads : int
        Heads of queries, and of keys and values; the second divides the first.
    head_size : int, optional
        Features of a head; unless given, the heads of queries share the hidden size.
    causal : bool
        Whether a position reads no later one.
    rotary_base : float or None
        Base of the rotary embedding; None leaves positions out.
    weight_init, out_init : str, optional
        How the weights of the first products and of the last begin.
    dtype : str
        Element type of the parameters.
    has_bias : bool
        Whether the products of queries, keys and values have biases.
    out_bias : bool
        Whether the last product has.
    rotation : Rotation, optional
        More of the rotary embedding than its base.
    reach : Reach
        Windows, chunks, capped scores and sinks; it needs `causal`.
    norms : tuple of two cells, optional
        Normalizations of queries and of keys.
    norms_at : str
        What they normalize: ``heads``, ``all`` features of all heads together, or the heads once
        they are ``turned``.
    gated : bool
        Whether what a head reads is multiplied by a sigmoid of the token (Qwen3-Next).
    temperature : tuple of (float, int, int), optional
        A factor a, a length l and a start s: the query at position i is multiplied by
        1 + a log(1 + floor((i + s) / l)) (Llama 4).
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int | None = None,
        causal: bool = True,
        rotary_base: float | None = 10000.0,
        weight_init: str | None = None,
        out_init: str | None = None,
        dtype: str = "float32",
        has_bias: bool = False,
        *,
        out_bias: bool = False,
        rotation: Rotation | None = None,
        reach: Reach = _EVERYTHING,
        norms: tuple[Cell, Cell] | None = None,
        norms_at: str = "heads",
        gated: bool = False,
        temperature: tuple[float, int, int] | None = None,
    ) -> None:
        if num_heads % num_kv_heads or (head_size is None and hidden_size % num_heads):
            raise ModelError(
                f"a hidden size of {hidden_size}, {num_heads} heads of queries and {num_kv_heads} "
                f"of keys do not divide each other"
            )
        head = head_size or hidden_size // num_heads
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head
        self.causal, self.reach, self.temperature = causal, reach, temperature
        if rotation is None and rotary_base is not None:
            rotation = Rotation(rotary_base)
        self._rotate_by(rotation, head)

        def dense(inputs: int, outputs: int, init: str | None, has_bias: bool) -> Dense:
            zeros = "zeros" if has_bias and init is not None else None
            return Dense(inputs, outputs, init, zeros, has_bias=has_bias, dtype=dtype)

        self.query = dense(hidden_size, num_heads * head, weight_init, has_bias)
        self.key = dense(hidden_size, num_kv_heads * head, weight_init, has_bias)
        self.value = dense(hidden_size, num_kv_heads * head, weight_init, has_bias)
        last = (num_heads * head, hidden_size, out_init or weight_init)
        self.projection = dense(*last, out_bias)
        self.query_norm = None if norms is None else norms[0]
        self.key_norm = None if norms is None else norms[1]
        self.norms_at = norms_at
        self.gate = dense(hidden_size, num_heads * head, weight_init, has_bias) if gated else None
        self.sinks = Parameter("zeros", shape=num_heads, dtype=dtype) if reach.sinks else None

    def construct(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Attend; with `reach.documents` the other are positions, else it is a mask.

        A mask is ``[batch, head, query, key]``, each but the last whole or one; positions in
        documents are ``[batch, query]``.
        """
        positions = other if self.reach.documents else None
        query = self._by_head(self.query(x), self.num_heads, self.query_norm)
        key = self._by_head(self.key(x), self.num_kv_heads, self.key_norm)
        query = self._normalized(query, self.query_norm, "heads")
        key = self._normalized(key, self.key_norm, "heads")
        query, key = self._rotate(query, positions), self._rotate(key, positions)
        query = self._normalized(query, self.query_norm, "turned")
        key = self._normalized(key, self.key_norm, "turned")
        if self.temperature is not None:
            query = query * self._temperatures(x.shape[1], query.dtype)
        value = _by_head(self.value(x), self.num_kv_heads)
        last = [item for item in (other, self.sinks) if item is not None]
        read = self._read(query, key, value, *last, causal=self.causal)
        if self.gate is not None:
            read = read * ops.sigmoid(self.gate(x))
        return self.projection(read)

    def _by_head(self, x: Tensor, heads: int, norm: Cell | None) -> Tensor:
        return _by_head(self._normalized(x, norm, "all"), heads)

    def _normalized(self, x: Tensor, norm: Cell | None, at: str) -> Tensor:
        return x if norm is None or self.norms_at != at else norm(x)

    def _temperatures(self, length: int, dtype: str) -> Tensor:
        """Return the factor of the query at every position, ``[position, 1]``."""
        factor, interval, start = self.temperature or (0.0, 1, 0)
        steps = np.floor((np.arange(length)[:, None] + start) / interval)
        return Tensor(1 + factor * np.log1p(steps), dtype)


class LatentAttention(_Turned):
    """Attention whose keys and values come from a few features of each token (DeepSeek, 2024).

    Queries, and keys and values, are each the product of two narrow matrices with a normalization
    between them. Of a head, some features are turned by positions; of keys all heads share these,
    which come from the token itself.

    Parameters
    ----------
    hidden_size, num_heads : int
        Size of the last dimension, and heads.
    ranks : tuple of (int, int)
        Features between the products of queries, 0 for a single product, and between those of keys
        and values.
    sizes : tuple of (int, int, int)
        Features of a head: of queries and keys as they are, those that are turned, and of values.
    rotation : Rotation
        How they are turned.
    scale : float, optional
        Factor of the scores; 1 / sqrt(features of a head of queries) unless given.
    documents : int
        As `Reach` has it.
    has_bias : bool
        Whether the products that read tokens, and the last, have biases.
    epsilon : float
        Of the normalizations.
    weight_init : str, optional
        How the weights begin.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        ranks: tuple[int, int],
        sizes: tuple[int, int, int],
        rotation: Rotation,
        *,
        scale: float | None = None,
        documents: int = 0,
        has_bias: bool = False,
        epsilon: float = 1e-6,
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        self.num_heads, self.sizes, self.kv_rank = num_heads, sizes, ranks[1]
        self.reach = Reach(scale=scale, documents=documents)
        plain, turned, value = sizes
        self._rotate_by(rotation, turned)

        def dense(inputs: int, outputs: int, has_bias: bool = False) -> Dense:
            zeros = "zeros" if has_bias and weight_init is not None else None
            return Dense(inputs, outputs, weight_init, zeros, has_bias=has_bias, dtype=dtype)

        rank, width = ranks[0], num_heads * (plain + turned)
        self.query_down = dense(hidden_size, rank, has_bias) if rank else None
        self.query_norm = RMSNorm(rank, epsilon, dtype) if rank else None
        self.query = dense(rank or hidden_size, width)
        self.down = dense(hidden_size, self.kv_rank + turned, has_bias)
        self.norm = RMSNorm(self.kv_rank, epsilon, dtype)
        self.key_value = dense(self.kv_rank, num_heads * (plain + value))
        self.projection = dense(num_heads * value, hidden_size, has_bias)

    def construct(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend to all earlier positions, with `documents` of the own one."""
        (plain, turned, value), split = self.sizes, ops.SplitWithSize()
        narrow = x
        if self.query_down is not None and self.query_norm is not None:
            narrow = self.query_norm(self.query_down(x))
        query = _by_head(self.query(narrow), self.num_heads)
        as_it_is, rest = split(query, (plain, turned), axis=-1)
        query = apply("concat", as_it_is, self._rotate(rest, positions), axis=3)
        latent, shared = split(self.down(x), (self.kv_rank, turned), axis=-1)
        pairs = _by_head(self.key_value(self.norm(latent)), self.num_heads)
        key, values = split(pairs, (plain, value), axis=-1)
        shape = (*key.shape[:3], turned)
        turned_key = self._rotate(_by_head(shared, 1), positions)
        shared = apply("broadcast_to", turned_key, shape=shape)
        key = apply("concat", key, shared, axis=3)
        own = () if positions is None else (positions,)
        return self.projection(self._read(query, key, values, *own))
