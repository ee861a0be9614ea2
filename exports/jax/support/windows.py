"""Poolings of a plan, over windows of ``[n, channel, *space]``; padding is before and after."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

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
