"""Cases: the examples of operators with random operands, and how a check fails."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.ir.errors import OperatorError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import (
    Array,
    Example,
    OperatorInfo,
    operator_class,
    operator_info,
)

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
        """The example."""
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


def cases_of(operator: str) -> Iterator[Case]:
    """Yield every example of an operator."""
    for number in range(len(operator_class(operator).examples)):
        yield Case(operator, number)


def has_gradient(info: OperatorInfo) -> bool:
    """Return whether an operator defines a gradient."""
    return real_results(info) and type(info).gradient is not OperatorInfo.gradient


def real_results(info: OperatorInfo) -> bool:
    """Return whether all results are real numbers."""
    return all(result.is_float for result in info.result_types)


def expect(condition: bool, otherwise: str, place: str, hint: str | None = None) -> None:
    """Raise an error that names the broken promise, unless the condition holds."""
    if not condition:
        raise OperatorError(otherwise, place, hint)


def expect_close(found: Array, whole: Array, what: str, place: str, tolerance: float) -> None:
    """Raise an error with the largest difference, unless two arrays agree."""
    if np.allclose(found, whole, rtol=tolerance, atol=tolerance, equal_nan=True):
        return
    with np.errstate(invalid="ignore"):  # infinities
        worst = np.nanmax(np.abs(np.asarray(found, float) - np.asarray(whole, float)))
    raise OperatorError(f"{what}: they differ by up to {worst:.3g}", place)
