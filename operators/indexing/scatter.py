"""Operators that look up, or write, single elements by integer positions.

As in `gather`, a dimension that positions index may be split: every rank serves the positions in
its part, and leaves zero, or the old value, elsewhere.
"""

from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.indexing.gather import (
    kept_inside,
    local_positions,
    segment_sums,
)
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
from shardwright.operators.rule import Rule, Shape, ShardView, dimension

# Along one dimension


class AlongPositions(OperatorInfo):
    """An operator on tensors that agree in all dimensions but ``axis``, and positions along it."""

    positions = (1,)
    defaults: ClassVar = {"axis": 0}

    @property
    def axis(self) -> int:
        """The dimension, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    def named(self, factor: str) -> str:
        """Write the dimensions of a tensor, with `factor` along the axis."""
        names = [f"d{i}" for i in range(self.operand_types[0].rank)]
        names[self.axis] = factor
        return " ".join(names)

    @property
    def flops(self) -> float:
        """Count one operation for each position."""
        return float(self.operand_types[1].elements)


@register
class GatherElements(AlongPositions):
    """The elements at positions along ``axis``: ``[.., v, ..], [.., i, ..] -> [.., i, ..]``."""

    name = "gather_elements"
    linear = ((0,),)
    examples = (
        Example(("f64[6, 4]", "i64[2, 4]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 2]", "i64[2, 4, 2]"), {"axis": 1}, {1: (-1, 7)}),
    )

    def make_rule(self) -> Rule:
        """Contract the looked-up dimension."""
        notation = f"{self.named('v+')}, {self.named('i')} -> {self.named('i')}"
        return resolve(notation, [operand.shape for operand in self.operand_types])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Look up; zero for positions of other ranks."""
        x, positions = operands
        local, inside = local_positions(positions, view)
        return kept_inside(np.take_along_axis(x, local, self.axis), inside)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum the cotangents of equal positions."""
        (x, positions), dy = at.operands, at.cotangents[0]
        how: dict[str, Any] = {"axis": self.axis, "size": x.type.shape[self.axis]}
        return [build.emit("gather_elements_gradient", dy, positions, like=x, **how), None]


@register
class GatherElementsGradient(AlongPositions):
    """The transpose of `gather_elements`: sums of the elements for each position below ``size``."""

    name = "gather_elements_gradient"
    defaults: ClassVar = {"axis": 0, "size": 1}
    linear = ((0,),)
    examples = (
        Example(("f64[2, 4]", "i64[2, 4]"), {"size": 6}, {1: (0, 6)}),
        Example(("f64[2, 4, 2]", "i64[2, 4, 2]"), {"axis": 1, "size": 6}, {1: (-1, 7)}),
    )

    def make_rule(self) -> Rule:
        """Contract the positions."""
        notation = f"{self.named('i+')}, {self.named('i+')} -> {self.named('v')}"
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(notation, shapes, {"v": self.attributes["size"]})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add."""
        dy, positions = operands
        local, inside = local_positions(positions, view)
        result = np.zeros(view.result_shapes[0], dy.dtype)
        where = list(np.ogrid[tuple(slice(n) for n in dy.shape)])
        where[self.axis] = local
        np.add.at(result, tuple(where), kept_inside(dy, inside))
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Look up the cotangent, by linearity."""
        dx, positions = at.cotangents[0], at.operands[1]
        return [build.emit("gather_elements", dx, positions, axis=self.axis), None]


@register
class ScatterElements(AlongPositions):
    """The first operand with the third written at the positions of the second along ``axis``.

    Of equal positions the last counts; the gradient assumes distinct positions.
    """

    name = "scatter_elements"
    examples = (
        Example(("f64[6, 4]", "i64[1, 4]", "f64[1, 4]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 2]", "i64[2, 1, 2]", "f64[2, 1, 2]"), {"axis": 1}, {1: (-1, 7)}),
        Example(("i64[6, 2]", "i64[3, 2]", "i64[3, 2]")),
    )
    linear = ((0, 2),)

    def make_rule(self) -> Rule:
        """Contract nothing: every rank writes the updates in its part, in order."""
        left, written = self.named("v"), self.named("i^")
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{left}, {written}, {written} -> {left}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Copy and write."""
        x, positions, updates = operands
        local, inside = local_positions(positions, view)
        result = x.copy()
        where = np.broadcast_arrays(*np.ogrid[tuple(slice(n) for n in positions.shape)])
        index = [dim[inside] for dim in where]
        index[self.axis] = local[inside]
        result[tuple(index)] = updates[inside]
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Zero the overwritten elements; look up the cotangents of the updates."""
        (_, positions, updates), dy = at.operands, at.cotangents[0]
        nothing = _zeros(build, updates)
        axis = self.axis
        dx = build.emit("scatter_elements", dy, positions, nothing, axis=axis)
        return [dx, None, build.emit("gather_elements", dy, positions, axis=axis)]


def _zeros(build: Emitter, like: Value) -> Value:
    """Emit zeros with the split of a value, without partial axes."""
    return build.emit("fill", like=like, shape=like.type.shape, dtype=like.type.dtype, value=0.0)


# By tuples of positions


class ByTuples(OperatorInfo):
    """The base of operators that index the first dimensions of a tensor by tuples of positions.

    Positions are ``[i..., k]``: the last dimension holds a position for each of the first ``k``
    dimensions ``v`` of the tensor; ``e`` are its other dimensions.
    """

    @staticmethod
    def names(letter: str, count: int, mark: str = "") -> str:
        """Return a number of dimensions in the notation of rules."""
        return " ".join(f"{letter}{d}{mark}" for d in range(count))

    def of_gradient(self) -> tuple[str, str, str]:
        """Return the dimensions of a tensor, of positions in it, and of slices at them.

        They are those of a gradient, whose operands are a cotangent and these three.
        """
        _, x, positions, _ = (operand.shape for operand in self.operand_types)
        count = tuple_size(x, positions)
        places, rest = self.names("i", len(positions) - 1, "^"), self.names("e", len(x) - count)
        return f"{self.names('v', count, '+')} {rest}", f"{places} k^", f"{places} {rest}"

    @property
    def flops(self) -> float:
        """Count one operation for each element read or written."""
        return float(min(t.elements for t in (*self.operand_types, *self.result_types)))

    @staticmethod
    def local(positions: Array, view: ShardView) -> tuple[tuple[Array, ...], Array]:
        """Return positions in the local part along each dimension, clipped; and which are local."""
        inside: Array = np.ones(positions.shape[:-1], bool)
        index = []
        for d in range(positions.shape[-1]):
            place = positions[..., d] - view.starts[f"v{d}"]
            size = view.sizes[f"v{d}"]
            inside = inside & (place >= 0) & (place < size)
            index.append(np.clip(place, 0, size - 1))
        return tuple(index), inside


@register
class GatherNd(ByTuples):
    """Slices at tuples of positions: ``[v..., e...], [i..., k] -> [i..., e...]``."""

    name = "gather_nd"
    positions = (1,)
    linear = ((0,),)
    examples = (
        Example(("f64[6, 4]", "i64[2, 4, 1]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 2]", "i64[4, 2]"), ranges={1: (-1, 3)}),
    )

    def make_rule(self) -> Rule:
        """Contract the looked-up dimensions."""
        x, positions = (operand.shape for operand in self.operand_types)
        count = tuple_size(x, positions)
        places, rest = self.names("i", len(positions) - 1), self.names("e", len(x) - count)
        notation = f"{self.names('v', count, '+')} {rest}, {places} k^ -> {places} {rest}"
        return resolve(notation, [x, positions])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Look up; zero for positions of other ranks."""
        x, positions = operands
        index, inside = self.local(positions, view)
        deep = inside.reshape((*inside.shape, *(1,) * (x.ndim - len(index))))
        return kept_inside(np.asarray(x[index]), deep)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum the cotangents of equal positions."""
        (x, positions), dy = at.operands, at.cotangents[0]
        return [build.emit("scatter_nd", positions, dy, like=x, shape=x.type.shape), None]


def tuple_size(shape: Shape, positions: Shape) -> int:
    """Return the number of dimensions of a tensor that a tuple indexes."""
    if not positions or positions[-1] > len(shape):
        raise IRError(f"positions {positions} do not index a tensor of shape {shape}")
    return positions[-1]


@register
class ScatterNd(ByTuples):
    """The transpose of `gather_nd`: at each position of a ``shape`` the sum of its slices."""

    name = "scatter_nd"
    result_dtype = 1
    positions = (0,)
    defaults: ClassVar = {"shape": ()}
    linear = ((1,),)
    examples = (
        Example(("i64[2, 4, 1]", "f64[2, 4, 3]"), {"shape": (6, 3)}, {0: (0, 6)}),
        Example(("i64[4, 2]", "f64[4, 2]"), {"shape": (2, 6, 2)}, {0: (-1, 3)}),
    )

    def make_rule(self) -> Rule:
        """Contract the positions."""
        positions, updates = (operand.shape for operand in self.operand_types)
        shape = self.attributes["shape"]
        count = tuple_size(shape, positions)
        places, rest = self.names("i", len(positions) - 1, "+"), len(shape) - count
        around = self.names("e", rest)
        notation = f"{places} k^, {places} {around} -> {self.names('v', count)} {around}"
        sizes = {f"v{d}": n for d, n in enumerate(shape[:count])}
        return resolve(notation, [positions, updates], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up the slices of equal positions."""
        positions, updates = operands
        shape = view.result_shapes[0]
        count = positions.shape[-1]
        index, inside = self.local(positions, view)
        linear = np.ravel_multi_index(index, shape[:count]).ravel()
        terms = updates.reshape(linear.size, *shape[count:])
        places = int(np.prod(shape[:count]))
        return segment_sums(terms, linear, inside.ravel(), places).reshape(shape)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Look up the cotangent, by linearity."""
        return [None, build.emit("gather_nd", at.cotangents[0], at.operands[0])]


class IntoTensor(ByTuples):
    """The base of operators that write slices into a tensor at tuples of positions."""

    positions = (1,)

    @property
    def mark(self) -> str:
        """Contract nothing: every rank writes the updates in its part, in order."""
        return "^"

    def make_rule(self) -> Rule:
        """Return the rule; the slices are split as `mark` says."""
        x, positions, _ = shapes = [operand.shape for operand in self.operand_types]
        count = tuple_size(x, positions)
        places = self.names("i", len(positions) - 1, self.mark)
        rest = self.names("e", len(x) - count)
        tensor = f"{self.names('v', count)} {rest}"
        return resolve(f"{tensor}, {places} k^, {places} {rest} -> {tensor}", shapes)


@register
class ScatterNdUpdate(IntoTensor):
    """The first operand with slices written at tuples of positions.

    Of equal positions the last counts; the gradient assumes distinct positions.
    """

    name = "scatter_nd_update"
    linear = ((0, 2),)
    examples = (
        Example(("f64[6, 4]", "i64[1, 1]", "f64[1, 4]"), ranges={1: (0, 6)}),
        Example(("f64[2, 6, 2]", "i64[1, 2]", "f64[1, 2]"), ranges={1: (0, 2)}),
        Example(("i64[6]", "i64[4, 1]", "i64[4]"), ranges={1: (0, 3)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Copy and write."""
        x, positions, updates = operands
        index, inside = self.local(positions, view)
        result = x.copy()
        result[tuple(place[inside] for place in index)] = updates[inside]
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Zero the overwritten elements; look up the cotangents of the updates."""
        (_, positions, updates), dy = at.operands, at.cotangents[0]
        nothing = _zeros(build, updates)
        dx = build.emit("scatter_nd_update", dy, positions, nothing)
        return [dx, None, build.emit("gather_nd", dy, positions)]


# Segments


@register
class UnsortedSegmentSum(OperatorInfo):
    """The sum of the rows that the second operand assigns to each of ``segments`` segments."""

    name = "unsorted_segment_sum"
    positions = (1,)
    defaults: ClassVar = {"segments": 1}
    linear = ((0,),)
    examples = (
        Example(("f64[2, 4, 3]", "i64[2, 4]"), {"segments": 6}, {1: (-1, 7)}),
        Example(("f64[4]", "i64[4]"), {"segments": 2}, {1: (0, 2)}),
    )

    @property
    def flops(self) -> float:
        """Count one addition for each element."""
        return float(self.operand_types[0].elements)

    def make_rule(self) -> Rule:
        """Contract the rows."""
        x, segments = shapes = [operand.shape for operand in self.operand_types]
        rows = " ".join(f"i{d}+" for d in range(len(segments)))
        row = " ".join(f"e{d}" for d in range(len(x) - len(segments)))
        return resolve(
            f"{rows} {row}, {rows} -> v {row}", shapes, {"v": self.attributes["segments"]}
        )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up the rows of equal segments."""
        x, segments = operands
        local, inside = local_positions(segments.ravel(), view)
        terms = x.reshape(segments.size, *view.result_shapes[0][1:])
        return segment_sums(terms, local, inside, view.sizes["v"])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Look up the cotangent of the segment of each row."""
        return [build.emit("gather", at.cotangents[0], at.operands[1]), None]


def emit_scatter_elements_add(
    build: Emitter, x: Value, positions: Value, updates: Value, axis: int = 0
) -> Value:
    """Emit the sum of a tensor and of updates at positions along ``axis``; equal ones add up."""
    axis = dimension(axis, x.type.rank)
    how: dict[str, Any] = {"axis": axis, "size": x.type.shape[axis]}
    added = build.emit("gather_elements_gradient", updates, positions, like=x, **how)
    return build.emit("add", x, added)


def emit_scatter_nd_add(build: Emitter, x: Value, positions: Value, updates: Value) -> Value:
    """Emit the sum of a tensor and of slices at tuples of positions; equal ones add up."""
    added = build.emit("scatter_nd", positions, updates, like=x, shape=x.type.shape)
    return build.emit("add", x, added)
