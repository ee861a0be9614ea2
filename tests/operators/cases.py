"""The examples of every operator, as test cases with random operands."""

from collections.abc import Iterator

from shardwright import operators
from shardwright.operators.checks.cases import MESHES, Case, cases_of
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_class, operator_names

__all__ = ["MESHES", "Case", "cases", "computing_operators"]

assert operators.__all__, "importing the package registers the operators"


def computing_operators() -> tuple[str, ...]:
    """Return the names of all operators that compute alone.

    Communication is tested by itself, rings by the strategies of the operators they stand for.
    """
    others = (Communication, RingOperator)
    return tuple(n for n in operator_names() if not issubclass(operator_class(n), others))


def cases() -> Iterator[Case]:
    """Give every example of every operator that computes."""
    for name in computing_operators():
        yield from cases_of(name)
