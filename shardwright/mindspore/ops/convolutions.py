"""Convolutions as functions, with MindSpore's arguments."""

from collections.abc import Sequence
from typing import Any

from shardwright.mindspore.ops.primitives import Conv2D, Conv3D
from shardwright.tensor import Tensor


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    pad_mode: str = "valid",
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images ``[n, channel, height, width]`` with a weight, and add a bias."""
    how = (pad_mode, _both_sides(padding), stride, dilation, groups)
    return _convolved(Conv2D, input, weight, bias, *how)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    pad_mode: str = "valid",
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve ``[n, channel, depth, height, width]`` with a weight, and add a bias."""
    how = (pad_mode, _both_sides(padding), stride, dilation, groups)
    return _convolved(Conv3D, input, weight, bias, *how)


def _both_sides(padding: int | Sequence[int]) -> Any:
    """Return the sizes before and after each dimension, of one for each."""
    return padding if isinstance(padding, int) else tuple(p for p in padding for _ in range(2))


def _convolved(
    kind: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pad_mode: str,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    out, *_ = weight.shape
    convolution = kind(out, weight.shape[2:], 1, pad_mode, padding, stride, dilation, groups)
    made: Tensor = convolution(x, weight)
    return made if bias is None else made + bias.reshape((out, *(1,) * (x.ndim - 2)))


__all__ = ["conv2d", "conv3d"]
