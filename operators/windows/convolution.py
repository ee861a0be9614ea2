"""Convolutions over any number of spatial dimensions, and their transposes.

A tensor is ``[n, channel, *space]``, a weight ``[out, in / groups, *kernel]``. Three operators,
each linear in both operands, are the gradients of one another: `convolution` makes results,
`transposed_convolution` operands, `convolution_weight_gradient` weights.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.info import Array, Emitter, Example, Gradients, Linearization, register
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.rule import Rule, Shape, ShardView
from shardwright.operators.windows import depthwise
from shardwright.operators.windows.columns import accumulate_columns, columns, sample_blocks
from shardwright.operators.windows.geometry import Windows, make_windows
from shardwright.operators.windows.windowed import PLACEMENT, Windowed

# Channels of each tensor: ``b`` of the operand in a group, ``a`` of the result.
_CHANNELS = {"x": "b", "w": "ab", "y": "a"}
_COPIES_FOR_A_SUM = 3  # copying this many columns costs as much as accumulating one


class ConvolutionFamily(Product, Windowed):
    """The base of a convolution and its gradients.

    Samples, groups, channels of both sides, and windows may be split.
    """

    result_dtype = "common"
    defaults: ClassVar = {
        **{"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **PLACEMENT},
        **Product.defaults,
    }
    linear = ((0,), (1,))
    # The tensors that are operands and result, and the letters that the rule contracts.
    tensors: ClassVar[tuple[str, str, str]]
    contracted: ClassVar[str]

    @property
    def geometry(self) -> tuple[Windows, Shape, Shape]:
        """The windows, the space of the operand, and that of the result."""
        raise NotImplementedError

    def make_rule(self) -> Rule:
        """Contract the factors that the result lacks."""
        shapes = [operand.shape for operand in self.operand_types]
        if len(shapes) != 2 or len(shapes[0]) < 3 or len(shapes[0]) != len(shapes[1]):
            raise IRError(f"two operands [n, channel, *space] are needed, given are {shapes}")
        self.windows, self.space, self.after = self.geometry
        sizes = self._sizes(shapes)
        notation = {name: self._notation(name) for name in "xwy"}
        first, second, result = (notation[name] for name in self.tensors)
        return resolve(f"{first}, {second} -> {result}", shapes, sizes)

    def _notation(self, tensor: str) -> str:
        mark = {letter: letter + "+" * (letter in self.contracted) for letter in "nab"}
        channels = [mark[letter] for letter in _CHANNELS[tensor]]
        if self.attributes["groups"] > 1:
            channels[0] = f"(g {channels[0]})"
        rank = len(self.space)
        if tensor == "w":
            return " ".join([*channels, *(f"k{i}^" for i in range(rank))])
        shared = "+" if "s" in self.contracted else ""
        halo = [tensor == "x" and not self.windows.is_pointwise(i) for i in range(rank)]
        space = [f"s{i}~" if h else f"s{i}{shared}" for i, h in enumerate(halo)]
        return " ".join([mark["n"], *channels, *space])

    def _sizes(self, shapes: list[Shape]) -> dict[str, int]:
        """Return the sizes of all factors, in the order in which they are split."""
        sizes = {"n": shapes[0][0]}
        groups = self.attributes["groups"]
        if groups > 1:
            sizes["g"] = groups
        for letter, channels in self._channels(shapes).items():
            if groups < 1 or channels % groups:
                raise IRError(f"{channels} channels do not make {groups} equal groups")
            sizes[letter] = channels // groups
        for i, (held, count) in enumerate(zip(self.held(), self.after, strict=True)):
            sizes[f"s{i}"] = count
            if not self.windows.is_pointwise(i):
                sizes[f"s{i}~"] = held
        return sizes | {f"k{i}": k for i, k in enumerate(self.windows.kernel)}

    def _channels(self, shapes: list[Shape]) -> dict[str, int]:
        """Return the channels of each side that a single operand determines."""
        places = {"x": ("b", 1), "y": ("a", 1), "w": ("a", 0)}
        found = {}
        for tensor, shape in zip(self.tensors[:2], shapes, strict=True):
            letter, at = places[tensor]
            found[letter] = shape[at]
        if set(self.tensors[:2]) == {"y", "w"}:
            found["b"] = shapes[1][1] * self.attributes["groups"]
        return found

    @property
    def flops(self) -> float:
        """Count a product and a sum for every tap of every window."""
        sizes = self.rule.sizes
        channels = sizes["n"] * sizes["a"] * sizes["b"] * sizes.get("g", 1)
        return 2.0 * channels * self.windows.taps * prod(self.after)

    def copied_elements(self, shapes: Sequence[Shape]) -> float:
        """Return the elements that the kernel of a rank copies into columns; of points none.

        Every channel of the operand is copied for every window: a split of the result's channels
        leaves as many columns on each rank.

        Parameters
        ----------
        shapes : sequence of tuple of int
            The shapes of its slices: of the operands, then of the result.
        """
        if self.windows.are_points:
            return 0.0
        x, y = self._sides(shapes)
        return float(y[0] * x[1] * self.windows.taps * prod(y[2:]))

    def _sides(self, shapes: Sequence[Shape]) -> tuple[Shape, Shape]:
        """Return the slices of the operand and the result of the convolution."""
        of = dict(zip(self.tensors, shapes, strict=True))
        return of["x"], of["y"]

    @property
    def explicit(self) -> dict[str, Any]:
        """The attributes, complete, for an operator on other tensors."""
        windows = self.windows
        return {
            "stride": windows.stride,
            "padding": windows.padding,
            "dilation": windows.dilation,
            "groups": self.attributes["groups"],
            **{name: self.attributes[name] for name in PLACEMENT if self.runs},
        }

    def is_depthwise(self, view: ShardView) -> bool:
        """Whether every channel of the operand is a group."""
        return view.sizes["b"] == 1 and view.sizes.get("g", 1) > 1

    def grouped(self, w: Array, view: ShardView) -> Array:
        """Return a weight as a matrix for each group: ``[g, out, in kernel]``."""
        groups = view.sizes.get("g", 1)
        return w.reshape(groups, view.sizes["a"], view.sizes["b"] * self.windows.taps)


@register
class Convolution(ConvolutionFamily):
    """Weighted sums over windows, ``[n, in, *space], [out, in / groups, *kernel]``.

    ``stride`` and ``dilation`` are a number or one for each dimension; for ``padding`` see
    `make_windows`.
    """

    name = "convolution"
    tensors = ("x", "w", "y")
    contracted = "b"
    examples = (
        Example(("f64[2, 4, 5]", "f64[2, 4, 3]")),
        Example(("f64[2, 2, 5, 4]", "f64[6, 2, 3, 2]"), {"stride": 2, "padding": ((1, 0), (2, 1))}),
        Example(("f64[2, 4, 5, 5]", "f64[6, 2, 2, 2]"), {"groups": 2, "dilation": (2, 1)}),
        Example(("f64[2, 4, 6, 3]", "f64[8, 1, 3, 2]"), {"groups": 4, "stride": (2, 1)}),
        Example(("f64[2, 4, 4, 2]", "f64[2, 4, 1, 1]")),
        Example(("f64[2, 2, 3, 3, 2]", "f64[2, 2, 2, 2, 2]"), {"padding": "same"}),
    )

    @property
    def geometry(self) -> tuple[Windows, Shape, Shape]:
        """The windows, the space of the operand, and that of the result."""
        x, w = (operand.shape for operand in self.operand_types)
        space = self.true_space(x[2:])
        windows = make_windows(w[2:], self.attributes, space)
        return windows, space, windows.count(space)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply blocks of columns by the weight."""
        x, w = map(self.factor, (self.own(operands[0], view), operands[1]))
        windows = self.own_windows(view)
        if self.is_depthwise(view):
            return depthwise.forward(x, w, windows)
        result = np.empty(view.result_shapes[0], x.dtype)
        _correlate(x, self.grouped(w, view), windows, result)
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Scatter the cotangent through the weight; correlate it with the operand."""
        (x, w), dy = at.operands, at.cotangents[0]
        size, kernel = self.space, self.windows.kernel
        dx = build.emit("transposed_convolution", dy, w, size=size, **self.explicit)
        dw = build.emit("convolution_weight_gradient", x, dy, kernel=kernel, **self.explicit)
        return [dx, dw]


def _correlate(x: Array, weight: Array, windows: Windows, result: Array) -> None:
    """Convolve samples by a matrix for each group, ``[g, out, in kernel]``, into the result."""
    groups, count = len(weight), result.shape[2:]
    flat = result.reshape(len(x), groups, -1, prod(count))
    for samples, places, block in columns(x, windows, count, groups):
        np.matmul(weight, block, out=flat[samples, :, :, places])


@register
class TransposedConvolution(ConvolutionFamily):
    """The transpose of a convolution: ``[n, in, *space], [in, out / groups, *kernel]``.

    ``size`` is the space of the result; by default the smallest that holds the windows.
    """

    name = "transposed_convolution"
    defaults: ClassVar = {**ConvolutionFamily.defaults, "size": ()}
    tensors = ("y", "w", "x")
    contracted = "a"
    examples = (
        Example(("f64[2, 4, 3]", "f64[4, 2, 3]")),
        Example(
            ("f64[2, 6, 2, 3]", "f64[6, 2, 3, 2]"),
            {"stride": 2, "padding": ((1, 0), (2, 1)), "size": (5, 4)},
        ),
        Example(("f64[2, 6, 3, 4]", "f64[6, 2, 2, 2]"), {"groups": 2, "dilation": (2, 1)}),
        Example(("f64[2, 8, 2, 2]", "f64[8, 1, 3, 2]"), {"groups": 4, "stride": (2, 1)}),
        Example(("f64[2, 4, 4, 2]", "f64[4, 2, 1, 1]")),
    )

    @property
    def geometry(self) -> tuple[Windows, Shape, Shape]:
        """The windows, the space of the result, and that of the operand."""
        y, w = (operand.shape for operand in self.operand_types)
        if self.attributes["padding"] == "same":
            raise IRError("padding `same` does not tell what a transposed convolution leaves out")
        windows = make_windows(w[2:], self.attributes, y[2:])
        sides = zip(y[2:], windows.stride, windows.span, windows.padding, strict=True)
        least = tuple((n - 1) * s + p - a - b for n, s, p, (a, b) in sides)
        size = self.attributes["size"] or least
        if len(size) != len(least) or windows.count(size) != y[2:]:
            raise IRError(f"a space of {size} does not have {y[2:]} windows; {least} has")
        return windows, size, y[2:]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute columns, and accumulate them in the space."""
        shape = self.own_shape(view, view.result_shapes[0])
        return self.with_rest(self._transposed(view, shape, *map(self.factor, operands)), view, 0)

    def _transposed(self, view: ShardView, shape: Shape, y: Array, w: Array) -> Array:
        windows = self.own_windows(view)
        if self.is_depthwise(view):
            return depthwise.transposed(y, w, windows, shape)
        weight = np.swapaxes(self.grouped(w, view), -1, -2)
        groups, count = len(weight), y.shape[2:]
        flat = y.reshape(len(y), groups, -1, prod(count))
        result = np.empty(shape, y.dtype)
        if windows.are_points:
            np.matmul(weight, flat, out=result.reshape(len(y), groups, -1, prod(count)))
            return result
        channels, *size = result.shape[1:]
        around = windows.transposed(tuple(size), count)
        if around is not None and view.sizes["a"] <= _COPIES_FOR_A_SUM * view.sizes["b"]:
            _correlate(y, self._turned(w, view), around, result)
            return result
        padded, inner = windows.padded_size(size), windows.interior(size)
        for samples in sample_blocks(len(y), weight.shape[1] * groups * prod(count)):
            total = np.zeros((samples.stop - samples.start, channels, *padded), y.dtype)
            accumulate_columns(total, weight, flat[samples], windows, count)
            result[samples] = total[inner]
        return result

    def copied_elements(self, shapes: Sequence[Shape]) -> float:
        """Return the elements of the columns of the result's windows, or of those added up."""
        if self.windows.are_points:
            return 0.0
        x, y = self._sides(shapes)
        turns = self.windows.transposed(self.space, self.after) is not None
        if turns and y[1] <= _COPIES_FOR_A_SUM * x[1]:
            return float(y[0] * y[1] * self.windows.taps * prod(x[2:]))
        return super().copied_elements(shapes) * _COPIES_FOR_A_SUM

    def _turned(self, w: Array, view: ShardView) -> Array:
        """Return a flipped weight as a matrix for each group: ``[g, in, out kernel]``."""
        groups, a, b = view.sizes.get("g", 1), view.sizes["a"], view.sizes["b"]
        by_tap = w.reshape(groups, a, b, self.windows.taps)
        return by_tap[..., ::-1].swapaxes(1, 2).reshape(groups, b, a * self.windows.taps)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """A convolution of the cotangent, and its correlation with the operand."""
        (y, w), dx = at.operands, at.cotangents[0]
        dy = build.emit("convolution", dx, w, **self.explicit)
        kernel = self.windows.kernel
        dw = build.emit("convolution_weight_gradient", dx, y, kernel=kernel, **self.explicit)
        return [dy, dw]


@register
class ConvolutionWeightGradient(ConvolutionFamily):
    """The gradient of a convolution by its weight, from the operand and the cotangent."""

    name = "convolution_weight_gradient"
    defaults: ClassVar = {**ConvolutionFamily.defaults, "kernel": ()}
    tensors = ("x", "y", "w")
    contracted = "ns"
    examples = (
        Example(("f64[2, 4, 5]", "f64[2, 2, 3]"), {"kernel": (3,)}),
        Example(
            ("f64[2, 2, 5, 4]", "f64[2, 6, 2, 3]"),
            {"stride": 2, "padding": ((1, 0), (2, 1)), "kernel": (3, 2)},
        ),
        Example(
            ("f64[2, 4, 5, 5]", "f64[2, 6, 3, 4]"),
            {"groups": 2, "dilation": (2, 1), "kernel": (2, 2)},
        ),
        Example(
            ("f64[2, 4, 6, 3]", "f64[2, 8, 2, 2]"),
            {"groups": 4, "stride": (2, 1), "kernel": (3, 2)},
        ),
        Example(("f64[2, 4, 4, 2]", "f64[2, 2, 4, 2]"), {"kernel": (1, 1)}),
    )

    @property
    def geometry(self) -> tuple[Windows, Shape, Shape]:
        """The windows, the space of the operand, and that of the cotangent."""
        x, y = (operand.shape for operand in self.operand_types)
        kernel = self.attributes["kernel"]
        if len(kernel) != len(x) - 2:
            raise IRError(f"the kernel {kernel} does not fit {len(x) - 2} spatial dimensions")
        space = self.true_space(x[2:])
        windows = make_windows(kernel, self.attributes, space)
        if windows.count(space) != y[2:]:
            raise IRError(f"there are {windows.count(space)} windows, the cotangent is of {y[2:]}")
        return windows, space, y[2:]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply the cotangent by blocks of columns."""
        x, y = map(self.factor, (self.own(operands[0], view), operands[1]))
        shape, windows = view.result_shapes[0], self.own_windows(view)
        if self.is_depthwise(view):
            return depthwise.weight_gradient(x, y, windows).reshape(shape)
        groups, count = view.sizes.get("g", 1), y.shape[2:]
        flat = y.reshape(len(y), groups, -1, prod(count))
        total = np.zeros((groups, flat.shape[2], prod(shape[1:])), y.dtype)
        for samples, places, block in columns(x, windows, count, groups):
            for cotangent, column in zip(flat[samples, :, :, places], block, strict=True):
                total += np.matmul(cotangent, np.swapaxes(column, -1, -2))
        return total.reshape(shape)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Linear in both: each gradient is the convolution with the other."""
        (x, y), dw = at.operands, at.cotangents[0]
        dx = build.emit("transposed_convolution", y, dw, size=self.space, **self.explicit)
        return [dx, build.emit("convolution", x, dw, **self.explicit)]
