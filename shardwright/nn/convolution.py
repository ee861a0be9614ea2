"""Convolutions and poolings of tensors ``[n, channel, *space]``."""

from math import prod, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, Range, wrong_value
from shardwright.nn.cell import Cell
from shardwright.operators.info import Array
from shardwright.ops.primitive import Primitive
from shardwright.parameter import Parameter, Start
from shardwright.tensor import Tensor

Size = int | tuple[int, ...]
PadMode = Literal["same", "valid", "pad"]


class Convolution(Cell):
    """Weighted sums over windows, with a weight ``[out, in / group, *kernel]``.

    Parameters
    ----------
    in_channels, out_channels : int
        Sizes of the second dimension before and after.
    kernel_size, stride : int or tuple of int
        Elements of a window, and steps between windows, along each spatial dimension.
    pad_mode : str
        ``same``: as many windows as the stride makes of the space; ``valid``: no padding;
        ``pad``: as `padding` says.
    padding : int or tuple of int
        What is put on both sides of each spatial dimension.
    dilation : int or tuple of int
        Steps between two elements of a window.
    group : int
        Groups of channels, each of which reads its own.
    has_bias : bool
        Whether a bias is added.
    weight_init, bias_init : str, float or Tensor, optional
        How they begin; unless given, evenly within ``1 / sqrt(elements of a window)``.
    dtype : str
        Element type of the parameters.
    """

    dimensions: int
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        pad_mode: PadMode = "same",
        padding: Size = 0,
        dilation: Size = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Start | None = None,
        bias_init: Start | None = None,
        dtype: str = "float32",
    ) -> None:
        self._check(in_channels, out_channels, group, kernel_size, stride, dilation)
        _check_padding("a convolution", pad_mode, padding)
        self.pad_mode = pad_mode
        first, second = in_channels, out_channels
        if not self.transposed:
            first, second = second, first
        shape = (first, second // group, *self._each(kernel_size))
        even = f"uniform({1 / sqrt(prod(shape[1:])):.6g})"
        weight = even if weight_init is None else weight_init
        bias = even if bias_init is None else bias_init
        self.weight = Parameter(weight, shape=shape, dtype=dtype)
        self.bias = Parameter(bias, shape=out_channels, dtype=dtype) if has_bias else None
        kernel, steps, apart = (self._each(size) for size in (kernel_size, stride, dilation))
        span = tuple((k - 1) * d + 1 for k, d in zip(kernel, apart, strict=True))
        pads = self._padding(padding, span, steps)
        make = ops.TransposedConvolution if self.transposed else ops.Convolution
        self.convolution = make(stride=steps, padding=pads, dilation=apart, groups=group)
        self.bias_add = ops.BiasAdd()

    def _check(self, in_channels: int, out_channels: int, group: int, *sizes: Size) -> None:
        named = {"in_channels": in_channels, "out_channels": out_channels, "group": group}
        for name, value in named.items():
            POSITIVE_INTEGER.check(name, value)
        for name, size in zip(("kernel_size", "stride", "dilation"), sizes, strict=True):
            _check_sizes(name, size, self.dimensions)
        if in_channels % group or out_channels % group:
            raise ModelError(
                f"{in_channels} and {out_channels} channels do not make {group} equal groups"
            )

    def _each(self, size: Size) -> tuple[int, ...]:
        return (size,) * self.dimensions if isinstance(size, int) else tuple(size)

    def _padding(self, padding: Size, span: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        if self.pad_mode == "same":
            return self._same(span, stride)
        sizes = self._each(padding if self.pad_mode == "pad" else 0)
        return tuple((size, size) for size in sizes)

    def _same(self, span: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        return "same"

    def construct(self, x: Tensor) -> Tensor:
        """Convolve, add the bias."""
        x = self.convolution(x, self.weight)
        return x if self.bias is None else self.bias_add(x, self.bias)


class Conv1d(Convolution):
    """A convolution of ``[n, channel, length]``."""

    dimensions = 1


class Conv2d(Convolution):
    """A convolution of ``[n, channel, height, width]``."""

    dimensions = 2

    @property
    def conv2d(self) -> ops.Primitive:
        """The operator, under MindSpore's name."""
        return self.convolution


class Conv3d(Convolution):
    """A convolution of ``[n, channel, depth, height, width]``."""

    dimensions = 3


class Conv2dTranspose(Convolution):
    """The transpose of a convolution, with a weight ``[in, out / group, height, width]``.

    With ``same`` padding the space is multiplied by the stride; else of the sizes whose
    convolution has the windows that enter, the least comes out.
    """

    dimensions = 2
    transposed = True

    def _same(self, span: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        over = [k - s for k, s in zip(span, stride, strict=True)]
        if min(over) < 0:
            raise ModelError(f"windows of {span} at a stride of {stride} leave gaps")
        return tuple((size // 2, size - size // 2) for size in over)


def _check_sizes(name: str, size: Size, dimensions: int) -> None:
    """Refuse anything but a positive integer, or one for each dimension."""
    sizes = size if isinstance(size, tuple | list) else (size,) * dimensions
    for one in sizes:
        POSITIVE_INTEGER.check(name, one)
    if len(sizes) != dimensions:
        raise wrong_value(name, size, f"an integer, or {dimensions} of them")


def _check_padding(what: str, mode: str, padding: Size) -> None:
    """Refuse an unknown mode, and a padding that the mode does not use."""
    if mode not in ("same", "valid", "pad"):
        raise ModelError(f"{what} has the padding mode `{mode}`, expected `same`, `valid` or `pad`")
    for size in padding if isinstance(padding, tuple | list) else (padding,):
        Range(whole=True, least=0).check("padding", size)
        if size and mode != "pad":
            raise ModelError(
                f"{what} has the padding {padding}, which the mode `{mode}` does not use",
                hint='write `pad_mode="pad"`',
            )


class Pool(Cell):
    """One number for each window.

    Parameters
    ----------
    kernel_size, stride : int or tuple of int
        Elements of a window, and steps between windows.
    pad_mode : str
        ``same``, ``valid``, or ``pad``: as `padding` says.
    padding : int
        What is put on both sides of each spatial dimension.
    """

    operator: type[ops.Primitive]
    in_same: ClassVar[dict[str, bool]] = {}  # further attributes with ``same`` padding

    def __init__(
        self, kernel_size: Size = 1, stride: Size = 1, pad_mode: PadMode = "valid", padding: int = 0
    ) -> None:
        _check_padding("a pooling", pad_mode, padding)
        self.pool = self.operator(
            kernel=kernel_size,
            stride=stride,
            padding="same" if pad_mode == "same" else padding if pad_mode == "pad" else 0,
            **(self.in_same if pad_mode == "same" else {}),
        )

    def construct(self, x: Tensor) -> Tensor:
        """Pool."""
        return self.pool(x)


class MaxPool2d(Pool):
    """The greatest element of each window."""

    operator = ops.MaxPool

    @property
    def max_pool(self) -> Primitive:
        """The operator, under MindSpore's name."""
        return self.pool


class AvgPool2d(Pool):
    """The mean of each window; with ``same`` padding of its elements without the padding."""

    operator = ops.AveragePool
    in_same: ClassVar = {"count_include_pad": False}

    @property
    def avg_pool(self) -> Primitive:
        """The operator, under MindSpore's name."""
        return self.pool


class AdaptiveAvgPool2d(Cell):
    """The means of windows over ``[n, channel, height, width]`` that make an output of some size.

    Of an input of n and an output of m places, window i begins at floor(i n / m) and ends before
    ceil((i + 1) n / m).

    Parameters
    ----------
    output_size : int or tuple of int
        The height and the width; None for that of the input.
    """

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        sizes = output_size if isinstance(output_size, tuple) else (output_size,) * 2
        if len(sizes) != 2:
            raise wrong_value("output_size", output_size, "one number, or two")
        for size in sizes:
            if size is not None:
                POSITIVE_INTEGER.check("output_size", size)
        self.output_size = sizes

    def construct(self, x: Tensor) -> Tensor:
        """Average."""
        if self.output_size == (1, 1):
            return ops.ReduceMean(keep_dims=True)(x, (-2, -1))
        for size, axis in zip(self.output_size, (-2, -1), strict=True):
            if size not in (None, x.shape[axis]):
                weights = Tensor(_window_means(x.shape[axis], size), x.dtype)
                x = x @ weights if axis == -1 else (x.swapaxes(-1, -2) @ weights).swapaxes(-1, -2)
        return x


def _window_means(inputs: int, outputs: int) -> Array:
    """Return a matrix whose columns are windows, each with the sum 1."""
    weights = np.zeros((inputs, outputs))
    for i in range(outputs):
        begin, end = i * inputs // outputs, -(-(i + 1) * inputs // outputs)
        weights[begin:end, i] = 1 / (end - begin)
    return weights


class GlobalAvgPool(Cell):
    """The mean of each channel over the whole space: ``[n, channel]``."""

    def __init__(self) -> None:
        self.reduce_mean = ops.ReduceMean()

    def construct(self, x: Tensor) -> Tensor:
        """Take the mean."""
        return self.reduce_mean(x, tuple(range(2, x.ndim)))
