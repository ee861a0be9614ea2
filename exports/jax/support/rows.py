"""The filled rows of experts: no others are multiplied.

Arrays of JAX have known sizes, so there is room for as many rows as may be filled. `Rows` stand for
an array `[expert, token..., feature]`. The exchange of rows between devices is
`Mesh.all_to_all_rows`, which moves all of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.routing import _shares

_has_groups = hasattr(lax, "ragged_dot_general")


@partial(
    jax.tree_util.register_dataclass, data_fields=["values", "mask", "places"], meta_fields=["most"]
)
@dataclass(frozen=True)
class Rows:
    """Filled rows.

    `values` are the rows of the first expert in the order of its tokens, then those of the second,
    and then rows that nothing reads; `mask`, `[expert, token...]`, says which rows are filled;
    `places` are theirs in the mask, and its size for the others. A token has at most `most` rows.
    """

    values: Array
    mask: Array
    places: Array
    most: int

    @property
    def counts(self) -> Array:
        """The rows of each expert."""
        return self.mask.reshape(len(self.mask), -1).sum(1, dtype=jnp.int32)

    @property
    def experts(self) -> Array:
        """The expert of each row; another number for rows that nothing reads."""
        return self.places // prod(self.mask.shape[1:])

    @property
    def tokens(self) -> Array:
        """The token of each row; another number for rows that nothing reads."""
        count = prod(self.mask.shape[1:])
        return jnp.where(self.experts < len(self.mask), self.places % count, count)

    def with_values(self, values: Array) -> "Rows":
        """Return other rows at the same places."""
        return Rows(values, self.mask, self.places, self.most)


def taken(dense: Array, mask: Array, most: int) -> Rows:
    """Return the rows `[expert, token..., feature]` that a mask has."""
    flat, places = dense.reshape(-1, dense.shape[-1]), _places(mask, most)
    return Rows(flat.at[places].get(mode="fill", fill_value=0), mask, places, most)


def dense_of(rows: Rows) -> Array:
    """Return `[expert, token..., feature]`, zeros where no row is filled."""
    found = jnp.zeros((rows.mask.size, rows.values.shape[1]), rows.values.dtype)
    found = found.at[rows.places].set(rows.values, mode="drop")
    return found.reshape(*rows.mask.shape, -1)


def _places(mask: Array, most: int) -> Array:
    """Return the places of what a mask has, with room for `most` rows of each token."""
    bound = prod(mask.shape[1:]) * min(most, len(mask))
    return jnp.nonzero(mask.reshape(-1), size=bound, fill_value=mask.size)[0]


def _weighed(rows: Rows, chosen: Array, weights: tuple[Array, ...], start: Any) -> Array:
    """Return rows times the weights of their choices."""
    if not weights:
        return rows.values
    shares = _shares(chosen, weights, start, len(rows.mask)).reshape(-1)
    own = shares.at[rows.places].get(mode="fill", fill_value=0)
    return rows.values * own.astype(rows.values.dtype)[:, None]


def dispatch(
    x: Array,
    chosen: Array,
    *weights: Array,
    experts: int = 1,
    imbalance: float = 1.0,
    ragged: bool = True,
    start_e: Any = 0,
    size_e: int,
) -> Rows:
    mask, most = _shares(chosen, (), start_e, size_e), chosen.shape[-1]
    empty = Rows(jnp.zeros(()), mask, _places(mask, most), most)
    flat = x.reshape(-1, x.shape[-1])
    rows = empty.with_values(flat.at[empty.tokens].get(mode="fill", fill_value=0))
    return rows.with_values(_weighed(rows, chosen, weights, start_e))


def combine(y: Rows, chosen: Array, *weights: Array, start_e: Any = 0, size_e: int) -> Array:
    values, tokens = _weighed(y, chosen, weights, start_e), y.mask.shape[1:]
    total = jnp.zeros((prod(tokens), values.shape[1]), values.dtype)
    return total.at[y.tokens].add(values, mode="drop").reshape(*tokens, -1)


def routing_weight_gradient(
    x: Array, y: Rows, chosen: Array, *, start_e: Any = 0, size_e: int
) -> Array:
    own = x.reshape(-1, x.shape[-1]).at[y.tokens].get(mode="fill", fill_value=0)
    found = jnp.zeros(y.mask.size, y.values.dtype)
    found = found.at[y.places].set((own * y.values).sum(-1), mode="drop").reshape(y.mask.shape)
    local = chosen - start_e
    inside = (local >= 0) & (local < size_e)
    found = jnp.moveaxis(found, 0, -1)
    return jnp.take_along_axis(found, jnp.clip(local, 0, size_e - 1), -1) * inside


def grouped_matmul(x: Rows, matrices: Array, *, transposed: bool = False) -> Rows:
    right = matrices.mT if transposed else matrices
    if _has_groups:
        return x.with_values(lax.ragged_dot(x.values, right, x.counts))
    each = jnp.einsum("rk,ekn->ern", x.values, right)
    own = jnp.arange(len(right))[:, None] == x.experts
    return x.with_values(jnp.where(own[..., None], each, 0).sum(0))


def grouped_outer(x: Rows, y: Rows) -> Array:
    if _has_groups:
        numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        return lax.ragged_dot_general(x.values, y.values, x.counts, numbers)
    own = jnp.arange(len(x.mask))[:, None] == x.experts
    return jnp.einsum("rm,er,rn->emn", x.values, own.astype(x.values.dtype), y.values)


def reduce_sum(x: Rows, *, axis: Sequence[int], keep_dims: bool = False) -> Array:
    """Sum the rows of each expert."""
    count = len(x.mask)
    total = jnp.zeros((count, x.values.shape[1]), x.values.dtype)
    total = total.at[x.experts].add(x.values, mode="drop")
    return total.reshape(count, *(1,) * (len(axis) if keep_dims else 0), -1)


def slice(
    x: Rows, *, begin: Sequence[int], shape: Sequence[int], strides: Sequence[int] = ()
) -> Rows:
    """Cut the features of all rows."""
    step = strides[-1] if strides else 1
    end = begin[-1] + (shape[-1] - 1) * step + 1
    return x.with_values(x.values[:, begin[-1] : end : step])


def pad(
    x: Rows,
    *,
    before: Sequence[int],
    shape: Sequence[int],
    between: Sequence[int] = (),
    value: float = 0.0,
) -> Rows:
    """Put the features of all rows into wider rows."""
    count, size = x.values.shape
    step = (between[-1] if between else 0) + 1
    values = jnp.full((count, shape[-1]), value, x.values.dtype)
    end = before[-1] + (size - 1) * step + 1
    return x.with_values(values.at[:, before[-1] : end : step].set(x.values))


def apply(function: Callable[..., Array], *operands: Rows | Array, **attributes: Any) -> Rows:
    """Run a function of single elements on the rows; the arrays beside have a row an expert."""
    first = next(operand for operand in operands if isinstance(operand, Rows))

    def values(operand: Rows | Array) -> Array:
        if isinstance(operand, Rows):
            return operand.values
        if operand.ndim < 2:
            return operand
        flat = operand.reshape(-1, operand.shape[-1])
        return flat[jnp.minimum(first.experts, len(flat) - 1)] if len(flat) > 1 else flat

    return first.with_values(function(*map(values, operands), **attributes))
