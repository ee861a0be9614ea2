"""Operators of a plan that reduce elements, by functions that all systems have."""

from . import arrays
from .arrays import Array, xp
from .elementwise import widened
from .shapes import Axis, Shape, _axes


def reduce_sum(x: Array, *, axis: Axis = None, keep_dims: bool = False) -> Array:
    axes = _axes(axis, x.ndim)
    return xp.sum(x, axes, dtype=x.dtype, keepdims=keep_dims) if axes else x


@widened
def reduce_mean(x: Array, *, axis: Axis = None, keep_dims: bool = False, whole: int) -> Array:
    return reduce_sum(x, axis=axis, keep_dims=keep_dims) / whole


def reduce_max(
    x: Array, *, axis: Axis = None, keep_dims: bool = False, differentiable: bool = True
) -> Array:
    return xp.amax(x, _axes(axis, x.ndim), keepdims=keep_dims)


def reduce_min(
    x: Array, *, axis: Axis = None, keep_dims: bool = False, differentiable: bool = True
) -> Array:
    return xp.amin(x, _axes(axis, x.ndim), keepdims=keep_dims)


def reduce_any(x: Array, *, axis: Axis = None, keep_dims: bool = False) -> Array:
    return reduce_max(x, axis=axis, keep_dims=keep_dims)


def reduce_all(x: Array, *, axis: Axis = None, keep_dims: bool = False) -> Array:
    return reduce_min(x, axis=axis, keep_dims=keep_dims)


def _share(dy: Array, x: Array, extremum: Array, axes: Shape, keep_dims: bool) -> Array:
    chosen = x == extremum
    if not keep_dims:
        dy = dy.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
    count = arrays.as_type(chosen.sum(tuple(axes), keepdims=True), dy.dtype)
    others = xp.where(count == 0, xp.nan, 0.0)
    return arrays.as_type(xp.where(chosen, dy / count, others), x.dtype)


def reduce_max_gradient(
    dy: Array, x: Array, *, axis: Axis = None, keep_dims: bool = False
) -> Array:
    axes = _axes(axis, x.ndim)
    return _share(dy, x, xp.amax(x, axes, keepdims=True), axes, keep_dims)


def reduce_min_gradient(
    dy: Array, x: Array, *, axis: Axis = None, keep_dims: bool = False
) -> Array:
    axes = _axes(axis, x.ndim)
    return _share(dy, x, xp.amin(x, axes, keepdims=True), axes, keep_dims)


def argmax(x: Array, *, axis: int = -1, keep_dims: bool = False) -> Array:
    return xp.argmax(x, axis, keepdims=keep_dims)


def argmin(x: Array, *, axis: int = -1, keep_dims: bool = False) -> Array:
    return xp.argmin(x, axis, keepdims=keep_dims)
