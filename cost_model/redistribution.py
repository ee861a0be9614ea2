"""Redistribution: the cheapest sequence of collectives from one layout to another.

The layouts of a tensor are the nodes of a graph whose edges are single collectives. The shape of
that graph depends only on the mesh and the number of dimensions; the weights depend on the tensor's
bytes. All shortest paths of one tensor type are found at once (Bellman and Ford), since the search
asks for thousands of pairs, and the partition then walks the very paths that the search has priced.

Axes of one size on one level of the cluster are alike: renaming them leaves every price as it is.
So paths are found from one layout of each such class only; those from its images are their images.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import collective_seconds_array
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Attribute
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType, item_bytes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_KINDS = {"collective_permute": "permute", "neighbor_exchange": "permute", "receive": "send"}
_ORDERED_AXES = 3  # beyond this many axes, only layouts in mesh order are passed through
_BLOCK = 128  # sources whose shortest paths are found together, so that they stay in the cache


@dataclass(frozen=True)
class Move:
    """One collective that leads from a layout to another.

    Parameters
    ----------
    operator : str
        Name of the communication operator.
    axes : tuple of str
        Mesh axes of its groups.
    attributes : tuple of (str, attribute)
        Its other attributes.
    target : Layout
        Where it leads.
    """

    operator: str
    axes: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    target: Layout


def _replaced(layout: Layout, changes: dict[int, tuple[str, ...]]) -> Layout:
    splits = tuple(changes.get(d, axes) for d, axes in enumerate(layout.splits))
    return Layout(splits, layout.partial)


def moves(layout: Layout, mesh: Mesh) -> Iterator[Move]:
    """Yield every single collective that `layout` can take part in."""
    free = [a for a in mesh.names if a not in layout.split_axes and a not in layout.partial]
    yield from _reductions(layout)
    for dimension, held in enumerate(layout.splits):
        place = (("dimension", dimension),)
        for axis in free:
            wider = _replaced(layout, {dimension: (*held, axis)})
            yield Move("local_slice", (axis,), place, wider)
        for first in range(len(held)):
            tail, head = held[first:], held[:first]
            yield Move("all_gather", tail, place, _replaced(layout, {dimension: head}))
            yield from _exchanges(layout, dimension, head, tail)
        for order in permutations(held) if len(held) > 1 else ():
            if order != held:
                attributes = (*place, ("previous", held))
                target = _replaced(layout, {dimension: order})
                yield Move("collective_permute", order, attributes, target)
    for axis in free:
        target = layout.with_partial(mesh.ordered((*layout.partial, axis)))
        yield Move("to_partial", (axis,), (), target)


def _reductions(layout: Layout) -> Iterator[Move]:
    for count in range(1, len(layout.partial) + 1):
        for order in permutations(layout.partial, count):
            axes = tuple(a for a in layout.partial if a in order)
            reduced = layout.with_partial(tuple(a for a in layout.partial if a not in order))
            if order == axes:
                yield Move("all_reduce", axes, (), reduced)
            for dimension, held in enumerate(layout.splits):
                target = _replaced(reduced, {dimension: held + order})
                yield Move("reduce_scatter", order, (("dimension", dimension),), target)


def _exchanges(
    layout: Layout, dimension: int, head: tuple[str, ...], tail: tuple[str, ...]
) -> Iterator[Move]:
    for other, held in enumerate(layout.splits):
        if other != dimension:
            attributes = (("split_dimension", other), ("concat_dimension", dimension))
            target = _replaced(layout, {dimension: head, other: held + tail})
            yield Move("all_to_all", tail, attributes, target)


def layouts(mesh: Mesh, rank: int, partial: bool = True) -> list[Layout]:
    """Return every layout of a tensor with `rank` dimensions, axes of a dimension in mesh order.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    rank : int
        Number of dimensions.
    partial : bool
        Whether to include layouts with partial axes.
    """
    places = range(rank + 1 + partial)  # a dimension, replicated, or partial
    names = [axis.name for axis in mesh.axes if axis.size > 1]
    found = []
    for choice in product(places, repeat=len(names)):
        held = [tuple(n for n, c in zip(names, choice, strict=True) if c == p) for p in places]
        found.append(Layout(tuple(held[:rank]), held[rank + 1] if partial else ()))
    return found


def _with_orders(layout: Layout) -> Iterator[Layout]:
    orders = [list(permutations(axes)) for axes in layout.splits]
    for splits in product(*orders):
        yield Layout(splits, layout.partial)


@dataclass(frozen=True, eq=False)
class _LayoutGraph:
    """Layouts of tensors with one number of dimensions on one mesh, and the moves between them."""

    mesh: Mesh
    nodes: tuple[Layout, ...]
    counts: NDArray[np.int64]  # slices of each dimension of each layout
    moves: tuple[tuple[int, int, Move], ...]

    @cached_property
    def index(self) -> dict[Layout, int]:
        """Position of each layout."""
        return {layout: i for i, layout in enumerate(self.nodes)}

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """Source and target of each move."""
        return np.array([(s, t) for s, t, _ in self.moves], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def arriving(self) -> list[NDArray[np.int64]]:
        """The first move that arrives at each of the first layouts, the second, and so on.

        The layouts stand by falling number of moves that arrive, so each list is shorter.
        """
        order = np.argsort(self.edges[:, 1], kind="stable")
        degrees = np.bincount(self.edges[:, 1], minlength=len(self.nodes))
        begins = np.cumsum(degrees) - degrees
        return [order[begins[degrees > i] + i] for i in range(degrees.max(initial=0))]

    @cached_property
    def symmetry(self) -> "_Symmetry":
        """What renaming like axes does to the layouts."""
        return _symmetry(self)

    @cached_property
    def leaving(self) -> list[list[int]]:
        """Moves that begin at each layout."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for position, (source, _, _) in enumerate(self.moves):
            found[source].append(position)
        return found

    @cached_property
    def groups(self) -> dict[tuple[str, tuple[str, ...]], NDArray[np.int64]]:
        """Positions of the moves that are the same collective over the same axes."""
        found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for position, (_, _, move) in enumerate(self.moves):
            found.setdefault((move.operator, tuple(sorted(move.axes))), []).append(position)
        return {key: np.array(positions) for key, positions in found.items()}


@dataclass(frozen=True, eq=False)
class _Symmetry:
    """The renamings of axes that leave all prices as they are.

    Parameters
    ----------
    images : array, shape (renamings, layouts)
        Where each renaming takes each layout.
    first : array, shape (classes,)
        One layout of each class.
    classes, renaming : array, shape (layouts,)
        The class of each layout, and a renaming that takes it to the first of its class.
    """

    images: NDArray[np.int64]
    first: NDArray[np.int64]
    classes: NDArray[np.int64]
    renaming: NDArray[np.int64]


def _symmetry(graph: _LayoutGraph) -> _Symmetry:
    found = []
    for names in _renamings(graph.mesh):
        image = [graph.index.get(_renamed(layout, names, graph.mesh)) for layout in graph.nodes]
        if None not in image:  # where not every order of axes is a node, few renamings stay inside
            found.append(image)
    images = np.array(found, dtype=np.int64)
    first, classes = np.unique(images.min(axis=0), return_inverse=True)
    return _Symmetry(images, first, classes, images.argmin(axis=0))


def _renamings(mesh: Mesh) -> Iterator[dict[str, str]]:
    """Yield every way to exchange axes of one size and level, the identity first."""
    alike: dict[tuple[int, int], list[str]] = {}
    for axis in mesh.axes:
        alike.setdefault((axis.size, axis.level), []).append(axis.name)
    for orders in product(*(permutations(names) for names in alike.values())):
        pairs = zip(alike.values(), orders, strict=True)
        yield {a: b for names, order in pairs for a, b in zip(names, order, strict=True)}


def _renamed(layout: Layout, names: dict[str, str], mesh: Mesh) -> Layout:
    splits = tuple(tuple(names[axis] for axis in axes) for axes in layout.splits)
    return Layout(splits, mesh.ordered(names[axis] for axis in layout.partial))


@lru_cache(maxsize=64)
def _layout_graph(mesh: Mesh, rank: int) -> _LayoutGraph:
    nodes = layouts(mesh, rank)
    if len(mesh.axes) <= _ORDERED_AXES:
        nodes = [ordered for layout in nodes for ordered in _with_orders(layout)]
    known = frozenset(nodes)
    leaving = [(n, m) for n in nodes for m in moves(n, mesh) if m.target in known]
    degrees = Counter(move.target for _, move in leaving)
    nodes.sort(key=lambda layout: -degrees[layout])
    index = {layout: i for i, layout in enumerate(nodes)}
    edges = [(index[layout], index[move.target], move) for layout, move in leaving]
    counts = np.array([layout.counts(mesh) for layout in nodes], dtype=np.int64)
    return _LayoutGraph(mesh, tuple(nodes), counts.reshape(len(nodes), rank), tuple(edges))


def move_seconds(
    operator: str,
    axes: tuple[str, ...],
    local_bytes: Floats,
    mesh: Mesh,
    cluster: Cluster,
) -> Floats:
    """Return the seconds of one communication operator, for operands of several sizes.

    Parameters
    ----------
    operator : str
        Name of the communication operator.
    axes : tuple of str
        Mesh axes of its groups.
    local_bytes : array
        Bytes of the operand on a rank.
    mesh, cluster
        Where it runs.
    """
    count, device = mesh.extent(axes), cluster.device
    if operator in ("local_slice", "to_partial", "mirror"):
        moved = 2 * local_bytes / (count if operator == "local_slice" else 1)
        return device.launch_seconds + moved / device.memory_bandwidth
    kind = _KINDS.get(operator, operator)
    nbytes = local_bytes * count if operator == "all_gather" else local_bytes
    members = [mesh.axis(axis) for axis in axes]
    return device.launch_seconds + collective_seconds_array(kind, nbytes, members, cluster)


@dataclass(frozen=True, eq=False)
class _Paths:
    """Shortest paths between all layouts of one tensor type."""

    graph: _LayoutGraph
    weights: Floats  # of each move
    seconds: Floats  # of the cheapest path from the first layout of each class to each layout

    def between(self, sources: Integers, targets: Integers) -> Floats:
        """Return the seconds of the cheapest paths, as a table."""
        symmetry = self.graph.symmetry
        columns = symmetry.images[symmetry.renaming[sources]][:, targets]
        return self.seconds[symmetry.classes[sources][:, None], columns]


class RedistributionPlanner:
    """Prices and plans redistributions on one mesh of one cluster.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    cluster : Cluster
        Its links.
    """

    def __init__(self, mesh: Mesh, cluster: Cluster) -> None:
        self.mesh = mesh
        self.cluster = cluster
        self._paths: dict[tuple[tuple[int, ...], int], _Paths] = {}

    def seconds(self, tensor: TensorType, sources: list[Layout], targets: list[Layout]) -> Floats:
        """Return the seconds from each of `sources` to each of `targets`, as a table.

        An entry is infinite where no path exists.
        """
        paths = self._shortest(tensor)
        rows = np.array([self._position(paths, layout) for layout in sources])
        columns = np.array([self._position(paths, layout) for layout in targets])
        return paths.between(rows, columns)

    def plan(self, tensor: TensorType, source: Layout, target: Layout) -> list[Move]:
        """Return the cheapest sequence of moves from one layout to another.

        Raises
        ------
        StrategyError
            If there is none.
        """
        paths = self._shortest(tensor)
        here, goal = self._position(paths, source), self._position(paths, target)
        found = []
        while here != goal:
            leaving = paths.graph.leaving[here]
            after = paths.graph.edges[leaving, 1]
            rest = paths.weights[leaving] + paths.between(after, np.array([goal]))[:, 0]
            best = int(np.argmin(rest))
            if not np.isfinite(rest[best]):
                raise StrategyError(f"there is no way from the layout {source} to {target}")
            _, here, move = paths.graph.moves[leaving[best]]
            found.append(move)
        return found

    def _position(self, paths: _Paths, layout: Layout) -> int:
        key = layout if layout.reduction == "sum" else Layout(layout.splits, layout.partial)
        if key not in paths.graph.index:
            raise StrategyError(f"the layout {layout} is not one of mesh {self.mesh}")
        return paths.graph.index[key]

    def _shortest(self, tensor: TensorType) -> _Paths:
        key = (tensor.shape, tensor.nbytes)
        if key not in self._paths:
            self._paths[key] = self._find_paths(tensor)
        return self._paths[key]

    def _find_paths(self, tensor: TensorType) -> _Paths:
        graph = _layout_graph(self.mesh, tensor.rank)
        weights = self._weights(graph, tensor)
        arriving = [(graph.edges[m, 0], weights[m, None]) for m in graph.arriving]
        first = graph.symmetry.first
        seconds = np.empty((len(first), len(graph.nodes)))
        for begin in range(0, len(first), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            seconds[rows] = _shortest_from(first[rows], len(graph.nodes), arriving).T
        return _Paths(graph, weights, seconds)

    def _weights(self, graph: _LayoutGraph, tensor: TensorType) -> Floats:
        shape = np.array(tensor.shape, dtype=np.int64)
        local = (-(-shape // graph.counts)).prod(axis=1) * float(item_bytes(tensor.dtype))
        starts, ends = graph.edges[:, 0], graph.edges[:, 1]
        weights = np.zeros(len(graph.edges))
        for (operator, axes), positions in graph.groups.items():
            sizes = local[starts[positions]]
            weights[positions] = move_seconds(operator, axes, sizes, self.mesh, self.cluster)
        possible = _possible(graph, tensor)
        weights[~(possible[starts] & possible[ends])] = np.inf
        weights[_uneven_permutes(graph, tensor)] = np.inf
        return weights


def _shortest_from(
    sources: Integers, count: int, arriving: Sequence[tuple[Integers, Floats]]
) -> Floats:
    """Return the shortest distances from several of `count` nodes, by Bellman and Ford.

    Parameters
    ----------
    sources : array
        Where paths begin; a column each.
    count : int
        Number of nodes.
    arriving : sequence of (array, array)
        Where the i-th edge into each of the first nodes comes from, and what it costs.
    """
    seconds = np.full((count, len(sources)), np.inf)
    seconds[sources, np.arange(len(sources))] = 0.0
    before = np.empty_like(seconds)
    while not np.array_equal(before, seconds):
        before[:] = seconds
        for starts, prices in arriving:
            reached = seconds[: len(starts)]
            np.minimum(reached, seconds[starts] + prices, out=reached)
    return seconds


def _possible(graph: _LayoutGraph, tensor: TensorType) -> NDArray[np.bool_]:
    """Return which layouts leave no slice empty."""
    shape = np.array(tensor.shape, dtype=np.int64)
    return np.asarray((shape >= graph.counts).all(axis=1))


def _uneven_permutes(graph: _LayoutGraph, tensor: TensorType) -> list[int]:
    """Return the permutes of dimensions whose slices differ: they differ in either order."""
    found = []
    for (operator, _), positions in graph.groups.items():
        for position in positions if operator == "collective_permute" else ():
            source, _, move = graph.moves[position]
            dimension = dict(move.attributes)["dimension"]
            if tensor.shape[dimension] % graph.counts[source, dimension]:
                found.append(int(position))
    return found
