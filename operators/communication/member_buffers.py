"""Buffers in the order of the members of a group: many slices are gathered or dealt at once.

A buffer that is split over ``axes`` last holds on each rank the slices of its parts, one after the
other. Gathered over these axes it holds those of the first member, then those of the second; this
is also what a reduce-scatter deals out. `unpack_gathered` joins the slices of each part along its
dimension, and `pack_dealt` cuts them.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.fusion import (
    Pack,
    Shape,
    Unpack,
    buffer_layout,
    buffer_length,
)
from shardwright.operators.info import Array, Example, register
from shardwright.operators.rule import ShardView


def wide_layout(parts: Sequence[Layout], axes: tuple[str, ...], mesh: Mesh) -> Layout:
    """Return the layout of the buffer of some slices, gathered over axes.

    Raises
    ------
    StrategyError
        If the axes are not the last that split the buffer.
    """
    narrow = buffer_layout(parts, mesh)
    held = narrow.splits[0]
    if not axes or held[-len(axes) :] != axes:
        raise StrategyError(
            f"a buffer is split over {list(held)}, it is gathered over {list(axes)}, expected "
            f"its last axes"
        )
    return Layout((held[: -len(axes)],), stage=narrow.stage)


def _part_layouts(splits: Sequence[Any]) -> list[Layout]:
    return [Layout(tuple(tuple(axes) for axes in split)) for split in splits]


def _wide(
    parts: Sequence[Layout], dimensions: Sequence[int], axes: tuple[str, ...]
) -> list[Layout]:
    """Return the layouts of parts that are joined, each along its dimension."""
    return [_joined(part, d, axes) for part, d in zip(parts, dimensions, strict=True)]


def _joined(part: Layout, dimension: int, axes: tuple[str, ...]) -> Layout:
    """Return the layout of a part that is joined along a dimension."""
    held = part.splits[dimension]
    if held[-len(axes) :] != axes:
        raise StrategyError(
            f"a part is split over {list(held)} along dimension {dimension}, expected the last "
            f"axes {list(axes)}"
        )
    splits = [*part.splits]
    splits[dimension] = held[: -len(axes)]
    return Layout(tuple(splits))


def _strategy(wide: Sequence[Layout], buffer: Layout) -> Strategy:
    split = {f"p{i}d{d}": axes for i, part in enumerate(wide) for d, axes in enumerate(part.splits)}
    return Strategy.of({**split, "n": buffer.splits[0]})


def _slice_shapes(shapes: Sequence[Shape], dimensions: Sequence[int], count: int) -> list[Shape]:
    """Return the shapes of the slices of one member."""
    return [
        (*shape[:d], shape[d] // count, *shape[d + 1 :])
        for shape, d in zip(shapes, dimensions, strict=True)
    ]


@register
class UnpackGathered(Unpack):
    """Return whole tensors from a buffer that was gathered over ``axes``.

    Each of the ``count`` members has given its slices, of tensors with ``shapes`` and ``splits``;
    the slices of a tensor are joined along its one of ``dimensions``.
    """

    name = "unpack_gathered"
    defaults: ClassVar = {"shapes": (), "splits": (), "axes": (), "dimensions": (), "count": 1}
    examples = (Example(("f64[28]",), {"shapes": ((4, 6), (4,)), "dimensions": (1, 0)}),)

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Return the layouts of the slices, without the gathered axes."""
        if not self.attributes["splits"]:
            return super().infer_layouts(operands, mesh, results)
        self._carried(operands)
        axes, (held,) = tuple(self.attributes["axes"]), operands
        parts = _part_layouts(self.attributes["splits"])
        _check_count(self.attributes["count"], axes, mesh)
        length, expected = self.rule.sizes["n"], buffer_length(self.shapes, parts, mesh)
        wanted = wide_layout(parts, axes, mesh)
        if length != expected or held.splits != wanted.splits:
            raise StrategyError(
                f"unpack_gathered: the buffer has {length} elements split over "
                f"{list(held.splits[0])}, expected {expected} over {list(wanted.splits[0])}"
            )
        wide = [
            layout.at(held.stage) for layout in _wide(parts, self.attributes["dimensions"], axes)
        ]
        return _strategy(wide, wanted), tuple(wide)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Cut the slices of each member, and join those of each part."""
        count, dimensions = self.attributes["count"], self.attributes["dimensions"]
        shapes = _slice_shapes(view.result_shapes, dimensions, count)
        ends = list(accumulate(map(prod, shapes)))
        members = [np.split(run, ends[:-1]) for run in np.split(operands[0], count)]
        columns = zip(*members, strict=True)
        return tuple(
            np.concatenate([piece.reshape(shape) for piece in column], axis=d)
            for column, shape, d in zip(columns, shapes, dimensions, strict=True)
        )


@register
class PackDealt(Pack):
    """Concatenate tensors into a buffer that a reduce-scatter over ``axes`` deals out.

    Each of the ``count`` members gets a slice of every tensor, cut along its one of ``dimensions``;
    the slices then have ``splits``.
    """

    name = "pack_dealt"
    defaults: ClassVar = {"length": 0, "splits": (), "axes": (), "dimensions": (), "count": 1}
    examples = (
        Example(("f64[4, 6]", "f64[4]"), {"dimensions": (1, 0)}),
        Example(("f64[4, 6]",), {"dimensions": (0,)}),
    )

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Accept tensors that are whole over the axes, and partial over the same axes."""
        if not self.attributes["splits"]:
            return super().infer_layouts(operands, mesh, results)
        self._carried(operands)
        axes = tuple(self.attributes["axes"])
        parts = _part_layouts(self.attributes["splits"])
        _check_count(self.attributes["count"], axes, mesh)
        wide = _wide(parts, self.attributes["dimensions"], axes)
        shapes = [operand.shape for operand in self.operand_types]
        length, expected = self.rule.sizes["n"], buffer_length(shapes, parts, mesh)
        if [o.splits for o in operands] != [w.splits for w in wide] or length != expected:
            raise StrategyError(
                f"pack_dealt: the operands are {', '.join(map(str, operands))} for {length} "
                f"elements, expected {', '.join(map(str, wide))} for {expected}"
            )
        buffer = wide_layout(parts, axes, mesh)
        left = buffer.with_partial(operands[0].partial).at(operands[0].stage)
        return _strategy(wide, buffer), (left,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Cut every tensor, and concatenate the slices of each member."""
        count = self.attributes["count"]
        dimensions = self.attributes["dimensions"]
        cut = [np.split(x, count, axis=d) for x, d in zip(operands, dimensions, strict=True)]
        members = zip(*cut, strict=True)
        return np.concatenate([piece.reshape(-1) for member in members for piece in member])


def _check_count(count: int, axes: tuple[str, ...], mesh: Mesh) -> None:
    if count != mesh.extent(axes):
        raise StrategyError(
            f"`count` is {count}, the axes {list(axes)} have {mesh.extent(axes)} ranks"
        )
