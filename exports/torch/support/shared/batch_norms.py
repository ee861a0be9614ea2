"""Normalization of a batch, or of equal groups of it, by functions that all systems have.

The statistics are `[channel]`, or `[group, channel]`.
"""

from collections.abc import Sequence

from . import arrays
from .arrays import Array, xp
from .elementwise import widened

Sizes = Sequence[int]


def _in_groups(x: Array, groups: int) -> Array:
    return x.reshape(groups, -1, *x.shape[1:]) if groups else x


def _groups(statistics: Array) -> int:
    return statistics.shape[0] if statistics.ndim == 2 else 0


def _channels(vector: Array, x: Array) -> Array:
    behind = (1,) * (x.ndim - 2)
    if vector.ndim == 2:
        return vector.reshape(vector.shape[0], 1, -1, *behind)
    return vector.reshape(-1, *behind)


def _others(x: Array, groups: int) -> tuple[int, ...]:
    first = 1 if groups else 0
    return (first, *range(first + 2, x.ndim + first))


@widened
def channel_mean(x: Array, *, whole: int, size_g: int = 0) -> Array:
    return _in_groups(x, size_g).sum(_others(x, size_g)) / whole


@widened
def channel_variance(x: Array, mean: Array, *, whole: int) -> Array:
    groups = _groups(mean)
    distance = _in_groups(x, groups) - _channels(mean, x)
    return xp.square(distance).sum(_others(x, groups)) / whole


@widened
def channel_mean_gradient(dy: Array, *, shape: Sizes, whole: int) -> Array:
    behind, groups = shape[2:], _groups(dy)
    share = (dy / whole).reshape(*dy.shape[:-1], 1, dy.shape[-1], *(1,) * len(behind))
    samples = (groups, shape[0] // groups) if groups else (shape[0],)
    return arrays.broadcast(share, (*samples, *shape[1:])).reshape(tuple(shape))


@widened
def channel_variance_gradient(dy: Array, x: Array, mean: Array, *, whole: int) -> Array:
    distance = _in_groups(x, _groups(mean)) - _channels(mean, x)
    return (distance * _channels(dy * (2 / whole), x)).reshape(x.shape)


@widened
def batch_normalize(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array,
    beta: Array,
    *,
    epsilon: float = 1e-5,
) -> Array:
    inverse = gamma / xp.sqrt(variance + epsilon)
    distance = _in_groups(x, _groups(mean)) - _channels(mean, x)
    return (distance * _channels(inverse, x) + _channels(beta, x)).reshape(x.shape)


@widened
def batch_normalize_gradient(
    dy: Array,
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array,
    *,
    epsilon: float = 1e-5,
) -> tuple[Array, ...]:
    inverse, groups = 1 / xp.sqrt(variance + epsilon), _groups(mean)
    slope, axes = gamma * inverse, _others(x, groups)
    own = _in_groups(dy, groups)
    distance = _in_groups(x, groups) - _channels(mean, x)
    dbeta = own.sum(axes)
    dgamma = (own * distance * _channels(inverse, x)).sum(axes)
    dx = (own * _channels(slope, x)).reshape(x.shape)
    statistics = -slope * dbeta, -0.5 * slope * inverse * dgamma
    if groups:
        dgamma, dbeta = dgamma.sum(0), dbeta.sum(0)
    return dx, *statistics, dgamma, dbeta
