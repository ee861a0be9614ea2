"""One position after another: keys and values are kept, and a query meets those that are known."""

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.tensor import Tensor, apply


def _positions(count: int, rank: int, axis: int) -> Tensor:
    shape = [1] * rank
    shape[axis] = count
    return Tensor(np.arange(count).reshape(shape))


class KVCacheScatterUpdate:
    """A cache ``[batch, head, position, feature]`` in which one position of each sample is new."""

    def __call__(self, var: Tensor, indices: Tensor, updates: Tensor, axis: int = -2) -> Tensor:
        """Return the cache with `updates`, one position along an axis, at the samples' `indices`.

        Raises
        ------
        ModelError
            If the updates are of several positions.
        """
        if axis not in (-1, -2) or updates.shape[axis] != 1:
            raise ModelError(
                f"the updates {updates.shape} of a cache are not one position along {axis}",
                hint="give one position, along dimension -1 or -2",
            )
        at = apply("cast", indices, dtype="int64").reshape((-1, *(1,) * (len(var.shape) - 1)))
        new = apply("equal", _positions(var.shape[axis], len(var.shape), axis), at)
        return apply("where", new, updates, var)


class IncreFlashAttention:
    """Attention of one query for each sample, at keys and values of which some may be known.

    Parameters
    ----------
    num_heads : int
        Heads of queries.
    input_layout : str
        ``BSH``, ``[batch, position, features of all heads]``; or ``BNSD``, ``[batch, head,
        position, feature]``.
    scale_value : float
        What the products of queries and keys are multiplied by.
    num_key_value_heads : int
        Heads of keys and values, which divide those of queries; 0 for as many.
    """

    def __init__(
        self,
        num_heads: int = 1,
        input_layout: str = "BSH",
        scale_value: float = 1.0,
        num_key_value_heads: int = 0,
    ) -> None:
        if input_layout not in ("BSH", "BNSD"):
            raise ModelError(f"unknown layout `{input_layout}` of queries: expected BSH or BNSD")
        self.heads, self.kv_heads = num_heads, num_key_value_heads or num_heads
        self.flat, self.scale = input_layout == "BSH", scale_value

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        actual_seq_lengths: Tensor | None = None,
        pse_shift: Tensor | None = None,
    ) -> Tensor:
        """Attend, shaped as the query.

        Parameters
        ----------
        query, key, value : Tensor
            One position, and as many as the cache holds.
        attn_mask : Tensor, optional
            Which positions of the cache are left out, ``[batch, position]``.
        actual_seq_lengths : Tensor, optional
            How many positions of each sample are known; the others are left out.
        pse_shift : Tensor, optional
            Added to the products, ``[1 or batch, head, 1, position]``.
        """
        q = self.by_head(query, self.heads)
        k, v = (self.by_head(t, self.kv_heads) for t in (key, value))
        samples, count = k.shape[0], k.shape[2]
        seen: Tensor | None = None
        if attn_mask is not None:
            left_out = apply("cast", attn_mask, dtype="bool")
            seen = apply("logical_not", left_out).reshape((samples, 1, 1, count))
        if actual_seq_lengths is not None:
            lengths = apply("cast", actual_seq_lengths, dtype="int64").reshape((-1, 1, 1, 1))
            known = apply("less", _positions(count, 4, 3), lengths)
            seen = known if seen is None else apply("logical_and", seen, known)
        mask = seen
        if pse_shift is not None:
            nothing = Tensor(np.full((1, 1, 1, 1), -np.inf, np.float32))
            nothing = apply("cast", nothing, dtype=pse_shift.dtype)
            mask = pse_shift if seen is None else apply("where", seen, pse_shift, nothing)
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        out = apply("scaled_dot_product_attention", *operands, scale=self.scale)
        return apply("transpose", out, permutation=(0, 2, 1, 3)).reshape(query.shape)

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """Return ``[batch, head, position, feature]``."""
        if not self.flat:
            return x
        samples, positions, features = x.shape
        x = x.reshape((samples, positions, heads, features // heads))
        return apply("transpose", x, permutation=(0, 2, 1, 3))
