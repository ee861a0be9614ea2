"""Dominated strategies of a flat problem: another strategy never costs more nor uses more memory.

Strategy a goes if some b uses no more in every use and never costs more:

    c(b) - c(a) + sum over tables of max over y of (T(b, y) - T(a, y))  <=  0

over the partners y that a may have. The relation is transitive (sums of integers are exact) and
holds whatever strategies the neighbours keep, so all variables are treated at once; of equal
strategies the first stays. Results are memoized for equal tables and equal neighbourhoods.
`shardwright.solver.presolve` does the same for networks, whose float64 sums are not transitive.
"""

from __future__ import annotations

import numpy as np

from shardwright.solver.anytime.compiled import COMPILED, compiled
from shardwright.solver.anytime.flat import HALF, INFINITE, Flat, offsets, ranges
from shardwright.solver.problem import Array

MOST_WORK = 2 * 10**8
"""A table whose test needs more subtractions than this is not tested."""


def table_classes(flat: Flat) -> Array:
    """Return for each pair the first pair with an equal table."""
    count = len(flat.first)
    if not count:
        return np.zeros(0, np.int64)
    places = ranges(np.zeros(count, np.int64), flat.rows * flat.columns).astype(np.uint64)
    mixed = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= flat.tables.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(1)
    digest = np.add.reduceat(mixed ^ (mixed >> np.uint64(32)), flat.table_offset[:-1])
    keys = np.stack([digest.astype(np.int64), flat.rows, flat.columns], axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    same = first[group.ravel()]
    other = ranges(flat.table_offset[same], flat.rows * flat.columns)
    differs = np.add.reduceat(flat.tables != flat.tables[other], flat.table_offset[:-1]) > 0
    return np.where(differs, np.arange(count), same)


def undominated(flat: Flat, changed: Array | None = None) -> Array:
    """Return a mask of the undominated strategies.

    Parameters
    ----------
    flat : Flat
    changed : array of bool, optional
        Variables that have changed since the last test: only these and their neighbours can have a
        dominated strategy.
    """
    search = _Search(flat)
    keep = np.ones(len(flat.unary), bool)
    affected = flat.size > 1
    if changed is not None:
        near = changed.copy()
        near[flat.first[changed[flat.second]]] = True
        near[flat.second[changed[flat.first]]] = True
        affected &= near
    for variable in np.flatnonzero(affected).tolist():
        start, end = search.span(variable)
        keep[start:end] = search.mask(variable)
    return keep


class _Search:
    """One pass over the variables of a problem."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.offset = flat.offset.tolist()
        self.table_offset = flat.table_offset.tolist()
        self.rows, self.columns = flat.rows.tolist(), flat.columns.tolist()
        self.classes = table_classes(flat).tolist()
        self.worst: dict[tuple[int, int], Array | None] = {}
        self.masks: dict[tuple[object, ...], Array] = {}
        self._incidence()
        self._uses()

    def _incidence(self) -> None:
        count = len(self.flat.first)
        ends = np.concatenate([self.flat.first, self.flat.second])
        order = np.argsort(ends, kind="stable")
        self.incident = order.tolist()  # a pair, plus `count` if it is the second end
        self.incident_start = offsets(np.bincount(ends, minlength=len(self.flat.size))).tolist()
        self.pairs = count

    def _uses(self) -> None:
        owner = self.flat.use_variable
        self.use_order = np.argsort(owner, kind="stable")
        self.use_start = offsets(np.bincount(owner, minlength=len(self.flat.size))).tolist()
        self.use_offset = self.flat.use_offset

    def span(self, variable: int) -> tuple[int, int]:
        """Return the start and the end of the strategies of a variable."""
        return self.offset[variable], self.offset[variable + 1]

    def usage(self, variable: int) -> Array:
        """Return the distinct uses of a variable: (uses, strategies)."""
        mine = self.use_order[self.use_start[variable] : self.use_start[variable + 1]]
        size = self.offset[variable + 1] - self.offset[variable]
        amounts = self.flat.usage[self.use_offset[mine][:, None] + np.arange(size)]
        return np.unique(amounts, axis=0) if len(mine) > 1 else amounts

    def mask(self, variable: int) -> Array:
        """Return a mask of the undominated strategies of a variable."""
        start, end = self.span(variable)
        around = self.incident[self.incident_start[variable] : self.incident_start[variable + 1]]
        sides = sorted((self.classes[item % self.pairs], item // self.pairs) for item in around)
        unary, usage = self.flat.unary[start:end], self.usage(variable)
        key = ((unary - unary.min()).tobytes(), tuple(sides), usage.tobytes())
        if key not in self.masks:
            self.masks[key] = self._undominated(unary, sides, usage)
        return self.masks[key]

    def _undominated(self, unary: Array, sides: list[tuple[int, int]], usage: Array) -> Array:
        # possible[b, a]: b can dominate a
        possible = ~np.eye(len(unary), dtype=bool)
        for amounts in usage:
            possible &= amounts[:, None] <= amounts[None, :]
        if not possible.any():
            return np.ones(len(unary), bool)
        worst = unary[:, None] - unary[None, :]
        for pair, axis in sides:
            difference = self._worst_difference(pair, axis)
            if difference is None:
                return np.ones(len(unary), bool)
            worst = np.minimum(worst + difference, INFINITE)
        return _survivors(possible & (worst <= 0))

    def _worst_difference(self, pair: int, axis: int) -> Array | None:
        """Return D with ``D[b, a] = max over y of (T(b, y) - T(a, y))`` over one side."""
        key = (pair, axis)
        if key not in self.worst:
            shape = self.rows[pair], self.columns[pair]
            start = self.table_offset[pair]
            table = self.flat.tables[start : start + shape[0] * shape[1]].reshape(shape)
            self.worst[key] = _worst(np.ascontiguousarray(table if axis == 0 else table.T))
        return self.worst[key]


def _worst(side: Array) -> Array | None:
    count, others = side.shape
    if count * count * others > MOST_WORK:
        return None
    if COMPILED:
        return _worst_by_loops(side, HALF, INFINITE)
    worst = np.empty((count, count), np.int64)
    forbidden = side >= HALF
    for strategy in range(count):
        difference = side[strategy] - side
        difference[forbidden] = -INFINITE
        worst[strategy] = difference.max(axis=1)
    return worst


@compiled
def _worst_by_loops(side: Array, half: int, infinite: int) -> Array:
    count, others = side.shape
    worst = np.empty((count, count), np.int64)
    for b in range(count):
        for a in range(count):
            most = -infinite
            for y in range(others):
                if side[a, y] < half:
                    most = max(most, side[b, y] - side[a, y])
            worst[b, a] = most
    return worst


def _survivors(dominates: Array) -> Array:
    """Mark every strategy that none dominates, and the first of those that dominate each other."""
    mutual = dominates & dominates.T
    earlier = np.tri(len(dominates), k=-1, dtype=bool).T  # earlier[b, a]: b comes before a
    beaten = dominates & (~mutual | earlier)
    return ~beaten.any(axis=0)
