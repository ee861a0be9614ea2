"""The assignment problem: choose one strategy for every variable.

    minimise   sum_v cost_v[x_v]  +  sum_(u,v) table_uv[x_u, x_v]
    such that  sum of usage_v[x_v] over the uses live at t  <=  memory_limit     for every time t

Knows nothing of operators, tensors or devices. Costs are seconds for the compiler (float64) and
plain integers for the contest instances (int64). An entry of at least `FORBIDDEN` may not be
chosen. Arrays may be shared by reference: the solvers do the work once for each distinct array,
keyed by its `Identity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import SolverError

FORBIDDEN = 1e17
"""An entry of a cost vector or a table that is at least this (``inf`` too) may not be chosen."""

Array = NDArray[Any]

Shared = TypeVar("Shared")

PairRole = Literal["edge", "copy"]
"""A priced edge, or the tie between a copy and the tensor that it is a copy of."""


class Identity(int):
    """A key for one shared object: equal keys mean the same object, so the same content.

    The key keeps its object alive: an address is not used twice while a key holds it. It equals
    `id(shared)`, which is the faster way to look a key up.

    Examples
    --------
    >>> table = np.zeros(2)
    >>> Identity(table) == Identity(table), Identity(table) == Identity(table.copy())
    (True, False)
    """

    shared: object

    def __new__(cls, shared: object) -> Identity:
        """Make the key of an object."""
        key = int.__new__(cls, id(shared))
        key.shared = shared
        return key


def distinct(shared: Iterable[Shared]) -> list[Shared]:
    """Return every distinct object once, in the order of first appearance."""
    return list({id(item): item for item in shared}.values())


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Memory that a variable uses while it is live, over ``[start, end)``, by strategy.

    Parameters
    ----------
    usage : array of shape (strategies,)
        Not negative; bytes for the compiler.
    start, end : int
        A half-open interval; an empty one uses no memory.
    """

    usage: Array
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Variable:
    """A choice among strategies.

    Parameters
    ----------
    name : str
        For error messages.
    cost : array of shape (strategies,)
        float64 or int64.
    memory : tuple of MemoryUse
        Several where parts are live at different times, as a parameter and an activation.
    """

    name: str
    cost: Array
    memory: tuple[MemoryUse, ...] = ()


@dataclass(frozen=True, eq=False)
class Pair:
    """A cost that depends on two choices: ``table[strategy of first, strategy of second]``.

    Parameters
    ----------
    first, second : int
        Two variables, by position.
    table : array of shape (strategies of first, strategies of second)
    role : {"edge", "copy"}
        Tells the pairs apart for the builder of the problem; the solvers ignore it.
    """

    first: int
    second: int
    table: Array
    role: PairRole = "edge"


@dataclass(frozen=True, eq=False)
class Problem:
    """An assignment problem; the constructor refuses malformed ones.

    Parameters
    ----------
    variables : tuple of Variable
    pairs : tuple of Pair
        Several pairs over the same two variables are summed.
    memory_limit : float or None
        ``None`` for no limit.

    Raises
    ------
    SolverError
        If a shape, an index, an interval or a number is wrong.

    Examples
    --------
    >>> apart = np.array([[0.0, 5.0], [5.0, 0.0]])
    >>> left = Variable("left", np.array([1.0, 2.0]))
    >>> right = Variable("right", np.array([4.0, 1.0]))
    >>> Problem((left, right), (Pair(0, 1, apart),)).sizes
    (2, 2)
    """

    variables: tuple[Variable, ...]
    pairs: tuple[Pair, ...] = ()
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        check_problem(self)

    def __repr__(self) -> str:
        limit = "no" if self.memory_limit is None else f"{self.memory_limit:g}"
        return (
            f"<Problem: {len(self.variables)} variables, {sum(self.sizes)} strategies, "
            f"{len(self.pairs)} pairs, {limit} memory limit>"
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of strategies of each variable."""
        return tuple([len(variable.cost) for variable in self.variables])

    def limited(self, memory_limit: float | None, role: PairRole | None = None) -> Problem:
        """Return the problem with another memory limit, and only the pairs of a role if given.

        Everything but the limit has been checked and is not checked again.
        """
        _check_limit(memory_limit)
        kept = tuple(pair for pair in self.pairs if role in (None, pair.role))
        return _unchecked(self.variables, kept, memory_limit, self.shared)

    def costing(self, costs: Sequence[Array]) -> Problem:
        """Return the problem by other costs, and without memory.

        They are as many as before, and numbers; nothing is checked again.
        """
        pairs = zip(self.variables, costs, strict=True)
        variables = tuple([Variable(variable.name, cost) for variable, cost in pairs])
        return _unchecked(variables, self.pairs, None, self.shared)

    @cached_property
    def shared(self) -> dict[str, object]:
        """What was found out about its arrays: also for the problems that are made of this one."""
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: what follows from them is not sent to other processes."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _unchecked(
    variables: tuple[Variable, ...],
    pairs: tuple[Pair, ...],
    memory_limit: float | None,
    shared: dict[str, object],
) -> Problem:
    """Return a problem whose parts have been checked."""
    problem = object.__new__(Problem)
    fields = {"variables": variables, "pairs": pairs, "memory_limit": memory_limit}
    vars(problem).update(fields, shared=shared)
    return problem


def check_problem(problem: Problem) -> None:
    """Raise SolverError if the problem is malformed."""
    checked: set[Identity] = set()
    for variable in problem.variables:
        try:
            _check_variable(variable, checked)
        except SolverError as error:
            raise SolverError(error.what, f"variable `{variable.name}`", error.hint) from None
    sizes = problem.sizes
    for position, pair in enumerate(problem.pairs):
        try:
            _check_pair(sizes, pair, checked)
        except SolverError as error:
            where = _ends_text(problem, position, pair)
            raise SolverError(error.what, where, error.hint) from None
    _check_limit(problem.memory_limit)


def _check_limit(limit: float | None) -> None:
    if limit is not None and not limit >= 0:
        raise SolverError(f"the memory limit is {limit}, expected a number of at least 0")


def _ends_text(problem: Problem, position: int, pair: Pair) -> str:
    ends = [i for i in (pair.first, pair.second) if 0 <= i < len(problem.variables)]
    if len(ends) < 2:
        return f"pair {position}"
    first, second = (problem.variables[i].name for i in ends)
    return f"pair {position}, `{first}` and `{second}`"


def _check_variable(variable: Variable, checked: set[Identity]) -> None:
    if variable.cost.ndim != 1 or variable.cost.size == 0:
        shape = variable.cost.shape
        raise SolverError(f"the cost has shape {shape}, expected one entry a strategy")
    if id(variable.cost) not in checked:
        _check_numbers(variable.cost, "cost", checked)
    shape = variable.cost.shape
    for use in variable.memory:
        _check_use(use, shape, checked)


def _check_use(use: MemoryUse, shape: tuple[int, ...], checked: set[Identity]) -> None:
    if use.usage.shape != shape:
        raise SolverError(f"the memory use has shape {use.usage.shape}, expected {shape}")
    if use.start > use.end:
        raise SolverError(
            f"the interval [{use.start}, {use.end}) ends before it starts",
            hint="an empty interval is [t, t)",
        )
    if id(use.usage) in checked:
        return
    _check_numbers(use.usage, "memory use", checked)
    if use.usage.min() < 0 or use.usage.max() == np.inf:
        extreme = use.usage.min() if use.usage.min() < 0 else use.usage.max()
        raise SolverError(f"the memory use holds {extreme}, expected finite numbers of at least 0")


def _check_pair(sizes: Sequence[int], pair: Pair, checked: set[Identity]) -> None:
    count = len(sizes)
    for end in (pair.first, pair.second):
        if not 0 <= end < count:
            raise SolverError(
                f"the pair joins variable {end}, expected a number from 0 to {count - 1}"
            )
    expected = (sizes[pair.first], sizes[pair.second])
    if pair.table.shape != expected:
        raise SolverError(f"the table has shape {pair.table.shape}, expected {expected}")
    if id(pair.table) not in checked:
        _check_numbers(pair.table, "table", checked)


def _check_numbers(array: Array, what: str, checked: set[Identity]) -> None:
    """Check the numbers of an array, and note that they are checked."""
    checked.add(Identity(array))
    if array.dtype.kind not in "if":
        raise SolverError(f"the {what} holds {array.dtype}, expected float64 or int64")
    if array.dtype.kind == "f" and (np.isnan(array).any() or np.isneginf(array).any()):
        number = "NaN" if np.isnan(array).any() else "-inf"
        raise SolverError(
            f"the {what} holds {number}, expected numbers", hint="use `inf` for what is forbidden"
        )


def memory_uses(problem: Problem) -> Iterator[tuple[int, MemoryUse]]:
    """Yield (variable, use) for every use whose interval is not empty."""
    for index, variable in enumerate(problem.variables):
        for use in variable.memory:
            if use.start < use.end:
                yield index, use
