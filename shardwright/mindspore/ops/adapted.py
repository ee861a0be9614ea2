"""Primitives whose defaults, types or results are others in MindSpore than those of ours."""

from collections.abc import Sequence
from typing import Any, ClassVar

from shardwright import ops as own
from shardwright.ir.values import check_choice, check_flag, check_type, wrong_value
from shardwright.mindspore.ops import functions, losses
from shardwright.mindspore.ops.fields import ByFields
from shardwright.mindspore.ops.resizing import ResizeBilinear
from shardwright.ops.composite import Composition
from shardwright.ops.primitive import Primitive
from shardwright.tensor import Tensor, apply, apply_all


class Mod(Composition):
    """The remainder of a quotient that is rounded towards zero."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor | float) -> Tensor:
        """Divide: the remainder has the sign of the dividend."""
        floored = apply("mod", x, y)
        other = y if isinstance(y, Tensor) else apply("fill", shape=(), value=y, dtype=x.dtype)
        apart = apply("logical_and", floored != 0, (x < 0) != (other < 0))
        return apply("where", apart, floored - other, floored)


class Div(own.Div):  # type: ignore[misc]
    """A quotient; of whole numbers in float32."""

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Divide."""
        made: Tensor = super().__call__(functions.real(x), functions.real(y))
        return made


class RealDiv(own.Div):  # type: ignore[misc]
    """A quotient; of whole numbers cut off behind the point, as MindSpore's kernel has it."""

    def __call__(self, x: Any, y: Any) -> Tensor:
        """Divide."""
        whole = all(isinstance(item, Tensor) and not item.type.is_float for item in (x, y))
        made: Tensor = own.TruncateDiv()(x, y) if whole else super().__call__(x, y)
        return made


class Polygamma(Composition):
    """A derivative of the logarithm of the gamma function; see `functions.polygamma`."""

    def compose(self, a: Tensor, x: Tensor) -> Tensor:
        """Differentiate."""
        return functions.polygamma(a, x)


class Svd(Composition):
    """Singular values, and left and right singular vectors; zeros where they are not wanted."""

    def __init__(self, full_matrices: bool = False, compute_uv: bool = True) -> None:
        self.full_matrices, self.compute_uv = full_matrices, compute_uv

    def compose(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decompose."""
        made = functions.svd(input, self.full_matrices, self.compute_uv)
        if isinstance(made, tuple):
            return made
        nothing = apply("fill", shape=(1,), value=0.0, dtype=input.dtype)
        return made, nothing, nothing


class Pow(Composition):
    """A power of two tensors, or of a tensor and a number."""

    is_pointwise = True

    def compose(self, x: Tensor | float, y: Tensor | float) -> Tensor:
        """Raise."""
        return functions.pow(x, y)


class IsClose(Composition):
    """Where two tensors differ by little; see `functions.isclose`."""

    is_pointwise = True

    def __init__(self, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = True) -> None:
        self._how = (rtol, atol, equal_nan)

    def compose(self, input: Tensor, other: Tensor) -> Tensor:
        """Compare."""
        return functions.isclose(input, other, *self._how)


class L2Normalize(Primitive):
    """A tensor with the norm 1 along a dimension."""

    operator = "l2_normalize"

    def __init__(self, axis: int | Sequence[int] = 0, epsilon: float = 1e-4) -> None:
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        if len(axes) != 1:
            raise wrong_value("axis", axis, "one dimension")
        super().__init__(axis=axes[0], epsilon=epsilon)


class L2Loss(Composition):
    """Half the sum of the squares: each is halved, so that what ranks add up is the result."""

    def compose(self, input_x: Tensor) -> Tensor:
        """Multiply and add up."""
        return (apply("square", input_x) * 0.5).sum()


class Sort(Primitive):
    """The elements in order along a dimension, and where they stood."""

    operator = "sort"

    def __init__(self, axis: int = -1, descending: bool = False) -> None:
        super().__init__(axis=axis, descending=descending)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Order."""
        values, places = super().__call__(x)
        return values, places.astype("int32")


class Cummin(Primitive):
    """The least element up to each, and where it stands."""

    operator = "cummin"

    def __init__(self, axis: int) -> None:
        super().__init__(axis=axis)

    def __call__(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Find."""
        values, places = super().__call__(input)
        return values, places.astype("int32")


class CumProd(Composition):
    """The products of the elements up to each, or before it, or from the end."""

    def __init__(self, exclusive: bool = False, reverse: bool = False) -> None:
        check_flag("exclusive", exclusive)
        check_flag("reverse", reverse)
        self.exclusive, self.reverse = exclusive, reverse

    def compose(self, x: Tensor, axis: int) -> Tensor:
        """Multiply."""
        axis %= x.ndim
        x = apply("reverse", x, axis=(axis,)) if self.reverse else x
        if self.exclusive:
            rest = tuple(n - (d == axis) for d, n in enumerate(x.shape))
            one = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
            ones = apply("fill", shape=one, value=1.0, dtype=x.dtype)
            kept = [ones, apply("slice", x, begin=(0,) * x.ndim, size=rest)]
            x = apply("concat", *(kept if rest[axis] else kept[:1]), axis=axis)
        made = apply("cumprod", x, axis=axis)
        return apply("reverse", made, axis=(axis,)) if self.reverse else made


class Pack(Primitive):
    """Tensors beside each other along a new dimension."""

    operator = "stack"

    def __init__(self, axis: int = 0) -> None:
        super().__init__(axis=axis)


class Unpack(Composition):
    """The parts of a tensor along a dimension, which goes."""

    def __init__(self, axis: int = 0, num: int | None = None) -> None:
        check_type("axis", axis, int)
        self.axis, self.num = axis, num

    def compose(self, input_x: Tensor) -> tuple[Tensor, ...]:
        """Take apart.

        Raises
        ------
        OptionError
            If there is another number of parts than said.
        """
        count = input_x.shape[self.axis]
        if self.num not in (None, count):
            raise wrong_value("num", self.num, f"{count}, the parts of {input_x.shape}")
        parts = apply_all("split", input_x, axis=self.axis, parts=count)
        return tuple(apply("squeeze", part, axis=self.axis) for part in parts)


class ReduceSum(own.ReduceSum):  # type: ignore[misc]
    """The sum over dimensions; over all, or with ``skip_mode`` over none, where none is named."""

    def __init__(self, keep_dims: bool = False, skip_mode: bool = False) -> None:
        check_flag("skip_mode", skip_mode)
        super().__init__(keep_dims=keep_dims)
        self.skip_mode = skip_mode

    def __call__(self, x: Tensor, axis: int | Sequence[int] | None = ()) -> Tensor:
        """Add up."""
        named = axis if axis is None or isinstance(axis, int) else tuple(axis) or None
        if self.skip_mode and named is None:
            return x
        made: Tensor = super().__call__(x, named)
        return made


class ScatterNd(Primitive):
    """Zeros of a shape plus slices at tuples of positions."""

    operator = "scatter_nd"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
        """Add up."""
        self.attributes["shape"] = tuple(shape)
        made: Tensor = super().__call__(indices, updates)
        return made


class FillV2:
    """A tensor of a shape that holds the number of a tensor without dimensions."""

    def __call__(self, shape: Sequence[int], value: Tensor) -> Tensor:
        """Fill."""
        return apply("broadcast_to", value, shape=tuple(shape))


class Size:
    """The number of elements of a tensor."""

    def __call__(self, input_x: Tensor) -> int:
        """Count."""
        return input_x.size


class Pad(Primitive):
    """A tensor with zeros before and after its dimensions, two numbers for each."""

    operator = "pad"

    def __init__(self, paddings: Sequence[Sequence[int]]) -> None:
        before, after = zip(*paddings, strict=True)
        super().__init__(before=before, after=after)


class BroadcastTo(Primitive):
    """Repeats a tensor along new and single dimensions, to a shape; -1 leaves a size."""

    operator = "broadcast_to"

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        super().__init__(shape=self._shape)

    def __call__(self, input_x: Tensor) -> Tensor:
        """Repeat."""
        own_sizes = (1,) * (len(self._shape) - input_x.ndim) + input_x.shape
        pairs = zip(self._shape, own_sizes, strict=True)
        self.attributes["shape"] = tuple(n if size == -1 else size for size, n in pairs)
        made: Tensor = super().__call__(input_x)
        return made


class Gather(ByFields, own.Gather):
    """Slices along a dimension, by index; in each of some first dimensions apart.

    Negative positions count from the end, unless it is told how it is split.
    """

    def __init__(self, batch_dims: int = 0) -> None:
        check_type("batch_dims", batch_dims, int)
        super().__init__()
        self.batch_dims = batch_dims

    def __call__(self, input_params: Tensor, input_indices: Tensor, axis: int = 0) -> Tensor:
        """Look up."""
        if self._fields:
            return self.by_fields(input_params, input_indices, axis)
        if self.batch_dims:
            return functions.gather(input_params, input_indices, axis, self.batch_dims)
        if self.in_strategy is None and self.out_strategy is None:
            input_indices = functions.from_begin(input_indices, input_params.shape[axis])
        made: Tensor = super().__call__(input_params, input_indices, axis)
        return made


class EmbeddingLookup(ByFields, own.EmbeddingLookup):
    """Rows of a table whose first row has a number; rows outside of it are zero."""

    def __call__(self, input_params: Tensor, input_indices: Tensor, offset: int = 0) -> Tensor:
        """Look up."""
        if self._fields:
            return self.by_fields(input_params, input_indices, offset)
        made: Tensor = super().__call__(input_params, input_indices, offset)
        return made


class Cdist(own.Cdist):
    """The distances between all rows of two tensors, by a norm."""

    def __init__(self, p: float = 2.0) -> None:
        self.p = float(p)

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Subtract every pair, and take the norm."""
        if self.p == 2:
            return super().compose(x, y)
        pairs = apply("expand_dims", x, axis=-2) - apply("expand_dims", y, axis=-3)
        sums = (
            (apply("abs", pairs) ** self.p).sum(-1) if self.p != 1 else apply("abs", pairs).sum(-1)
        )
        return sums if self.p == 1 else sums ** (1 / self.p)


class BinaryCrossEntropy(Composition):
    """The cross entropy of probabilities, each of a choice of its own."""

    def __init__(self, reduction: str = "mean") -> None:
        check_choice("reduction", reduction, ("none", "mean", "sum"))
        self.reduction = reduction

    def compose(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the loss."""
        return losses.binary_cross_entropy(logits, labels, weight, self.reduction)


class SoftmaxCrossEntropyWithLogits(Primitive):
    """The cross entropy of each row, and its gradient by the scores."""

    operator = "softmax_cross_entropy"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses and the gradients."""
        losses: Tensor = super().__call__(logits, labels)
        shares = apply("softmax", apply("stop_gradient", logits), axis=-1)
        return losses, shares - apply("stop_gradient", labels)


class SparseSoftmaxCrossEntropyWithLogits(Composition):
    """The mean of the cross entropies of rows with classes, or with ``is_grad`` its gradient."""

    def __init__(self, is_grad: bool = False) -> None:
        check_flag("is_grad", is_grad)
        self.is_grad = is_grad

    def compose(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss or the gradient."""
        if not self.is_grad:
            return apply("sparse_softmax_cross_entropy", logits, labels).mean()
        classes = apply("one_hot", labels, depth=logits.shape[-1], dtype=logits.dtype)
        return (apply("softmax", logits, axis=-1) - classes) / labels.size


class _Pool3D(Primitive):
    """One number for each window of ``[n, channel, depth, height, width]``."""

    others: ClassVar[dict[str, bool]] = {}

    def __init__(
        self,
        kernel_size: int | Sequence[int] = 1,
        strides: int | Sequence[int] = 1,
        pad_mode: str = "valid",
    ) -> None:
        check_choice("pad_mode", pad_mode.lower(), ("valid", "same"))
        padding: Any = "same" if pad_mode.lower() == "same" else ((0, 0),) * 3
        sizes = [(n,) * 3 if isinstance(n, int) else tuple(n) for n in (kernel_size, strides)]
        super().__init__(kernel=sizes[0], stride=sizes[1], padding=padding, **self.others)


class MaxPool3D(_Pool3D):
    """The greatest element of each window."""

    operator = "max_pool"


class AvgPool3D(_Pool3D):
    """The mean of each window, over its elements without the padding."""

    operator = "average_pool"
    others: ClassVar = {"count_include_pad": False}


class ResizeBilinearV2:
    """Images of another size, between whose pixels it is linear; see `ResizeBilinear`."""

    def __init__(self, align_corners: bool = False, half_pixel_centers: bool = False) -> None:
        self._corners, self._half = align_corners, half_pixel_centers

    def __call__(self, image: Tensor, size: Sequence[int]) -> Tensor:
        """Resize."""
        made: Tensor = ResizeBilinear(size, self._corners, self._half)(image)
        return made


__all__ = [
    "AvgPool3D",
    "BinaryCrossEntropy",
    "BroadcastTo",
    "Cdist",
    "CumProd",
    "Cummin",
    "Div",
    "EmbeddingLookup",
    "FillV2",
    "Gather",
    "IsClose",
    "L2Loss",
    "L2Normalize",
    "MaxPool3D",
    "Mod",
    "Pack",
    "Pad",
    "Polygamma",
    "Pow",
    "RealDiv",
    "ReduceSum",
    "ResizeBilinearV2",
    "ScatterNd",
    "Size",
    "SoftmaxCrossEntropyWithLogits",
    "Sort",
    "SparseSoftmaxCrossEntropyWithLogits",
    "Svd",
    "Unpack",
]
