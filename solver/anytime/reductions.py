"""Reductions of a flat problem that keep at least one optimal assignment, all pairs at once.

- `normalised`: the minima of the rows and columns of a table move into the variables; a table that
  becomes zero was separable, T(a, b) = f(a) + g(b), and is dropped. Tables of a variable with a
  single strategy are always separable.
- `supported`: the strategies that are allowed and have an allowed partner in every table.
- `relabelled`: the problem over other variables; each old variable is a function of a new one.
- `contracted`: where each strategy of u allows exactly one strategy of v, v is a function of u and
  is merged into it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.solver.anytime.flat import CHUNK, HALF, INFINITE, Flat, Reduction, offsets, ranges
from shardwright.solver.problem import Array


class Sums:
    """Sums of entries by place; a forbidden entry forbids its sum."""

    def __init__(self, count: int) -> None:
        self.total = np.zeros(count, np.int64)
        self.forbidden = np.zeros(count, bool)

    def add(self, places: Array, values: Array) -> None:
        """Add each value to the sum of its place."""
        infinite = values >= HALF
        if infinite.any():
            self.forbidden[places[infinite]] = True
            values = np.where(infinite, 0, values)
        np.add.at(self.total, places, values)

    def values(self) -> Array:
        """Return the sums."""
        return np.where(self.forbidden, INFINITE, self.total)


def _row_lengths(flat: Flat) -> Array:
    return np.repeat(flat.columns, flat.rows)


def _column_places(flat: Flat) -> Array:
    """Return the position of each entry's column among the columns of all tables."""
    starts = np.repeat(offsets(flat.columns)[:-1], flat.rows)
    return ranges(starts, _row_lengths(flat))


def normalised(flat: Flat) -> Flat:
    """Move the minima of rows and columns into the variables; drop the tables that become zero."""
    if not len(flat.first):
        return flat
    lengths = _row_lengths(flat)
    by_row = np.minimum.reduceat(flat.tables, offsets(lengths)[:-1])
    tables = flat.tables - np.repeat(by_row, lengths)
    tables[flat.tables >= HALF] = INFINITE
    places = _column_places(flat)
    by_column = np.full(int(flat.columns.sum()), INFINITE)
    np.minimum.at(by_column, places, tables)
    lower = by_column[places]
    tables = np.where(tables >= HALF, INFINITE, tables - lower)
    unary = Sums(len(flat.unary))
    unary.add(np.arange(len(flat.unary)), flat.unary)
    unary.add(ranges(flat.offset[flat.first], flat.rows), by_row)
    unary.add(ranges(flat.offset[flat.second], flat.columns), by_column)
    kept = np.maximum.reduceat(tables, flat.table_offset[:-1]) > 0
    return replace(
        flat,
        unary=unary.values(),
        first=flat.first[kept],
        second=flat.second[kept],
        tables=tables[np.repeat(kept, flat.rows * flat.columns)],
    )


def supported(flat: Flat) -> Array:
    """Return a mask of the strategies that are allowed and have a partner in every table."""
    allowed = flat.unary < HALF
    if len(flat.first):
        finite = flat.tables < HALF
        row_finite = np.logical_or.reduceat(finite, offsets(_row_lengths(flat))[:-1])
        column_finite = np.zeros(int(flat.columns.sum()), bool)
        column_finite[_column_places(flat)[finite]] = True
        allowed[ranges(flat.offset[flat.first], flat.rows)[~row_finite]] = False
        allowed[ranges(flat.offset[flat.second], flat.columns)[~column_finite]] = False
    return allowed


def restricted(flat: Flat, keep: Array, name: str) -> tuple[Flat, Reduction]:
    """Return the problem with only the marked strategies, without isolated decided variables."""
    size = np.add.reduceat(keep.astype(np.int64), flat.offset[:-1])
    labels = (np.arange(len(keep)) - np.repeat(flat.offset[:-1], flat.size))[keep]
    isolated = (size == 1) & (flat.size == 1)
    isolated[flat.first] = False
    isolated[flat.second] = False
    root = np.where(isolated, -1, np.cumsum(~isolated) - 1)
    reduction = Reduction(name, root, offsets(size)[:-1], labels)
    return relabelled(flat, reduction, size[~isolated]), reduction


def relabelled(flat: Flat, reduction: Reduction, size: Array) -> Flat:
    """Return the problem over the variables after a reduction, which have the sizes ``size``.

    A variable with a negative source has a single strategy and is in no table.
    """
    fixed = np.flatnonzero(reduction.source < 0)
    constant = flat.constant + sum(flat.unary[flat.offset[fixed]].tolist())
    unary = Sums(int(size.sum()))
    moved = np.flatnonzero(reduction.source >= 0)
    counts = size[reduction.source[moved]]
    old = (
        np.repeat(flat.offset[moved], counts)
        + reduction.labels[ranges(reduction.offset[moved], counts)]
    )
    unary.add(ranges(offsets(size)[reduction.source[moved]], counts), flat.unary[old])
    _add_diagonals(flat, reduction, size, unary)
    first, second, tables = _joined_tables(flat, reduction, size)
    uses = _relabelled_uses(flat, reduction, size)
    return replace(
        flat,
        size=size,
        unary=unary.values(),
        first=first,
        second=second,
        tables=tables,
        constant=constant,
        **uses,
    )


def _add_diagonals(flat: Flat, reduction: Reduction, size: Array, unary: Sums) -> None:
    """Add the tables between two variables that are now one to its costs."""
    root = reduction.source
    inside = np.flatnonzero(root[flat.first] == root[flat.second])
    counts = size[root[flat.first[inside]]]
    edge = np.repeat(inside, counts)
    rows = reduction.labels[ranges(reduction.offset[flat.first[inside]], counts)]
    columns = reduction.labels[ranges(reduction.offset[flat.second[inside]], counts)]
    entries = flat.tables[flat.table_offset[edge] + rows * flat.columns[edge] + columns]
    unary.add(ranges(offsets(size)[root[flat.first[inside]]], counts), entries)


def _joined_tables(flat: Flat, reduction: Reduction, size: Array) -> tuple[Array, Array, Array]:
    """Return the tables between different variables; parallel ones are summed."""
    low = np.minimum(reduction.source[flat.first], reduction.source[flat.second])
    high = np.maximum(reduction.source[flat.first], reduction.source[flat.second])
    between = np.flatnonzero(low != high)
    keys, group = np.unique(low[between] * len(size) + high[between], return_inverse=True)
    first, second = keys // max(len(size), 1), keys % max(len(size), 1)
    target = offsets(size[first] * size[second])
    sums = Sums(int(target[-1]))
    entries = np.cumsum(size[low[between]] * size[high[between]])
    bounds = np.searchsorted(entries, np.arange(CHUNK, entries[-1] if len(entries) else 0, CHUNK))
    for part in np.split(np.arange(len(between)), np.unique(bounds)):
        if len(part):
            _gather(flat, reduction, size, between[part], target[group[part]], sums)
    return first, second, sums.values()


def _gather(
    flat: Flat, reduction: Reduction, size: Array, edges: Array, target: Array, sums: Sums
) -> None:
    """Add the tables of these pairs, over the new strategies, to the sums from ``target`` on."""
    one, other = reduction.source[flat.first[edges]], reduction.source[flat.second[edges]]
    rows, columns = size[one], size[other]
    position = np.repeat(np.arange(len(edges)), rows)  # one entry a row from here on
    row = ranges(np.zeros(len(edges), np.int64), rows)
    edge, length = edges[position], columns[position]
    old_row = reduction.labels[reduction.offset[flat.first[edge]] + row]
    start = flat.table_offset[edge] + old_row * flat.columns[edge]
    old_column = reduction.labels[ranges(reduction.offset[flat.second[edge]], length)]
    values = flat.tables[np.repeat(start, length) + old_column]
    transposed = (one > other)[position]
    begin = target[position] + np.where(transposed, row, row * columns[position])
    stride = np.where(transposed, rows[position], 1)
    column = ranges(np.zeros(len(edge), np.int64), length)
    sums.add(np.repeat(begin, length) + column * np.repeat(stride, length), values)


def _relabelled_uses(flat: Flat, reduction: Reduction, size: Array) -> dict[str, Any]:
    """Return the uses over the new strategies; those that do not vary join the base."""
    source = reduction.source[flat.use_variable]
    counts = np.append(size, 1)[source]  # a negative source has one strategy
    labels = reduction.labels[ranges(reduction.offset[flat.use_variable], counts)]
    usage = flat.usage[np.repeat(flat.use_offset[:-1], counts) + labels]
    starts = offsets(counts)[:-1]
    lowest = np.minimum.reduceat(usage, starts) if len(starts) else usage
    highest = np.maximum.reduceat(usage, starts) if len(starts) else usage
    varies = (highest > lowest) & (source >= 0)
    inert = ~varies & (lowest > 0)
    return {
        "use_variable": source[varies],
        "use_start": flat.use_start[varies],
        "use_end": flat.use_end[varies],
        "usage": usage[np.repeat(varies, counts)],
        "base_start": np.concatenate([flat.base_start, flat.use_start[inert]]),
        "base_end": np.concatenate([flat.base_end, flat.use_end[inert]]),
        "base_amount": np.concatenate([flat.base_amount, lowest[inert]]),
    }


def contracted(flat: Flat) -> tuple[Flat, Reduction] | None:
    """Merge every variable that is a function of another one into it, if there is any.

    Every strategy must have a partner in every table (`supported`): then a variable has at least
    as many strategies as a function of it, and ordering by (strategies, index) prevents cycles.
    """
    if (flat.tables < HALF).all():
        return None
    parent, maps = _functions(flat)
    if (parent == np.arange(len(parent))).all():
        return None
    offset, labels = maps
    while (parent[parent] != parent).any():
        parent, offset, labels = _composed(flat, parent, offset, labels)
    roots = parent == np.arange(len(parent))
    number = np.cumsum(roots) - 1
    reduction = Reduction(
        "merged with a variable that decides them", number[parent], offset, labels
    )
    return relabelled(flat, reduction, flat.size[roots]), reduction


def _functions(flat: Flat) -> tuple[Array, tuple[Array, Array]]:
    """Return for each variable the one that decides it (or itself), and the functions."""
    count = len(flat.size)
    parent = np.arange(count)
    finite = np.flatnonzero(flat.tables < HALF)
    edge = np.searchsorted(flat.table_offset, finite, side="right") - 1
    within = finite - flat.table_offset[edge]
    row, column = within // flat.columns[edge], within % flat.columns[edge]
    amount = np.bincount(edge, minlength=len(flat.first))
    maps: list[tuple[Array, Array]] = []
    sides = (
        (flat.first, flat.second, flat.rows, row, column),
        (flat.second, flat.first, flat.columns, column, row),
    )
    for decider, decided, strategies, argument, value in sides:
        # As many allowed entries as strategies, at least one each: exactly one each.
        larger = (flat.size[decider] > flat.size[decided]) | (
            (flat.size[decider] == flat.size[decided]) & (decider < decided)
        )
        chosen = np.flatnonzero((amount == strategies) & larger & (parent[decided] == decided))
        _, unique = np.unique(decided[chosen], return_index=True)
        chosen = chosen[unique]
        parent[decided[chosen]] = decider[chosen]
        maps.append(_function_maps(edge, argument, value, chosen, decided))
    return parent, _label_maps(flat, parent, maps)


def _function_maps(
    edge: Array, argument: Array, value: Array, chosen: Array, decided: Array
) -> tuple[Array, Array]:
    """Return (variable, value) for the chosen tables, ordered by the decider's strategy."""
    mine = np.flatnonzero(np.isin(edge, chosen))
    mine = mine[np.lexsort((argument[mine], edge[mine]))]
    return decided[edge[mine]], value[mine]


def _label_maps(flat: Flat, parent: Array, maps: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join the maps of all variables; those that decide themselves map to their own strategies."""
    own = np.flatnonzero(parent == np.arange(len(parent)))
    owner = [np.repeat(own, flat.size[own])] + [variable for variable, _ in maps]
    value = [ranges(np.zeros(len(own), np.int64), flat.size[own])] + [part for _, part in maps]
    order = np.argsort(np.concatenate(owner), kind="stable")
    return offsets(flat.size[parent])[:-1], np.concatenate(value)[order]


def _composed(
    flat: Flat, parent: Array, offset: Array, labels: Array
) -> tuple[Array, Array, Array]:
    """Compose every function with the one of its argument."""
    grand = parent[parent]
    counts = flat.size[grand]
    middle = labels[ranges(offset[parent], counts)]
    return grand, offsets(counts)[:-1], labels[np.repeat(offset, counts) + middle]
