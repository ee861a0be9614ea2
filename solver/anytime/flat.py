"""A problem as flat arrays of 64-bit integers, and reductions of it that can be undone.

Variable v has the strategies offset[v] ... offset[v + 1] - 1 of all vectors; the table of pair e
has `rows` x `columns` entries from table_offset[e] on, in row-major order. A memory use belongs to
one variable and has one amount for each of its strategies. An entry of `INFINITE` is forbidden;
sums do not grow beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.ir.errors import SolverError
from shardwright.solver.problem import FORBIDDEN, Array, Problem

INFINITE = 2**60
"""A forbidden entry; the sum of two still fits into 64 bits."""

HALF = INFINITE // 2

LARGEST_SUM = HALF / 2
"""Costs and memory uses must sum up to less than this."""

CHUNK = 2**22
"""Entries that are processed at once, so that memory stays small."""


def ranges(starts: Array, counts: Array) -> Array:
    """Return the concatenation of ``start, start + 1, ... start + count - 1`` for each."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


def offsets(counts: Array) -> Array:
    """Return the start of each of several consecutive segments, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Flat:
    """A problem as flat arrays.

    Parameters
    ----------
    size : array of shape (variables,)
        Number of strategies of each variable.
    unary : array of shape (sum of size,)
    first, second : arrays of shape (pairs,)
    tables : array of shape (sum of the tables' sizes,)
    use_variable, use_start, use_end : arrays of shape (uses,)
    usage : array of shape (sum over uses of the variable's size,)
    base_start, base_end, base_amount : arrays
        Memory that is used with every assignment.
    limit : int
    constant : int
        Part of every cost.
    """

    size: Array
    unary: Array
    first: Array
    second: Array
    tables: Array
    use_variable: Array
    use_start: Array
    use_end: Array
    usage: Array
    base_start: Array
    base_end: Array
    base_amount: Array
    limit: int
    constant: int = 0

    @property
    def offset(self) -> Array:
        """Start of the strategies of each variable."""
        return offsets(self.size)

    @property
    def rows(self) -> Array:
        """Number of rows of each table."""
        return self.size[self.first]

    @property
    def columns(self) -> Array:
        """Number of columns of each table."""
        return self.size[self.second]

    @property
    def table_offset(self) -> Array:
        """Start of each table."""
        return offsets(self.rows * self.columns)

    @property
    def use_offset(self) -> Array:
        """Start of the amounts of each use."""
        return offsets(self.size[self.use_variable])


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction of a problem, and how to undo it.

    Variable v had strategy ``labels[offset[v] + choice[source[v]]]``; where ``source[v]`` is
    negative it had ``labels[offset[v]]``, whatever the choice.

    Parameters
    ----------
    name : str
        For the statistics.
    source, offset, labels : arrays
    """

    name: str
    source: Array
    offset: Array
    labels: Array

    def undo(self, choice: Array) -> Array:
        """Return the choice before the reduction."""
        position = np.zeros(len(self.source), np.int64)
        follows = self.source >= 0
        position[follows] = choice[self.source[follows]]
        return np.asarray(self.labels[self.offset + position])


def flatten(problem: Problem) -> Flat:
    """Return the problem as flat arrays.

    Raises
    ------
    SolverError
        If some number is not an integer, or sums of costs could overflow 64 bits.
    """
    size = np.array(problem.sizes, dtype=np.int64)
    uses = [
        (index, use)
        for index, variable in enumerate(problem.variables)
        for use in variable.memory
        if use.start < use.end
    ]
    flat = Flat(
        size=size,
        unary=_integers([variable.cost for variable in problem.variables]),
        first=np.array([pair.first for pair in problem.pairs], dtype=np.int64),
        second=np.array([pair.second for pair in problem.pairs], dtype=np.int64),
        tables=_integers([pair.table.ravel() for pair in problem.pairs]),
        use_variable=np.array([index for index, _ in uses], dtype=np.int64),
        use_start=np.array([use.start for _, use in uses], dtype=np.int64),
        use_end=np.array([use.end for _, use in uses], dtype=np.int64),
        usage=_integers([use.usage for _, use in uses]),
        base_start=np.zeros(0, np.int64),
        base_end=np.zeros(0, np.int64),
        base_amount=np.zeros(0, np.int64),
        limit=HALF if problem.memory_limit is None else int(min(problem.memory_limit, HALF)),
    )
    _check_range(flat)
    unary, tables = (
        np.where(array >= FORBIDDEN, INFINITE, array) for array in (flat.unary, flat.tables)
    )
    return replace(flat, unary=unary, tables=tables)


def _integers(arrays: list[Array]) -> Array:
    if not arrays:
        return np.zeros(0, np.int64)
    if any(array.dtype.kind != "i" for array in arrays):
        kinds = sorted({str(array.dtype) for array in arrays if array.dtype.kind != "i"})
        raise SolverError(
            f"the method `anytime` works on integers, found {', '.join(kinds)}",
            hint="use the method `exact`",
        )
    return np.concatenate(arrays).astype(np.int64)


def _check_range(flat: Flat) -> None:
    """Refuse numbers whose sums could overflow, so that every sum is exact."""
    costs = _reach(flat.unary, flat.size) + _reach(flat.tables, flat.rows * flat.columns)
    usage = _reach(flat.usage, flat.size[flat.use_variable])
    for kind, total in (("costs", costs), ("memory uses", usage)):
        if total >= LARGEST_SUM:
            raise SolverError(
                f"the {kind} sum up to {total:.3g}, expected less than 2^58 so that sums of "
                "64-bit integers are exact",
                hint="divide all of them by a common factor",
            )


def _reach(values: Array, counts: Array) -> float:
    """Return the sum over segments of the greatest absolute value that is not forbidden."""
    if not len(counts):
        return 0.0
    allowed = np.abs(np.where(values >= FORBIDDEN, 0, values).astype(np.float64))
    return float(np.maximum.reduceat(allowed, offsets(counts)[:-1]).sum())
