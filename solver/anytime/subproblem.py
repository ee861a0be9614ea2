"""Smaller problems within one: some variables free and the rest as they are, or few strategies.

What is fixed goes into the costs of its neighbours and into the memory that is left.
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
class Part:
    """The problem over some variables, given what the others have.

    Parameters
    ----------
    inside : array of int
        The variables, in order.
    graph, rows : Graph, Rows
    prices : array
        Of its rows, taken over from the whole.
    """

    inside: Array
    graph: Graph
    rows: Rows
    prices: Array


def part_of(graph: Graph, rows: Rows, state: State, inside: Array, prices: Array) -> Part:
    """Return the problem over the variables ``inside`` (ascending)."""
    place = np.full(len(graph.size), -1)
    place[inside] = np.arange(len(inside))
    counts = graph.ahead_start[inside + 1] - graph.ahead_start[inside]
    edges = graph.ahead[ranges(graph.ahead_start[inside], counts)]
    edges = edges[place[graph.second[edges]] >= 0]
    size = graph.size[inside]
    unary = state.costs[ranges(graph.offset[inside], size)]
    first, second = place[graph.first[edges]], place[graph.second[edges]]
    offset = offsets(size)
    _take_out(unary, offset, first, size, graph.turned, _given(graph, edges, state, False))
    _take_out(unary, offset, second, size, graph.tables, _given(graph, edges, state, True))
    unary[unary > min(graph.ceiling, graph.big) / 2] = graph.big  # as forbidden as before
    new = Graph(
        offset=offset,
        size=size,
        unary=unary,
        first=first,
        second=second,
        place=graph.place[edges],
        tables=graph.tables,
        turned=graph.turned,
        ahead_start=offsets(np.bincount(first, minlength=len(inside))),
        ahead=np.argsort(first, kind="stable"),
        behind_start=offsets(np.bincount(second, minlength=len(inside))),
        behind=np.argsort(second, kind="stable"),
        big=graph.big,
        ceiling=graph.ceiling,
    )
    return Part(inside, new, *_rows_of(rows, state, inside, place, prices))


def _given(graph: Graph, edges: Array, state: State, ahead: bool) -> Array:
    """Return where the costs start that a pair gives to one end, given what the other has."""
    one, other = (graph.first, graph.second) if ahead else (graph.second, graph.first)
    return graph.place[edges] + state.choice[one[edges]] * graph.size[other[edges]]


def _take_out(
    unary: Array, offset: Array, ends: Array, size: Array, tables: Array, starts: Array
) -> None:
    places = ranges(offset[ends], size[ends])
    np.subtract.at(unary, places, tables[ranges(starts, size[ends])])


def _rows_of(
    rows: Rows, state: State, inside: Array, place: Array, prices: Array
) -> tuple[Rows, Array]:
    """Return the rows in which the variables inside differ, equal ones joined."""
    counts = rows.start[inside + 1] - rows.start[inside]
    uses = ranges(rows.start[inside], counts)
    if not len(uses):
        none = np.zeros(0, np.int64)
        return Rows(none, none, offsets(counts), none, none, none, none, none), np.zeros(0)
    now = rows.amount[rows.place[uses] + state.choice[rows.owner[uses]]]
    change = np.zeros(len(rows.capacity) + 1, np.int64)
    np.add.at(change, rows.first[uses], now)
    np.subtract.at(change, rows.last[uses], now)
    room = state.free + np.cumsum(change)[:-1]
    points = np.unique(np.concatenate([rows.first[uses], rows.last[uses]]))
    capacity = np.minimum.reduceat(room, points[:-1])
    until = np.concatenate([[0.0], np.cumsum(prices)])
    new = Rows(
        times=rows.times[points[:-1]],
        capacity=capacity,
        start=offsets(counts),
        owner=place[rows.owner[uses]],
        first=np.searchsorted(points, rows.first[uses]),
        last=np.searchsorted(points, rows.last[uses]),
        place=rows.place[uses],
        amount=rows.amount,
    )
    return new, until[points[1:]] - until[points[:-1]]


def narrowed(flat: Flat, keep: Array) -> Presolved:
    """Return the problem in which only some strategies are allowed."""
    smaller, step = restricted(flat, keep, "strategies set aside")
    state = presolve(normalised(smaller))
    state.steps.insert(0, step)
    return state
