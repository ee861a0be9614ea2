"""Operators whose primitives MindSpore makes or calls with other arguments than ours."""

from collections.abc import Sequence
from typing import Any

from shardwright.ir.values import POSITIVE_INTEGER, check_choice, wrong_value
from shardwright.ops.primitive import Primitive
from shardwright.tensor import Tensor

Size = int | Sequence[int]


def _each(size: Size, count: int = 2) -> tuple[int, ...]:
    """Return a size for each dimension; MindSpore takes them for batch and channels, too."""
    sizes = (size,) * count if isinstance(size, int) else tuple(size)
    return sizes[-count:]


def _pads(pad_mode: str, pad: Size, dimensions: int) -> Any:
    """Return the padding of a window: ``same``, or the sizes before and after each dimension."""
    check_choice("pad_mode", pad_mode, ("valid", "same", "pad"))
    if pad_mode == "same":
        return "same"
    if pad_mode == "valid":
        return ((0, 0),) * dimensions
    sizes = (pad,) * (2 * dimensions) if isinstance(pad, int) else tuple(pad)
    return tuple(zip(sizes[::2], sizes[1::2], strict=True))


class Conv2D(Primitive):
    """A convolution of ``[n, channel, height, width]`` with a weight that is given with it."""

    operator = "convolution"

    def __init__(
        self,
        out_channel: int,
        kernel_size: Size,
        mode: int = 1,
        pad_mode: str = "valid",
        pad: Size = 0,
        stride: Size = 1,
        dilation: Size = 1,
        group: int = 1,
        data_format: str = "NCHW",
    ) -> None:
        POSITIVE_INTEGER.check("out_channel", out_channel)
        if mode != 1:
            raise wrong_value("mode", mode, "1, a convolution")
        check_choice("data_format", data_format, ("NCHW",))
        super().__init__(
            stride=_each(stride),
            padding=_pads(pad_mode.lower(), pad, 2),
            dilation=_each(dilation),
            groups=group,
        )
        self.out_channel, self.kernel_size = out_channel, _each(kernel_size)

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve.

        Raises
        ------
        OptionError
            If the weight has another size than the primitive says.
        """
        if (weight.shape[0], *weight.shape[2:]) != (self.out_channel, *self.kernel_size):
            expected = f"({self.out_channel}, in_channel / group, {self.kernel_size})"
            raise wrong_value("weight", weight.shape, f"the shape {expected}")
        result: Tensor = super().__call__(x, weight)
        return result


class LayerNorm(Primitive):
    """Layer normalization over the last dimension; returns mean and variance, too."""

    operator = "layer_norm"

    def __init__(
        self, begin_norm_axis: int = 1, begin_params_axis: int = 1, epsilon: float = 1e-7
    ) -> None:
        super().__init__(epsilon=epsilon)
        self.begin_norm_axis, self.begin_params_axis = begin_norm_axis, begin_params_axis

    def __call__(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize.

        Raises
        ------
        OptionError
            If it is to be over more than the last dimension.
        """
        for name in ("begin_norm_axis", "begin_params_axis"):
            axis = getattr(self, name)
            if axis % x.ndim != x.ndim - 1:
                raise wrong_value(name, axis, f"the last dimension, {x.ndim - 1}")
        mean = x.mean(-1, True)
        apart = x - mean
        return super().__call__(x, gamma, beta), mean, (apart * apart).mean(-1, True)


class UnsortedSegmentSum(Primitive):
    """Adds up the rows of each segment; the number of segments is given with them."""

    operator = "unsorted_segment_sum"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
        """Put the rows of each segment together."""
        self.attributes["segments"] = num_segments
        result: Tensor = super().__call__(x, segment_ids)
        return result


class UnsortedSegmentMax(UnsortedSegmentSum):
    """The greatest row of each segment."""

    operator = "unsorted_segment_max"


class UnsortedSegmentMin(UnsortedSegmentSum):
    """The least row of each segment."""

    operator = "unsorted_segment_min"


class BroadcastTo(Primitive):
    """Repeats a tensor along new and single dimensions, to a shape."""

    operator = "broadcast_to"

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(shape=tuple(shape))


class _VirtualDataset:
    """Returns its inputs: the compiler splits the inputs of a program itself.

    A strategy is that of the data set: ``set_auto_parallel_context(dataset_strategy=...)``.
    """

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs


__all__ = [
    "BroadcastTo",
    "Conv2D",
    "LayerNorm",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentSum",
    "_VirtualDataset",
]
