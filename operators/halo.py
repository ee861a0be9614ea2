"""Halos: the elements of neighbouring slices that the windows of a slice read.

A space of elements and the windows over it are each split into balanced slices. The windows of a
slice read one run of elements, which may begin and end in neighbouring slices or in the padding.
Knows no operator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

Run = tuple[int, int]  # first element and length


@lru_cache(maxsize=1024)
def deal(size: int, extents: tuple[int, ...]) -> tuple[Run, ...]:
    """Return the slice of every member of a group, as `Mesh.part` splits.

    Examples
    --------
    >>> deal(7, (2, 2))
    ((0, 2), (2, 2), (4, 2), (6, 1))
    """
    found: list[Run] = [(0, size)]
    for count in extents:
        finer = []
        for start, length in found:
            least, more = divmod(length, count)
            for place in range(count):
                finer.append((start, least + (place < more)))
                start += least + (place < more)
        found = finer
    return tuple(found)


@dataclass(frozen=True)
class Piece:
    """Elements that one member reads from one slice.

    Parameters
    ----------
    owner : int
        The member that holds the slice.
    start, length : int
        First element in the slice, and the number of elements.
    place : int
        First element in the run of the reader.
    """

    owner: int
    start: int
    length: int
    place: int


@dataclass(frozen=True)
class Halo:
    """Windows over one dimension.

    Parameters
    ----------
    size : int
        Elements.
    windows : int
        Windows.
    stride : int
        Elements from one window to the next.
    before : int
        Distance of the first window before the first element.
    span : int
        Distance from the first to the last element of a window, plus one.
    """

    size: int
    windows: int
    stride: int
    before: int
    span: int

    def length(self, slices: int) -> int:
        """Return the number of elements that the largest slice of the windows reads."""
        return self.needed(-(-self.windows // slices))

    def needed(self, windows: int) -> int:
        """Return the number of elements that a number of windows read."""
        return (windows - 1) * self.stride + self.span

    def begin(self, window: int) -> int:
        """Return the first element of a window; negative in the padding."""
        return window * self.stride - self.before

    def runs(self, extents: Sequence[int]) -> tuple[Run, ...]:
        """Return the run of elements that each member reads."""
        dealt = deal(self.windows, tuple(extents))
        return tuple((self.begin(start), self.needed(count)) for start, count in dealt)

    def is_local(self, extents: Sequence[int]) -> bool:
        """Return whether every member reads exactly its own slice, and all slices are equal."""
        runs = self.runs(extents)
        return len({n for _, n in runs}) == 1 and runs == deal(self.size, tuple(extents))

    def pieces(self, extents: Sequence[int], member: int) -> Iterator[Piece]:
        """Yield the pieces that a member reads, slice by slice, without padding."""
        begin, length = self.runs(extents)[member]
        for owner, (start, count) in enumerate(deal(self.size, tuple(extents))):
            first, last = max(begin, start), min(begin + length, start + count)
            if first < last:
                yield Piece(owner, first - start, last - first, first - begin)

    def margins(self, extents: Sequence[int]) -> tuple[int, int] | None:
        """Return the most elements that a member reads from the slices before and after its own.

        None if windows reach beyond the neighbours, or a slice is empty.
        """
        count = prod(extents)
        if min(self.size, self.windows) < count:
            return None
        most = [0, 0]
        for member in range(count):
            for piece in self.pieces(extents, member):
                if abs(piece.owner - member) > 1:
                    return None
                if piece.owner != member:
                    side = int(piece.owner > member)
                    most[side] = max(most[side], piece.length)
        return most[0], most[1]
