"""Windows that slide over the spatial dimensions of a tensor ``[n, channel, *space]``.

Sizes, padding and views without copies, for convolutions and poolings. Knows no operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardwright.ir.errors import IRError
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape

Pairs = tuple[tuple[int, int], ...]
Index = tuple[Any, ...]


@dataclass(frozen=True)
class Windows:
    """The windows over a space.

    Parameters
    ----------
    kernel : tuple of int
        Elements of a window along each spatial dimension.
    stride : tuple of int
        Steps between two windows.
    padding : tuple of (int, int)
        Padding before and after each dimension.
    dilation : tuple of int
        Steps between two elements of a window.
    ceil : bool
        Whether an incomplete last window counts.
    """

    kernel: Shape
    stride: Shape
    padding: Pairs
    dilation: Shape
    ceil: bool = False

    @cached_property
    def span(self) -> Shape:
        """Extent of a window along each dimension, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @cached_property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(self.kernel)

    @cached_property
    def offsets(self) -> tuple[Shape, ...]:
        """Offset of each element of a window from its first."""
        steps = zip(self.kernel, self.dilation, strict=True)
        return tuple(product(*(range(0, k * d, d) for k, d in steps)))

    def is_pointwise(self, i: int) -> bool:
        """Return whether windows along dimension `i` are single distinct elements."""
        return (self.kernel[i], self.stride[i], *self.padding[i]) == (1, 1, 0, 0)

    @property
    def are_points(self) -> bool:
        """Whether windows are single distinct elements."""
        return all(self.is_pointwise(i) for i in range(len(self.kernel)))

    def count(self, size: Sequence[int]) -> Shape:
        """Return the number of windows along each dimension of a space of `size`.

        Raises
        ------
        IRError
            If no window fits.
        """
        counts = tuple(self._count(i, n) for i, n in enumerate(size))
        if min(counts) < 1:
            raise IRError(
                f"a window that reaches over {self.span} does not fit a space of {tuple(size)} "
                f"with the padding {self.padding}"
            )
        return counts

    def _count(self, i: int, size: int) -> int:
        before, after = self.padding[i]
        room = size + before + after - self.span[i]
        if not self.ceil:
            return room // self.stride[i] + 1
        # A window must begin inside the space or the padding before it.
        return min(-(-room // self.stride[i]), (size + before - 1) // self.stride[i]) + 1

    def transposed(self, size: Shape, count: Shape) -> "Windows | None":
        """Return the windows over windows: for each element, the windows that contain it.

        A convolution over them, by the flipped kernel, is the transpose of one over these.
        None with a stride over one, or where that would need negative padding.
        """
        sides = zip(size, self.padding, self.span, count, strict=True)
        padding = tuple((p - 1 - a, n + a - c) for n, (a, _), p, c in sides)
        if max(self.stride) > 1 or min(min(pair) for pair in padding) < 0:
            return None
        return replace(self, padding=padding, ceil=False)

    def padded_size(self, size: Sequence[int]) -> Shape:
        """Return the size of the padded space, with room for incomplete last windows."""
        counts = self.count(size)
        needed = [(c - 1) * s + p for c, s, p in zip(counts, self.stride, self.span, strict=True)]
        sides = zip(size, self.padding, needed, strict=True)
        return tuple(max(n + a + b, m) for n, (a, b), m in sides)

    def interior(self, size: Sequence[int]) -> Index:
        """Return the index of a space of `size` in the padded space."""
        sides = zip(size, self.padding, strict=True)
        return (..., *(slice(a, a + n) for n, (a, _) in sides))

    def pad(self, x: Array, value: float = 0.0) -> Array:
        """Return `x` padded with `value`; `x` itself without padding."""
        size = x.shape[-len(self.kernel) :]
        padded = self.padded_size(size)
        if padded == size:
            return x
        result = np.full((*x.shape[: -len(size)], *padded), value, x.dtype)
        result[self.interior(size)] = x
        return result

    def over(self, padded: Array, count: Shape, writeable: bool = False) -> Array:
        """Return the windows of a padded array, as a view ``[..., *count, *kernel]``."""
        rank = len(self.kernel)
        axes = tuple(range(padded.ndim - rank, padded.ndim))
        found = sliding_window_view(padded, self.span, axis=axes, writeable=writeable)
        steps = zip(count, self.stride, strict=True)
        places = tuple(slice(0, (c - 1) * s + 1, s) for c, s in steps)
        taps = tuple(slice(None, None, d) for d in self.dilation)
        index: Index = (..., *places, *taps)
        return found[index]


def per_dimension(value: Any, rank: int, what: str) -> Any:
    """Return one item for each of `rank` dimensions, from a number or a tuple.

    Raises
    ------
    IRError
        If a tuple has another length.
    """
    items = value if isinstance(value, tuple) else (value,) * rank
    if len(items) != rank:
        raise IRError(f"{what} is {value}, expected a number or {rank} of them")
    return items


def make_windows(kernel: Shape, attributes: Mapping[str, Any], size: Shape) -> Windows:
    """Return the windows that ``stride``, ``padding``, ``dilation`` and ``ceil_mode`` describe.

    Padding is a number, one for each dimension, a pair (before, after) for each, or ``same``:
    as many windows as the space has strides, with even padding on both sides, the odd one behind.

    Raises
    ------
    IRError
        If an attribute does not fit the dimensions.
    """
    rank = len(size)
    stride = per_dimension(attributes.get("stride", 1), rank, "stride")
    dilation = per_dimension(attributes.get("dilation", 1), rank, "dilation")
    if min((*kernel, *stride, *dilation)) < 1:
        raise IRError(f"kernel {kernel}, stride {stride} and dilation {dilation} begin at 1")
    padding = attributes.get("padding", 0)
    if padding == "same":
        pairs = _same(kernel, stride, dilation, size)
    else:
        items = per_dimension(padding, rank, "padding")
        pairs = tuple(item if isinstance(item, tuple) else (item, item) for item in items)
    if any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise IRError(f"padding {padding} is no number, pair for each dimension, or `same`")
    return Windows(kernel, stride, pairs, dilation, bool(attributes.get("ceil_mode", False)))


def _same(kernel: Shape, stride: Shape, dilation: Shape, size: Sequence[int]) -> Pairs:
    pairs = []
    for k, s, d, n in zip(kernel, stride, dilation, size, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pairs.append((total // 2, total - total // 2))
    return tuple(pairs)
