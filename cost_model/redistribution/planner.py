"""Redistribution: the cheapest sequence of collectives from one layout to another.

The layouts of a tensor are the nodes of a graph whose edges are single collectives, with their
costs as weights. All shortest paths of one tensor type are found at once (Bellman and Ford): the
search asks for thousands of pairs, and the partition then emits the paths that the search priced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, takewhile

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.redistribution.layout_graph import (
    Integers,
    LayoutGraph,
    few_axis_permutations,
    layout_graph,
    possible,
    uneven_permutes,
)
from shardwright.cost_model.redistribution.layout_orbits import OrbitPaths
from shardwright.cost_model.redistribution.moves import Move, moves
from shardwright.cost_model.redistribution.shortest_paths import ShortestPaths
from shardwright.ir.errors import StrategyError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType, item_bytes

Floats = NDArray[np.float64]
MoveCosts = Callable[[str, tuple[str, ...], Floats], Floats]
"""Prices a communication operator over axes, for several sizes of the operand in bytes."""
MOST_AXES = 4
"""Axes of more than one rank on a mesh that is not called fine.

A tensor of four dimensions has 1,457 layouts without partial sums on four axes, and 12,341 on five;
with two, few meshes would be searched by all paths."""


class _Paths:
    """Shortest paths between layouts of one tensor type, found from those that are asked for."""

    def __init__(self, graph: LayoutGraph, weights: Floats) -> None:
        self.graph = graph
        self._shortest = ShortestPaths(graph.edges, weights, len(graph.nodes))
        # Of the cheapest path from the first layout of each orbit to each layout.
        self._costs = np.empty((len(graph.symmetry.first), len(graph.nodes)))
        self._is_known = np.zeros(len(self._costs), np.bool_)

    def between(self, sources: Integers, targets: Integers) -> Floats:
        """Return the costs of the cheapest paths, as a table."""
        symmetry = self.graph.symmetry
        orbits = symmetry.orbits[sources]
        missing = np.unique(orbits[~self._is_known[orbits]])
        if len(missing):
            self._costs[missing] = self._shortest.distances(symmetry.first[missing])
            self._is_known[missing] = True
        columns = symmetry.images[symmetry.permutation[sources]][:, targets]
        return self._costs[orbits[:, None], columns]


@dataclass(eq=False)
class Found:
    """The paths that were found by some prices, by type of tensor."""

    paths: dict[object, _Paths] = field(default_factory=dict)
    orbits: dict[object, OrbitPaths] = field(default_factory=dict)


class RedistributionPlanner:
    """Prices and plans redistributions on one mesh.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    move_costs : callable
        Prices a single collective.
    packing_costs : callable
        Prices what a collective that `is_packed` takes further; see `move_costs`.
    """

    def __init__(self, mesh: Mesh, move_costs: MoveCosts, packing_costs: MoveCosts) -> None:
        self.mesh = mesh
        self._move_costs, self._packing_costs = move_costs, packing_costs
        self.axis_permutations = tuple(few_axis_permutations(mesh))
        self.found = Found()

    # Planners of other prices

    @property
    def of_parameters(self) -> "RedistributionPlanner":
        """The planner of parameters: that of all tensors."""
        return self

    @property
    def of_gradients(self) -> "RedistributionPlanner":
        """The planner of the gradients of what this one redistributes: the same."""
        return self

    @property
    def second(self) -> "RedistributionPlanner":
        """The planner of what is redistributed a second time, for the gradient: the same."""
        return self

    def in_step(self, times: float, of_parameters: bool) -> "RedistributionPlanner":
        """Return the planner of what is redistributed so often in a step: the same.

        `of_parameters` says that it is made of parameters alone.
        """
        return self

    @property
    def is_fine(self) -> bool:
        """Whether the mesh has too many layouts to find all paths between them."""
        return sum(axis.size > 1 for axis in self.mesh.axes) > MOST_AXES

    def costs(self, tensor: TensorType, sources: list[Layout], targets: list[Layout]) -> Floats:
        """Return the cost from each of `sources` to each of `targets`, as a table.

        An entry is infinite where no path exists.

        Raises
        ------
        StrategyError
            If the mesh has too many axes, or a layout is of another mesh.
        """
        if self.is_fine:
            raise StrategyError(
                f"mesh {self.mesh} has more than {MOST_AXES} axes, which is too fine to be "
                f"searched",
                hint="merge axes of one level, or search with `exact`, which searches orbits",
            )
        paths = self._shortest(tensor)
        rows = np.array([self._position(paths.graph, layout) for layout in sources])
        columns = np.array([self._position(paths.graph, layout) for layout in targets])
        return paths.between(rows, columns)

    def orbit_costs(
        self, tensor: TensorType, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> Floats:
        """Return the cost from the orbit of each source to that of each target, as a table.

        No path between two layouts is cheaper than that between their orbits.

        Raises
        ------
        StrategyError
            If a layout is of another mesh.
        """
        paths = self._orbit_paths(tensor)
        rows = [self._position(paths.graph, layout) for layout in sources]
        columns = [self._position(paths.graph, layout) for layout in targets]
        return paths.between(rows, columns)

    def nearest(self, tensor: TensorType, source: Layout, target: Layout) -> frozenset[int]:
        """Return the axis permutations of `target` to which the path from `source` is cheapest.

        Parameters
        ----------
        tensor : TensorType
            The type of the tensor.
        source, target : Layout
            Layouts before and after.

        Returns
        -------
        frozenset of int
            Positions in `axis_permutations` of those whose path costs what `orbit_costs` says.
        """
        ends = self._orbit_paths(tensor).ways(_plain(source), target)
        images = (_plain(target.renamed(names, self.mesh)) for names in self.axis_permutations)
        return frozenset(i for i, image in enumerate(images) if image in ends)

    def plan(self, tensor: TensorType, source: Layout, target: Layout) -> list[Move]:
        """Return the cheapest sequence of moves from one layout to another.

        Raises
        ------
        StrategyError
            If there is none.
        """
        paths = self._orbit_paths(tensor)
        for layout in (source, target):
            self._position(paths.graph, layout)
        short = paths.ways(_plain(source), target).get(_plain(target))
        return self._plan_alone(tensor, source, target) if short is None else list(short)

    def path_cost(self, tensor: TensorType, source: Layout, target: Layout) -> float:
        """Return the cost of the moves that `plan` returns."""
        cost, here = 0.0, source
        for move in self.plan(tensor, source, target):
            cost += self._move_cost(tensor, here, move)
            here = move.target
        return cost

    def _move_cost(self, tensor: TensorType, here: Layout, move: Move) -> float:
        elements = tensor.filled_elements(here.slice_shape(tensor.shape, self.mesh))
        size = np.array([elements * item_bytes(tensor.dtype)])
        return float(self._costs_of(move, size)[0])

    def _costs_of(self, move: Move, sizes: Floats) -> Floats:
        """Return the costs of a move, for several sizes of its operand in bytes."""
        costs = self._move_costs(move.operator, move.axes, sizes)
        if not move.is_packed:
            return costs
        return costs + self._packing_costs(move.operator, move.axes, sizes)

    def _plan_alone(self, tensor: TensorType, source: Layout, target: Layout) -> list[Move]:
        """Search for one path; on a fine mesh only the axes that differ move.

        The cost between orbits is the heuristic (A* of Hart, Nilsson and Raphael).
        """
        axes = self.mesh.ordered(_changed(source, target)) if self.is_fine else self.mesh.names
        paths = self._orbit_paths(tensor)
        rest = paths.rest_to(self._position(paths.graph, target))
        prices: dict[object, float] = {}
        done: set[Layout] = set()
        waiting: list[tuple[float, int, float, Layout, tuple[Move, ...]]] = []
        waiting.append((0.0, 0, 0.0, source, ()))
        ticket = count(1)  # of two layouts at one distance, the earlier comes first
        while waiting:
            _, _, cost, here, path = heappop(waiting)
            if here == target:
                return list(path)
            if here in done:
                continue
            done.add(here)
            place = paths.graph.find(here)
            for move in moves(here, self.mesh, axes):
                after = paths.graph.find(move.target)
                if move.target in done or after is None or not np.isfinite(rest[after]):
                    continue
                if not _is_possible(tensor, here, move, self.mesh):
                    continue
                over = paths.graph.kinds_over(move.axes)
                kind = (place, move.operator, over, move.is_packed)
                if kind not in prices:  # equal for all moves of a kind from one orbit
                    prices[kind] = self._move_cost(tensor, here, move)
                further = cost + prices[kind]
                step = (further + rest[after], next(ticket), further, move.target, (*path, move))
                heappush(waiting, step)
        raise StrategyError(f"there is no path from the layout {source} to {target}")

    def _position(self, graph: LayoutGraph, layout: Layout) -> int:
        found = graph.find(layout)
        if found is None:
            raise StrategyError(f"the layout {layout} is not one of mesh {self.mesh}")
        return found

    def _orbit_paths(self, tensor: TensorType) -> OrbitPaths:
        key = (tensor.shape, tensor.nbytes, tensor.ragged)
        if key not in self.found.orbits:
            graph = layout_graph(self.mesh, tensor.rank, by_orbit=True)
            self.found.orbits[key] = OrbitPaths(graph, self._weights(graph, tensor))
        return self.found.orbits[key]

    def _shortest(self, tensor: TensorType) -> _Paths:
        key = (tensor.shape, tensor.nbytes, tensor.ragged)
        if key not in self.found.paths:
            graph = layout_graph(self.mesh, tensor.rank)
            self.found.paths[key] = _Paths(graph, self._weights(graph, tensor))
        return self.found.paths[key]

    def _weights(self, graph: LayoutGraph, tensor: TensorType) -> Floats:
        shape = np.array(tensor.shape, dtype=np.int64)
        parts = -(-shape // graph.counts)
        local = parts.prod(axis=1) * float(item_bytes(tensor.dtype))
        if tensor.ragged is not None:
            filled = {tuple(part): tensor.filled_elements(tuple(part)) for part in parts.tolist()}
            local = np.array([filled[tuple(part)] for part in parts.tolist()])
            local *= float(item_bytes(tensor.dtype))
        starts, ends = graph.edges[:, 0], graph.edges[:, 1]
        weights = np.zeros(len(graph.edges))
        for move, positions in graph.groups:
            sizes = local[starts[positions]]
            weights[positions] = self._costs_of(move, sizes)
        fits = possible(graph, tensor)
        weights[~(fits[starts] & fits[ends])] = np.inf
        weights[uneven_permutes(graph, tensor)] = np.inf
        return weights


def _plain(layout: Layout) -> Layout:
    """Return a layout without the reduction of its partial values."""
    return layout.with_partial(layout.partial)


def _changed(source: Layout, target: Layout) -> set[str]:
    """Return the axes that differ between two layouts, and those after them in a dimension."""
    stay: set[str] = set(source.partial) & set(target.partial)
    for held, wanted in zip(source.splits, target.splits, strict=True):
        stay.update(
            a for a, _ in takewhile(lambda p: p[0] == p[1], zip(held, wanted, strict=False))
        )
    return {*source.split_axes, *source.partial, *target.split_axes, *target.partial} - stay


def _is_possible(tensor: TensorType, source: Layout, move: Move, mesh: Mesh) -> bool:
    """Return whether a move leaves no slice empty, and permutes only slices of one size."""
    counts = move.target.counts(mesh)
    if any(size < count for size, count in zip(tensor.shape, counts, strict=True)):
        return False
    return move.operator != "collective_permute" or source.is_even(tensor.shape, mesh)
