"""Poolings over windows of a tensor ``[n, channel, *space]``."""

from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.info import Array, Emitter, Example, Gradients, Linearization, register
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, Shape, ShardView
from shardwright.operators.windows.geometry import Index, Windows, make_windows
from shardwright.operators.windows.windowed import PLACEMENT, Windowed

# Global pooling is `reduce_mean` or `reduce_max` over the space, which may then be split.

_POOLINGS: tuple[dict[str, Any], ...] = (
    {"kernel": 2, "stride": 2},
    {"kernel": (3, 2), "stride": (2, 1), "padding": ((1, 1), (0, 1))},
    {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True},
)


class Pooling(Windowed):
    """The base of poolings and their gradients.

    ``kernel``, ``stride`` (None: the kernel's) and ``padding`` are as those of convolutions. With
    ``ceil_mode`` an incomplete last window counts.
    """

    defaults: ClassVar = {
        "kernel": 1,
        "stride": None,
        "padding": 0,
        "ceil_mode": False,
        **PLACEMENT,
    }
    tensors: ClassVar[str]  # the operands and the result: x for space, y for windows

    def find_space(self) -> Shape:
        """Return the size of the space under the windows."""
        return self.true_space(self.operand_types[self.tensors.index("x")].shape[2:])

    def make_rule(self) -> Rule:
        """Split the windows of both sides equally."""
        shapes = [operand.shape for operand in self.operand_types]
        if not shapes or any(len(shape) < 3 for shape in shapes):
            raise IRError(
                f"the operands have the shapes {shapes}, expected one operand [n, channel, *space]"
            )
        self.space = self.find_space()
        self.windows = self.make_windows(self.space)
        counts = self.windows.count(self.space)
        sizes = {"n": shapes[0][0], "c": shapes[0][1]}
        for d, (held, count) in enumerate(zip(self.held(), counts, strict=True)):
            sizes[f"s{d}"] = count
            if not self.windows.is_pointwise(d):
                sizes[f"s{d}~"] = held
        rank = range(len(counts))
        texts = {
            "x": " ".join(["n c", *(f"s{d}~" if f"s{d}~" in sizes else f"s{d}" for d in rank)]),
            "y": " ".join(["n c", *(f"s{d}" for d in rank)]),
        }
        *operands, result = (texts[tensor] for tensor in self.tensors)
        return resolve(f"{', '.join(operands)} -> {result}", shapes, sizes)

    def make_windows(self, space: Shape) -> Windows:
        """Return the windows over a space.

        Raises
        ------
        IRError
            If a window could cover padding alone.
        """
        kernel = self.attributes["kernel"]
        kernel = kernel if isinstance(kernel, tuple) else (kernel,) * len(space)
        if len(kernel) != len(space):
            raise IRError(f"the kernel {kernel} does not fit {len(space)} spatial dimensions")
        stride = self.attributes["stride"] or kernel
        windows = make_windows(kernel, {**self.attributes, "stride": stride}, space)
        sides = zip(windows.padding, windows.span, strict=True)
        if any(max(pair) >= span for pair, span in sides):
            raise IRError(f"padding {windows.padding} is not less than the kernel {kernel}")
        return windows

    @property
    def flops(self) -> float:
        """Count one operation for each element of each window."""
        sizes, count = self.rule.sizes, self.windows.count(self.space)
        return float(sizes["n"] * sizes["c"] * self.windows.taps * np.prod(count))

    def own_counts(self, view: ShardView) -> Shape:
        """Return a rank's own windows along each dimension."""
        return tuple(view.sizes[f"s{d}"] for d in range(len(self.space)))

    def own_total(self, y: Array, view: ShardView) -> Array:
        """Return zeros for the padded space that a rank's own windows are of."""
        space = self.own_shape(view, view.result_shapes[0])[2:]
        return np.zeros((*y.shape[:2], *self.own_windows(view).padded_size(space)), y.dtype)

    def own_interior(self, total: Array, view: ShardView) -> Array:
        """Return the part of sums over the padded space that a rank holds."""
        space = self.own_shape(view, view.result_shapes[0])[2:]
        return self.with_rest(total[self.own_windows(view).interior(space)], view, 0)

    def taps(self, padded: Array, count: Shape, writeable: bool = False) -> list[Array]:
        """Return for each tap of the kernel its elements in all windows, as views."""
        found = self.windows.over(padded, count, writeable)
        rest: Index = (..., *(slice(None),) * len(count))
        return [found[(*rest, *tap)] for tap in np.ndindex(*self.windows.kernel)]


def _least(dtype: Any) -> float:
    """Return the identity of the maximum."""
    return -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min


def _greatest(taps: list[Array]) -> Array:
    result = taps[0].copy()
    for tap in taps[1:]:
        np.maximum(result, tap, out=result)
    return result


@register
class MaxPool(Pooling):
    """The greatest element of each window."""

    name = "max_pool"
    defaults: ClassVar = {**Pooling.defaults, "dilation": 1}
    tensors = "xy"
    examples = (
        *(Example(("f64[2, 4, 6, 5]",), attributes) for attributes in _POOLINGS),
        Example(("f64[2, 2, 7]",), {"kernel": 2, "stride": 1, "dilation": 3}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare tap by tap; padding loses to every element."""
        least, counts = _least(operands[0].dtype), self.own_counts(view)
        x = self.own_filled(operands[0], view, least)
        return _greatest(self.taps(self.own_windows(view).pad(x, least), counts))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to the first of the greatest elements."""
        dy, x = at.cotangents[0], at.operands[0]
        return [build.emit("max_pool_gradient", dy, x, **self.attributes)]


@register
class MaxPoolGradient(Pooling):
    """The gradient of `max_pool`, from the cotangent and the operand."""

    name = "max_pool_gradient"
    defaults: ClassVar = MaxPool.defaults
    tensors = "yxx"
    linear = ((0,),)
    examples = (
        Example(("f64[2, 4, 3, 2]", "f64[2, 4, 6, 5]"), _POOLINGS[0]),
        Example(("f64[2, 4, 4, 3]", "f64[2, 4, 6, 5]"), _POOLINGS[2]),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Recompute the maximum, and pass each window's cotangent to one element.

        It is the first of the greatest that is no padding, or the last that is not a number.
        """
        dy, x = operands
        least, counts = _least(x.dtype), self.own_counts(view)
        total = self.own_total(dy, view)
        elements = self._padded(x, view, least)
        greatest, left = _greatest(elements), np.ones(dy.shape, bool)
        places = self.taps(total, counts, writeable=True)
        taps = list(
            zip(elements, self._padded(np.ones(x.shape, bool), view, 0), places, strict=True)
        )
        for element, is_real, place in taps:
            chosen = left & is_real & (element == greatest)
            place += np.where(chosen, dy, 0)
            left &= ~chosen
        for element, _, place in reversed(taps) if left.any() else ():
            chosen = left & (element != element)
            place += np.where(chosen, dy, 0)
            left &= ~chosen
        return self.own_interior(total, view)

    def _padded(self, x: Array, view: ShardView, value: float) -> list[Array]:
        """Return for each tap the elements of a tensor, with `value` in the padding."""
        padded = self.own_windows(view).pad(self.own_filled(x, view, value), value)
        return self.taps(padded, self.own_counts(view))


class Average(Pooling):
    """A mean over windows.

    With ``count_include_pad`` the mean includes padding as zeros, but nothing beyond it; without,
    it is over the elements alone.
    """

    defaults: ClassVar = {**Pooling.defaults, "count_include_pad": True}
    linear = ((0,),)

    def shares(self, view: ShardView, dtype: Any) -> Array:
        """Return one over the number of elements of each of a rank's own windows."""
        ones = np.ones(self.space, dtype)
        padded = self.windows.pad(ones)
        if self.attributes["count_include_pad"]:
            sides = zip(self.space, self.windows.padding, strict=True)
            padded[tuple(slice(0, a + n + b) for n, (a, b) in sides)] = 1
        shares = np.asarray(1 / sum(self.taps(padded, self.windows.count(self.space))), dtype)
        starts = (view.starts[f"s{d}"] for d in range(len(self.space)))
        own = zip(starts, self.own_counts(view), strict=True)
        return shares[tuple(slice(start, start + count) for start, count in own)]


@register
class AveragePool(Average):
    """The mean of each window."""

    name = "average_pool"
    of_reals = True
    tensors = "xy"
    examples = (
        *(Example(("f64[2, 4, 6, 5]",), attributes) for attributes in _POOLINGS),
        Example(("f64[2, 4, 6, 5]",), {**_POOLINGS[2], "count_include_pad": False}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up tap by tap."""
        x = self.own_windows(view).pad(self.own(operands[0], view))
        taps = self.taps(x, self.own_counts(view))
        result = taps[0].copy()
        for tap in taps[1:]:
            result += tap
        result *= self.shares(view, result.dtype)
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Distribute the cotangent over the windows."""
        size = self.space
        return [build.emit("average_pool_gradient", at.cotangents[0], size=size, **self.attributes)]


@register
class AveragePoolGradient(Average):
    """The transpose of `average_pool`, to a space of ``size``."""

    name = "average_pool_gradient"
    defaults: ClassVar = {**Average.defaults, "size": ()}
    tensors = "yx"
    examples = (
        Example(("f64[2, 4, 3, 2]",), {**_POOLINGS[0], "size": (6, 5)}),
        Example(("f64[2, 4, 4, 3]",), {**_POOLINGS[2], "count_include_pad": False, "size": (6, 5)}),
    )

    def find_space(self) -> Shape:
        """Return the size of the result's space."""
        return self.attributes["size"]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add the share of every window to its elements."""
        dy = operands[0]
        share = dy * self.shares(view, dy.dtype)
        total = self.own_total(dy, view)
        for place in self.taps(total, self.own_counts(view), writeable=True):
            place += share
        return self.own_interior(total, view)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Emit the pooling, which is linear."""
        attributes = {k: v for k, v in self.attributes.items() if k != "size"}
        return [build.emit("average_pool", at.cotangents[0], **attributes)]
