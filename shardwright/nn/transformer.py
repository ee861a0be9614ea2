"""Parts of transformers: attention, feed-forward, and the layer of both.

Tensors are ``[batch, position, hidden]`` throughout, so that each of the three can be split.
"""

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense, Dropout
from shardwright.nn.normalization import LayerNorm
from shardwright.tensor import Tensor, apply


class MultiheadAttention(Cell):
    """Attention of every position to all, or with `causal` to those before and itself.

    Queries, keys and values are made by one product whose output is ordered (head, which of the
    three, feature): splitting it by heads needs no communication.

    Parameters
    ----------
    hidden_size : int
        Size of the last dimension.
    num_heads : int
        Number of heads, which divides it.
    causal : bool
        Whether a position reads no later one.
    dropout : float
        Probability of a zero in the output.
    weight_init, out_init : str
        How the weights of the first and the last product begin.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool = False,
        dropout: float = 0.0,
        weight_init: str | None = None,
        out_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        if hidden_size % num_heads:
            raise ModelError(
                f"a hidden size of {hidden_size} cannot be divided by {num_heads} heads"
            )
        self.num_heads = num_heads
        self.causal = causal
        zeros = None if weight_init is None else "zeros"
        sizes = (hidden_size, 3 * hidden_size)
        self.query_key_value = Dense(*sizes, weight_init, zeros, dtype=dtype)
        self.projection = Dense(hidden_size, hidden_size, out_init, zeros, dtype=dtype)
        self.dropout = Dropout(dropout)

    def construct(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, length, hidden = x.shape
        head = hidden // self.num_heads
        mixed = self.query_key_value(x).reshape((batch, length, self.num_heads, 3 * head))
        query, key, value = ops.split(mixed.transpose((0, 2, 1, 3)), axis=-1, parts=3)
        read = apply("scaled_dot_product_attention", query, key, value, causal=self.causal)
        joined = read.transpose((0, 2, 1, 3)).reshape((batch, length, hidden))
        return self.dropout(self.projection(joined))


class FeedForward(Cell):
    """Two products with an activation in between.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside.
    dropout : float
        Probability of a zero in the output.
    activation : str
        What stands in between.
    weight_init, out_init : str, optional
        How the weights of the two products begin.
    dtype : str
        Element type of the parameters.
    has_bias : bool
        Whether the products have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        dropout: float = 0.0,
        activation: str = "gelu",
        weight_init: str | None = None,
        out_init: str | None = None,
        dtype: str = "float32",
        *,
        has_bias: bool = True,
    ) -> None:
        zeros = None if weight_init is None else "zeros"
        sizes = (hidden_size, ffn_hidden_size)
        self.mapping = Dense(*sizes, weight_init, zeros, has_bias, activation, dtype)
        self.projection = Dense(*sizes[::-1], out_init, zeros, has_bias, dtype=dtype)
        self.dropout = Dropout(dropout)

    def construct(self, x: Tensor) -> Tensor:
        """Widen, activate, narrow."""
        return self.dropout(self.projection(self.mapping(x)))


class TransformerLayer(Cell):
    """Attention and feed-forward, each with a normalization and a residual sum.

    Parameters
    ----------
    hidden_size, num_heads : int
        Size of the last dimension, and the number of heads.
    ffn_hidden_size : int, optional
        Size inside the feed-forward; four times the hidden size unless given.
    causal : bool
        Whether a position reads no later one.
    post_layernorm : bool
        Whether the sums are normalized (BERT) instead of the inputs (GPT-2).
    dropout : float
        Probability of a zero at the end of both parts.
    weight_init, out_init : str, optional
        How weights begin: those that read the hidden dimension, and those that write it.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        ffn_hidden_size: int | None = None,
        causal: bool = False,
        post_layernorm: bool = False,
        dropout: float = 0.0,
        weight_init: str | None = None,
        out_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        out_init = weight_init if out_init is None else out_init
        self.layernorm1 = LayerNorm(hidden_size, dtype=dtype)
        self.attention = MultiheadAttention(
            hidden_size, num_heads, causal, dropout, weight_init, out_init, dtype
        )
        self.layernorm2 = LayerNorm(hidden_size, dtype=dtype)
        inner = ffn_hidden_size or 4 * hidden_size
        self.feed_forward = FeedForward(
            hidden_size, inner, dropout, "gelu", weight_init, out_init, dtype
        )
        self.post_layernorm = post_layernorm

    def construct(self, x: Tensor) -> Tensor:
        """Attend, then feed forward."""
        if self.post_layernorm:
            x = self.layernorm1(x + self.attention(x))
            return self.layernorm2(x + self.feed_forward(x))
        x = x + self.attention(self.layernorm1(x))
        return x + self.feed_forward(self.layernorm2(x))
