"""What the converters of all frontends share: emitting operators in the types that they need."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.items import Constant, Item
from shardwright.ir.graph import Node, Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.builder import Builder

Operand = Value | int | float

# Functions of one tensor that all systems call as we do.
FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "sin"),
    *("sinh", "sqrt", "tan", "tanh"),
)
# Comparisons, by the names that PyTorch and JAX have for them.
COMPARISONS = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
}


class Emits(ABC):
    """What emits operators, in every frontend.

    Attributes
    ----------
    emission : Emission
        The graph that grows.
    """

    emission: Emission

    @abstractmethod
    def constant(self, data: Any, dtype: str) -> Value:
        """Return an array as a value."""

    @abstractmethod
    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a value in another shape."""

    @property
    def build(self) -> Builder:
        """The builder of the graph."""
        return self.emission.build

    def emit(self, operator: str, *operands: Value, **attributes: Any) -> Value:
        """Emit an operator of our IR."""
        return self.build.emit(operator, *operands, **attributes)

    def emit_all(self, operator: str, *operands: Value, **attributes: Any) -> tuple[Value, ...]:
        """Emit an operator of our IR with several results."""
        return self.build.emit_all(operator, *operands, **attributes)

    def like(self, data: Any, value: Value) -> Value:
        """Return an array of the element type of a value."""
        return self.constant(data, value.type.dtype)

    def fill(self, number: float, dtype: str, shape: Sequence[int] = ()) -> Value:
        """Return a tensor whose elements are all one number."""
        plain = bool(number) if dtype == "bool" else number
        return self.emit("fill", shape=tuple(shape), dtype=dtype, value=plain)

    def operand(self, operand: Operand, dtype: str) -> Value:
        """Return a tensor or a number as a value of an element type."""
        if isinstance(operand, Value):
            return self.cast(operand, dtype)
        is_float = TensorType(dtype, ()).is_float
        return self.fill(float(operand) if is_float else int(operand), dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """Return a value in another element type."""
        return value if value.type.dtype == dtype else self.emit("cast", value, dtype=dtype)

    def scaled(self, x: Value, factor: float) -> Value:
        """Return a value times a number."""
        if factor == 1:
            return x
        if x.type.is_float and isfinite(factor):
            return self.emit("scale", x, factor=float(factor))
        return self.emit("mul", x, self.fill(factor, x.type.dtype))

    def shifted(self, x: Value, number: float) -> Value:
        """Return a value plus a number."""
        if number == 0:
            return x
        if x.type.is_float and isfinite(number):
            return self.emit("add_scalar", x, value=float(number))
        return self.emit("add", x, self.fill(number, x.type.dtype))

    def remainder(self, a: Value, b: Value) -> Value:
        """Return the remainder of a quotient rounded towards zero; it has the sign of `a`."""
        sign = self.emit("sign", a)
        if a.type.is_float:  # the gradient of `a` is 1 at zero, too
            negative, one = (self.fill(n, a.type.dtype) for n in (-1, 1))
            is_negative = self.emit("less", a, self.fill(0, a.type.dtype))
            sign = self.emit("where", is_negative, negative, one)
        size = self.emit("mod", self.emit("mul", a, sign), self.emit("abs", b))
        return self.emit("mul", size, sign)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Return a value with its dimensions reordered."""
        permutation = tuple(permutation)
        if permutation == tuple(range(value.type.rank)):
            return value
        return self.emit("transpose", value, permutation=permutation)

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a value repeated to a shape."""
        shape = tuple(shape)
        return value if value.type.shape == shape else self.emit("broadcast_to", value, shape=shape)

    def part(self, value: Value, axis: int, begin: int, size: int, stride: int = 1) -> Value:
        """Return elements of one dimension."""
        shape = list(value.type.shape)
        if (begin, size, stride) == (0, shape[axis], 1):
            return value
        begins, strides = [0] * len(shape), [1] * len(shape)
        begins[axis], shape[axis], strides[axis] = begin, size, stride
        attributes = {"begin": tuple(begins), "size": tuple(shape)}
        if stride != 1:
            attributes["strides"] = tuple(strides)
        return self.emit("slice", value, **attributes)

    def taken(self, value: Value, places: Sequence[int], axis: int) -> Value:
        """Return elements at known positions of one dimension."""
        if list(places) == list(range(value.type.shape[axis])):
            return value
        return self.emit("gather", value, self.constant(places, "int64"), axis=axis)

    def mixed(self, value: Value, matrix: Any, axis: int) -> Value:
        """Return a value with one dimension multiplied by a known matrix ``[before, after]``."""
        if value.type.rank == 1:
            row = self.reshape(value, (1, *value.type.shape))
            product = self.emit("matmul", row, self.like(matrix, value))
            return self.reshape(product, product.type.shape[1:])
        order = [d for d in range(value.type.rank) if d != axis] + [axis]
        product = self.emit("matmul", self.transpose(value, order), self.like(matrix, value))
        return self.transpose(product, np.argsort(order).tolist())


class Emitting(Emits):
    """An application of an operator of another system, which emits operators of ours.

    Parameters
    ----------
    emission : Emission
        The graph that grows.
    results : tuple of TensorType
        Types of its results.
    views : dict of str to Value
        The tensors that reshaped ones are made of; shared by all applications.
    """

    def __init__(
        self, emission: Emission, results: tuple[TensorType, ...], views: dict[str, Value]
    ) -> None:
        self.emission = emission
        self.results = results
        self.views = views

    def producer(self, name: str) -> Node | None:
        """Return the node of a value that was emitted before; None for inputs and parameters."""
        return self.emission.producer(name)

    @property
    def result(self) -> TensorType:
        """Type of the first result."""
        return self.results[0]

    def value(self, item: Item) -> Value:
        """Return a tensor as a value of the program."""
        if isinstance(item, Constant):
            return self.emission.enter(item)
        assert isinstance(item, Value)
        return item

    def constant(self, data: Any, dtype: str) -> Value:
        """Return an array as a value."""
        return self.value(Constant(np.asarray(data, numpy_dtype(dtype)), dtype))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a value in another shape, of a reshaped one by a single reshape."""
        shape = tuple(int(n) for n in shape)
        source = self.views.get(value.name, value)
        if source.type.shape == shape:
            return source
        found = self.emit("reshape", source, shape=shape)
        self.views[found.name] = source
        return found
