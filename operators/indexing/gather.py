"""Operators that look elements up by integer positions, and their transposes.

Where a looked-up dimension is split, every rank looks up the positions in its part and writes zero
for the others: a partial sum. Positions outside the dimension give zero on one device, too.
"""

from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.types import numpy_dtype
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
from shardwright.operators.rule import Rule, ShardView, dimension


def local_positions(positions: Array, view: ShardView) -> tuple[Array, Array]:
    """Return positions relative to the local part of factor ``v``, clipped; and which are local."""
    start, size = view.starts["v"], view.sizes["v"]
    local = positions - start if start else positions
    clipped = np.minimum(np.maximum(local, 0), size - 1)  # in less time than `clip`
    return clipped, clipped == local


def kept_inside(elements: Array, inside: Array) -> Array:
    """Return elements, with zero for those of other ranks.

    They are not multiplied by zero: one that is infinite would be no number.
    """
    return np.where(inside, elements, elements.dtype.type(0))


def _names(letter: str, rank: int) -> str:
    return " ".join(f"{letter}{i}" for i in range(rank))


def _around(axis: int, rank: int) -> tuple[str, str]:
    """Return names for the dimensions before and after `axis`."""
    names = [f"e{d}" for d in range(rank)]
    return " ".join(names[:axis]), " ".join(names[axis + 1 :])


_OUTSIDE = ("zero", "nan", "constant")


@register
class Gather(OperatorInfo):
    """Slices of a tensor along ``axis``, by index; along the first an embedding lookup.

    ``[v, e...], [i...] -> [i..., e...]``: the dimensions of the indices take the place of the axis.
    An index -1 - p is one that was out of range, and p is the nearest: its slice is ``outside``,
    ``zero``, ``nan``, or ``constant``: the nearest, as a constant to gradients.
    """

    name = "gather"
    positions = (1,)
    defaults: ClassVar = {"axis": 0, "outside": "zero"}
    linear = ((0,),)
    examples = (
        Example(("f64[6, 4]", "i64[2, 4]"), ranges={1: (0, 6)}),
        Example(("f64[6, 2, 2]", "i64[4]"), ranges={1: (-1, 7)}),
        Example(("f64[6]", "i64[4]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 4]", "i64[2, 2]"), {"axis": 1}, {1: (-1, 7)}),
        Example(("f64[6, 4]", "i64[2, 4]"), {"outside": "constant"}, {1: (0, 6)}),
        Example(("f64[2, 6]", "i64[4]"), {"axis": 1, "outside": "nan"}, {1: (0, 6)}),
    )

    @property
    def axis(self) -> int:
        """The looked-up dimension, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    @property
    def flops(self) -> float:
        """Count one operation for each element looked up."""
        return float(self.result_types[0].elements)

    def make_rule(self) -> Rule:
        """Contract the looked-up dimension."""
        table, indices = (operand.shape for operand in self.operand_types)
        places = _names("i", len(indices))
        before, after = _around(self.axis, len(table))
        return resolve(
            f"{before} v+ {after}, {places} -> {before} {places} {after}", [table, indices]
        )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the table."""
        outside = self.attributes["outside"]
        if outside not in _OUTSIDE:
            raise IRError(f"gather: `outside` is {outside!r}, expected one of {list(_OUTSIDE)}")
        if outside == "nan" and not self.operand_types[0].is_float:
            raise IRError(f"gather: {self.operand_types[0]} has no nan, which `outside` is")
        return (self.operand_types[0].dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Look up; zero for positions of other ranks."""
        table, indices = operands
        outside = self.attributes["outside"]
        places = np.where(indices < 0, -1 - indices, indices) if outside == "constant" else indices
        local, inside = local_positions(places, view)
        found = np.asarray(np.take(table, local, axis=self.axis))  # a scalar, too
        before: tuple[Any, ...] = (slice(None),) * self.axis
        if not inside.all():
            found[(*before, ~inside)] = 0
        if outside == "nan":  # on every rank: their sum is nan, too
            found[(*before, indices < 0)] = np.nan
        return found

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum the cotangents of equal indices."""
        (table, indices), axis = at.operands, self.axis
        rows, dy = table.type.shape[axis], at.cotangents[0]
        how: dict[str, Any] = {"rows": rows, "axis": axis} if axis else {"rows": rows}
        return [build.emit("gather_gradient", indices, dy, like=table, **how), None]


@register
class GatherGradient(OperatorInfo):
    """The transpose of `gather`: slices along ``axis``, ``rows`` of them.

    Each is the sum of the cotangents of its lookups.
    """

    name = "gather_gradient"
    result_dtype = 1
    positions = (0,)
    defaults: ClassVar = {"rows": 1, "axis": 0}
    linear = ((1,),)
    examples = (
        Example(("i64[2, 4]", "f64[2, 4, 3]"), {"rows": 6}, {0: (0, 6)}),
        Example(("i64[4]", "f64[4]"), {"rows": 2}, {0: (-1, 3)}),
        Example(("i64[2, 2]", "f64[2, 2, 2, 4]"), {"rows": 6, "axis": 1}, {0: (-1, 7)}),
    )

    @property
    def flops(self) -> float:
        """Count one addition for each element of the cotangent."""
        return float(self.operand_types[1].elements)

    def make_rule(self) -> Rule:
        """Contract the positions of the lookups."""
        indices, cotangent = (operand.shape for operand in self.operand_types)
        places = " ".join(f"i{d}+" for d in range(len(indices)))
        before, after = _around(self.attributes["axis"], len(cotangent) - len(indices) + 1)
        notation = f"{places}, {before} {places} {after} -> {before} v {after}"
        return resolve(notation, [indices, cotangent], {"v": self.attributes["rows"]})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up the slices of equal indices."""
        indices, cotangent = operands
        axis, shape = self.attributes["axis"], view.result_shapes[0]
        local, inside = local_positions(indices.ravel(), view)
        terms = cotangent.reshape(*shape[:axis], indices.size, *shape[axis + 1 :])
        total = segment_sums(np.moveaxis(terms, axis, 0), local, inside, view.sizes["v"])
        return np.moveaxis(total, 0, axis)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Look up the cotangent, by linearity."""
        axis = self.attributes["axis"]
        return [None, build.emit("gather", at.cotangents[0], at.operands[0], axis=axis)]


def segment_sums(terms: Array, segments: Array, inside: Array, count: int) -> Array:
    """Return for each of `count` segments the sum of its terms.

    Parameters
    ----------
    terms : array
        The terms, along the first dimension.
    segments : array of int
        The segment of each term.
    inside : array of bool
        The terms that count.
    count : int
        Number of segments.
    """
    result = np.zeros((count, *terms.shape[1:]), terms.dtype)
    kept = np.flatnonzero(inside)
    order = kept[np.argsort(segments[kept], kind="stable")]
    if order.size:
        rows, starts = np.unique(segments[order], return_index=True)
        result[rows] = np.add.reduceat(terms[order], starts, axis=0)
    return result


@register
class OneHot(OperatorInfo):
    """For each index a vector of length ``depth`` that is one at the index and zero elsewhere."""

    name = "one_hot"
    notation = "... -> ... v"
    result_dtype = "attribute"
    positions = (0,)
    defaults: ClassVar = {"depth": 1, "dtype": "float32"}
    examples = (Example(("i64[2, 4]",), {"depth": 6, "dtype": "float64"}, {0: (-1, 7)}),)

    def make_rule(self) -> Rule:
        """Assign a new factor to the depth."""
        sizes = {"v": self.attributes["depth"]}
        return resolve(self.notation, [self.operand_types[0].shape], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare with the positions of the local part."""
        positions = view.starts["v"] + np.arange(view.sizes["v"])
        return (operands[0][..., None] == positions).astype(numpy_dtype(self.attributes["dtype"]))


@register
class Pick(OperatorInfo):
    """Along the last dimension, the one element at an index."""

    name = "pick"
    notation = "... v+, ... -> ..."
    positions = (1,)
    linear = ((0,),)
    examples = (
        Example(("f64[4, 6]", "i64[4]"), ranges={1: (-1, 7)}),
        Example(("f64[2, 4, 6]", "i64[2, 4]"), ranges={1: (0, 6)}),
    )

    @property
    def flops(self) -> float:
        """Count one operation for each element picked."""
        return float(self.result_types[0].elements)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Pick; zero for an index of another rank."""
        x, indices = operands
        local, inside = local_positions(indices, view)
        return kept_inside(np.take_along_axis(x, local[..., None], axis=-1)[..., 0], inside)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Put the cotangent at the index."""
        (x, indices), dy = at.operands, at.cotangents[0]
        return [build.emit("pick_gradient", dy, indices, like=x, depth=x.type.shape[-1]), None]


@register
class PickGradient(OperatorInfo):
    """The transpose of `pick`: vectors of length ``depth``, the cotangent at the index."""

    name = "pick_gradient"
    notation = "..., ... -> ... v"
    defaults: ClassVar = {"depth": 1}
    linear = ((0,),)
    examples = (
        Example(("f64[4]", "i64[4]"), {"depth": 6}, {1: (-1, 7)}),
        Example(("f64[2, 4]", "i64[2, 4]"), {"depth": 6}, {1: (0, 6)}),
    )

    def make_rule(self) -> Rule:
        """Assign a new factor to the depth."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(self.notation, shapes, {"v": self.attributes["depth"]})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Write the cotangent at indices in the local part."""
        dy, indices = operands
        result = np.zeros(view.result_shapes[0], dy.dtype)
        local, inside = local_positions(indices, view)
        own = kept_inside(dy, inside)
        np.put_along_axis(result, local[..., None], own[..., None], axis=-1)
        return result
