"""Operators that look elements up by integer positions, and their transposes.

Where a looked-up dimension is split, every rank looks up what lies in its own part and leaves zero
elsewhere: a partial sum. Positions outside the dimension give zero on one device, too.
"""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.types import numpy_dtype
from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Array,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.rule import Rule, ShardView, resolve


def local_positions(positions: Array, view: ShardView) -> tuple[Array, Array]:
    """Return positions relative to the own part of factor ``v``, clipped; and which lie in it."""
    local = positions - view.starts["v"]
    size = view.sizes["v"]
    return np.clip(local, 0, size - 1), (local >= 0) & (local < size)


def require_integers(info: OperatorInfo, position: int) -> None:
    """Check that an operand holds positions.

    Raises
    ------
    IRError
        If it does not.
    """
    kind = info.operand_types[position]
    if kind.dtype not in ("int32", "int64"):
        raise IRError(f"{info.name}: operand {position} is {kind}, positions are integers")


def _names(letter: str, rank: int) -> str:
    return " ".join(f"{letter}{i}" for i in range(rank))


@register
class Gather(OperatorInfo):
    """Rows of a table, by index: ``[v, e...], [i...] -> [i..., e...]``; an embedding lookup."""

    name = "gather"
    linear = ((0,),)
    examples = (
        Example(("f64[6, 4]", "i64[2, 4]"), ranges={1: (0, 6)}),
        Example(("f64[6, 2, 2]", "i64[4]"), ranges={1: (-1, 7)}),
        Example(("f64[6]", "i64[4]"), ranges={1: (0, 6)}),
    )

    @property
    def flops(self) -> float:
        """One operation for each element looked up."""
        return float(self.result_types[0].elements)

    def make_rule(self) -> Rule:
        """Contract the table's rows."""
        table, indices = (operand.shape for operand in self.operand_types)
        rows, row = _names("i", len(indices)), _names("e", len(table) - 1)
        return resolve(f"v+ {row}, {rows} -> {rows} {row}", [table, indices])

    def make_dtypes(self) -> tuple[str, ...]:
        """That of the table."""
        require_integers(self, 1)
        return (self.operand_types[0].dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Look up; zero what lies elsewhere."""
        table, indices = operands
        local, inside = local_positions(indices, view)
        rows = table[local]
        if not inside.all():
            rows[~inside] = 0
        return rows

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
        """Add the cotangents of equal indices up."""
        table, indices = at.operands
        rows = table.type.shape[0]
        dy = at.cotangents[0]
        return [build.emit("gather_gradient", indices, dy, like=table, rows=rows), None]


@register
class GatherGradient(OperatorInfo):
    """The transpose of `gather`: a table of ``rows`` rows, each the sum of what it was read for."""

    name = "gather_gradient"
    defaults: ClassVar = {"rows": 1}
    linear = ((1,),)
    examples = (
        Example(("i64[2, 4]", "f64[2, 4, 3]"), {"rows": 6}, {0: (0, 6)}),
        Example(("i64[4]", "f64[4]"), {"rows": 2}, {0: (-1, 3)}),
    )

    @property
    def flops(self) -> float:
        """One addition for each element of the cotangent."""
        return float(self.operand_types[1].elements)

    def make_rule(self) -> Rule:
        """Contract the positions of the lookups."""
        indices, cotangent = (operand.shape for operand in self.operand_types)
        rows = " ".join(f"i{d}+" for d in range(len(indices)))
        row = _names("e", len(cotangent) - len(indices))
        notation = f"{rows}, {rows} {row} -> v {row}"
        return resolve(notation, [indices, cotangent], {"v": self.attributes["rows"]})

    def make_dtypes(self) -> tuple[str, ...]:
        """That of the cotangent."""
        require_integers(self, 0)
        return (self.operand_types[1].dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sort the rows by index, and add up each run of equal ones."""
        indices, cotangent = operands
        result = np.zeros(view.result_shapes[0], cotangent.dtype)
        local, inside = local_positions(indices.ravel(), view)
        kept = np.flatnonzero(inside)
        order = kept[np.argsort(local[kept], kind="stable")]
        if order.size:
            rows, starts = np.unique(local[order], return_index=True)
            terms = cotangent.reshape(indices.size, *result.shape[1:])[order]
            result[rows] = np.add.reduceat(terms, starts, axis=0)
        return result


@register
class OneHot(OperatorInfo):
    """For each index a vector of length ``depth`` that is one at the index and zero elsewhere."""

    name = "one_hot"
    notation = "... -> ... v"
    defaults: ClassVar = {"depth": 1, "dtype": "float32"}
    examples = (Example(("i64[2, 4]",), {"depth": 6, "dtype": "float64"}, {0: (-1, 7)}),)

    def make_rule(self) -> Rule:
        """Give the depth a factor of its own."""
        sizes = {"v": self.attributes["depth"]}
        return resolve(self.notation, [self.operand_types[0].shape], sizes)

    def make_dtypes(self) -> tuple[str, ...]:
        """The one asked for."""
        require_integers(self, 0)
        return (self.attributes["dtype"],)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compare with the positions of the own part."""
        positions = view.starts["v"] + np.arange(view.sizes["v"])
        return (operands[0][..., None] == positions).astype(numpy_dtype(self.attributes["dtype"]))


@register
class Pick(OperatorInfo):
    """Along the last dimension, the one element at an index."""

    name = "pick"
    notation = "... v+, ... -> ..."
    linear = ((0,),)
    examples = (
        Example(("f64[4, 6]", "i64[4]"), ranges={1: (-1, 7)}),
        Example(("f64[2, 4, 6]", "i64[2, 4]"), ranges={1: (0, 6)}),
    )

    @property
    def flops(self) -> float:
        """One operation for each element picked."""
        return float(self.result_types[0].elements)

    def make_dtypes(self) -> tuple[str, ...]:
        """That of the first operand."""
        require_integers(self, 1)
        return (self.operand_types[0].dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Pick; zero what lies elsewhere."""
        x, indices = operands
        local, inside = local_positions(indices, view)
        return np.take_along_axis(x, local[..., None], axis=-1)[..., 0] * inside

    def gradient(self, build: Builder, at: Linearization) -> Gradients:
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
        """Give the depth a factor of its own."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(self.notation, shapes, {"v": self.attributes["depth"]})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Put the cotangent where the index lies in the own part."""
        dy, indices = operands
        result = np.zeros(view.result_shapes[0], dy.dtype)
        local, inside = local_positions(indices, view)
        np.put_along_axis(result, local[..., None], (dy * inside)[..., None], axis=-1)
        return result
