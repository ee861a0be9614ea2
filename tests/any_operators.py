"""Random programs of any operators that have examples, differentiable or not.

Every operator reads operands as in one of its examples; what earlier operators made is brought to
their types and ranges by operators of the registry again.
"""

import math

import numpy as np

from shardwright.ir.graph import Graph, Value
from shardwright.ir.text import parse_type
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Example, operator_class, operator_names
from shardwright.operators.linear.decompositions import Decomposition
from shardwright.operators.linear.matrices import OfSquare
from shardwright.operators.linear.quantized import QuantizedProduct
from shardwright.operators.verify import verify

NO_GRADIENT = ("stop_gradient", "sign", "round", "floor", "ceil", "trunc", "ones_like", "is_finite")
"""Operators through which no gradient flows."""

_BUFFERS = ("pack", "unpack", "pack_dealt", "unpack_gathered")  # of several tensors
_EXCLUDED = ("sgd_update", "momentum_update", "adam_update", *_BUFFERS, "bitcast")


def operators() -> tuple[str, ...]:
    """Return the operators that a program may call on any operands of the right types.

    Not quantized products, whose rates few devices have.
    """
    return tuple(
        name
        for name in operator_names()
        if operator_class(name).examples
        and name not in _EXCLUDED
        and not issubclass(operator_class(name), Communication | QuantizedProduct)
    )


def any_graph(seed: int, nodes: int = 5, parameters: int = 3, outputs: int = 1) -> Graph:
    """Return a program that calls about so many random operators and ends in a scalar loss.

    Parameters
    ----------
    seed : int
        Of every choice.
    nodes : int
        Number of calls of random operators.
    parameters : int
        Trainable parameters that may or may not reach the loss, besides one that does.
    outputs : int
        What the program returns, the loss included.
    """
    return _Writer(seed).graph(nodes, parameters, outputs)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random, self.seed = np.random.default_rng(seed), seed
        self.build = Builder()
        self.values: list[Value] = []

    def graph(self, nodes: int, parameters: int, outputs: int) -> Graph:
        """Write the program."""
        build, random = self.build, self.random
        kind = TensorType("float32", (8, 6))
        self.values.append(build.input(Value("x", kind)))
        for i in range(parameters):
            shape = (8, 6) if random.random() < 0.5 else (int(random.choice([2, 4, 6, 12])),)
            weight = Value(f"w{i}", TensorType("float32", shape))
            self.values.append(build.parameter(weight, {"initializer": "normal(1.0)"}))
        names = operators()
        for _ in range(nodes):
            name = str(random.choice(NO_GRADIENT if random.random() < 0.12 else names))
            self.call(name)
        ends = [self.loss(), *(self.some() for _ in range(outputs - 1))]
        graph = build.graph(f"any_{self.seed}", tuple(dict.fromkeys(end.name for end in ends)))
        verify(graph)
        return graph

    def loss(self) -> Value:
        """Sum what several values are, squared."""
        count = min(len(self.values), int(self.random.integers(2, 7)))
        terms = [self.term(self.values[-1 - i]) for i in range(count)]
        total = terms[0]
        for term in terms[1:]:
            total = self.build.emit("add", total, term)
        trained = Value("trained", TensorType("float32", (4,)))
        trained = self.build.parameter(trained, {"initializer": "normal(1.0)"})
        return self.build.emit("add", total, self.term(trained))

    def term(self, value: Value) -> Value:
        """Return a scalar made of a value."""
        real = self.to_dtype(value, "float32")
        if self.random.random() < 0.5:
            real = self.build.emit("mul", real, real)
        return self.build.emit("reduce_mean", real) if real.type.rank else real

    def call(self, name: str) -> None:
        """Call an operator as in one of its examples."""
        examples = operator_class(name).examples
        example = examples[int(self.random.integers(len(examples)))]
        is_of_rows = issubclass(operator_class(name), Decomposition | OfSquare)
        operands = [self.operand(example, i, is_of_rows) for i in range(len(example.operands))]
        attributes = {
            key: "float32" if value == "float64" else value
            for key, value in example.attributes.items()
        }
        self.values += self.build.emit_all(name, *operands, **attributes)

    def some(self) -> Value:
        """Return a value that is there: a parameter, a recent one, or any."""
        parameters = [parameter.value for parameter in self.build.parameters]
        pools = (parameters, self.values[-3:], self.values)
        pool = pools[int(self.random.choice(3, p=[0.35, 0.4, 0.25]))]
        return pool[int(self.random.integers(len(pool)))]

    def operand(self, example: Example, position: int, is_of_rows: bool = False) -> Value:
        """Return a value of the type and in the range that an example has.

        Where operands are matrices whose gradient is NaN if two rows are equal, `is_of_rows`, they
        are computed from parameters of their own: repeated elements would make rows equal.
        """
        kind, _ = parse_type(example.operands[position])
        if is_of_rows and kind.is_float:
            matrix = Value(f"rows{len(self.build.parameters)}", TensorType("float32", kind.shape))
            shaped = self.build.parameter(matrix, {"initializer": "normal(1.0)"})
        else:
            shaped = self.to_shape(self.to_dtype(self.some(), "float32"), kind.shape)
        if kind.dtype == "bool":
            return self.build.emit("cast", self.build.emit("sign", shaped), dtype="bool")
        low, high = example.ranges.get(position, (-2.0, 2.0) if kind.is_float else (0, 3))
        ranged = self.build.emit("sigmoid", shaped)
        ranged = self.build.emit("scale", ranged, factor=float(high - low) * 0.9)
        ranged = self.build.emit("add_scalar", ranged, value=float(low) + (high - low) * 0.03)
        if kind.is_float:
            return ranged
        return self.build.emit("cast", self.build.emit("floor", ranged), dtype=kind.dtype)

    def to_dtype(self, value: Value, dtype: str) -> Value:
        """Cast a value where it has another type."""
        return value if value.type.dtype == dtype else self.build.emit("cast", value, dtype=dtype)

    def to_shape(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Cut or repeat a value until it has a shape."""
        if value.type.shape == shape:
            return value
        build, size, wanted = self.build, math.prod(value.type.shape), math.prod(shape)
        flat = build.emit("reshape", value, shape=(size,))
        if size < wanted:
            flat = build.emit("tile", flat, multiples=(-(-wanted // size),))
        if flat.type.shape[0] > wanted:
            flat = build.emit("slice", flat, begin=(0,), size=(wanted,))
        return build.emit("reshape", flat, shape=shape)
