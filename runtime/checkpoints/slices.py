"""Which rank writes which region of a tensor, and regions in blocks of bounded size."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh
from shardwright.runtime.communicator import ONE_DEVICE
from shardwright.runtime.state import Region, region


@dataclass(frozen=True)
class Piece:
    """A region of a parameter, and the rank that writes it.

    Parameters
    ----------
    name : str
        The parameter.
    rank : int
        The rank.
    region : tuple of slice
        The region.
    """

    name: str
    rank: int
    region: Region

    @property
    def begin(self) -> tuple[int, ...]:
        """The first index."""
        return tuple(part.start for part in self.region)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(part.stop - part.start for part in self.region)


def is_by_rank(value: Value, mesh: Mesh) -> bool:
    """Return whether every rank has a tensor of its own: that of a program written by hand."""
    return value.layout is None and mesh.size > 1


def pieces_of(graph: Graph) -> dict[str, list[Piece]]:
    """Return the pieces of every parameter: the first rank that holds a region writes it."""
    mesh = graph.mesh or ONE_DEVICE
    return {parameter.name: _pieces(parameter.value, mesh) for parameter in graph.parameters}


def _pieces(value: Value, mesh: Mesh) -> list[Piece]:
    stage = None if value.layout is None else value.layout.stage
    alone = is_by_rank(value, mesh)
    found: dict[object, Piece] = {}
    for rank in mesh.ranks_of(stage):
        piece = Piece(value.name, rank, region(value, mesh, rank))
        found.setdefault(rank if alone else piece.begin, piece)
    return list(found.values())


def blocks_of(part: Region, itemsize: int, limit: int) -> Iterator[Region]:
    """Yield a region in blocks of at most `limit` bytes, in the order of its elements.

    Examples
    --------
    >>> list(blocks_of((slice(0, 3), slice(0, 2)), 4, 16))
    [(slice(0, 2, None), slice(0, 2, None)), (slice(2, 3, None), slice(0, 2, None))]
    """
    if not part or itemsize * _elements(part) <= limit:
        yield part
        return
    first, rest = part[0], part[1:]
    rows = max(1, limit // (itemsize * _elements(rest)))
    for begin in range(first.start, first.stop, rows):
        end = min(begin + rows, first.stop)
        for inner in blocks_of(rest, itemsize, limit) if rows == 1 else (rest,):
            yield (slice(begin, end), *inner)


def _elements(part: Region) -> int:
    return prod(axis.stop - axis.start for axis in part)
