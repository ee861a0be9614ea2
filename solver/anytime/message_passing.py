"""Message passing: sequential tree-reweighted (TRW-S; Kolmogorov, 2006), on priced costs.

Messages M(u to v) reparametrise the cost, without changing any total:

    D_v(a)     = c_v(a) + sum over neighbours u of M(u to v)(a)
    T_uv(a, b) = table(a, b) - M(v to u)(a) - M(u to v)(b)

A pass visits the variables in order and sends, with w_v = 1 / max(pairs ahead, pairs behind),

    M(v to u)(b) = min over a of (w_v D_v(a) - M(u to v)(a) + table(a, b))  -  its minimum

Each pair then is part of one chain along the order. The sum of the minima taken out is the sum of
the minima of the chains: a lower bound on the cost of every assignment, which never falls from pass
to pass while prices stay. The bound is lowered by more than float64 can have rounded it up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.solver.anytime.compiled import COMPILED, compiled
from shardwright.solver.anytime.flat import offsets
from shardwright.solver.anytime.graph import Graph
from shardwright.solver.problem import Array

ROUNDING = 2.0**-50
"""Relative error of a few successive sums."""


class Pieces(NamedTuple):
    """The messages, and the starts of those of each pair to its first and second variable."""

    to_first: Array
    first_place: Array
    to_second: Array
    second_place: Array


class Messages:
    """The messages of all pairs.

    Attributes
    ----------
    choice : array
        Decoded by the forward pass, variable by variable, given those before.
    marginals : array
        D_v above its minimum, from the backward pass.
    error : float
        The rounding error of the sums of the backward pass.
    """

    def __init__(self, graph: Graph) -> None:
        places = [offsets(graph.size[ends]) for ends in (graph.first, graph.second)]
        self.pieces = Pieces(
            np.zeros(int(places[0][-1])), places[0], np.zeros(int(places[1][-1])), places[1]
        )
        self.graph = graph
        self.choice = np.zeros(len(graph.size), np.int64)
        self.marginals = np.zeros(len(graph.unary))
        self.error = 0.0

    def save(self) -> tuple[Array, Array]:
        """Return a copy of the messages."""
        return self.pieces.to_first.copy(), self.pieces.to_second.copy()

    def restore(self, saved: tuple[Array, Array]) -> None:
        """Return to saved messages."""
        self.pieces.to_first[:], self.pieces.to_second[:] = saved

    def of_pair(self, e: int) -> tuple[Array, Array]:
        """Return the messages of a pair to its first and to its second variable."""
        first, second = self.pieces.first_place, self.pieces.second_place
        return (
            self.pieces.to_first[first[e] : first[e + 1]],
            self.pieces.to_second[second[e] : second[e + 1]],
        )

    def sweep(self, unary: Array) -> float:
        """Send messages forward and backward; return a lower bound."""
        _forward(self.graph, unary, self.pieces, self.choice)
        bound, magnitude = _backward(self.graph, unary, self.pieces, self.marginals)
        self.error = ROUNDING * magnitude
        return float(bound - self.error)


@compiled
def _send(
    source: Array, rows: int, tables: Array, place: int, out: Array, begin: int, columns: int
) -> float:
    """Fill ``out[begin + b]`` with the minimum over a of ``source[a] + table[a, b]``.

    The least of them is subtracted from all and returned.
    """
    if COMPILED:
        for b in range(columns):
            out[begin + b] = source[0] + tables[place + b]
        for a in range(1, rows):
            value = source[a]
            row = place + a * columns
            for b in range(columns):
                total = value + tables[row + b]
                out[begin + b] = total if total < out[begin + b] else out[begin + b]
    else:
        table = tables[place : place + rows * columns].reshape(rows, columns)
        out[begin : begin + columns] = (table + source[:rows].reshape(rows, 1)).min(axis=0)
    least = out[begin]
    for b in range(1, columns):
        least = min(least, out[begin + b])
    for b in range(columns):
        out[begin + b] -= least
    return least


@compiled
def _forward(graph: Graph, unary: Array, pieces: Pieces, choice: Array) -> None:
    """Send to the variables ahead; decode, given the variables decoded before."""
    # Fields are read once: reading one inside the loops takes as long as a short table.
    offset, sizes, first, second = graph.offset, graph.size, graph.first, graph.second
    place, tables = graph.place, graph.tables
    ahead_start, ahead = graph.ahead_start, graph.ahead
    behind_start, behind = graph.behind_start, graph.behind
    to_first, first_place = pieces.to_first, pieces.first_place
    to_second, second_place = pieces.to_second, pieces.second_place
    total, conditional, source = np.empty((3, sizes.max()))
    for v in range(len(sizes)):
        size = sizes[v]
        for a in range(size):
            total[a] = unary[offset[v] + a]
            conditional[a] = total[a]
        for k in range(ahead_start[v], ahead_start[v + 1]):
            begin = first_place[ahead[k]]
            for a in range(size):
                total[a] += to_first[begin + a]
                conditional[a] += to_first[begin + a]
        for k in range(behind_start[v], behind_start[v + 1]):
            begin = second_place[behind[k]]
            row = place[behind[k]] + choice[first[behind[k]]] * size
            for a in range(size):
                total[a] += to_second[begin + a]
                conditional[a] += tables[row + a]
        choice[v] = conditional[:size].argmin()
        counts = ahead_start[v + 1] - ahead_start[v], behind_start[v + 1] - behind_start[v]
        weight = 1.0 / max(1, counts[0], counts[1])
        least = total[:size].min()
        for k in range(ahead_start[v], ahead_start[v + 1]):
            e = ahead[k]
            begin = first_place[e]
            for a in range(size):
                source[a] = weight * (total[a] - least) - to_first[begin + a]
            _send(source, size, tables, place[e], to_second, second_place[e], sizes[second[e]])


@compiled
def _backward(graph: Graph, unary: Array, pieces: Pieces, marginals: Array) -> tuple[float, float]:
    """Send to the variables behind; return the bound, and the absolute sum of its terms."""
    offset, sizes, first = graph.offset, graph.size, graph.first
    place, transposed = graph.place, graph.transposed
    ahead_start, ahead = graph.ahead_start, graph.ahead
    behind_start, behind = graph.behind_start, graph.behind
    to_first, first_place = pieces.to_first, pieces.first_place
    to_second, second_place = pieces.to_second, pieces.second_place
    total, source = np.empty((2, sizes.max()))
    bound, magnitude = 0.0, 0.0
    for v in range(len(sizes) - 1, -1, -1):
        size = sizes[v]
        for a in range(size):
            total[a] = unary[offset[v] + a]
        for k in range(ahead_start[v], ahead_start[v + 1]):
            begin = first_place[ahead[k]]
            for a in range(size):
                total[a] += to_first[begin + a]
        for k in range(behind_start[v], behind_start[v + 1]):
            begin = second_place[behind[k]]
            for a in range(size):
                total[a] += to_second[begin + a]
        counts = ahead_start[v + 1] - ahead_start[v], behind_start[v + 1] - behind_start[v]
        weight = 1.0 / max(1, counts[0], counts[1])
        least = total[:size].min()
        magnitude += (abs(least) + abs(total[:size].max())) * (counts[0] + counts[1] + 2)
        bound += least
        for a in range(size):
            marginals[offset[v] + a] = total[a] - least
        for k in range(behind_start[v], behind_start[v + 1]):
            e = behind[k]
            begin = second_place[e]
            for a in range(size):
                source[a] = weight * (total[a] - least) - to_second[begin + a]
            out = first_place[e]
            lowest = _send(source, size, transposed, place[e], to_first, out, sizes[first[e]])
            magnitude += abs(lowest) * (counts[0] + counts[1] + 2)
            bound += lowest
    return bound, magnitude + abs(bound) * 4


@compiled
def diffuse(graph: Graph, unary: Array, pieces: Pieces, passes: int) -> None:
    """Spread the costs of every variable evenly over its tables, so that none stays negative."""
    sizes, first, second, place = graph.size, graph.first, graph.second, graph.place
    to_first, first_place = pieces.to_first, pieces.first_place
    to_second, second_place = pieces.to_second, pieces.second_place
    total = np.empty(sizes.max())
    for _ in range(passes):
        for v in range(len(sizes)):
            size = sizes[v]
            for a in range(size):
                total[a] = unary[graph.offset[v] + a]
            ahead = graph.ahead[graph.ahead_start[v] : graph.ahead_start[v + 1]]
            behind = graph.behind[graph.behind_start[v] : graph.behind_start[v + 1]]
            for e in ahead:
                mine, other, width = first_place[e], second_place[e], sizes[second[e]]
                for a in range(size):
                    least = np.inf
                    for b in range(width):
                        entry = graph.tables[place[e] + a * width + b] - to_second[other + b]
                        least = min(least, entry)
                    to_first[mine + a] = least
                    total[a] += least
            for e in behind:
                mine, other, width = second_place[e], first_place[e], sizes[first[e]]
                for a in range(size):
                    least = np.inf
                    for b in range(width):
                        entry = graph.transposed[place[e] + a * width + b] - to_first[other + b]
                        least = min(least, entry)
                    to_second[mine + a] = least
                    total[a] += least
            share = 1.0 / (len(ahead) + len(behind) + 1)
            for e in ahead:
                for a in range(size):
                    to_first[first_place[e] + a] -= total[a] * share
            for e in behind:
                for a in range(size):
                    to_second[second_place[e] + a] -= total[a] * share
