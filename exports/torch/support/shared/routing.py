"""The rows of experts between which tokens choose, by functions that all systems have."""

from typing import Any

from . import arrays
from .arrays import Array, xp


def _taken(chosen: Array, start: Any, size: int) -> Array:
    """Return which choices are of each of the own experts, experts first."""
    return chosen == arrays.counted(start, size, chosen).reshape(-1, *(1,) * chosen.ndim)


def _shares(chosen: Array, weights: tuple[Array, ...], start: Any, size: int) -> Array:
    """Return the weight of the row of each expert and token: 0 where it is not filled.

    Without weights they say which rows are filled.
    """
    taken = _taken(chosen, start, size)
    return (taken * weights[0]).sum(-1) if weights else taken.any(-1)


def dispatch(
    x: Array,
    chosen: Array,
    *weights: Array,
    experts: int = 1,
    imbalance: float = 1.0,
    ragged: bool = True,
    start_e: Any = 0,
    size_e: int,
) -> Array:
    return x * arrays.as_type(_shares(chosen, weights, start_e, size_e), x.dtype)[..., None]


def combine(y: Array, chosen: Array, *weights: Array, start_e: Any = 0, size_e: int) -> Array:
    shares = _shares(chosen, weights, start_e, size_e)[..., None]
    return xp.where(shares != 0, y * arrays.as_type(shares, y.dtype), 0).sum(0)


def routing_weight_gradient(
    x: Array, y: Array, chosen: Array, *, start_e: Any = 0, size_e: int
) -> Array:
    taken = _taken(chosen, start_e, size_e)
    return xp.where(taken, (x * y).sum(-1)[..., None], 0).sum(0)


def grouped_matmul(x: Array, matrices: Array, *, transposed: bool = False) -> Array:
    right = matrices.mT if transposed else matrices
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return xp.matmul(rows, right).reshape(*x.shape[:-1], right.shape[-1])


def grouped_outer(x: Array, y: Array) -> Array:
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    return xp.matmul(rows.mT, y.reshape(y.shape[0], -1, y.shape[-1]))
