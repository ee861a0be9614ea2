"""The graph whose nodes are the layouts of a tensor, and whose edges are single collectives.

Its shape depends only on the mesh and the number of dimensions. Axes of one size on one level of
the cluster are alike: renaming them leaves every price as it is, so the layouts fall into classes
of which one stands for all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, permutations, product, takewhile

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.graph import Attribute
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh

Integers = NDArray[np.int64]


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


def _replaced(layout: Layout, dimension: int, axes: tuple[str, ...]) -> Layout:
    splits = layout.splits
    return Layout((*splits[:dimension], axes, *splits[dimension + 1 :]), layout.partial)


def moves(layout: Layout, mesh: Mesh, movable: Sequence[str] | None = None) -> Iterator[Move]:
    """Yield every single collective that `layout` can take part in.

    Parameters
    ----------
    layout : Layout
        Where they begin.
    mesh : Mesh
        The mesh.
    movable : sequence of str, optional
        The axes that may change their place; all of them if not given.
    """
    names = mesh.names if movable is None else mesh.ordered(movable)
    free = [a for a in names if a not in layout.split_axes and a not in layout.partial]
    yield from _reductions(layout, [a for a in layout.partial if a in names])
    for dimension, held in enumerate(layout.splits):
        place = (("dimension", dimension),)
        steady = sum(1 for _ in takewhile(lambda axis: axis not in names, held))
        for axes in _some(free, permutations):
            wider = _replaced(layout, dimension, held + axes)
            yield Move("local_slice", axes, place, wider)
        for first in range(steady, len(held)):
            tail, head = held[first:], held[:first]
            yield Move("all_gather", tail, place, _replaced(layout, dimension, head))
            yield from _exchanges(layout, dimension, head, tail)
        for tail in permutations(held[steady:]) if len(held) > 1 else ():
            order = held[:steady] + tail
            if order != held:
                attributes = (*place, ("previous", held))
                target = _replaced(layout, dimension, order)
                yield Move("collective_permute", order, attributes, target)
    for axes in _some(free, combinations):
        target = layout.with_partial(mesh.ordered(layout.partial + axes))
        yield Move("to_partial", axes, (), target)


def _some(
    axes: Sequence[str], choose: Callable[[Sequence[str], int], Iterable[tuple[str, ...]]]
) -> Iterator[tuple[str, ...]]:
    """Yield every choice of one or more axes."""
    for count in range(1, len(axes) + 1):
        yield from choose(axes, count)


def _reductions(layout: Layout, partial: Sequence[str]) -> Iterator[Move]:
    def reduced(axes: tuple[str, ...]) -> Layout:
        return layout.with_partial(tuple(a for a in layout.partial if a not in axes))

    for axes in _some(partial, combinations):
        yield Move("all_reduce", axes, (), reduced(axes))
    for axes in _some(partial, permutations):
        for dimension, held in enumerate(layout.splits):
            target = _replaced(reduced(axes), dimension, held + axes)
            yield Move("reduce_scatter", axes, (("dimension", dimension),), target)


def _exchanges(
    layout: Layout, dimension: int, head: tuple[str, ...], tail: tuple[str, ...]
) -> Iterator[Move]:
    for other, held in enumerate(layout.splits):
        if other != dimension:
            attributes = (("split_dimension", other), ("concat_dimension", dimension))
            target = _replaced(_replaced(layout, dimension, head), other, held + tail)
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
class LayoutGraph:
    """Layouts of tensors with one number of dimensions on one mesh, and the moves between them."""

    mesh: Mesh
    nodes: tuple[Layout, ...]
    counts: Integers  # slices of each dimension of each layout
    moves: tuple[tuple[int, int, Move], ...]

    @cached_property
    def index(self) -> dict[Layout, int]:
        """Position of each layout."""
        return {layout: i for i, layout in enumerate(self.nodes)}

    @cached_property
    def edges(self) -> Integers:
        """Source and target of each move."""
        return np.array([(s, t) for s, t, _ in self.moves], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def arriving(self) -> list[Integers]:
        """The first move that arrives at each of the first layouts, the second, and so on.

        The layouts stand by falling number of moves that arrive, so each list is shorter.
        """
        order = np.argsort(self.edges[:, 1], kind="stable")
        degrees = np.bincount(self.edges[:, 1], minlength=len(self.nodes))
        begins = np.cumsum(degrees) - degrees
        return [order[begins[degrees > i] + i] for i in range(degrees.max(initial=0))]

    @cached_property
    def symmetry(self) -> "Symmetry":
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
    def groups(self) -> dict[tuple[str, tuple[str, ...]], Integers]:
        """Positions of the moves that are the same collective over the same axes."""
        found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for position, (_, _, move) in enumerate(self.moves):
            found.setdefault((move.operator, tuple(sorted(move.axes))), []).append(position)
        return {key: np.array(positions) for key, positions in found.items()}


@dataclass(frozen=True, eq=False)
class Symmetry:
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

    images: Integers
    first: Integers
    classes: Integers
    renaming: Integers


def _symmetry(graph: LayoutGraph) -> Symmetry:
    found = []
    for names in _renamings(graph.mesh):
        image = [graph.index.get(layout.renamed(names, graph.mesh)) for layout in graph.nodes]
        if None not in image:  # where not every order of axes is a node, few renamings stay inside
            found.append(image)
    images = np.array(found, dtype=np.int64)
    first, classes = np.unique(images.min(axis=0), return_inverse=True)
    return Symmetry(images, first, classes, images.argmin(axis=0))


def _renamings(mesh: Mesh) -> Iterator[dict[str, str]]:
    """Yield every way to exchange axes of one size and level, the identity first."""
    alike: dict[tuple[int, int], list[str]] = {}
    for axis in mesh.axes:
        alike.setdefault((axis.size, axis.level), []).append(axis.name)
    for orders in product(*(permutations(names) for names in alike.values())):
        pairs = zip(alike.values(), orders, strict=True)
        yield {a: b for names, order in pairs for a, b in zip(names, order, strict=True)}


@lru_cache(maxsize=64)
def layout_graph(mesh: Mesh, rank: int) -> LayoutGraph:
    """Return all layouts of tensors with `rank` dimensions on a mesh, and the moves between them.

    The layouts stand by falling number of moves that arrive.
    """
    nodes = [ordered for layout in layouts(mesh, rank) for ordered in _with_orders(layout)]
    place = {layout: i for i, layout in enumerate(nodes)}
    leaving = [
        (i, end, move)
        for i, layout in enumerate(nodes)
        for move in moves(layout, mesh)
        if (end := place.get(move.target)) is not None
    ]
    degrees = np.bincount([end for _, end, _ in leaving], minlength=len(nodes))
    order = np.argsort(-degrees, kind="stable")
    position = np.argsort(order, kind="stable").tolist()
    edges = tuple((position[start], position[end], move) for start, end, move in leaving)
    nodes = [nodes[i] for i in order]
    counts = np.array([layout.counts(mesh) for layout in nodes], dtype=np.int64)
    return LayoutGraph(mesh, tuple(nodes), counts.reshape(len(nodes), rank), edges)
