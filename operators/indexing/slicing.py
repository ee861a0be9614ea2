"""Operators that slice and join tensors: slice, pad, split, concat, stack.

A sliced or joined dimension stays whole on a device; the others can be split.
"""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
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
from shardwright.operators.operands import check_whole
from shardwright.operators.rule import Rule, Shape, ShardView, dimension


def resized(before: Shape, after: Shape) -> Rule:
    """Return the rule under which dimensions that change their size are whole."""
    if len(before) != len(after):
        raise IRError(f"there are {len(after)} sizes for the {len(before)} dimensions of {before}")
    changed = [b != a for b, a in zip(before, after, strict=True)]
    left = [f"d{i}^" if c else f"d{i}" for i, c in enumerate(changed)]
    right = [f"n{i}^" if c else f"d{i}" for i, c in enumerate(changed)]
    sizes = {f"n{i}": n for i, n in enumerate(after) if changed[i]}
    return resolve(f"{' '.join(left)} -> {' '.join(right)}", [before], sizes)


@register
class Slice(OperatorInfo):
    """The elements ``begin``, ..., ``begin + (size - 1) stride`` of each dimension.

    A ``size`` of -1 takes all that follow; without ``strides`` every stride is one.
    """

    name = "slice"
    defaults: ClassVar = {"begin": (), "size": (), "strides": ()}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]",), {"begin": (0, 2), "size": (-1, 3)}),
        Example(("f64[4, 6]",), {"begin": (1, 0), "size": (2, 6)}),
        Example(("f64[4, 7]",), {"begin": (0, 1), "size": (4, 3), "strides": (1, 2)}),
    )

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of every dimension."""
        return self.attributes["strides"] or (1,) * self.operand_types[0].rank

    @property
    def size(self) -> Shape:
        """The shape of the result."""
        given = zip(
            self.operand_types[0].shape,
            self.attributes["begin"],
            self.attributes["size"],
            self.strides,
            strict=True,
        )
        return tuple(-(-(n - b) // t) if s == -1 else s for n, b, s, t in given)

    def make_rule(self) -> Rule:
        """Keep the sliced dimensions whole."""
        shape, begin = self.operand_types[0].shape, self.attributes["begin"]
        given = (begin, self.attributes["size"], self.strides)
        if any(len(item) != len(shape) for item in given):
            raise IRError(f"begin {begin} or size or strides do not fit the shape {shape}")
        for n, b, s, t in zip(shape, begin, self.size, self.strides, strict=True):
            if b < 0 or s < 1 or t < 1 or b + (s - 1) * t >= n:
                raise IRError(f"{s} elements from {b} by {t} do not fit a dimension of {n}")
        return resized(shape, self.size)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Slice; an unsliced dimension begins at the start of the local part."""
        bounds = zip(self.attributes["begin"], view.result_shapes[0], self.strides, strict=True)
        return operands[0][tuple(slice(b, b + (s - 1) * t + 1, t) for b, s, t in bounds)]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pad the cotangent with zeros, around and between."""
        before, shape = self.attributes["begin"], self.operand_types[0].shape
        ends = zip(shape, before, self.size, self.strides, strict=True)
        after = tuple(n - b - (s - 1) * t - 1 for n, b, s, t in ends)
        between = tuple(t - 1 for t in self.strides)
        return [build.emit("pad", at.cotangents[0], before=before, after=after, between=between)]


@register
class OwnSamples(OperatorInfo):
    """The first ``size`` samples of a whole input, of which every rank or pass takes its own."""

    name = "own_samples"
    defaults: ClassVar = {"size": 1}
    flops_per_point = 0.0
    examples = (Example(("i64[6, 3]",), {"size": 4}), Example(("i64[4]",), {"size": 4}))

    def make_rule(self) -> Rule:
        """Let the samples be split where the input is whole."""
        size, shape = self.attributes["size"], self.operand_types[0].shape
        if not shape or not 0 < size <= shape[0]:
            raise IRError(f"there are no {size} samples in an input of shape {shape}")
        rest = " ".join(f"e{d}" for d in range(1, len(shape)))
        return resolve(f"w^ {rest} -> b {rest}", [shape], {"b": size})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Slice from the first own sample."""
        return operands[0][view.starts["b"] : view.starts["b"] + view.sizes["b"]]


@register
class Pad(OperatorInfo):
    """Put ``value`` before, after, and between the elements of each dimension."""

    name = "pad"
    defaults: ClassVar = {"before": (), "after": (), "between": (), "value": 0.0}
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]",), {"before": (0, 1), "after": (0, 2)}),
        Example(("f64[4, 6]",), {"before": (2, 0), "after": (0, 0), "value": 1.5}),
        Example(("f64[4, 3]",), {"before": (0, 1), "after": (0, 0), "between": (0, 1)}),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The operand, if the value is zero."""
        return ((0,),) if self.attributes["value"] == 0 else ()

    @property
    def between(self) -> tuple[int, ...]:
        """Number of values between two elements of each dimension."""
        return self.attributes["between"] or (0,) * self.operand_types[0].rank

    def make_rule(self) -> Rule:
        """Keep the padded dimensions whole."""
        shape = self.operand_types[0].shape
        before, after = self.attributes["before"], self.attributes["after"]
        if any(len(item) != len(shape) for item in (before, after, self.between)):
            raise IRError(f"before {before} or after {after} do not fit the shape {shape}")
        if min((*before, *after, *self.between), default=0) < 0:
            raise IRError(f"before {before} and after {after} must not be negative")
        sizes = zip(before, shape, self.between, after, strict=True)
        return resized(shape, tuple(b + n + (n - 1) * t + a for b, n, t, a in sizes))

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the operand."""
        dtype = self.operand_types[0].dtype
        check_whole(self.name, "value", self.attributes["value"], dtype)
        return (dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Fill, then copy the elements to their places."""
        x = operands[0]
        result = np.full(view.result_shapes[0], self.attributes["value"], x.dtype)
        bounds = zip(self.attributes["before"], x.shape, self.between, strict=True)
        result[tuple(slice(b, b + (n - 1) * (t + 1) + 1, t + 1) for b, n, t in bounds)] = x
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Cut the elements out."""
        size, strides = self.operand_types[0].shape, tuple(t + 1 for t in self.between)
        begin = self.attributes["before"]
        return [build.emit("slice", at.cotangents[0], begin=begin, size=size, strides=strides)]


@register
class Split(OperatorInfo):
    """Cut a tensor into ``parts`` equal parts along the dimension ``axis``."""

    name = "split"
    defaults: ClassVar = {"axis": 0, "parts": 1}
    linear = ((0,),)
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]",), {"axis": 1, "parts": 3}),
        Example(("f64[4, 6]",), {"axis": 0, "parts": 2}),
    )

    @property
    def axis(self) -> int:
        """The dimension that is cut, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    @property
    def has_rows(self) -> bool:
        """Whether the rows of the parts, their last dimension, are whole: kernels read them so."""
        return self.axis < self.operand_types[0].rank - 1

    def make_rule(self) -> Rule:
        """Keep the sliced dimensions whole."""
        shape, parts = self.operand_types[0].shape, self.attributes["parts"]
        if parts < 1 or shape[self.axis] % parts:
            raise IRError(f"a dimension of size {shape[self.axis]} cannot be cut into {parts}")
        names = [f"d{i}" for i in range(len(shape))]
        left = [*names[: self.axis], "c^", *names[self.axis + 1 :]]
        right = " ".join([*names[: self.axis], "part^", *names[self.axis + 1 :]])
        notation = f"{' '.join(left)} -> {', '.join([right] * parts)}"
        return resolve(notation, [shape], {"part": shape[self.axis] // parts})

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Cut."""
        return tuple(np.split(operands[0], self.attributes["parts"], axis=self.axis))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Concatenate the cotangents."""
        return [build.emit("concat", *at.cotangents, axis=self.axis)]


@register
class Concat(OperatorInfo):
    """Concatenate tensors along the dimension ``axis``."""

    name = "concat"
    result_dtype = "common"
    defaults: ClassVar = {"axis": 0}
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]", "f64[2, 6]"), {"axis": 0}),
        Example(("f64[4, 2]", "f64[4, 2]", "f64[4, 3]"), {"axis": -1}),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The set of all operands."""
        return (tuple(range(len(self.operand_types))),)

    @property
    def axis(self) -> int:
        """The dimension that grows, counted from the front."""
        if not self.operand_types:
            raise IRError("there are no operands, expected at least one")
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    def make_rule(self) -> Rule:
        """Keep the padded dimensions whole."""
        axis, shapes = self.axis, [operand.shape for operand in self.operand_types]
        names = [f"d{i}" for i in range(len(shapes[0]))]
        tensors = [
            " ".join([*names[:axis], factor, *names[axis + 1 :]])
            for factor in (*(f"c{i}^" for i in range(len(shapes))), "all^")
        ]
        total = sum(shape[axis] for shape in shapes if len(shape) > axis)
        return resolve(f"{', '.join(tensors[:-1])} -> {tensors[-1]}", shapes, {"all": total})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Concatenate."""
        return np.concatenate(operands, axis=self.axis)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Cut the cotangent."""
        gradients, begin = [], [0] * self.operand_types[0].rank
        for operand in self.operand_types:
            start, size = tuple(begin), operand.shape
            gradients.append(build.emit("slice", at.cotangents[0], begin=start, size=size))
            begin[self.axis] += operand.shape[self.axis]
        return gradients


@register
class Stack(OperatorInfo):
    """Stack tensors of one shape along a new dimension ``axis``."""

    name = "stack"
    result_dtype = "common"
    defaults: ClassVar = {"axis": 0}
    flops_per_point = 0.0
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]")),
        Example(("f64[4, 6]",) * 3, {"axis": -1}),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The set of all operands."""
        return (tuple(range(len(self.operand_types))),)

    @property
    def axis(self) -> int:
        """The new dimension, counted from the front."""
        if not self.operand_types:
            raise IRError("there are no operands, expected at least one")
        return dimension(self.attributes["axis"], self.operand_types[0].rank + 1)

    def make_rule(self) -> Rule:
        """Keep the new dimension whole."""
        axis, shapes = self.axis, [operand.shape for operand in self.operand_types]
        names = [f"d{i}" for i in range(len(shapes[0]))]
        right = [*names[:axis], "all^", *names[axis:]]
        left = ", ".join([" ".join(names)] * len(shapes))
        return resolve(f"{left} -> {' '.join(right)}", shapes, {"all": len(shapes)})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Concatenate."""
        return np.stack(operands, axis=self.axis)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Cut the cotangent, and drop the dimension."""
        shape, gradients = at.cotangents[0].type.shape, []
        size = (*shape[: self.axis], 1, *shape[self.axis + 1 :])
        for i in range(len(at.operands)):
            begin = tuple(i if d == self.axis else 0 for d in range(len(shape)))
            cut = build.emit("slice", at.cotangents[0], begin=begin, size=size)
            gradients.append(build.emit("squeeze", cut, axis=self.axis))
        return gradients
