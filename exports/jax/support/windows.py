"""Operators of a plan on the space of ``[n, channel, *space]``: poolings, changes of its size."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .shared.windows import *  # noqa: F403

Sizes = Sequence[int]
Pairs = Sequence[Sequence[int]]


def _reduced(
    x: Array,
    first: float,
    function: Callable[..., Any],
    counts: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
) -> Array:
    """Reduce as many windows of each dimension as there are counts."""
    pads, ends = [(0, 0), (0, 0)], [*x.shape[:2], *counts]
    sizes = zip(counts, kernel, stride, padding, dilation, x.shape[2:], strict=True)
    for count, size, step, (before, after), gap, length in sizes:
        needed = (count - 1) * step + (size - 1) * gap + 1
        pads.append((before, max(after, needed - length - before)))
    y = lax.reduce_window(
        x, first, function, (1, 1, *kernel), (1, 1, *stride), pads, None, (1, 1, *dilation)
    )
    return lax.slice(y, (0,) * y.ndim, ends)


def max_pool(
    x: Array,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    ceil_mode: bool = False,
) -> Array:
    return _reduced(x, -jnp.inf, lax.max, shape[2:], kernel, stride, padding, dilation)


def max_pool_gradient(
    dy: Array,
    x: Array,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    ceil_mode: bool = False,
) -> Array:
    windows = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    found: Array = jax.vjp(partial(max_pool, shape=dy.shape, **windows), x)[1](dy)[0]  # type: ignore[arg-type]
    return found


def average_pool(
    x: Array,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    shape: Sizes,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    counts, close = shape[2:], (1,) * len(kernel)
    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    around = padding
    if count_include_pad:
        ones = jnp.pad(ones, [(0, 0), (0, 0), *padding], constant_values=1)
        around = ((0, 0),) * len(kernel)
    summed = _reduced(x, 0.0, lax.add, counts, kernel, stride, padding, close)
    return summed / _reduced(ones, 0.0, lax.add, counts, kernel, stride, around, close)


def average_pool_gradient(
    dy: Array,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    shape: Sizes,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """Return the gradient by an operand of the shape `shape`."""

    def forward(x: Array) -> Array:
        return average_pool(
            x,
            kernel=kernel,
            stride=stride,
            padding=padding,
            shape=dy.shape,
            count_include_pad=count_include_pad,
        )

    operand = jax.ShapeDtypeStruct(tuple(shape), dy.dtype)
    found: Array = jax.linear_transpose(forward, operand)(dy)[0]
    return found


# Changes of the size


def resize(
    x: Array,
    *,
    size: Sizes,
    shape: Sizes,
    starts: Sequence[Any],
    whole_shape: Sizes,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "floor",
) -> Array:
    how = (mode, coordinates, rounding)
    for d, (before, after) in enumerate(zip(whole_shape[2:], size, strict=True), 2):
        row = starts[d] * after // before  # a space that is split has parts of whole windows
        matrix = jnp.asarray(_matrix(before, after, how), x.dtype)
        own = lax.dynamic_slice(matrix, (row, starts[d]), (shape[d], x.shape[d]))
        x = jnp.moveaxis(jnp.moveaxis(x, d, -1) @ own.T, -1, d)
    return x


def resize_gradient(
    dy: Array,
    *,
    size: Sizes,
    shape: Sizes,
    starts: Sequence[Any],
    whole_shape: Sizes,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "floor",
) -> Array:
    how = (mode, coordinates, rounding)
    for d, (after, before) in enumerate(zip(whole_shape[2:], size, strict=True), 2):
        column = starts[d] * before // after
        matrix = jnp.asarray(_matrix(before, after, how), dy.dtype)
        own = lax.dynamic_slice(matrix, (starts[d], column), (dy.shape[d], shape[d]))
        dy = jnp.moveaxis(jnp.moveaxis(dy, d, -1) @ own, -1, d)
    return dy


def _matrix(before: int, after: int, how: Sequence[str]) -> np.ndarray:
    """Return the matrix ``[after, before]`` that changes the size of a dimension."""
    mode, coordinates, rounding = how
    index = np.arange(after)
    if coordinates == "align_corners":
        place = index * ((before - 1) / max(after - 1, 1))
    elif coordinates == "asymmetric":
        place = index * (before / after)
    else:
        place = (index + 0.5) * (before / after) - 0.5
    place, columns = np.clip(place, 0, before - 1), np.arange(before)
    if mode == "nearest":
        return (_nearest(place, rounding)[:, None] == columns).astype(np.float64)
    return np.maximum(0, 1 - np.abs(place[:, None] - columns))


def _nearest(place: np.ndarray, rounding: str) -> np.ndarray:
    if rounding == "round_prefer_floor":
        return np.ceil(place - 0.5)
    return np.floor(place + 0.5 if rounding == "round_prefer_ceil" else place)
