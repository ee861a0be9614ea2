"""The problem as the solvers see it: one float64 vector a variable, one table an adjacent pair.

Equal arrays become one object here (`Interner`), so that afterwards identity is equality: what is
derived from a table is derived once, however many layers repeat it.

The presolve keeps at least one optimal assignment:

- parallel pairs are summed, a pair of a variable with itself goes into its cost;
- strategies that are forbidden, or have no allowed partner, go (`drop_forbidden`);
- a variable with a single strategy is folded into its neighbours (`fold_decided`);
- strategy `a` goes if some `b` occupies no more at any time and never costs more, whatever the
  neighbours choose:  c(b) - c(a) + sum over pairs of max_y (T(b, y) - T(a, y)) <= 0
  (`drop_dominated`); of equal strategies the lowest index stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardwright.solver.problem import FORBIDDEN, Array, MemoryUse, Problem

DOMINANCE_WORK = 10**8
"""A table whose dominance test needs more subtractions than this is not tested."""

DOMINANCE_ROUNDS = 8


class Interner:
    """One object for equal arrays, and one result for each derivation of such objects."""

    def __init__(self) -> None:
        self._canonical: dict[int, Array] = {}
        self._by_content: dict[bytes, Array] = {}
        self._given: list[Array] = []
        self._derived: dict[Hashable, Array] = {}

    def canonical(self, array: Array) -> Array:
        """Return the one object that stands for all arrays equal to this one."""
        known = self._canonical.get(id(array))
        if known is None:
            content = hashlib.blake2b(repr((array.shape, array.dtype.str)).encode())
            content.update(np.ascontiguousarray(array).data)
            known = self._by_content.setdefault(content.digest(), array)
            self._canonical[id(array)] = known
            self._given.append(array)  # an id may not be used again while it is a key
        return known

    def derive(self, key: Hashable, compute: Callable[[], Array]) -> Array:
        """Return the canonical result of a computation that ``key`` identifies."""
        if key not in self._derived:
            self._derived[key] = self.canonical(compute())
        return self._derived[key]


@dataclass(frozen=True, eq=False)
class Network:
    """A pairwise problem over canonical arrays.

    Parameters
    ----------
    unary : list of float64 arrays
        ``inf`` where forbidden.
    tables : dict of float64 arrays
        Keyed by the two variables, the lower one first.
    labels : list of integer arrays
        The strategy of the problem that each remaining one stands for.
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
        """How many strategies remain for each variable."""
        return [len(unary) for unary in self.unary]

    @cached_property
    def incident(self) -> list[list[tuple[Array, int]]]:
        """Each variable's tables, its own strategies first, and the variables at the other ends."""
        found: list[list[tuple[Array, int]]] = [[] for _ in self.unary]
        for (first, second), table in self.tables.items():
            found[first].append((table, second))
            found[second].append((table.T, first))
        return found

    @property
    def empty(self) -> bool:
        """Whether some variable has no strategy left: no assignment exists."""
        return any(len(unary) == 0 for unary in self.unary)

    def lift(self, choice: list[int]) -> tuple[int, ...]:
        """Return the assignment of the problem that a choice of remaining strategies means."""
        return tuple(
            int(labels[position]) for labels, position in zip(self.labels, choice, strict=True)
        )


def build_network(problem: Problem) -> Network:
    """Return the problem with parallel pairs merged and equal arrays made one."""
    arrays = Interner()
    unary = [_finite(arrays, variable.cost) for variable in problem.variables]
    parallel: dict[tuple[int, int], list[Array]] = {}
    for pair in problem.pairs:
        table = _finite(arrays, pair.table)
        if pair.first == pair.second:
            unary[pair.first] = _sum(arrays, unary[pair.first], _diagonal(arrays, table))
        elif pair.first < pair.second:
            parallel.setdefault((pair.first, pair.second), []).append(table)
        else:
            parallel.setdefault((pair.second, pair.first), []).append(_turned(arrays, table))
    tables = {}
    for ends, members in parallel.items():
        total = members[0]
        for member in members[1:]:
            total = _sum(arrays, total, member)
        tables[ends] = total
    limit = np.inf if problem.memory_limit is None else float(problem.memory_limit)
    return Network(
        unary=unary,
        tables=tables,
        labels=[np.arange(size) for size in problem.sizes],
        memory=[_memory(arrays, variable.memory) for variable in problem.variables],
        limit=limit,
        arrays=arrays,
    )


def _finite(arrays: Interner, array: Array) -> Array:
    """As float64, forbidden entries made ``inf``."""
    original = arrays.canonical(array)

    def compute() -> Array:
        copy = original.astype(np.float64)
        copy[copy >= FORBIDDEN] = np.inf
        return copy

    return arrays.derive(("finite", id(original)), compute)


def _sum(arrays: Interner, left: Array, right: Array) -> Array:
    return arrays.derive(("sum", id(left), id(right)), lambda: left + right)


def _diagonal(arrays: Interner, table: Array) -> Array:
    return arrays.derive(("diagonal", id(table)), lambda: table.diagonal().copy())


def _turned(arrays: Interner, table: Array) -> Array:
    return arrays.derive(("turned", id(table)), lambda: np.ascontiguousarray(table.T))


def _memory(arrays: Interner, memory: tuple[MemoryUse, ...]) -> tuple[MemoryUse, ...]:
    return tuple(
        MemoryUse(_finite(arrays, use.usage), use.start, use.end)
        for use in memory
        if use.start < use.end
    )


def restrict(network: Network, keep: Mapping[int, Array]) -> Network:
    """Return the network with only the strategies that each mask in ``keep`` marks."""
    arrays = network.arrays
    masks = {index: arrays.canonical(mask) for index, mask in keep.items()}
    unary, labels = list(network.unary), list(network.labels)
    memory, tables = list(network.memory), dict(network.tables)
    for index, mask in masks.items():
        unary[index] = _kept(arrays, unary[index], mask)
        labels[index] = labels[index][mask]
        memory[index] = tuple(
            MemoryUse(_kept(arrays, use.usage, mask), use.start, use.end) for use in memory[index]
        )
    for (first, second), table in network.tables.items():
        if first in masks or second in masks:
            rows, columns = masks.get(first), masks.get(second)
            tables[first, second] = _kept_table(arrays, table, rows, columns)
    return replace(network, unary=unary, tables=tables, labels=labels, memory=memory)


def _kept(arrays: Interner, array: Array, mask: Array) -> Array:
    return arrays.derive(("kept", id(array), id(mask)), lambda: array[mask])


def _kept_table(arrays: Interner, table: Array, rows: Array | None, columns: Array | None) -> Array:
    def compute() -> Array:
        part = table if rows is None else table[rows]
        return np.ascontiguousarray(part if columns is None else part[:, columns])

    return arrays.derive(("kept", id(table), id(rows), id(columns)), compute)


def drop_forbidden(network: Network) -> Network:
    """Drop strategies that cost ``inf`` or have only forbidden partners in some table."""
    arrays = network.arrays

    def has_partners(table: Array) -> bool:
        return all(_allowed(arrays, table, axis).all() for axis in (0, 1))

    while not network.empty:
        keep: dict[int, Array] = {}
        blocked = _forbidding(network.unary, lambda unary: bool(np.isfinite(unary).all()))
        for index, unary in enumerate(network.unary):
            if id(unary) in blocked:
                keep[index] = np.isfinite(unary)
        blocked = _forbidding(network.tables.values(), has_partners)
        for ends, table in network.tables.items():
            for axis, index in enumerate(ends) if id(table) in blocked else ():
                allowed = _allowed(arrays, table, axis)
                keep[index] = keep[index] & allowed if index in keep else allowed
        if not keep:
            break
        network = restrict(network, keep)
    return network


def _forbidding(arrays: Iterable[Array], is_free: Callable[[Array], bool]) -> set[int]:
    """Return the identities of the arrays that forbid something; each is looked at once."""
    distinct = {id(array): array for array in arrays}
    return {identity for identity, array in distinct.items() if not is_free(array)}


def _allowed(arrays: Interner, table: Array, axis: int) -> Array:
    def compute() -> Array:
        return np.asarray(np.isfinite(table).any(axis=1 - axis))

    return arrays.derive(("allowed", id(table), axis), compute)


def fold_decided(network: Network) -> Network:
    """Move the tables of every variable with a single strategy into its neighbours' costs."""
    if network.empty:
        return network
    unary, tables = list(network.unary), {}
    for (first, second), table in network.tables.items():
        if table.shape[0] > 1 and table.shape[1] > 1:
            tables[first, second] = table
        elif table.shape[0] == 1:
            unary[second] = _sum(network.arrays, unary[second], _flat(network.arrays, table))
        else:
            unary[first] = _sum(network.arrays, unary[first], _flat(network.arrays, table))
    return replace(network, unary=unary, tables=tables)


def _flat(arrays: Interner, table: Array) -> Array:
    return arrays.derive(("flat", id(table)), lambda: table.ravel())


def drop_dominated(network: Network, respect_memory: bool) -> Network:
    """Drop strategies that another one of the same variable dominates, to a fixed point."""
    for _ in range(DOMINANCE_ROUNDS):
        network = fold_decided(drop_forbidden(network))
        if network.empty:
            break
        keep = _undominated(network, respect_memory)
        if not keep:
            break
        network = restrict(network, keep)
    return fold_decided(drop_forbidden(network))


def _undominated(network: Network, respect_memory: bool) -> dict[int, Array]:
    """Masks of the variables that have a dominated strategy.

    Removals in different variables do not disturb one another: a neighbour with fewer strategies
    only makes the worst difference smaller.
    """
    incident: list[list[tuple[Array, int]]] = [[] for _ in network.unary]
    for ends, table in network.tables.items():
        for axis, index in enumerate(ends):
            incident[index].append((table, axis))
    keep = {}
    for index, unary in enumerate(network.unary):
        if len(unary) == 1:
            continue
        usages = [use.usage for use in network.memory[index]] if respect_memory else []
        mask = _undominated_mask(network.arrays, unary, incident[index], usages)
        if not mask.all():
            keep[index] = mask
    return keep


def _undominated_mask(
    arrays: Interner, unary: Array, incident: list[tuple[Array, int]], usages: list[Array]
) -> Array:
    key = (
        "undominated",
        id(unary),
        tuple((id(table), axis) for table, axis in incident),
        tuple(id(usage) for usage in usages),
    )

    def compute() -> Array:
        worst = unary[:, None] - unary[None, :]
        for table, axis in incident:
            worst = worst + _worst_difference(arrays, table, axis)
        dominates = worst <= 0
        for usage in usages:
            dominates &= usage[:, None] <= usage[None, :]
        return _survivors(dominates)

    return arrays.derive(key, compute)


def _survivors(dominates: Array) -> Array:
    """Keep every strategy that no kept strategy dominates, the lowest index of equal ones."""
    kept = np.ones(len(dominates), dtype=bool)
    np.fill_diagonal(dominates, False)
    for strategy in np.flatnonzero(dominates.any(axis=0))[::-1]:
        if (dominates[:, strategy] & kept).any():
            kept[strategy] = False
    return kept


def _worst_difference(arrays: Interner, table: Array, axis: int) -> Array:
    """Return D with ``D[b, a] = max_y (T(b, y) - T(a, y))`` over one side of a table."""
    side = table if axis == 0 else table.T
    count, others = side.shape

    def compute() -> Array:
        if count * count * others > DOMINANCE_WORK:
            return np.where(np.eye(count, dtype=bool), 0.0, np.inf)
        worst = np.empty((count, count))
        with np.errstate(invalid="ignore"):
            for strategy in range(count):
                difference = side[strategy] - side
                # Forbidden for both: no objection, whatever the first one does.
                np.copyto(difference, -np.inf, where=np.isnan(difference))
                worst[strategy] = difference.max(axis=1)
        return worst

    return arrays.derive(("worst", id(table), axis), compute)
