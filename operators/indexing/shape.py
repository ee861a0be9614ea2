"""Operators that regroup or repeat the elements of one tensor: reshape, transpose, tile."""

from math import gcd, prod
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.broadcasting import unbroadcast
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


def common_refinement(before: Shape, after: Shape) -> Rule:
    """Return the rule of a reshape between two shapes with equally many elements.

    Dimensions are divided into factors from the left. While both tensors are at the same position,
    the greatest common divisor of the rest of the two dimensions is a factor of both. Where it is
    one, the tensor that is behind gives whole factors until both are at the same position again.

    Examples
    --------
    >>> rule = common_refinement((4, 6), (2, 2, 6))
    >>> rule.operands, rule.results
    (((('f0', 'f1'), ('f2',)),), ((('f0',), ('f1',), ('f2',)),))
    """
    factors: tuple[list[list[str]], ...] = ([[] for _ in before], [[] for _ in after])
    rest = tuple([[i, n] for i, n in enumerate(shape) if n > 1] for shape in (before, after))
    position = [1, 1]
    sizes: dict[str, int] = {}
    kinds: dict[str, str] = {}

    def take(sides: tuple[int, ...], size: int, kind: str) -> None:
        name = f"f{len(sizes)}"
        sizes[name], kinds[name] = size, kind
        for side in sides:
            head = rest[side][0]
            factors[side][head[0]].append(name)
            head[1] //= size
            position[side] *= size
            if head[1] == 1:
                rest[side].pop(0)

    while rest[0] or rest[1]:
        level = position[0] == position[1]
        shared = gcd(rest[0][0][1], rest[1][0][1]) if level else 1
        if shared > 1:
            take((0, 1), shared, "parallel")
        else:
            behind = int(position[1] < position[0])
            take((behind,), rest[behind][0][1], "whole")
    operand, result = (tuple(map(tuple, dims)) for dims in factors)
    return Rule((operand,), (result,), sizes, kinds)


class Regroup(OperatorInfo):
    """The base of operators that keep the elements and their order, and change the shape."""

    linear = ((0,),)
    flops_per_point = 0.0
    is_view = True

    @property
    def target(self) -> Shape:
        """The shape of the result."""
        raise NotImplementedError

    def make_rule(self) -> Rule:
        """Refine both shapes."""
        before, after = self.operand_types[0].shape, self.target
        if prod(before) != prod(after):
            raise IRError(
                f"the shape {before} has {prod(before)} elements, {after} has {prod(after)}"
            )
        return common_refinement(before, after)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Regroup."""
        return operands[0].reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Regroup back."""
        return [build.emit("reshape", at.cotangents[0], shape=at.operands[0].type.shape)]


@register
class Reshape(Regroup):
    """Change the shape to ``shape``; one size may be -1, the quotient of the others."""

    name = "reshape"
    defaults: ClassVar = {"shape": ()}
    examples = (
        Example(("f64[4, 6]",), {"shape": (2, 2, 6)}),
        Example(("f64[4, 6]",), {"shape": (-1,)}),
        Example(("f64[2, 4, 3]",), {"shape": (8, 1, -1)}),
        Example(("f64[4, 6]",), {"shape": (6, 4)}),
        Example(("f64[2, 3, 4]",), {"shape": (3, 2, 4)}),
    )

    @property
    def target(self) -> Shape:
        """The shape of the result."""
        shape: Shape = self.attributes["shape"]
        if -1 not in shape:
            return shape
        known = -prod(shape)
        if known < 1 or shape.count(-1) > 1 or self.operand_types[0].elements % known:
            raise IRError(
                f"{self.operand_types[0].elements} elements do not fit the shape {shape}",
                hint="one size may be -1, the others must divide the number of elements",
            )
        return tuple(self.operand_types[0].elements // known if n == -1 else n for n in shape)


@register
class Flatten(Regroup):
    """Join all dimensions from ``start`` on."""

    name = "flatten"
    defaults: ClassVar = {"start": 1}
    examples = (Example(("f64[4, 2, 3]",)), Example(("f64[4, 2, 3]",), {"start": 0}))

    @property
    def target(self) -> Shape:
        """The shape of the result."""
        shape = self.operand_types[0].shape
        start = dimension(self.attributes["start"], len(shape) + 1)
        return (*shape[:start], prod(shape[start:]))


@register
class ExpandDims(Regroup):
    """Insert a dimension of size one, which is ``axis`` in the result."""

    name = "expand_dims"
    defaults: ClassVar = {"axis": 0}
    examples = (Example(("f64[4, 6]",)), Example(("f64[4, 6]",), {"axis": -1}))

    @property
    def target(self) -> Shape:
        """The shape of the result."""
        shape = self.operand_types[0].shape
        axis = dimension(self.attributes["axis"], len(shape) + 1)
        return (*shape[:axis], 1, *shape[axis:])


@register
class Squeeze(Regroup):
    """Drop the dimensions ``axis``, of size one (None: all such)."""

    name = "squeeze"
    defaults: ClassVar = {"axis": None}
    examples = (
        Example(("f64[4, 1, 6, 1]",)),
        Example(("f64[4, 1, 6, 1]",), {"axis": (1,)}),
        Example(("f64[4, 1, 6, 1]",), {"axis": -1}),
    )

    @property
    def target(self) -> Shape:
        """The shape of the result."""
        shape, axis = self.operand_types[0].shape, self.attributes["axis"]
        if axis is None:
            return tuple(n for n in shape if n != 1)
        axes = (axis,) if isinstance(axis, int) else axis
        dropped = {dimension(a, len(shape)) for a in axes}
        for a in dropped:
            if shape[a] != 1:
                raise IRError(f"dimension {a} has size {shape[a]}, expected 1 to drop it")
        return tuple(n for i, n in enumerate(shape) if i not in dropped)


@register
class Transpose(OperatorInfo):
    """Reorder the dimensions: dimension i of the result is ``permutation[i]`` of the operand.

    Without a permutation the order is reversed.
    """

    name = "transpose"
    defaults: ClassVar = {"permutation": ()}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[4, 2, 6]",), {"permutation": (2, 0, 1)}),
    )

    @property
    def permutation(self) -> tuple[int, ...]:
        """The order of the operand's dimensions in the result."""
        rank = self.operand_types[0].rank
        return self.attributes["permutation"] or tuple(reversed(range(rank)))

    def make_rule(self) -> Rule:
        """Reorder the factors."""
        rank = self.operand_types[0].rank
        if sorted(self.permutation) != list(range(rank)):
            raise IRError(
                f"{self.permutation} is not an order of the {rank} dimensions of the operand"
            )
        left = " ".join(f"d{i}" for i in range(rank))
        right = " ".join(f"d{i}" for i in self.permutation)
        return resolve(f"{left} -> {right}", [self.operand_types[0].shape])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Reorder."""
        return np.transpose(operands[0], self.permutation)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Restore the order."""
        back = tuple(int(i) for i in np.argsort(self.permutation))
        return [build.emit("transpose", at.cotangents[0], permutation=back)]


@register
class BroadcastTo(OperatorInfo):
    """Repeat a tensor to the ``shape``, by the rules of broadcasting."""

    name = "broadcast_to"
    defaults: ClassVar = {"shape": ()}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[6]",), {"shape": (4, 6)}),
        Example(("f64[4, 1]",), {"shape": (2, 4, 6)}),
    )

    def make_rule(self) -> Rule:
        """Assign new factors to new and stretched dimensions."""
        shape, target = self.operand_types[0].shape, self.attributes["shape"]
        extra = len(target) - len(shape)
        if extra < 0 or any(n not in (1, t) for n, t in zip(shape, target[extra:], strict=True)):
            raise IRError(f"the shape {shape} cannot be broadcast to {target}")
        sizes = {f"d{i}": size for i, size in enumerate(target)}
        names = list(sizes)[extra:]
        left = ["1" if n == 1 else name for n, name in zip(shape, names, strict=True)]
        return resolve(f"{' '.join(left)} -> {' '.join(sizes)}", [shape], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Repeat."""
        return np.broadcast_to(operands[0], view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum over the repeated dimensions."""
        return [unbroadcast(build, at.cotangents[0], at.operands[0])]


@register
class Tile(OperatorInfo):
    """Concatenate ``multiples`` copies of a tensor along each dimension."""

    name = "tile"
    defaults: ClassVar = {"multiples": ()}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 3]",), {"multiples": (1, 2)}),
        Example(("f64[4, 2]",), {"multiples": (2, 6)}),
    )

    def make_rule(self) -> Rule:
        """Make the number of copies the major factor of each dimension."""
        shape, multiples = self.operand_types[0].shape, self.attributes["multiples"]
        if len(multiples) != len(shape):
            raise IRError(
                f"there are {len(multiples)} multiples for the {len(shape)} dimensions of {shape}"
            )
        sizes = {f"m{i}": count for i, count in enumerate(multiples)}
        left = " ".join(f"d{i}" for i in range(len(shape)))
        right = " ".join(f"(m{i} d{i})" for i in range(len(shape)))
        return resolve(f"{left} -> {right}", [shape], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Repeat for the local part of the result."""
        return np.tile(operands[0], [view.sizes[f"m{i}"] for i in range(operands[0].ndim)])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum over the copies."""
        shape, multiples = self.operand_types[0].shape, self.attributes["multiples"]
        pairs = tuple(n for pair in zip(multiples, shape, strict=True) for n in pair)
        copies = build.emit("reshape", at.cotangents[0], shape=pairs)
        return [build.emit("reduce_sum", copies, axis=tuple(range(0, len(pairs), 2)))]
