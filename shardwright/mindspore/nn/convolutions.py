"""Convolutions with MindSpore's arguments, in its order, and its shapes of weights."""

from typing import Any, ClassVar

from shardwright import nn as own
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_choice, wrong_value
from shardwright.nn.convolution import Convolution, PadMode, Size
from shardwright.parameter import Start
from shardwright.tensor import Tensor, apply


class _Padded(Convolution):
    """The base of convolutions whose padding may differ on the two sides of a dimension."""

    def _padding(self, padding: Size, span: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        sizes = (padding,) if isinstance(padding, int) else tuple(padding)
        if self.pad_mode != "pad" or len(sizes) == 1:
            return super()._padding(padding, span, stride)
        if len(sizes) != 2 * self.dimensions:
            expected = f"a number, or two for each of the {self.dimensions} dimensions"
            raise wrong_value("padding", padding, expected)
        return tuple(zip(sizes[::2], sizes[1::2], strict=True))


class _InFormat(_Padded):
    """The base of convolutions that are told the order of dimensions, of which they know one."""

    layout: ClassVar[str]

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
        data_format: str | None = None,
        dtype: str = "float32",
    ) -> None:
        check_choice("data_format", data_format or self.layout, (self.layout,))
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            pad_mode,
            padding,
            dilation,
            group,
            has_bias,
            weight_init,
            bias_init,
            dtype,
        )


class Conv2d(_InFormat, own.Conv2d):
    """A convolution of ``[n, channel, height, width]``; see `shardwright.nn.Conv2d`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, pad_mode, dilation, group, has_bias
        As there.
    padding : int or tuple of four int
        What is put on all sides; or on top, at the bottom, left and right.
    weight_init, bias_init, dtype : optional
        As there.
    data_format : str, optional
        ``NCHW``.
    """

    layout = "NCHW"


class Conv3d(_InFormat, own.Conv3d):
    """A convolution of ``[n, channel, depth, height, width]``; see `Conv2d`.

    Its ``padding`` may be six numbers, two of each dimension, and its ``data_format`` is ``NCDHW``.
    """

    layout = "NCDHW"


class Conv1d(Convolution):
    """A convolution of ``[n, channel, length]`` with a weight ``[out, in / group, 1, kernel]``.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group : optional
        As of `Conv2d`, numbers.
    has_bias, weight_init, bias_init, dtype : optional
        As of `Conv2d`; data of the weight have three dimensions.
    """

    dimensions = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        pad_mode: PadMode = "same",
        padding: int = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Start | None = None,
        bias_init: Start | None = None,
        dtype: str = "float32",
    ) -> None:
        if isinstance(weight_init, Tensor):
            data = weight_init.asnumpy()
            weight_init = Tensor(
                data.reshape((*data.shape[:-1], 1, data.shape[-1])), data.dtype.name
            )
        super().__init__(
            in_channels,
            out_channels,
            (1, kernel_size),
            (1, stride),
            pad_mode,
            (0, padding),
            (1, dilation),
            group,
            has_bias,
            weight_init,
            bias_init,
            dtype,
        )

    def construct(self, x: Tensor) -> Tensor:
        """Convolve, add the bias."""
        made = super().construct(apply("expand_dims", x, axis=2))
        return apply("squeeze", made, axis=2)


class Conv2dTranspose(_Padded, own.Conv2dTranspose):
    """The transpose of a convolution; see `shardwright.nn.Conv2dTranspose`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, pad_mode, padding : optional
        As of `Conv2d`.
    output_padding : int or tuple of two int
        Zeros at the bottom and right of the result, to which the bias is not added.
    dilation, group, has_bias, weight_init, bias_init, dtype : optional
        As of `Conv2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        pad_mode: PadMode = "same",
        padding: Size = 0,
        output_padding: Size = 0,
        dilation: Size = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Start | None = None,
        bias_init: Start | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            pad_mode,
            padding,
            dilation,
            group,
            has_bias,
            weight_init,
            bias_init,
            dtype,
        )
        self.output_padding = self._each(output_padding)
        limits = map(max, self._each(stride), self._each(dilation))
        for size, limit in zip(self.output_padding, limits, strict=True):
            NOT_NEGATIVE_INTEGER.check("output_padding", size)
            if size and (size >= limit or pad_mode != "pad"):
                expected = f'less than {limit}, with `pad_mode="pad"`'
                raise wrong_value("output_padding", output_padding, expected)

    def construct(self, x: Tensor) -> Tensor:
        """Convolve, add the bias, pad."""
        made = super().construct(x)
        if not any(self.output_padding):
            return made
        return apply("pad", made, before=(0,) * 4, after=(0, 0, *self.output_padding))
