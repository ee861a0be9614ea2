"""The examples of every operator, as test cases with random operands."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwright import operators
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.ir.types import numpy_dtype
from shardwright.operators.communication import Communication
from shardwright.operators.info import (
    Array,
    Example,
    OperatorInfo,
    operator_class,
    operator_info,
    operator_names,
)

assert operators.__all__, "importing the package registers the operators"

MESHES = (
    Mesh((MeshAxis("x", 2), MeshAxis("y", 2))),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 3))),
)


@dataclass(frozen=True)
class Case:
    """One example of one operator."""

    operator: str
    number: int

    @property
    def example(self) -> Example:
        return operator_class(self.operator).examples[self.number]

    def info(self, real: str = "f64") -> OperatorInfo:
        """Return the operator on operands of the example's types, real ones of type `real`."""
        texts = [operand.replace("f64", real) for operand in self.example.operands]
        return operator_info(
            self.operator, [parse_type(text)[0] for text in texts], self.example.attributes
        )

    def operands(self, info: OperatorInfo, seed: int = 0) -> list[Array]:
        """Return random operands in the ranges of the example."""
        random = np.random.default_rng((seed, self.number, *self.operator.encode()))
        drawn = []
        for position, operand in enumerate(info.operand_types):
            default = (-2.0, 2.0) if operand.is_float else (0, 3)
            low, high = self.example.ranges.get(position, default)
            values: Array = np.asarray(random.uniform(low, high, operand.shape))
            if operand.dtype == "bool":
                values = random.uniform(0, 1, operand.shape) < 0.5
            elif not operand.is_float:
                values = np.floor(values)
            drawn.append(np.asarray(values, numpy_dtype(operand.dtype)))
        return drawn

    def __str__(self) -> str:
        return f"{self.operator}-{self.number}"


def computing_operators() -> tuple[str, ...]:
    """Return the names of all operators that compute; communication is tested by itself."""
    names = operator_names()
    return tuple(n for n in names if not issubclass(operator_class(n), Communication))


def cases() -> Iterator[Case]:
    """Give every example of every operator that computes."""
    for name in computing_operators():
        for number in range(len(operator_class(name).examples)):
            yield Case(name, number)
