"""Attention of modern decoders: rotary positions, and heads that share keys and values."""

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense
from shardwright.nn.normalization import RMSNorm
from shardwright.tensor import Tensor, apply


class GroupedQueryAttention(Cell):
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
    norm_epsilon : float, optional
        Of a normalization of each head of queries and keys; without one there is none.
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
        norm_epsilon: float | None = None,
    ) -> None:
        if num_heads % num_kv_heads or (head_size is None and hidden_size % num_heads):
            raise ModelError(
                f"a hidden size of {hidden_size}, {num_heads} heads of queries and {num_kv_heads} "
                f"of keys do not divide each other"
            )
        head = head_size or hidden_size // num_heads
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head
        self.causal = causal
        self.rotary = None if rotary_base is None else ops.RotaryEmbedding(base=rotary_base)

        def dense(outputs: int) -> Dense:
            zeros = "zeros" if has_bias and weight_init is not None else None
            sizes = (hidden_size, outputs, weight_init, zeros)
            return Dense(*sizes, has_bias=has_bias, dtype=dtype)

        self.query = dense(num_heads * head)
        self.key = dense(num_kv_heads * head)
        self.value = dense(num_kv_heads * head)
        last = (num_heads * head, hidden_size, out_init or weight_init)
        self.projection = Dense(*last, has_bias=False, dtype=dtype)
        norm = norm_epsilon is not None
        self.query_norm = RMSNorm(head, norm_epsilon or 0.0, dtype) if norm else None
        self.key_norm = RMSNorm(head, norm_epsilon or 0.0, dtype) if norm else None

    def construct(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; a mask is ``[batch, head, query, key]``, each but the last whole or one."""
        query = self._by_head(self.query(x), self.num_heads)
        key = self._by_head(self.key(x), self.num_kv_heads)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = self._turned(query), self._turned(key)
        value = self._by_head(self.value(x), self.num_kv_heads)
        masks = () if mask is None else (mask,)
        operands = (query, key, value, *masks)
        read = apply("scaled_dot_product_attention", *operands, causal=self.causal)
        joined = read.transpose((0, 2, 1, 3))
        return self.projection(joined.reshape((*x.shape[:2], self.num_heads * self.head_size)))

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        shape = (*x.shape[:2], heads, self.head_size)
        return x.reshape(shape).transpose((0, 2, 1, 3))

    def _turned(self, x: Tensor) -> Tensor:
        return x if self.rotary is None else self.rotary(x)
