"""Reductions and orders; of a primitive the strategy may split what it reduces."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from shardwright import ops as own
from shardwright.ir.values import check_choice
from shardwright.operators.info import SplitCounts
from shardwright.operators.reduction.reduce import reduced_axes
from shardwright.ops.composite import ExtremumWithValue
from shardwright.ops.primitive import Primitive, record_strategy
from shardwright.tensor import Axis, Tensor, apply, apply_all


class _InStages(Primitive):
    """The base of reductions that no communication does: parts are gathered, and reduced."""

    def __init__(self, keep_dims: bool = False) -> None:
        super().__init__(keep_dims=keep_dims)

    def __call__(self, x: Tensor, axis: int | Sequence[int] = ()) -> Any:
        """Reduce dimensions; all of them, if none is named."""
        named = axis if isinstance(axis, int) else tuple(axis) or None
        counts = None if self.in_strategy is None else self.in_strategy[0]
        axes = reduced_axes(named, x.ndim)
        if counts is None or len(counts) != x.ndim or not any(counts[d] > 1 for d in axes):
            return super().__call__(x, named)
        if any(x.shape[d] % counts[d] for d in axes):
            return super().__call__(x, named)  # which refuses it
        return self._in_stages(x, axes, counts)

    def _in_stages(self, x: Tensor, axes: tuple[int, ...], counts: tuple[int, ...]) -> Tensor:
        shape: list[int] = []
        split: list[int] = []
        inner: list[int] = []
        outer: list[int] = []
        for d, (size, count) in enumerate(zip(x.shape, counts, strict=True)):
            if d in axes and count > 1:
                outer.append(len(shape))
                shape.append(count)
                split.append(count)
                size //= count
            if d in axes:
                inner.append(len(shape))
            shape.append(size)
            split.append(1 if d in axes else count)
        parts = type(self)(keep_dims=True)
        parts.in_strategy = (tuple(split),)
        of_ranks = Primitive.__call__(parts, x.reshape(tuple(shape)), tuple(inner))
        made = apply(self.operator, of_ranks, axis=tuple(outer), keep_dims=True)
        keep = self.attributes.get("keep_dims", False)
        kept = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        return made.reshape(tuple(kept))


class ReduceMax(_InStages):
    """The greatest element."""

    operator = "reduce_max"


class ReduceMin(_InStages):
    """The least element."""

    operator = "reduce_min"


class ReduceProd(_InStages):
    """The product of the elements."""

    operator = "reduce_prod"


class Argmax(Primitive):
    """Where the greatest element stands along a dimension."""

    operator = "argmax"
    value: ClassVar[str] = "reduce_max"

    def __init__(self, axis: int = -1, output_type: str = "int32") -> None:
        check_choice("output_type", output_type, ("int32", "int64"))
        super().__init__(axis=axis)
        self.output_type = output_type

    def __call__(self, input_x: Tensor) -> Tensor:
        """Find."""
        axis, counts = self.attributes["axis"], _split(input_x, self.in_strategy)
        assert isinstance(axis, int)
        if counts and _is_cut(input_x, axis, counts):
            found = _place_in_stages(self.operator, self.value, input_x, axis, counts)
            found = apply("squeeze", found, axis=axis % input_x.ndim)
        else:
            found = super().__call__(input_x)
        return found.astype(self.output_type)


class Argmin(Argmax):
    """Where the least element stands along a dimension."""

    operator, value = "argmin", "reduce_min"


class _WithValue(ExtremumWithValue):
    """Where an extremum stands along a dimension, which the strategy may split, and the element."""

    kind: type[_InStages]

    def compose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions and the elements."""
        counts = _split(x, self.in_strategy)
        if not counts or not _is_cut(x, self.axis, counts):
            return super().compose(x)
        reduced = self.kind(self.keep_dims).shard(self.in_strategy)(x, self.axis)
        place = _place_in_stages(self.position, self.value, x, self.axis, counts)
        if not self.keep_dims:
            place = apply("squeeze", place, axis=self.axis % x.ndim)
        return place, reduced


class ArgMaxWithValue(_WithValue, own.ArgMaxWithValue):
    """Where the greatest element stands along one dimension, and the element."""

    kind = ReduceMax


class ArgMinWithValue(_WithValue, own.ArgMinWithValue):
    """Where the least element stands along one dimension, and the element."""

    kind = ReduceMin


def _split(x: Tensor, strategy: SplitCounts | None) -> tuple[int, ...]:
    """Return the slices of each dimension; none where they are not said, or do not fit."""
    fits = strategy is not None and len(strategy) == 1 and len(strategy[0]) == x.ndim
    return tuple(strategy[0]) if fits and strategy is not None else ()


def _is_cut(x: Tensor, axis: int, counts: tuple[int, ...]) -> bool:
    """Return whether a dimension is cut into equal parts; others are refused where it is whole."""
    return counts[axis] > 1 and x.shape[axis] % counts[axis] == 0


def _place_in_stages(
    operator: str, value: str, x: Tensor, axis: int, counts: tuple[int, ...]
) -> Tensor:
    """Return where an extremum stands along a dimension that is cut: the best of those of parts.

    The dimension stays, with size one. Of equal ones the first counts, as of a whole dimension.
    """
    axis %= x.ndim
    count, size = counts[axis], x.shape[axis] // counts[axis]
    parts = x.reshape((*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    split = ((*counts[: axis + 1], 1, *counts[axis + 1 :]),)
    found = []
    for name, how in ((operator, {}), (value, {"differentiable": False})):
        made = apply_all(name, parts, axis=axis + 1, keep_dims=True, **how)
        record_strategy(made, [parts], split, None)
        found.append(made[0])
    places, values = found
    best = apply(operator, values, axis=axis, keep_dims=True)
    numbers = Tensor(np.arange(count).reshape(count, *(1,) * (x.ndim - axis)))
    whole = (places + numbers * size) * apply("equal", best, numbers).astype("int64")
    return whole.sum(axis).reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the greatest element stands, of all or along a dimension."""
    return input.argmax(dim, keepdim)


def argmin(input: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the least element stands, of all or along a dimension."""
    return input.argmin(axis, keepdims)


def max(input: Tensor, axis: int | None = None, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the greatest element and where it stands; of all elements it stands at 0."""
    made: tuple[Tensor, Tensor] = input.max(
        axis, keepdims and axis is not None, return_indices=True
    )
    return made


def min(input: Tensor, axis: int | None = None, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least element and where it stands; of all elements it stands at 0."""
    made: tuple[Tensor, Tensor] = input.min(
        axis, keepdims and axis is not None, return_indices=True
    )
    return made


def prod(
    input: Tensor, axis: Axis = None, keep_dims: bool = False, dtype: str | None = None
) -> Tensor:
    """Return the product over dimensions; of whole numbers in int64 unless a type is given."""
    return apply("reduce_prod", _counted(input, dtype), axis=axis, keep_dims=keep_dims)


def cumsum(input: Tensor, axis: int, dtype: str | None = None) -> Tensor:
    """Return the sums of the elements up to each, in an element type if one is given."""
    return apply("cumsum", input if dtype is None else input.astype(dtype), axis=axis)


def cumprod(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Return the products of the elements up to each; of whole numbers in int64."""
    return apply("cumprod", _counted(input, dtype), axis=dim)


def sort(input_x: Tensor, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the elements in order along a dimension, and where they stood."""
    values, places = apply_all("sort", input_x, axis=axis, descending=descending)
    return values, places.astype("int32")


def topk(
    input: Tensor, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the greatest or least elements along a dimension, and where they stand."""
    axis = -1 if dim is None else dim
    values, places = apply_all("top_k", input, k=k, axis=axis, largest=largest)
    return values, places.astype("int32")


def _counted(x: Tensor, dtype: str | None) -> Tensor:
    """Return what a product is computed of: whole numbers in int64."""
    return x.astype(dtype or (x.dtype if x.type.is_float else "int64"))


top_k = topk

__all__ = [
    "ArgMaxWithValue",
    "ArgMinWithValue",
    "Argmax",
    "Argmin",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "max",
    "min",
    "prod",
    "sort",
    "top_k",
    "topk",
]
