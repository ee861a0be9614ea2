"""Conversions of element types, constants, and operators that compute nothing."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.elementwise.functions import Unary
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
from shardwright.operators.rule import Rule, ShardView


@register
class Cast(Unary):
    """Change the element type to ``dtype``.

    Of the copy of a parameter in lower precision, ``reduce`` is the element type in which its
    gradient is reduced over ranks and accumulated, and ``accumulate`` the one in which only passes
    over micro-batches add it up; where they are empty, that of the copy.
    """

    name = "cast"
    result_dtype = "attribute"
    is_scaling = True
    defaults: ClassVar = {"dtype": "float32", "reduce": "", "accumulate": ""}
    examples = (
        Example(("f64[4, 6]",), {"dtype": "float64"}),
        Example(("f64[4, 6]",), {"dtype": "int32"}),
        Example(("i32[4, 6]",), {"dtype": "float32"}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Convert; a program that runs in another floating-point type stays in it."""
        before, after = self.operand_types[0].dtype, self.attributes["dtype"]
        widened = operands[0].dtype != numpy_dtype(before)
        if widened and TensorType(after, ()).is_float:
            return operands[0]
        return operands[0].astype(numpy_dtype(after))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Convert back; no gradient passes through integers."""
        operand, result = at.operands[0].type, at.results[0].type
        if not (operand.is_float and result.is_float):
            return [None]
        if at.cotangents[0].type.dtype == operand.dtype:
            return [at.cotangents[0]]
        return [build.emit("cast", at.cotangents[0], dtype=operand.dtype)]

    @property
    def cotangent_type(self) -> TensorType:
        """The type in which gradients of the result are added up."""
        (result,) = self.result_types
        return replace(result, dtype=self.attributes["reduce"] or result.dtype)


@register
class Convert(Unary):
    """Change the floating-point type of a gradient to ``dtype``; of partial sums, each by itself.

    Over the real numbers it changes nothing, and to a wider type no number. A `cast` converts sums.
    """

    name = "convert"
    is_scaling = True
    linear = ((0,),)
    defaults: ClassVar = {"dtype": "float32"}
    examples = (Example(("f64[4, 6]",), {"dtype": "float64"}),)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type that the attribute names.

        Raises
        ------
        IRError
            If a type is not a floating-point one.
        """
        types = self.operand_types[0], TensorType(self.attributes["dtype"], ())
        wrong = next((kind for kind in types if not kind.is_float), None)
        if wrong is not None:
            raise IRError(f"`convert` takes floating-point types, not {wrong.dtype}")
        return (self.attributes["dtype"],)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Convert; a program that runs in another floating-point type stays in it."""
        if operands[0].dtype != numpy_dtype(self.operand_types[0].dtype):
            return operands[0]
        return operands[0].astype(numpy_dtype(self.attributes["dtype"]))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Convert back."""
        return [build.emit("convert", at.cotangents[0], dtype=at.operands[0].type.dtype)]


@register
class Bitcast(Unary):
    """The same bits, read as the element type ``dtype``, which is as large."""

    name = "bitcast"
    defaults: ClassVar = {"dtype": "int32"}
    flops_per_point = 0.0
    examples = (
        Example(("i32[4, 6]",), {"dtype": "uint32"}),
        Example(("i64[4, 6]",), {"dtype": "float64"}),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type that the attribute names."""
        before, after = self.operand_types[0].dtype, self.attributes["dtype"]
        if numpy_dtype(before).itemsize != numpy_dtype(after).itemsize:
            raise IRError(
                f"the bits of {before} cannot be read as {after}, expected a type of the same size"
            )
        return (after,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Reinterpret; numbers held in another type are first rounded to the declared type."""
        own = np.asarray(operands[0], numpy_dtype(self.operand_types[0].dtype), order="C")
        return own.view(numpy_dtype(self.attributes["dtype"]))


@register
class Identity(Unary):
    """The operand."""

    name = "identity"
    linear = ((0,),)
    flops_per_point = 0.0
    is_view = True
    is_identity = True
    is_scaling = True

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return the operand."""
        return operands[0]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent."""
        return [at.cotangents[0]]


@register
class StopGradient(Unary):
    """The operand, as a constant."""

    name = "stop_gradient"
    linear = ((0,),)
    flops_per_point = 0.0
    is_view = True
    is_identity = True
    stops_gradient = True

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return the operand."""
        return operands[0]


@register
class WithGradientOf(OperatorInfo):
    """The first operand, with the gradient of the second: for a derivative that is given."""

    name = "with_gradient_of"
    of_reals = True
    flops_per_point = 0.0
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)
    has_own_gradient = True

    def make_rule(self) -> Rule:
        """Take two tensors of one shape."""
        shapes = [operand.shape for operand in self.operand_types]
        dims = " ".join(f"d{i}" for i in range(len(shapes[0])))
        return resolve(f"{dims}, {dims} -> {dims}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return the first operand."""
        return operands[0]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent to the second operand."""
        return [None, at.cotangents[0]]


@register
class ZerosLike(Unary):
    """Zeros in the shape of the operand."""

    name = "zeros_like"
    linear = ((0,),)
    flops_per_point = 0.0

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Make zeros."""
        return np.zeros_like(operands[0])


@register
class OnesLike(Unary):
    """Ones in the shape of the operand."""

    name = "ones_like"
    flops_per_point = 0.0

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Make ones."""
        return np.ones_like(operands[0])


@register
class Fill(OperatorInfo):
    """A tensor of ``shape`` and ``dtype`` whose elements are all ``value``, stored once."""

    name = "fill"
    defaults: ClassVar = {"shape": (), "dtype": "float32", "value": 0.0}
    is_view = True
    flops_per_point = 0.0
    examples = (Example((), {"shape": (4, 6), "dtype": "float64", "value": 2.5}),)

    def make_rule(self) -> Rule:
        """Assign a factor to every dimension."""
        sizes = {f"d{i}": size for i, size in enumerate(self.attributes["shape"])}
        return resolve(f"-> {' '.join(sizes)}", [], sizes)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type that the attribute names."""
        dtype = self.attributes["dtype"]
        check_whole(self.name, "value", self.attributes["value"], dtype)
        return (dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Broadcast the value."""
        dtype = numpy_dtype(self.attributes["dtype"])
        return np.broadcast_to(dtype.type(self.attributes["value"]), view.result_shapes[0])
