"""The presolved problem for the compiled loops: costs, neighbours, and rows of memory.

Costs are integers as float64, so that sums are exact. A forbidden entry is `big`, which exceeds the
cost of every allowed assignment unless `MOST` limits it: a relaxation, so bounds stay valid.

`Rows` are the rows of memory in flat arrays of integers; `memory_rows.MemoryRows` are those of the
exact search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.solver.anytime.dominance import table_classes
from shardwright.solver.anytime.flat import HALF, Flat, offsets, ranges
from shardwright.solver.memory_rows import profile, uncovered
from shardwright.solver.problem import Array

MOST = 2.0**50
"""Forbidden entries are no larger than this, so that float64 adds them exactly."""


class Graph(NamedTuple):
    """Variables, and for each the pairs of which it is the first or the second.

    The pairs of which v is the first are ``ahead[ahead_start[v]:ahead_start[v + 1]]``, those of
    which it is the second are in `behind`. Row a of the table of pair e starts at
    ``place[e] + a * size[second[e]]`` in `tables`; `transposed` holds the transposed tables at the
    same places. Equal tables are interned. No allowed assignment costs more than `ceiling`.
    """

    offset: Array
    size: Array
    unary: Array
    first: Array
    second: Array
    place: Array
    tables: Array
    transposed: Array
    ahead_start: Array
    ahead: Array
    behind_start: Array
    behind: Array
    big: float
    ceiling: float


class Rows(NamedTuple):
    """Memory above the base, at the times at which it can run out.

    The uses of variable v are ``start[v]`` to ``start[v + 1]``; use k of variable ``owner[k]`` uses
    ``amount[place[k] + strategy]`` in the rows ``first[k]`` to ``last[k] - 1``. The rows are in the
    order of their `times`.
    """

    times: Array
    capacity: Array
    start: Array
    owner: Array
    first: Array
    last: Array
    place: Array
    amount: Array


def build_graph(flat: Flat) -> Graph:
    """Return the graph of a problem, with equal tables interned."""
    ceiling = highest_cost(flat)
    big = float(min(2 ** np.ceil(np.log2(ceiling)), MOST))
    classes = table_classes(flat)
    distinct, inverse = np.unique(classes, return_inverse=True)
    counts = (flat.rows * flat.columns)[distinct]
    place = offsets(counts)[:-1]
    places = ranges(flat.table_offset[distinct], counts)
    values = flat.tables[places]
    tables = np.where(values >= HALF, big, values).astype(np.float64)
    row_starts = np.repeat(place, flat.rows[distinct])
    rows = ranges(np.zeros(len(distinct), np.int64), flat.rows[distinct])
    length = np.repeat(flat.columns[distinct], flat.rows[distinct])
    height = np.repeat(flat.rows[distinct], flat.rows[distinct])
    columns = ranges(np.zeros(len(rows), np.int64), length)
    transposed = np.empty_like(tables)
    transposed[np.repeat(row_starts + rows, length) + columns * np.repeat(height, length)] = tables
    count = len(flat.size)
    return Graph(
        offset=flat.offset,
        size=flat.size,
        unary=np.where(flat.unary >= HALF, big, flat.unary).astype(np.float64),
        first=flat.first,
        second=flat.second,
        place=place[inverse.ravel()],
        tables=tables,
        transposed=transposed,
        ahead_start=offsets(np.bincount(flat.first, minlength=count)),
        ahead=np.argsort(flat.first, kind="stable"),
        behind_start=offsets(np.bincount(flat.second, minlength=count)),
        behind=np.argsort(flat.second, kind="stable"),
        big=big,
        ceiling=ceiling,
    )


def entries_left(graph: Graph, keep: Array) -> int:
    """Return the number of table entries between kept strategies."""
    counts = np.add.reduceat(keep.astype(np.int64), graph.offset[:-1])
    return int((counts[graph.first] * counts[graph.second]).sum())


def highest_cost(flat: Flat) -> float:
    """Return more than the absolute cost of any allowed assignment."""
    spread = 1.0
    for values, counts in ((flat.unary, flat.size), (flat.tables, flat.rows * flat.columns)):
        if len(counts):
            allowed = np.abs(np.where(values >= HALF, 0, values))
            spread += float(np.maximum.reduceat(allowed, offsets(counts)[:-1]).sum())
    return 2.0 * spread


def build_rows(flat: Flat) -> Rows:
    """Return the rows: the times at which memory can run out and that no other time covers."""
    lowest, highest = _extremes(flat)
    starts = np.concatenate([flat.use_start, flat.base_start])
    ends = np.concatenate([flat.use_end, flat.base_end])
    points = np.unique(np.concatenate([starts, ends]))
    base = profile(points, starts, ends, np.concatenate([lowest, flat.base_amount]))
    top = base + profile(points, flat.use_start, flat.use_end, highest - lowest)
    kept = uncovered(points, flat.use_start, flat.use_end, base) & (top > flat.limit)
    times = points[kept]
    over = base > flat.limit
    first = np.searchsorted(times, flat.use_start)
    last = np.searchsorted(times, flat.use_end)
    live = np.flatnonzero(first < last)
    amounts = flat.usage - np.repeat(lowest, flat.size[flat.use_variable])
    capacity = flat.limit - base[kept]
    if over.any():  # no assignment fits: one row without room says so
        times = times if len(times) else np.array([0])
        capacity = np.full(len(times), -1)
    return _merged(flat, amounts, live, first[live], last[live], times, capacity)


def affordable(flat: Flat) -> Array:
    """Return a mask of the strategies that fit if all other variables use their least memory."""
    fits = np.ones(len(flat.unary), bool)
    rows = build_rows(flat)
    if len(rows.owner):
        spans = np.stack([rows.first, rows.last], axis=1).ravel()
        room = np.minimum.reduceat(np.append(rows.capacity, 0), spans)[::2]
        counts = flat.size[rows.owner]
        places = ranges(flat.offset[rows.owner], counts)
        fits[places[rows.amount > np.repeat(room, counts)]] = False
    elif (rows.capacity < 0).any():
        fits[:] = False
    return fits


def carried(prices: Array, old: Rows, new: Rows) -> Array:
    """Return prices carried over to other rows: each goes to the row nearest in time."""
    prices_of_new = np.zeros(len(new.capacity))
    if len(prices_of_new):
        priced = np.flatnonzero(prices)
        middles = (new.times[1:] + new.times[:-1]) / 2
        np.add.at(prices_of_new, np.searchsorted(middles, old.times[priced]), prices[priced])
    return prices_of_new


def _merged(
    flat: Flat,
    amounts: Array,
    live: Array,
    first: Array,
    last: Array,
    times: Array,
    capacity: Array,
) -> Rows:
    """Return the rows, with the uses of one variable over the same rows summed."""
    keys = np.stack([flat.use_variable[live], first, last], axis=1).reshape(-1, 3)
    merged, group = np.unique(keys, axis=0, return_inverse=True)
    owner = merged[:, 0].copy()
    place = offsets(flat.size[owner])
    total = np.zeros(int(place[-1]), np.int64)
    counts = flat.size[flat.use_variable[live]]
    source = ranges(flat.use_offset[live], counts)
    np.add.at(total, ranges(place[group.ravel()], counts), amounts[source])
    return Rows(
        times=times,
        capacity=capacity,
        start=offsets(np.bincount(owner, minlength=len(flat.size))),
        owner=owner,
        first=merged[:, 1].copy(),
        last=merged[:, 2].copy(),
        place=place[:-1],
        amount=total,
    )


def _extremes(flat: Flat) -> tuple[Array, Array]:
    if not len(flat.use_variable):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = flat.use_offset[:-1]
    return np.minimum.reduceat(flat.usage, starts), np.maximum.reduceat(flat.usage, starts)
