"""Convolutions as functions, with MindSpore's arguments."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.mindspore.ops.primitives import Conv2D, Conv3D
from shardwright.tensor import Tensor


def _function(kind: Any, operands: str) -> Callable[..., Tensor]:
    """Return a function that convolves with a weight, and adds a bias."""

    def convolved(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        pad_mode: str = "valid",
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        out, *_ = weight.shape
        windows = (pad_mode, _both_sides(padding), stride, dilation, groups)
        made: Tensor = kind(out, weight.shape[2:], 1, *windows)(input, weight)
        return made if bias is None else made + bias.reshape((out, *(1,) * (input.ndim - 2)))

    convolved.__name__ = kind.__name__.lower()
    convolved.__doc__ = f"Convolve {operands} with a weight, and add a bias."
    return convolved


def _both_sides(padding: int | Sequence[int]) -> Any:
    """Return the sizes before and after each dimension, of one for each."""
    return padding if isinstance(padding, int) else tuple(p for p in padding for _ in range(2))


conv2d = _function(Conv2D, "images ``[n, channel, height, width]``")
conv3d = _function(Conv3D, "``[n, channel, depth, height, width]``")
__all__ = ["conv2d", "conv3d"]
