"""Operators that take the maximum or minimum of all elements at one position.

As in `scatter`, positions may index a split dimension. Equal extrema share the gradient evenly.
"""

from typing import Any, ClassVar

import numpy as np

from shardwright.operators.indexing.gather import local_positions
from shardwright.operators.indexing.scatter import ByTuples, IntoTensor
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView


def _farthest(extremum: np.ufunc, dtype: Any) -> Any:
    """Return the identity of the reduction."""
    limits = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    return limits.min if extremum is np.maximum else limits.max


def _names(letter: str, count: int, mark: str = "") -> str:
    return " ".join(f"{letter}{d}{mark}" for d in range(count))


# Segments


class UnsortedSegmentExtremum(OperatorInfo):
    """The extremum of the rows of each of ``segments`` segments.

    A segment without rows has the least or greatest finite number of its type. The rows may be
    split unless it is ``differentiable``; then no extremum lies beyond that number.
    """

    positions = (1,)
    defaults: ClassVar = {"segments": 1, "differentiable": True}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[2, 4, 3]", "i64[2, 4]"), {"segments": 2}, {1: (0, 2)}),
        Example(
            ("f64[2, 4, 3]", "i64[2, 4]"),
            {"segments": 2, "differentiable": False},
            {1: (0, 2)},
            (0,),
        ),
        Example(("i64[2, 4]", "i64[2, 4]"), {"segments": 6, "differentiable": False}, {1: (-1, 7)}),
    )
    function: ClassVar[np.ufunc]

    @property
    def flops(self) -> float:
        """Count one comparison for each element."""
        return float(self.operand_types[0].elements)

    def make_rule(self) -> Rule:
        """Contract the rows, partial unless differentiable: the gradient needs all rows."""
        x, segments = shapes = [operand.shape for operand in self.operand_types]
        partial = "+max" if self.function is np.maximum else "+min"
        mark = "^" if self.attributes["differentiable"] else partial
        rows, row = _names("i", len(segments), mark), _names("e", len(x) - len(segments))
        sizes = {"v": self.attributes["segments"]}
        return resolve(f"{rows} {row}, {rows} -> v {row}", shapes, sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare the rows of equal segments."""
        found = _segment_extrema(self.function, view, *operands)
        if self.attributes["differentiable"]:
            return found
        return self.function(found, _farthest(self.function, found.dtype))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Recompute the extrema, which is cheaper than saving them for backward."""
        if not self.attributes["differentiable"]:
            return [None, None]
        operator = f"{self.name}_gradient"
        return [build.emit(operator, at.cotangents[0], *at.operands), None]


def _segment_extrema(function: np.ufunc, view: ShardView, x: Array, segments: Array) -> Array:
    """Return the extrema of the local segments."""
    local, inside = local_positions(segments.ravel(), view)
    shape = (view.sizes["v"], *x.shape[segments.ndim :])
    farthest = _farthest(function, x.dtype)
    least = farthest * np.inf if x.dtype.kind == "f" else farthest  # rows may be infinite
    result = np.full(shape, least, x.dtype)
    function.at(result, local[inside], x.reshape(segments.size, *shape[1:])[inside])
    result[np.isin(np.arange(len(result)), local[inside], invert=True)] = farthest
    return result


class UnsortedSegmentExtremumGradient(OperatorInfo):
    """The cotangents of the extrema of segments, at the rows that attain them."""

    result_dtype = 1
    positions = (2,)
    linear = ((0,),)
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[2, 3]", "f64[2, 4, 3]", "i64[2, 4]"), ranges={2: (0, 2)}),
        Example(("f64[2]", "f64[2, 4]", "i64[2, 4]"), ranges={2: (-1, 3)}),
    )
    function: ClassVar[np.ufunc]

    @property
    def flops(self) -> float:
        """Count one comparison for each element."""
        return float(self.operand_types[1].elements)

    def make_rule(self) -> Rule:
        """Split segments only: a rank serves its segments, and compares all rows."""
        shapes = [operand.shape for operand in self.operand_types]
        rows = _names("i", len(shapes[2]), "^")
        row = _names("e", len(shapes[1]) - len(shapes[2]))
        return resolve(f"v+ {row}, {rows} {row}, {rows} -> {rows} {row}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Share the cotangent of each segment among the rows that attain the extremum."""
        dy, x, segments = operands
        local, inside = local_positions(segments.ravel(), view)
        rows = x.reshape(segments.size, *dy.shape[1:])
        extrema = _segment_extrema(self.function, view, x, segments)
        equal = (rows == extrema[local]) & inside.reshape(-1, *(1,) * (dy.ndim - 1))
        count = np.zeros(dy.shape, np.int64)
        np.add.at(count, local, equal)
        share = dy / np.maximum(count, 1)
        return np.where(equal, share[local], 0).astype(x.dtype).reshape(x.shape)


# Tuples of positions


class ScatterNdExtremum(IntoTensor):
    """An extremum of a tensor and of slices at tuples of positions."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[6, 4]", "i64[4, 1]", "f64[4, 4]"), ranges={1: (0, 6)}),
        Example(("i64[6, 2]", "i64[2, 4, 2]", "i64[2, 4]"), ranges={1: (0, 2)}),
    )
    function: ClassVar[np.ufunc]

    @property
    def mark(self) -> str:
        """Contract nothing: every rank compares in its part; a gradient needs all slices."""
        partial = "+max" if self.function is np.maximum else "+min"
        return "^" if self.operand_types[0].is_float else partial

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Copy and compare."""
        x, positions, updates = operands
        index, inside = self.local(positions, view)
        result = x.copy()
        self.function.at(result, tuple(place[inside] for place in index), updates[inside])
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Recompute the extrema, which is cheaper than saving them for backward."""
        operator = f"{self.name}_gradient"
        dx, updates = build.emit_all(operator, at.cotangents[0], *at.operands)
        return [dx, None, updates]


class ScatterNdExtremumGradient(ByTuples):
    """The cotangent of `scatter_nd_max` or of the least: by the tensor, and by the slices."""

    positions = (2,)
    linear = ((0,),)
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[6, 4]", "f64[6, 4]", "i64[4, 1]", "f64[4, 4]"), ranges={2: (0, 6)}),
        Example(("f64[6, 2]", "f64[6, 2]", "i64[2, 4, 2]", "f64[2, 4]"), ranges={2: (0, 2)}),
    )
    function: ClassVar[np.ufunc]

    def make_rule(self) -> Rule:
        """Let every rank serve the slices in its part."""
        tensor, positions, slices = self.of_gradient()
        notation = f"{tensor}, {tensor}, {positions}, {slices} -> {tensor}, {slices}"
        return resolve(notation, [operand.shape for operand in self.operand_types])

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the tensor and of the slices."""
        return (self.operand_types[1].dtype, self.operand_types[3].dtype)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Share the cotangent of each element among all that attain the extremum."""
        dy, x, positions, updates = operands
        index, inside = self.local(positions, view)
        own = tuple(place[inside] for place in index)
        extrema = x.copy()
        self.function.at(extrema, own, updates[inside])
        stayed = x == extrema
        deep = inside.reshape((*inside.shape, *(1,) * (x.ndim - len(index))))  # of a scalar, too
        came = (updates == extrema[index]) & deep
        count = stayed.astype(np.int64)
        np.add.at(count, own, came[inside])
        share = dy / np.maximum(count, 1)
        found = np.where(stayed, share, 0), np.where(came, share[index], 0)
        return found[0].astype(x.dtype), found[1].astype(updates.dtype)


def _define(name: str, title: str, summary: str, base: type, gradient: type) -> None:
    """Register an operator and its gradient, for the greatest and for the least."""
    for function, short, word in ((np.maximum, "max", "greatest"), (np.minimum, "min", "least")):
        forward = {"name": f"{name}_{short}", "function": function}
        backward = {"name": f"{name}_{short}_gradient", "function": function}
        about = f"The cotangent of `{name}_{short}`, shared by all that are the {word}."
        register(type(f"{title}{short.title()}", (base,), {"__doc__": summary % word, **forward}))
        kind = f"{title}{short.title()}Gradient"
        register(type(kind, (gradient,), {"__doc__": about, **backward}))


_define(
    "unsorted_segment",
    "UnsortedSegment",
    "The %s of the rows that the second operand puts in each of ``segments`` segments.",
    UnsortedSegmentExtremum,
    UnsortedSegmentExtremumGradient,
)
_define(
    "scatter_nd",
    "ScatterNd",
    "The %s of an element and of what slices bring to it at tuples of positions.",
    ScatterNdExtremum,
    ScatterNdExtremumGradient,
)
