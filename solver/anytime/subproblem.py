"""Subproblems: some variables are free and the others fixed, or few strategies are allowed.

Fixed variables move into the costs of their neighbours and into the memory that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.solver.anytime.flat import Flat, offsets, ranges
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.local_search import State
from shardwright.solver.anytime.presolve import Presolved, presolve
from shardwright.solver.anytime.reductions import normalised, restricted
from shardwright.solver.problem import Array


@dataclass(frozen=True, eq=False)
class Subproblem:
    """The problem over some variables, with the strategies of the others fixed.

    Parameters
    ----------
    free : array of int
        The free variables, ascending.
    graph, rows : Graph, Rows
    prices : array
        Of its rows, taken over from the whole problem.
    """

    free: Array
    graph: Graph
    rows: Rows
    prices: Array


def subproblem_of(graph: Graph, rows: Rows, state: State, free: Array, prices: Array) -> Subproblem:
    """Return the problem over the variables ``free`` (ascending)."""
    place = np.full(len(graph.size), -1)
    place[free] = np.arange(len(free))
    counts = graph.ahead_start[free + 1] - graph.ahead_start[free]
    edges = graph.ahead[ranges(graph.ahead_start[free], counts)]
    edges = edges[place[graph.second[edges]] >= 0]
    size = graph.size[free]
    unary = state.costs[ranges(graph.offset[free], size)]
    first, second = place[graph.first[edges]], place[graph.second[edges]]
    offset = offsets(size)
    _subtract_tables(
        unary, offset, first, size, graph.transposed, _starts(graph, edges, state, False)
    )
    _subtract_tables(unary, offset, second, size, graph.tables, _starts(graph, edges, state, True))
    unary[unary > min(graph.ceiling, graph.big) / 2] = graph.big  # forbidden entries stay so
    smaller = Graph(
        offset=offset,
        size=size,
        unary=unary,
        first=first,
        second=second,
        place=graph.place[edges],
        tables=graph.tables,
        transposed=graph.transposed,
        ahead_start=offsets(np.bincount(first, minlength=len(free))),
        ahead=np.argsort(first, kind="stable"),
        behind_start=offsets(np.bincount(second, minlength=len(free))),
        behind=np.argsort(second, kind="stable"),
        big=graph.big,
        ceiling=graph.ceiling,
    )
    return Subproblem(free, smaller, *_rows_of(rows, state, free, place, prices))


def _starts(graph: Graph, edges: Array, state: State, ahead: bool) -> Array:
    """Return the start of the row or column of each table that the other end has chosen."""
    fixed, end = (graph.first, graph.second) if ahead else (graph.second, graph.first)
    return graph.place[edges] + state.choice[fixed[edges]] * graph.size[end[edges]]


def _subtract_tables(
    unary: Array, offset: Array, ends: Array, size: Array, tables: Array, starts: Array
) -> None:
    places = ranges(offset[ends], size[ends])
    np.subtract.at(unary, places, tables[ranges(starts, size[ends])])


def _rows_of(
    rows: Rows, state: State, free: Array, place: Array, prices: Array
) -> tuple[Rows, Array]:
    """Return the rows in which the free variables vary, equal ones joined."""
    counts = rows.start[free + 1] - rows.start[free]
    uses = ranges(rows.start[free], counts)
    if not len(uses):
        none = np.zeros(0, np.int64)
        return Rows(none, none, offsets(counts), none, none, none, none, none), np.zeros(0)
    current = rows.amount[rows.place[uses] + state.choice[rows.owner[uses]]]
    change = np.zeros(len(rows.capacity) + 1, np.int64)
    np.add.at(change, rows.first[uses], current)
    np.subtract.at(change, rows.last[uses], current)
    room = state.free + np.cumsum(change)[:-1]
    points = np.unique(np.concatenate([rows.first[uses], rows.last[uses]]))
    capacity = np.minimum.reduceat(room, points[:-1])
    until = np.concatenate([[0.0], np.cumsum(prices)])
    smaller = Rows(
        times=rows.times[points[:-1]],
        capacity=capacity,
        start=offsets(counts),
        owner=place[rows.owner[uses]],
        first=np.searchsorted(points, rows.first[uses]),
        last=np.searchsorted(points, rows.last[uses]),
        place=rows.place[uses],
        amount=rows.amount,
    )
    return smaller, until[points[1:]] - until[points[:-1]]


def presolve_restricted(flat: Flat, keep: Array) -> Presolved:
    """Return the presolved problem with only the marked strategies."""
    smaller, reduction = restricted(flat, keep, "strategies set aside")
    state = presolve(normalised(smaller))
    state.reductions.insert(0, reduction)
    return state
