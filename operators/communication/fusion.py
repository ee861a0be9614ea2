"""Flat buffers: many tensors in one, so that one collective moves them all.

A buffer concatenates the *slices* of a rank, whatever their layouts. As a tensor it is split over
every axis that splits one of its parts; it holds a copy of the other parts for each rank along the
axis.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, Strategy, joined_stage
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

Shape = tuple[int, ...]


def buffer_layout(parts: Sequence[Layout], mesh: Mesh) -> Layout:
    """Return the layout of the buffer of parts with these layouts and the same partial axes."""
    axes = mesh.ordered(axis for part in parts for axis in part.split_axes)
    return Layout((axes,), stage=joined_stage(parts)).with_partial(parts[0].partial)


def buffer_length(shapes: Sequence[Shape], parts: Sequence[Layout], mesh: Mesh) -> int:
    """Return the number of elements of the buffer as a tensor.

    Raises
    ------
    StrategyError
        If slices of a part differ in size: a buffer has one length on all ranks.
    """
    for shape, part in zip(shapes, parts, strict=True):
        if not part.is_even(shape, mesh):
            raise StrategyError(
                f"a part of shape {shape} is split {'x'.join(map(str, part.counts(mesh)))} ways, "
                f"slices in a buffer must be equally large"
            )
    local = sum(
        prod(part.slice_shape(shape, mesh)) for shape, part in zip(shapes, parts, strict=True)
    )
    return local * mesh.extent(buffer_layout(parts, mesh).split_axes)


def _names(part: int, shape: Shape) -> list[str]:
    return [f"p{part}d{d}" for d in range(len(shape))]


def _notation(shapes: Sequence[Shape]) -> str:
    return ", ".join(" ".join(f"{n}^" for n in _names(i, shape)) for i, shape in enumerate(shapes))


def _strategy(shapes: Sequence[Shape], parts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """Return the split of the parts and of the buffer; a factor alone does not determine it."""
    split = {
        name: axes
        for i, (shape, part) in enumerate(zip(shapes, parts, strict=True))
        for name, axes in zip(_names(i, shape), part.splits, strict=True)
    }
    return Strategy.of({**split, "n": buffer_layout(parts, mesh).splits[0]})


@register
class Pack(OperatorInfo):
    """Concatenate slices into a buffer of ``length`` elements, counted over all ranks.

    Without a split it is the number of elements, and may be omitted.
    """

    name = "pack"
    defaults: ClassVar = {"length": 0}
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 6]", "f64[]", "f64[3]")),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The set of all operands."""
        return (tuple(range(len(self.operand_types))),)

    def make_rule(self) -> Rule:
        """Keep every dimension whole: `infer_layouts` decides the split."""
        dtypes = sorted({operand.dtype for operand in self.operand_types})
        if len(dtypes) != 1:
            raise IRError(f"the element types are {dtypes}, a buffer has one")
        shapes = [operand.shape for operand in self.operand_types]
        length = self.attributes["length"] or sum(
            operand.elements for operand in self.operand_types
        )
        return resolve(f"{_notation(shapes)} -> n^", shapes, {"n": length})

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Accept any slices that are partial over the same axes."""
        self._carried(operands)
        shapes = [operand.shape for operand in self.operand_types]
        length, expected = self.rule.sizes["n"], buffer_length(shapes, operands, mesh)
        if length != expected:
            raise StrategyError(f"pack: `length` is {length}, the slices make up {expected}")
        return _strategy(shapes, operands, mesh), (buffer_layout(operands, mesh),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Flatten and concatenate."""
        return np.concatenate([operand.reshape(-1) for operand in operands])


@register
class Unpack(OperatorInfo):
    """Return the slices in a buffer, of tensors with ``shapes`` and ``splits``.

    ``splits`` has the axes of every dimension of every tensor; by default nothing is split.
    """

    name = "unpack"
    defaults: ClassVar = {"shapes": (), "splits": ()}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (Example(("f64[28]",), {"shapes": ((4, 6), (), (3,))}),)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Whole shapes of the results."""
        return tuple(self.attributes["shapes"])

    def make_rule(self) -> Rule:
        """Keep every dimension whole: `infer_layouts` decides the split."""
        sizes = {
            name: size
            for i, shape in enumerate(self.shapes)
            for name, size in zip(_names(i, shape), shape, strict=True)
        }
        rule = resolve(f"n^ -> {_notation(self.shapes)}", [self.operand_types[0].shape], sizes)
        return rule

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Return the layouts that ``splits`` gives, partial like the buffer."""
        self._carried(operands)
        splits: tuple[Any, ...] = self.attributes["splits"]
        parts = [Layout(s) for s in splits] or [Layout.replicated(len(s)) for s in self.shapes]
        length, expected = self.rule.sizes["n"], buffer_length(self.shapes, parts, mesh)
        if length != expected:
            raise StrategyError(f"unpack: the buffer has {length} elements, expected {expected}")
        if operands[0].splits != (wanted := buffer_layout(parts, mesh).splits):
            raise StrategyError(
                f"unpack: the buffer is split over {list(operands[0].splits[0])}, its parts are "
                f"split over {list(wanted[0])}"
            )
        held = operands[0]
        left = tuple(part.with_partial(held.partial).at(held.stage) for part in parts)
        return _strategy(self.shapes, parts, mesh), left

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Cut and shape."""
        ends = list(accumulate(prod(shape) for shape in view.result_shapes))
        parts = np.split(operands[0], ends[:-1])
        return tuple(p.reshape(s) for p, s in zip(parts, view.result_shapes, strict=True))
