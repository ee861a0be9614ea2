"""The problem of the exact solvers: one float64 vector a variable, one table an adjacent pair.

Equal arrays become one object (`Interner`): then identity is equality, and every result derived
from a table is memoized, however many layers repeat the table. Parallel pairs are summed; a pair of
a variable with itself goes into its cost.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np

from shardwright.solver.problem import FORBIDDEN, Array, Identity, MemoryUse, Problem

_FEW = 512  # entries whose order, too, tells arrays apart before they are compared


class Interner:
    """Interns arrays (one object for equal ones) and memoizes results derived from them."""

    def __init__(self) -> None:
        self._keys: dict[int, Identity] = {}
        self._canonical: dict[int, Array] = {}
        self._by_content: dict[Hashable, list[Array]] = {}
        self._derived: dict[Hashable, Array] = {}
        self._finite: dict[int, bool] = {}

    def copy(self) -> Interner:
        """Return an interner that knows what this one does."""
        other = Interner()
        other._keys, other._canonical = self._keys.copy(), self._canonical.copy()
        other._by_content = {content: alike.copy() for content, alike in self._by_content.items()}
        other._derived, other._finite = self._derived.copy(), self._finite.copy()
        return other

    def is_finite(self, array: Array) -> bool:
        """Return whether an interned array forbids nothing."""
        found = self._finite.get(id(array))
        if found is None:
            found = self._finite[self.key(array)] = bool(array.max(initial=-np.inf) < np.inf)
        return found

    def canonical(self, array: Array) -> Array:
        """Return the one object that stands for all arrays equal to this one."""
        canonical = self._canonical.get(id(array))
        if canonical is None:
            words = _words(array)
            # The sum is many times as fast as a hash; what is left to compare is compared.
            content = array.shape, array.dtype, zlib.crc32(words[:_FEW].data), int(words.sum())
            alike = self._by_content.setdefault(content, [])
            canonical = next((one for one in alike if np.array_equal(_words(one), words)), None)
            if canonical is None:
                canonical = array
                alike.append(array)
            self._canonical[self.key(array)] = canonical
        return canonical

    def key(self, array: Array) -> Identity:
        """Return the identity of an array."""
        key = self._keys.get(id(array))
        if key is None:
            key = self._keys[id(array)] = Identity(array)
        return key

    def derive(
        self, operation: str, operands: Sequence[Array | int | None], compute: Callable[[], Array]
    ) -> Array:
        """Return the interned result of an operation on interned arrays, computed once."""
        key = (operation, *map(self._operand_key, operands))
        result = self._derived.get(key)
        if result is None:
            result = self._derived[key] = self.canonical(compute())
        return result

    def _operand_key(self, operand: Array | int | None) -> int | None:
        if not isinstance(operand, np.ndarray):
            return operand
        return self._keys.get(id(operand)) or self.key(operand)


def _words(array: Array) -> Array:
    """Return the bits of an array, an unsigned integer an entry."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


@dataclass(frozen=True, eq=False)
class Network:
    """A pairwise problem over interned arrays.

    Parameters
    ----------
    unary : list of float64 arrays
        ``inf`` where forbidden.
    tables : dict of float64 arrays
        Keyed by the two variables, the lower one first.
    labels : list of integer arrays
        The strategy of the problem that each remaining strategy stands for.
    memory : list of tuples of MemoryUse
    limit : float
        ``inf`` if there is none.
    """

    unary: list[Array]
    tables: dict[tuple[int, int], Array]
    labels: list[Array]
    memory: list[tuple[MemoryUse, ...]]
    limit: float
    arrays: Interner = field(repr=False)

    @property
    def sizes(self) -> list[int]:
        """Number of remaining strategies of each variable."""
        return [len(unary) for unary in self.unary]

    @cached_property
    def unary_keys(self) -> list[Identity]:
        """The identities of the cost vectors."""
        return list(map(self.arrays.key, self.unary))

    @cached_property
    def table_keys(self) -> list[Identity]:
        """The identities of the tables."""
        return list(map(self.arrays.key, self.tables.values()))

    @cached_property
    def incident(self) -> list[list[tuple[Array, int]]]:
        """Each variable's tables, its own strategies first, and the variables at the other ends.

        Equal tables are one object here, too.
        """
        incident: list[list[tuple[Array, int]]] = [[] for _ in self.unary]
        turned: dict[int, Array] = {}
        for (first, second), table in self.tables.items():
            incident[first].append((table, second))
            incident[second].append((turned.setdefault(id(table), table.T), first))
        return incident

    @cached_property
    def incident_tables(self) -> list[tuple[int, ...]]:
        """The identities of each variable's tables."""
        return [tuple([id(table) for table, _ in near]) for near in self.incident]

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The variables at the other ends of each variable's tables."""
        return [[other for _, other in near] for near in self.incident]

    @property
    def empty(self) -> bool:
        """Whether some variable has no strategy left: no assignment exists."""
        return any(len(unary) == 0 for unary in self.unary)

    def lift(self, choice: list[int]) -> tuple[int, ...]:
        """Return the assignment of the problem for a choice of remaining strategies."""
        return tuple(
            int(labels[position]) for labels, position in zip(self.labels, choice, strict=True)
        )

    def position_of(self, assignment: Sequence[int]) -> list[int | None]:
        """Return the position of each assigned strategy, ``None`` if it has been dropped."""
        positions: list[int | None] = []
        for labels, strategy in zip(self.labels, assignment, strict=True):
            matches = np.flatnonzero(labels == strategy)
            positions.append(int(matches[0]) if matches.size else None)
        return positions

    def cost(self, choice: Sequence[int]) -> float:
        """Return the cost of a choice of remaining strategies."""
        total = sum(float(unary[index]) for unary, index in zip(self.unary, choice, strict=True))
        return total + sum(
            float(table[choice[first], choice[second]])
            for (first, second), table in self.tables.items()
        )


def build_network(problem: Problem, arrays: Interner | None = None) -> Network:
    """Return the network of a problem: parallel pairs summed, equal arrays interned."""
    arrays = arrays or Interner()
    known: dict[int, Array] = {}  # the problem keeps its arrays alive

    def converted(array: Array) -> Array:
        found = known.get(id(array))
        if found is None:
            found = known[id(array)] = _as_float64(arrays, array)
        return found

    unary = [converted(variable.cost) for variable in problem.variables]
    parallel: dict[tuple[int, int], list[Array]] = {}
    for pair in problem.pairs:
        table = converted(pair.table)
        if pair.first == pair.second:
            unary[pair.first] = add(arrays, unary[pair.first], _diagonal(arrays, table))
        elif pair.first < pair.second:
            parallel.setdefault((pair.first, pair.second), []).append(table)
        else:
            parallel.setdefault((pair.second, pair.first), []).append(_transposed(arrays, table))
    tables = {
        ends: reduce(lambda total, table: add(arrays, total, table), members)
        for ends, members in parallel.items()
    }
    limit = np.inf if problem.memory_limit is None else float(problem.memory_limit)
    return Network(
        unary=unary,
        tables=tables,
        labels=[np.arange(size) for size in problem.sizes],
        memory=[_memory(converted, variable.memory) for variable in problem.variables],
        limit=limit,
        arrays=arrays,
    )


def _as_float64(arrays: Interner, array: Array) -> Array:
    """Return an array as float64, with ``inf`` for forbidden entries; itself where it is that."""
    original = arrays.canonical(array)

    def compute() -> Array:
        is_float = original.dtype == np.float64
        if is_float and original.max(initial=-np.inf) < FORBIDDEN:
            return original
        forbidden = original >= FORBIDDEN
        if is_float and np.isinf(original[forbidden]).all():
            return original
        copy = original.astype(np.float64)
        copy[forbidden] = np.inf
        return copy

    return arrays.derive("float64", (original,), compute)


def add(arrays: Interner, left: Array, right: Array) -> Array:
    """Return the interned sum of two arrays."""
    return arrays.derive("add", (left, right), lambda: left + right)


def _diagonal(arrays: Interner, table: Array) -> Array:
    return arrays.derive("diagonal", (table,), lambda: table.diagonal().copy())


def _transposed(arrays: Interner, table: Array) -> Array:
    return arrays.derive("transpose", (table,), lambda: np.ascontiguousarray(table.T))


def _memory(
    converted: Callable[[Array], Array], memory: tuple[MemoryUse, ...]
) -> tuple[MemoryUse, ...]:
    uses = [(use, converted(use.usage)) for use in memory if use.start < use.end]
    return tuple(
        [use if usage is use.usage else MemoryUse(usage, use.start, use.end) for use, usage in uses]
    )


def restrict(network: Network, keep: Mapping[int, Array]) -> Network:
    """Return the network with only the strategies that the masks in ``keep`` mark."""
    arrays = network.arrays
    masks = {index: arrays.canonical(mask) for index, mask in keep.items()}
    unary, labels = list(network.unary), list(network.labels)
    memory, tables = list(network.memory), dict(network.tables)
    for index, mask in masks.items():
        unary[index] = _select(arrays, unary[index], mask)
        labels[index] = labels[index][mask]
        memory[index] = tuple(
            MemoryUse(_select(arrays, use.usage, mask), use.start, use.end) for use in memory[index]
        )
    for (first, second), table in network.tables.items():
        if first in masks or second in masks:
            rows, columns = masks.get(first), masks.get(second)
            tables[first, second] = _select_table(arrays, table, rows, columns)
    return replace(network, unary=unary, tables=tables, labels=labels, memory=memory)


def _select(arrays: Interner, array: Array, mask: Array) -> Array:
    return arrays.derive("select", (array, mask), lambda: array[mask])


def _select_table(
    arrays: Interner, table: Array, rows: Array | None, columns: Array | None
) -> Array:
    def compute() -> Array:
        part = table if rows is None else table[rows]
        return np.ascontiguousarray(part if columns is None else part[:, columns])

    return arrays.derive("select", (table, rows, columns), compute)
