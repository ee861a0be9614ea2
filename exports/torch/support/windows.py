"""Operators of a plan on the space of ``[n, channel, *space]``: poolings, changes of its size."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .shared.windows import *  # noqa: F403

Sizes = Sequence[int]
Pairs = Sequence[Sequence[int]]
_MAX = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_MEAN = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def _framed(
    x: Tensor, counts: Sizes, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes
) -> list[int]:
    """Return the padding of each dimension, from the last, in which all windows have room."""
    found: list[int] = []
    for d in reversed(range(len(kernel))):
        before, after = padding[d]
        needed = (counts[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1
        found += [before, max(after, needed - x.shape[2 + d] - before)]
    return found


def _first(y: Tensor, counts: Sizes) -> Tensor:
    for d, count in enumerate(counts):
        y = y.narrow(2 + d, 0, count)
    return y


def max_pool(
    x: Tensor,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    ceil_mode: bool = False,
) -> Tensor:
    frame = _framed(x, shape[2:], kernel, stride, padding, dilation)
    framed = functional.pad(x, frame, value=float("-inf"))
    pool = _MAX[len(kernel) - 1]
    y = pool(framed, tuple(kernel), tuple(stride), 0, tuple(dilation))
    return _first(y, shape[2:])


def max_pool_gradient(
    dy: Tensor,
    x: Tensor,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    ceil_mode: bool = False,
) -> Tensor:
    with torch.enable_grad():
        own = x.detach().requires_grad_()
        windows: dict[str, Any] = {
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
        }
        y = max_pool(own, shape=dy.shape, **windows)
    return torch.autograd.grad(y, own, dy)[0]


def average_pool(
    x: Tensor,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    shape: Sizes,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    counts = shape[2:]
    frame = _framed(x, counts, kernel, stride, padding, (1,) * len(kernel))
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if count_include_pad:
        near = [n for pair in reversed(padding) for n in pair]
        far = [n - own for n, own in zip(frame, near, strict=True)]
        ones = functional.pad(functional.pad(ones, near, value=1.0), far)
    else:
        ones = functional.pad(ones, frame)
    pool = _MEAN[len(kernel) - 1]
    summed, filled = (
        _first(pool(t, tuple(kernel), tuple(stride)), counts) * prod(kernel)
        for t in (functional.pad(x, frame), ones)
    )
    return summed / filled


def average_pool_gradient(
    dy: Tensor,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Pairs,
    shape: Sizes,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the gradient by an operand of the shape `shape`."""
    with torch.enable_grad():
        own = dy.new_zeros(tuple(shape)).requires_grad_()
        windows: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
        y = average_pool(own, shape=dy.shape, count_include_pad=count_include_pad, **windows)
    return torch.autograd.grad(y, own, dy)[0]


# Changes of the size


def resize(
    x: Tensor,
    *,
    size: Sizes,
    shape: Sizes,
    starts: Sizes,
    whole_shape: Sizes,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "floor",
) -> Tensor:
    how = (mode, coordinates, rounding)
    for d, (before, after) in enumerate(zip(whole_shape[2:], size, strict=True), 2):
        row = starts[d] * after // before  # a space that is split has parts of whole windows
        matrix = _matrix(before, after, how, x.device)
        own = matrix[row : row + shape[d], starts[d] : starts[d] + x.shape[d]].to(x.dtype)
        x = (x.movedim(d, -1) @ own.T).movedim(-1, d)
    return x


def resize_gradient(
    dy: Tensor,
    *,
    size: Sizes,
    shape: Sizes,
    starts: Sizes,
    whole_shape: Sizes,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "floor",
) -> Tensor:
    how = (mode, coordinates, rounding)
    for d, (after, before) in enumerate(zip(whole_shape[2:], size, strict=True), 2):
        column = starts[d] * before // after
        matrix = _matrix(before, after, how, dy.device)
        own = matrix[starts[d] : starts[d] + dy.shape[d], column : column + shape[d]].to(dy.dtype)
        dy = (dy.movedim(d, -1) @ own).movedim(-1, d)
    return dy


def _matrix(
    before: int, after: int, how: Sequence[str], device: torch.device | None = None
) -> Tensor:
    """Return the matrix ``[after, before]`` that changes the size of a dimension."""
    mode, coordinates, rounding = how
    index = torch.arange(after, dtype=torch.float64, device=device)
    if coordinates == "align_corners":
        place = index * ((before - 1) / max(after - 1, 1))
    elif coordinates == "asymmetric":
        place = index * (before / after)
    else:
        place = (index + 0.5) * (before / after) - 0.5
    place = place.clamp(0, before - 1)
    columns = torch.arange(before, dtype=torch.float64, device=device)
    if mode == "nearest":
        return (_nearest(place, rounding)[:, None] == columns).double()
    return (1 - (place[:, None] - columns).abs()).clamp(min=0)


def _nearest(place: Tensor, rounding: str) -> Tensor:
    if rounding == "round_prefer_floor":
        return torch.ceil(place - 0.5)
    return torch.floor(place + 0.5 if rounding == "round_prefer_ceil" else place)
