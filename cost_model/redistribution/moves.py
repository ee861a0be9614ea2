"""The single collectives that lead from one layout of a tensor to another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from shardwright.ir.attributes import Attribute
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh

PACKED = ("all_gather", "reduce_scatter")
"""Those whose parts are copied where they are split along another dimension than the first."""
Kinds = Mapping[str, int]
"""The kind of each axis of a mesh; axes of one kind are interchangeable."""


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
        Layout after the move.
    """

    operator: str
    axes: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    target: Layout

    @property
    def is_packed(self) -> bool:
        """Whether its parts are copied; see `is_packed`."""
        return is_packed(self.operator, dict(self.attributes))


def is_packed(operator: str, attributes: Mapping[str, Attribute]) -> bool:
    """Return whether a collective copies its parts: they are slices of a later dimension."""
    return operator in PACKED and bool(attributes.get("dimension"))


def replaced(layout: Layout, dimension: int, axes: tuple[str, ...]) -> Layout:
    """Return a layout with other axes on one dimension."""
    splits = layout.splits
    return Layout((*splits[:dimension], axes, *splits[dimension + 1 :]), layout.partial)


def moves(
    layout: Layout,
    mesh: Mesh,
    movable: Sequence[str] | None = None,
    kinds: Kinds | None = None,
) -> Iterator[Move]:
    """Yield every single collective that `layout` can take part in.

    Parameters
    ----------
    layout : Layout
        Layout before the moves.
    mesh : Mesh
        The mesh.
    movable : sequence of str, optional
        The axes that may move; all of them if not given.
    kinds : mapping, optional
        A kind for each axis; one move of each orbit is yielded. All kinds differ if not given.
    """
    names = mesh.names if movable is None else mesh.ordered(movable)
    kinds = kinds or {name: i for i, name in enumerate(mesh.names)}
    free = [a for a in names if a not in layout.split_axes and a not in layout.partial]
    further = orders(free, kinds)
    yield from _reductions(layout, [a for a in layout.partial if a in names], kinds)
    for dimension, held in enumerate(layout.splits):
        place = (("dimension", dimension),)
        steady = sum(1 for _ in takewhile(lambda axis: axis not in names, held))
        for axes in further:
            wider = replaced(layout, dimension, held + axes)
            yield Move("local_slice", axes, place, wider)
        for first in range(steady, len(held)):
            tail, head = held[first:], held[:first]
            yield Move("all_gather", tail, place, replaced(layout, dimension, head))
            yield from _exchanges(layout, dimension, head, tail)
        for tail in orders(held[steady:], kinds) if len(held) > 1 else ():
            order = held[:steady] + tail
            if len(order) == len(held) and order != held:
                attributes = (*place, ("previous", held))
                target = replaced(layout, dimension, order)
                yield Move("collective_permute", order, attributes, target)
    for axes in subsets(free, kinds):
        target = layout.with_partial(mesh.ordered(layout.partial + axes))
        yield Move("to_partial", axes, (), target)


def orders(axes: Sequence[str], kinds: Kinds) -> list[tuple[str, ...]]:
    """Return every sequence of one or more axes, the shorter first; one for each of kinds."""
    found: list[tuple[str, ...]] = []
    longest: list[tuple[str, ...]] = [()]
    while longest:
        longest = [
            (*order, axis)
            for order in longest
            for axis in _one_of_each([a for a in axes if a not in order], kinds)
        ]
        found += longest
    return found


def _one_of_each(axes: Sequence[str], kinds: Kinds) -> list[str]:
    """Return the first axis of each kind."""
    first: dict[int, str] = {}
    for axis in axes:
        first.setdefault(kinds[axis], axis)
    return list(first.values())


def subsets(axes: Sequence[str], kinds: Kinds) -> list[tuple[str, ...]]:
    """Return every set of one or more axes, the smaller first; one for each set of kinds."""
    found: dict[tuple[int, ...], tuple[str, ...]] = {}
    for count in range(1, len(axes) + 1):
        for some in combinations(axes, count):
            found.setdefault(tuple(sorted(kinds[axis] for axis in some)), some)
    return list(found.values())


def _reductions(layout: Layout, partial: Sequence[str], kinds: Kinds) -> Iterator[Move]:
    def reduced(axes: tuple[str, ...]) -> Layout:
        return layout.with_partial(tuple(a for a in layout.partial if a not in axes))

    for axes in subsets(partial, kinds):
        yield Move("all_reduce", axes, (), reduced(axes))
    for axes in orders(partial, kinds):
        for dimension, held in enumerate(layout.splits):
            target = replaced(reduced(axes), dimension, held + axes)
            yield Move("reduce_scatter", axes, (("dimension", dimension),), target)


def _exchanges(
    layout: Layout, dimension: int, head: tuple[str, ...], tail: tuple[str, ...]
) -> Iterator[Move]:
    for other, held in enumerate(layout.splits):
        if other != dimension:
            attributes = (("split_dimension", other), ("concat_dimension", dimension))
            target = replaced(replaced(layout, dimension, head), other, held + tail)
            yield Move("all_to_all", tail, attributes, target)
