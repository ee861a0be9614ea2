"""Cheapest paths between orbits of layouts, and from orbits back to layouts.

Layouts that differ by a permutation of interchangeable axes form an orbit. The cost from one orbit
to another is that from one of its layouts to the nearest of the other's: a lower bound on the cost
between any two of them, and met by some. For many axes there are few orbits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from shardwright.cost_model.redistribution.layout_graph import LayoutGraph, exchanges
from shardwright.cost_model.redistribution.moves import Kinds, Move, replaced
from shardwright.cost_model.redistribution.shortest_paths import Floats, ShortestPaths
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.rounding import EQUAL


class OrbitPaths:
    """Shortest paths between the orbits of layouts of one tensor type.

    Parameters
    ----------
    graph : LayoutGraph
        One layout of each orbit.
    weights : array
        Cost of each of its moves.
    """

    def __init__(self, graph: LayoutGraph, weights: Floats) -> None:
        self.graph = graph
        self.weights = weights
        self._costs: dict[int, Floats] = {}  # from an orbit to all
        self._rest: dict[int, Floats] = {}  # from all to an orbit
        self._ways: dict[tuple[Layout, int], dict[Layout, tuple[Move, ...]]] = {}

    def between(self, sources: Sequence[int], targets: Sequence[int]) -> Floats:
        """Return the cost from each source orbit to each target orbit, as a table."""
        missing = [source for source in dict.fromkeys(sources) if source not in self._costs]
        if missing:
            distances = self._shortest.distances(np.array(missing))
            self._costs |= dict(zip(missing, distances, strict=True))
        columns = np.array(targets, dtype=np.int64)
        rows = {source: self._costs[source][columns] for source in dict.fromkeys(sources)}
        return np.stack([rows[source] for source in sources])

    @cached_property
    def _shortest(self) -> ShortestPaths:
        return ShortestPaths(self.graph.edges, self.weights, len(self.graph.nodes))

    def rest_to(self, target: int) -> Floats:
        """Return the cost from every orbit to one."""
        if target not in self._rest:
            starts, ends = self.graph.edges.T
            rest = np.full(len(self.graph.nodes), np.inf)
            rest[target], before = 0.0, np.empty(0)
            while not np.array_equal(before, rest):
                before = rest.copy()
                np.minimum.at(rest, starts, rest[ends] + self.weights)
            self._rest[target] = rest
        return self._rest[target]

    def ways(self, source: Layout, target: Layout) -> Mapping[Layout, tuple[Move, ...]]:
        """Return the moves to each layout of the target's orbit that is nearest to `source`.

        Their cost is that between the orbits; empty where there is no path.
        """
        start, goal = self.graph.find(source), self.graph.find(target)
        if start is None or goal is None:
            return {}
        if (source, goal) not in self._ways:
            self._ways[source, goal] = self._find_ways(source, start, goal)
        return self._ways[source, goal]

    def _find_ways(self, source: Layout, start: int, goal: int) -> dict[Layout, tuple[Move, ...]]:
        rest = self.rest_to(goal)
        ways: dict[Layout, tuple[Move, ...]] = {source: ()}
        waiting, found = [(start, source)] if np.isfinite(rest[start]) else [], {}
        while waiting:
            here, layout = waiting.pop()
            if here == goal:
                found[layout] = ways[layout]
                continue
            for after, move in self._tight(here, layout, rest):
                if move.target not in ways:
                    ways[move.target] = (*ways[layout], move)
                    waiting.append((after, move.target))
        return found

    def _tight(self, here: int, layout: Layout, rest: Floats) -> Iterator[tuple[int, Move]]:
        """Yield the moves from a layout of orbit `here` that are part of a shortest path."""
        graph, mesh = self.graph, self.graph.mesh
        names = naming(graph.nodes[here], layout, mesh, graph.kinds)
        for position in graph.leaving[here]:
            _, after, move = graph.moves[position]
            if self.weights[position] + rest[after] <= rest[here] * (1 + EQUAL):
                one = renamed_move(move, names, mesh)
                yield from ((after, other) for other in _orbit(one, layout, mesh, graph.kinds))


def _orbit(move: Move, layout: Layout, mesh: Mesh, kinds: Kinds) -> Iterator[Move]:
    """Yield the moves of a layout in the orbit of one move."""
    if move.operator == "collective_permute":  # the axes of the dimension can be permuted
        dimension = next(i for i, axes in enumerate(move.target.splits) if axes == move.axes)
        for names in exchanges(move.axes, kinds.__getitem__):
            order = tuple(names[axis] for axis in move.axes)
            yield replace(move, axes=order, target=replaced(layout, dimension, order))
        return
    steady = exchanges(
        mesh.names,  # those that do not split the layout, and those that it is partial over
        lambda axis: axis if axis in layout.split_axes else (kinds[axis], axis in layout.partial),
    )
    images = {move.target.renamed(names, mesh): names for names in steady}
    yield from (renamed_move(move, names, mesh) for names in images.values())


def representative(layout: Layout, mesh: Mesh, kinds: Kinds) -> Layout:
    """Return the layout of an orbit that uses the first axes of each kind first."""
    names: dict[str, str] = {}
    for axis in (*layout.split_axes, *layout.partial):
        used = names.values()
        names[axis] = next(a for a in mesh.names if kinds[a] == kinds[axis] and a not in used)
    return layout.renamed(names, mesh)


def naming(source: Layout, target: Layout, mesh: Mesh, kinds: Kinds) -> dict[str, str]:
    """Return an axis permutation that maps a layout to another of its orbit."""
    names = dict(zip(source.split_axes, target.split_axes, strict=True))
    for held, wanted in (
        (source.partial, target.partial),
        (_free(source, mesh), _free(target, mesh)),
    ):
        here, there = (sorted(axes, key=kinds.__getitem__) for axes in (held, wanted))
        names |= dict(zip(here, there, strict=True))
    return names


def _free(layout: Layout, mesh: Mesh) -> tuple[str, ...]:
    used = (*layout.split_axes, *layout.partial)
    return tuple(axis for axis in mesh.names if axis not in used)


def renamed_move(move: Move, names: Mapping[str, str], mesh: Mesh) -> Move:
    """Return a move under a permutation of axes."""
    attributes = tuple(
        (key, tuple(names[str(a)] for a in value) if isinstance(value, tuple) else value)
        for key, value in move.attributes
    )
    axes = tuple(names[axis] for axis in move.axes)
    if move.operator in ("all_reduce", "to_partial"):  # over sets of axes
        axes = mesh.ordered(axes)
    return Move(move.operator, axes, attributes, move.target.renamed(names, mesh))
