"""The graph whose nodes are the layouts of a tensor, and whose edges are single collectives.

Its shape depends only on the mesh and the number of dimensions. Axes of one size on one level of
the cluster are interchangeable: permuting them leaves every price unchanged, so the layouts form
orbits, and one representative stands for each. There is a graph of all layouts, and a graph of the
orbits, which stays small for many axes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.redistribution.moves import Kinds, Move, moves, orders, subsets
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_MOST_PERMUTATIONS = 1_000  # most permutations tried for an operator; six equal axes have 720
_Form = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


def layouts(
    mesh: Mesh, rank: int, partial: bool = True, kinds: Kinds | None = None
) -> list[Layout]:
    """Return every layout of a tensor with `rank` dimensions, axes of a dimension in mesh order.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    rank : int
        Number of dimensions.
    partial : bool
        Whether to include layouts with partial axes.
    kinds : mapping, optional
        A kind for each axis; one layout is returned for each orbit. All kinds differ if not given.
    """
    places = range(rank + 1 + partial)  # a dimension, replicated, or partial
    names = [axis.name for axis in mesh.axes if axis.size > 1]
    result = []
    for choice in placements(names, places, kinds):
        held = [tuple(n for n, c in zip(names, choice, strict=True) if c == p) for p in places]
        result.append(Layout(tuple(held[:rank]), held[rank + 1] if partial else ()))
    return result


def placements(
    names: Sequence[str], places: Sequence[int], kinds: Kinds | None
) -> Iterator[tuple[int, ...]]:
    """Yield every placement of the axes; axes of one kind keep the order of places."""
    before = [
        next((j for j in reversed(range(i)) if kinds and kinds[names[j]] == kinds[name]), None)
        for i, name in enumerate(names)
    ]
    for choice in product(places, repeat=len(names)):
        if all(j is None or choice[j] <= choice[i] for i, j in enumerate(before)):
            yield choice


def _all_orders(mesh: Mesh, rank: int, kinds: Kinds) -> Iterator[Layout]:
    """Yield a layout of every orbit, with the axes of a dimension in every order."""
    names = [axis.name for axis in mesh.axes if axis.size > 1]
    for splits, free in _splits(rank, names, kinds):
        for partial in [(), *subsets(free, kinds)]:
            yield Layout(splits, mesh.ordered(partial))


def _splits(
    rank: int, free: list[str], kinds: Kinds
) -> Iterator[tuple[tuple[tuple[str, ...], ...], list[str]]]:
    """Yield the axes of each dimension, in every order, and those that are left."""
    if not rank:
        yield (), free
        return
    for held in [(), *orders(free, kinds)]:
        left = [axis for axis in free if axis not in held]
        for later, rest in _splits(rank - 1, left, kinds):
            yield (held, *later), rest


@dataclass(frozen=True, eq=False)
class LayoutGraph:
    """Layouts of tensors with one number of dimensions on one mesh, and the moves between them.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    kinds : mapping
        A kind for each axis; each layout stands for its orbit.
    nodes : tuple of Layout
        The layouts.
    counts : array, shape (nodes, dimensions)
        Slices of each dimension.
    moves : tuple of (int, int, Move)
        From which node to which, and how.
    """

    mesh: Mesh
    kinds: Kinds
    nodes: tuple[Layout, ...]
    counts: Integers
    moves: tuple[tuple[int, int, Move], ...]
    _found: dict[Layout, int | None] = field(default_factory=dict, repr=False)

    @cached_property
    def _index(self) -> dict[_Form, int]:
        return {_form(layout, self.kinds): i for i, layout in enumerate(self.nodes)}

    def find(self, layout: Layout) -> int | None:
        """Return which node stands for a layout; None if it is of another mesh."""
        if layout not in self._found:
            known = all(axis in self.kinds for axis in (*layout.split_axes, *layout.partial))
            place = self._index.get(_form(layout, self.kinds)) if known else None
            self._found[layout] = place
        return self._found[layout]

    def kinds_over(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the kinds of some axes, in order."""
        return tuple(sorted([self.kinds[axis] for axis in axes]))

    @cached_property
    def edges(self) -> Integers:
        """Source and target of each move."""
        return np.array([(s, t) for s, t, _ in self.moves], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def symmetry(self) -> "Symmetry":
        """The symmetry of a graph in which each layout stands for itself."""
        return _symmetry(self)

    @cached_property
    def leaving(self) -> list[list[int]]:
        """Moves that begin at each layout."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for position, (source, _, _) in enumerate(self.moves):
            found[source].append(position)
        return found

    @cached_property
    def groups(self) -> list[tuple[Move, Integers]]:
        """Positions of the moves that are the same collective over axes of the same kinds.

        Those whose parts are copied are apart.
        """
        found: dict[tuple[str, tuple[int, ...], bool], list[int]] = {}
        for position, (_, _, move) in enumerate(self.moves):
            key = move.operator, self.kinds_over(move.axes), move.is_packed
            found.setdefault(key, []).append(position)
        return [(self.moves[where[0]][2], np.array(where)) for where in found.values()]


def _form(layout: Layout, kinds: Kinds) -> _Form:
    """Return the canonical form of a layout: equal for the layouts of one orbit."""
    splits = tuple([tuple([kinds[axis] for axis in axes]) for axes in layout.splits])
    return splits, tuple(sorted([kinds[axis] for axis in layout.partial]))


@dataclass(frozen=True, eq=False)
class Symmetry:
    """The axis permutations that leave all prices unchanged, and their orbits.

    Parameters
    ----------
    images : array, shape (permutations, layouts)
        The image of each layout under each permutation.
    first : array, shape (orbits,)
        One layout of each orbit.
    orbits, permutation : array, shape (layouts,)
        The orbit of each layout, and a permutation that maps it to the first of its orbit.
    """

    images: Integers
    first: Integers
    orbits: Integers
    permutation: Integers


def _symmetry(graph: LayoutGraph) -> Symmetry:
    mesh = graph.mesh
    images = np.array(
        [
            [graph.find(layout.renamed(names, mesh)) for layout in graph.nodes]
            for names in axis_permutations(mesh)
        ],
        dtype=np.int64,
    )
    least = images.min(axis=0)
    is_first = np.zeros(len(least), dtype=bool)
    is_first[least] = True
    orbits = (np.cumsum(is_first) - 1)[least]
    return Symmetry(images, np.flatnonzero(is_first), orbits, images.argmin(axis=0))


def kinds_of(mesh: Mesh) -> Kinds:
    """Return a kind for each axis: equal for axes of one size on one level."""
    numbers: dict[tuple[object, ...], int] = {}
    kinds = {}
    for axis in mesh.axes:
        key = (axis.size, axis.level) if axis.size > 1 else (axis.name,)  # of no use to permute
        kinds[axis.name] = numbers.setdefault(key, len(numbers))
    return kinds


def exchanges(axes: Sequence[str], kind: Callable[[str], object]) -> Iterator[dict[str, str]]:
    """Yield every permutation within axes of one kind, the identity first."""
    by_kind: dict[object, list[str]] = {}
    for axis in axes:
        by_kind.setdefault(kind(axis), []).append(axis)
    for taken in product(*map(permutations, by_kind.values())):
        pairs = zip(by_kind.values(), taken, strict=True)
        yield {a: b for names, order in pairs for a, b in zip(names, order, strict=True)}


def axis_permutations(mesh: Mesh) -> Iterator[dict[str, str]]:
    """Yield every permutation of interchangeable axes, the identity first."""
    return exchanges(mesh.names, kinds_of(mesh).__getitem__)


def few_axis_permutations(mesh: Mesh) -> Iterator[dict[str, str]]:
    """Yield permutations of interchangeable axes; where there are many, the last axes stay.

    They are a group: the identity is the first, and any two have one that leads from the first to
    the second.
    """
    kinds, moved = kinds_of(mesh), list(mesh.names)
    while True:
        counts = Counter(kinds[name] for name in moved)
        if prod(map(factorial, counts.values())) <= _MOST_PERMUTATIONS:
            break
        largest = max(counts.values())
        moved.remove(next(name for name in reversed(moved) if counts[kinds[name]] == largest))
    for names in exchanges(moved, kinds.__getitem__):
        yield {name: names.get(name, name) for name in mesh.names}


@lru_cache(maxsize=64)
def layout_graph(mesh: Mesh, rank: int, by_orbit: bool = False) -> LayoutGraph:
    """Return the layouts of tensors with `rank` dimensions on a mesh, and the moves between them.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    rank : int
        Number of dimensions.
    by_orbit : bool
        Whether one layout stands for its orbit.
    """
    kinds = kinds_of(mesh) if by_orbit else {name: i for i, name in enumerate(mesh.names)}
    nodes = list(_all_orders(mesh, rank, kinds))
    place = {_form(layout, kinds): i for i, layout in enumerate(nodes)}
    leaving = tuple(
        (i, end, move)
        for i, layout in enumerate(nodes)
        for move in moves(layout, mesh, kinds=kinds)
        if (end := place.get(_form(move.target, kinds))) is not None and end != i
    )
    counts = np.array([layout.counts(mesh) for layout in nodes], dtype=np.int64)
    return LayoutGraph(mesh, kinds, tuple(nodes), counts.reshape(len(nodes), rank), leaving)


def possible(graph: LayoutGraph, tensor: TensorType) -> NDArray[np.bool_]:
    """Return which layouts leave no slice empty."""
    shape = np.array(tensor.shape, dtype=np.int64)
    return np.asarray((shape >= graph.counts).all(axis=1))


def uneven_permutes(graph: LayoutGraph, tensor: TensorType) -> list[int]:
    """Return the permutes of dimensions whose slices have several sizes."""
    found = []
    for move, positions in graph.groups:
        for position in positions if move.operator == "collective_permute" else ():
            source, _, move = graph.moves[position]
            dimension = dict(move.attributes)["dimension"]
            if tensor.shape[dimension] % graph.counts[source, dimension]:
                found.append(int(position))
    return found
