"""Operators whose primitives MindSpore makes or calls with other arguments than ours."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from shardwright import ops as own
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SHARE,
    check_choice,
    wrong_value,
)
from shardwright.mindspore.ops import functions
from shardwright.operators.windows.geometry import make_windows
from shardwright.ops.primitive import Primitive
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import current_tracer, is_tracing

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


class _Convolution(Primitive):
    """A convolution with a weight that is given with it."""

    layout: ClassVar[str]

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
        data_format: str | None = None,
    ) -> None:
        POSITIVE_INTEGER.check("out_channel", out_channel)
        if mode != 1:
            raise wrong_value("mode", mode, "1, a convolution")
        check_choice("data_format", data_format or self.layout, (self.layout,))
        count = len(self.layout) - 2
        super().__init__(
            stride=_each(stride, count),
            padding=_pads(pad_mode.lower(), pad, count),
            dilation=_each(dilation, count),
            groups=group,
        )
        self.out_channel, self.kernel_size = out_channel, _each(kernel_size, count)
        self._stride = stride

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve.

        Raises
        ------
        OptionError
            If the weight has another size than the primitive says.
        """
        self._check(weight)
        result: Tensor = super().__call__(x, weight)
        return result

    def _check(self, weight: Tensor) -> None:
        count = len(self.kernel_size)
        sizes = () if isinstance(self._stride, int) else tuple(self._stride)
        if any(size != 1 for size in sizes[:-count]):
            raise wrong_value("stride", sizes, f"1 for all but the last {count} dimensions")
        if (weight.shape[0], *weight.shape[2:]) != (self.out_channel, *self.kernel_size):
            expected = f"({self.out_channel}, in_channel / group, {self.kernel_size})"
            raise wrong_value("weight", weight.shape, f"the shape {expected}")


class Conv2D(_Convolution):
    """A convolution of ``[n, channel, height, width]`` with a weight that is given with it."""

    operator, layout = "convolution", "NCHW"


class Conv3D(_Convolution):
    """A convolution of ``[n, channel, depth, height, width]`` with a weight given with it."""

    operator, layout = "convolution", "NCDHW"


class Conv2DTranspose(_Convolution):
    """The gradient of a `Conv2D` by its operand, whose shape is given with the weight.

    Parameters
    ----------
    out_channel : int
        The channels that the convolution makes: those of what is given here.
    pad_list : None
        Must be None: `pad_mode` and `pad` say the padding.
    """

    operator, layout = "transposed_convolution", "NCHW"

    def __init__(
        self,
        out_channel: int,
        kernel_size: Size,
        pad_mode: str = "valid",
        pad: Size = 0,
        pad_list: None = None,
        mode: int = 1,
        stride: Size = 1,
        dilation: Size = 1,
        group: int = 1,
        data_format: str = "NCHW",
    ) -> None:
        if pad_list is not None:
            raise wrong_value("pad_list", pad_list, "None", "give `pad_mode` and `pad`")
        super().__init__(
            out_channel, kernel_size, mode, pad_mode, pad, stride, dilation, group, data_format
        )
        self._windows, self._group = dict(self.attributes), group

    def __call__(  # type: ignore[override]  # the shape of the result is MindSpore's argument
        self, dout: Tensor, weight: Tensor, input_size: Sequence[int]
    ) -> Tensor:
        """Return the gradient.

        Raises
        ------
        OptionError
            If the weight has another size than the primitive says, or the result other channels or
            samples than the weight makes of the operand.
        """
        self._check(weight)
        sizes = tuple(input_size)
        made = (dout.shape[0], weight.shape[1] * self._group)
        if sizes[:2] != made or len(sizes) != len(self.layout):
            raise wrong_value("input_size", sizes, f"{made}, and a height and a width")
        windows = make_windows(self.kernel_size, self._windows, sizes[2:])
        self.attributes = {**self._windows, "padding": windows.padding, "size": sizes[2:]}
        result: Tensor = Primitive.__call__(self, dout, weight)
        return result


class _Pool(Primitive):
    """One number for each window of ``[n, channel, height, width]``."""

    others: ClassVar[dict[str, bool]] = {}

    def __init__(
        self,
        kernel_size: Size = 1,
        strides: Size = 1,
        pad_mode: str = "valid",
        data_format: str = "NCHW",
    ) -> None:
        check_choice("data_format", data_format, ("NCHW",))
        check_choice("pad_mode", pad_mode.lower(), ("valid", "same"))
        super().__init__(
            kernel=_each(kernel_size),
            stride=_each(strides),
            padding=_pads(pad_mode.lower(), 0, 2),
            **self.others,
        )


class MaxPool(_Pool):
    """The greatest element of each window."""

    operator = "max_pool"


class AvgPool(_Pool):
    """The mean of each window, over its elements without the padding."""

    operator = "average_pool"
    others: ClassVar = {"count_include_pad": False}


class LayerNorm(Primitive):
    """Layer normalization over the last dimensions; returns mean and variance, too.

    Parameters
    ----------
    begin_norm_axis : int
        The first dimension that is normalized over.
    begin_params_axis : int
        The first dimension that the scale and the shift have.
    epsilon : float
        Added to the variance.
    """

    operator = "layer_norm"

    def __init__(
        self, begin_norm_axis: int = 1, begin_params_axis: int = 1, epsilon: float = 1e-7
    ) -> None:
        super().__init__(epsilon=epsilon)
        self.begin_norm_axis, self.begin_params_axis = begin_norm_axis, begin_params_axis

    def normalized(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        """Normalize, and return no more than that."""
        if self.begin_norm_axis % x.ndim == self.begin_params_axis % x.ndim == x.ndim - 1:
            made: Tensor = super().__call__(x, gamma, beta)
            return made
        return self(x, gamma, beta)[0]

    def __call__(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize.

        Raises
        ------
        OptionError
            If an axis is none of the dimensions, the scale or the shift has another shape than the
            dimensions from `begin_params_axis` on, or a strategy splits what is normalized over, or
            them in another way than the tensor.
        """
        for name in ("begin_norm_axis", "begin_params_axis"):
            axis = getattr(self, name)
            if not -x.ndim <= axis < x.ndim:
                raise wrong_value(name, axis, f"one of the {x.ndim} dimensions")
        first, of_scale = self.begin_norm_axis % x.ndim, self.begin_params_axis % x.ndim
        for name, tensor in (("gamma", gamma), ("beta", beta)):
            if tensor.shape != x.shape[of_scale:]:
                raise wrong_value(name, tensor.shape, f"the shape {x.shape[of_scale:]}")
        axes = tuple(range(first, x.ndim))
        whole, scaled = self._splits(first, of_scale, x.ndim)
        means = own.ReduceMean(keep_dims=True)
        means.shard(whole and (whole,))
        mean = means(x, axes)
        apart = x - mean
        variance = means(apart * apart, axes)
        if first == of_scale == x.ndim - 1:
            return super().__call__(x, gamma, beta), mean, variance
        normal = apart * (variance + self.attributes["epsilon"]) ** -0.5
        pins = whole and (whole, scaled)
        by_scale = own.Mul().shard(pins)(normal, gamma)
        return own.Add().shard(pins)(by_scale, beta), mean, variance

    def _splits(
        self, first: int, of_scale: int, rank: int
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return how the tensor, and scale and shift are split; None where the search says it."""
        if self.in_strategy is None:
            return None, None
        whole = self.in_strategy[0]
        legal = (whole, whole[of_scale:], whole[of_scale:])
        if len(whole) != rank or set(whole[first:]) != {1} or self.in_strategy != legal:
            expected = (
                f"{rank} numbers for the tensor, the last {rank - first} of them 1, and those from "
                f"dimension {of_scale} on for scale and shift"
            )
            raise wrong_value("in_strategy", self.in_strategy, expected)
        return whole, whole[of_scale:]


class GatherD(Primitive):
    """Elements along a dimension, by index: the index has the shape of the result.

    Negative ones count from the end.
    """

    operator = "gather_elements"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Tensor, dim: int, index: Tensor) -> Tensor:
        """Look up."""
        self.attributes["axis"] = dim
        result: Tensor = super().__call__(x, functions.from_begin(index, x.shape[dim]))
        return result


class PReLU(Primitive):
    """The operand, times the weight of its channel, or one for all, where negative."""

    operator = "prelu"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply."""
        if weight.shape == (1,) and x.ndim > 1 and x.shape[1] != 1:
            weight = own.broadcast_to(weight, (x.shape[1],))
            if self.in_strategy is not None and self.in_strategy[1:] == ((1,),):
                counts = self.in_strategy[0]
                self.in_strategy = counts, counts[1:2]
        result: Tensor = super().__call__(x, weight)
        return result


class Squeeze(Primitive):
    """A tensor without dimensions of size one: those that are named, or all of them."""

    operator = "squeeze"

    def __init__(self, axis: int | tuple[int, ...] = ()) -> None:
        super().__init__(axis=None if axis == () else axis)


class Dropout(Primitive):
    """Sets random elements to zero, and scales the rest; returns which are left, too.

    Parameters
    ----------
    keep_prob : float
        Probability that an element is left.
    Seed0, Seed1 : int
        Two operators with other seeds drop other elements.
    """

    operator = "dropout"

    def __init__(self, keep_prob: float = 0.5, Seed0: int = 0, Seed1: int = 0) -> None:  # noqa: N803
        SHARE.check("keep_prob", 1 - keep_prob)
        for name, seed in (("Seed0", Seed0), ("Seed1", Seed1)):
            NOT_NEGATIVE_INTEGER.check(name, seed)
        super().__init__(rate=1 - keep_prob)
        self._key = f"dropout {Seed0} {Seed1}"

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Self:
        """Pin how the operator is split; the number of the step, which it reads too, never is."""
        whole = None if in_strategy is None else (*in_strategy, ())
        return super().shard(whole, out_strategy)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Drop."""
        if not self.attributes["rate"] and not is_tracing():
            return x, own.OnesLike()(x)
        tracer = current_tracer()
        step = TracedTensor(tracer.step())
        self.attributes["key"] = f"{tracer.scope} {self._key}"
        ones = own.OnesLike()(x)
        left = super().__call__(ones, step)
        return super().__call__(x, step), (left != 0).astype(x.dtype)


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


class _UnsortedSegmentExtremum(UnsortedSegmentSum):
    """An extremum of the rows of each segment.

    Where a strategy splits the rows, no extremum lies beyond the finite numbers of its type, and
    the gradient is shared by the finite rows that attain it, of all ranks.
    """

    def __call__(self, x: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
        """Compare the rows of each segment."""
        rows = self.in_strategy[-1] if self.in_strategy else ()
        self.attributes["differentiable"] = whole = set(rows) <= {1}
        if whole or not x.type.is_float:
            return super().__call__(x, segment_ids, num_segments)
        fixed, sums = own.stop_gradient(x), UnsortedSegmentSum()
        best = super().__call__(fixed, segment_ids, num_segments)
        attains = own.LogicalAnd()(fixed == own.Gather()(best, segment_ids, 0), fixed - fixed == 0)
        count = sums(attains.astype(x.dtype), segment_ids, num_segments)
        change = sums(own.where(attains, x - fixed, own.zeros_like(x)), segment_ids, num_segments)
        return best + change / own.Maximum()(count, own.ones_like(count))


class UnsortedSegmentMax(_UnsortedSegmentExtremum):
    """The greatest row of each segment."""

    operator = "unsorted_segment_max"


class UnsortedSegmentMin(_UnsortedSegmentExtremum):
    """The least row of each segment."""

    operator = "unsorted_segment_min"


Conv2DBackpropInput = Conv2DTranspose
GatherV2 = SparseGatherV2 = own.Gather


class _VirtualDataset:
    """Returns its inputs: the compiler splits the inputs of a program itself.

    A strategy is that of the data set: ``set_auto_parallel_context(dataset_strategy=...)``.
    """

    repeat_dim_direct = "left"

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs

    def add_prim_attr(self, name: str, value: str) -> Self:
        """Set ``repeat_dim_direct``: which ranks have the same of fewer parts than there are ranks.

        With ``left`` they have the parts in turn, with ``right`` neighbours have the same.
        """
        check_choice("name", name, ("repeat_dim_direct",))
        check_choice("value", value, ("left", "right"))
        self.repeat_dim_direct = value
        return self


__all__ = [
    "AvgPool",
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv2DTranspose",
    "Conv3D",
    "Dropout",
    "GatherD",
    "GatherV2",
    "LayerNorm",
    "MaxPool",
    "PReLU",
    "SparseGatherV2",
    "Squeeze",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentSum",
    "_VirtualDataset",
]
