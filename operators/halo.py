"""Halos: what the windows of one slice reach of its neighbours' slices.

A space of elements and the windows over it are each dealt out in balanced slices. The windows of a
slice read one run of elements, which begins and ends in other slices or beside the space. Knows no
operator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

Run = tuple[int, int]  # first element and length


@lru_cache(maxsize=1024)
def deal(size: int, extents: tuple[int, ...]) -> tuple[Run, ...]:
    """Return the slice of every member of a group, as `Mesh.part` deals them out.

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
    """Elements that one member reads of one slice.

    Parameters
    ----------
    owner : int
        Whose slice it is.
    start, length : int
        Where they begin in the slice, and how many they are.
    place : int
        Where they begin in what the reader holds.
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
        How far before the first element the first window begins.
    span : int
        How far a window reaches.
    """

    size: int
    windows: int
    stride: int
    before: int
    span: int

    def length(self, slices: int) -> int:
        """Return how many elements the largest slice of the windows reads."""
        return self.needed(-(-self.windows // slices))

    def needed(self, windows: int) -> int:
        """Return how many elements so many windows read."""
        return (windows - 1) * self.stride + self.span

    def begin(self, window: int) -> int:
        """Return where a window begins, which may be before the first element."""
        return window * self.stride - self.before

    def runs(self, extents: Sequence[int]) -> tuple[Run, ...]:
        """Return what each member reads."""
        dealt = deal(self.windows, tuple(extents))
        return tuple((self.begin(start), self.needed(count)) for start, count in dealt)

    def is_local(self, extents: Sequence[int]) -> bool:
        """Return whether every member reads its own slice, no more and no less, and all alike."""
        runs = self.runs(extents)
        return len({n for _, n in runs}) == 1 and runs == deal(self.size, tuple(extents))

    def pieces(self, extents: Sequence[int], member: int) -> Iterator[Piece]:
        """Give what a member reads, slice by slice; what lies beside the space is left out."""
        begin, length = self.runs(extents)[member]
        for owner, (start, count) in enumerate(deal(self.size, tuple(extents))):
            first, last = max(begin, start), min(begin + length, start + count)
            if first < last:
                yield Piece(owner, first - start, last - first, first - begin)

    def margins(self, extents: Sequence[int]) -> tuple[int, int] | None:
        """Return the most that a member reads of the slice before its own, and of that after.

        None where windows reach beyond those two, or a slice is empty.
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
