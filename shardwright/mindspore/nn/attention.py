"""Attention with MindSpore's arguments, parameters and results."""

from math import sqrt

from shardwright import nn as own
from shardwright.frontends.common.patterns.masks import HIDDEN
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_flag, wrong_value
from shardwright.nn.cell import Cell
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, apply_all


class MultiheadAttention(Cell):
    """Attention of several heads: ``[length, batch, feature]`` unless `batch_first`.

    Parameters
    ----------
    embed_dim, num_heads : int
        Features, and heads that share them.
    dropout : float
        Share of the weights of attention that are dropped in training.
    has_bias : bool
        Whether the products have biases.
    add_bias_kv, add_zero_attn : bool
        Must be False.
    kdim, vdim : int, optional
        Features of keys and of values, if they are others than `embed_dim`.
    batch_first : bool
        Whether the batch is the first dimension.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        has_bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: str = "float32",
    ) -> None:
        for name, value in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if value is not False:
                raise wrong_value(name, value, "False")
        check_flag("batch_first", batch_first)
        POSITIVE_INTEGER.check("num_heads", num_heads)
        if embed_dim % num_heads:
            raise ModelError(f"{num_heads} heads do not share {embed_dim} features equally")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        sizes = (embed_dim, kdim or embed_dim, vdim or embed_dim)
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        self.one_weight = set(sizes) == {embed_dim}
        if self.one_weight:
            shape = (3 * embed_dim, embed_dim)
            self.in_proj_weight = Parameter("xavier_uniform", shape=shape, dtype=dtype)
        for name, size in zip(names, () if self.one_weight else sizes, strict=False):
            setattr(self, name, Parameter("xavier_uniform", shape=(embed_dim, size), dtype=dtype))
        self.in_proj_bias = None
        if has_bias:
            self.in_proj_bias = Parameter("zeros", shape=3 * embed_dim, dtype=dtype)
        self.out_proj = own.Dense(embed_dim, embed_dim, has_bias=has_bias, dtype=dtype)
        self.drop = own.Dropout(dropout)

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
    ) -> tuple[Tensor, ...]:
        """Attend.

        Parameters
        ----------
        query, key, value : Tensor
            What is read by, and what is read.
        key_padding_mask : Tensor, optional
            ``[batch, key]``: truths where a key is not read, or what is added to its scores.
        need_weights : bool
            Whether the weights of attention are returned, too.
        attn_mask : Tensor, optional
            The same by queries and keys: ``[query, key]`` or ``[batch head, query, key]``.
        average_attn_weights : bool
            Whether these weights are the means over the heads.
        """
        if query.ndim == 2:
            return self._of_one(query, key, value, key_padding_mask, need_weights, attn_mask)
        first = not self.batch_first
        inputs = (query, key, value)
        q, k, v = (x.swapaxes(0, 1) if first else x for x in inputs)
        q, k, v = map(self._by_head, self._projected(q, k, v))
        scores = apply("matmul", q * (1 / sqrt(q.shape[-1])), k, transpose_b=True)
        for mask in self._masks(key_padding_mask, attn_mask, scores):
            scores = scores + mask
        weights = self.drop(apply("softmax", scores, axis=-1))
        read = apply("matmul", weights, v).transpose(0, 2, 1, 3)
        made = self.out_proj(read.reshape((*read.shape[:2], self.embed_dim)))
        made = made.swapaxes(0, 1) if first else made
        if not need_weights:
            return (made,)
        return made, weights.mean(1) if average_attn_weights else weights

    def _of_one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        need_weights: bool,
        mask: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Attend in a sample without a batch."""
        at = 0 if self.batch_first else 1
        q, k, v = (apply("expand_dims", x, axis=at) for x in (query, key, value))
        padding = None if padding is None else apply("expand_dims", padding, axis=0)
        made, *weights = self.construct(q, k, v, padding, need_weights, mask)
        return (apply("squeeze", made, axis=at), *(apply("squeeze", w, axis=0) for w in weights))

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Return queries, keys and values."""
        if self.one_weight:
            weights = apply_all("split", self.in_proj_weight, axis=0, parts=3)
        else:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            weights = tuple(getattr(self, name) for name in names)
        made = [
            apply("matmul", x, weight, transpose_b=True)
            for x, weight in zip(inputs, weights, strict=True)
        ]
        if self.in_proj_bias is None:
            return made
        biases = apply_all("split", self.in_proj_bias, axis=0, parts=3)
        return [x + bias for x, bias in zip(made, biases, strict=True)]

    def _by_head(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.num_heads, x.shape[2] // self.num_heads)
        return x.reshape(shape).transpose(0, 2, 1, 3)

    def _masks(self, padding: Tensor | None, mask: Tensor | None, scores: Tensor) -> list[Tensor]:
        """Return what is added to the scores ``[batch, head, query, key]``."""
        batch, heads, queries, keys = scores.shape
        found = []
        if padding is not None:
            found.append(_added(padding, scores.dtype).reshape((batch, 1, 1, keys)))
        if mask is not None:
            shape = (1, 1) if mask.ndim == 2 else (batch, heads)
            found.append(_added(mask, scores.dtype).reshape((*shape, queries, keys)))
        return found


def _added(mask: Tensor, dtype: str) -> Tensor:
    """Return what a mask adds to scores."""
    if mask.type.is_float:
        return mask.astype(dtype)
    return mask.astype(dtype) * HIDDEN
