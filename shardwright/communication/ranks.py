"""Ranks: a symbol that stands for all of them, and the number of this process."""

from dataclasses import dataclass
from typing import Self

from shardwright.ir.errors import ModelError


@dataclass(frozen=True, eq=False)
class Rank:
    """The number ``scale * rank + offset``, different on every rank of a world.

    Examples
    --------
    >>> print(Rank(8) * 4 + 4)
    4*rank + 4
    """

    world: int
    scale: int = 1
    offset: int = 0

    def __add__(self, other: "int | Rank") -> "Rank":
        if isinstance(other, Rank):
            return Rank(self.world, self.scale + other.scale, self.offset + other.offset)
        return Rank(self.world, self.scale, self.offset + other)

    def __sub__(self, other: "int | Rank") -> "Rank":
        return self + other * -1

    def __mul__(self, other: int) -> "Rank":
        return Rank(self.world, self.scale * other, self.offset * other)

    def __neg__(self) -> "Rank":
        return self * -1

    def __rsub__(self, other: int) -> "Rank":
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __index__(self) -> int:
        if self.world == 1:
            return self.offset
        raise ModelError(
            f"the number `{self}` is needed while the program of all {self.world} ranks is traced",
            hint="a program may slice by its rank, it may not branch or compute with it",
        )

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(self.__index__())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rank) and other.world == self.world:
            return (self.scale, self.offset) == (other.scale, other.offset)
        return isinstance(other, int) and self.__index__() == other

    def __lt__(self, other: int) -> bool:
        return self.__index__() < other

    def __gt__(self, other: int) -> bool:
        return self.__index__() > other

    def __hash__(self) -> int:
        return hash((self.world, self.scale, self.offset))

    def __str__(self) -> str:
        if self.world == 1:
            return str(self.offset)
        product = "rank" if self.scale == 1 else f"{self.scale}*rank"
        return product + (f" + {self.offset}" if self.offset else "")


class NumberedRank(int):
    """The rank of this process: a number, and the symbol of all ranks where a program slices by it.

    Sums with whole numbers and products by them keep the symbol; all else is a plain number.

    Parameters
    ----------
    number : int
        The number on this process.
    symbol : Rank
        The same on all ranks.

    Examples
    --------
    >>> rank = NumberedRank(3, Rank(8))
    >>> print(rank * 4 + 4, (rank * 4 + 4).symbol, rank == 3, rank % 2)
    16 4*rank + 4 True 1
    """

    symbol: Rank

    def __new__(cls, number: int, symbol: Rank) -> Self:
        """Make the number of a process."""
        made = super().__new__(cls, number)
        made.symbol = symbol
        return made

    def __add__(self, other: int) -> int:
        with_symbol = other.symbol if isinstance(other, NumberedRank) else other
        return self._like(int(self) + int(other), self.symbol + with_symbol)

    def __sub__(self, other: int) -> int:
        with_symbol = other.symbol if isinstance(other, NumberedRank) else other
        return self._like(int(self) - int(other), self.symbol - with_symbol)

    def __rsub__(self, other: int) -> int:
        return self._like(int(other) - int(self), other - self.symbol)

    def __mul__(self, other: int) -> int:
        if isinstance(other, NumberedRank) or not isinstance(other, int):
            return int(self) * other
        return self._like(int(self) * other, self.symbol * other)

    def __neg__(self) -> int:
        return self._like(-int(self), -self.symbol)

    __radd__ = __add__
    __rmul__ = __mul__

    def _like(self, number: int, symbol: Rank) -> "NumberedRank":
        return type(self)(number, symbol)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (int(self), self.symbol)


def symbol_of(number: object) -> Rank | None:
    """Return the symbol of a rank; None for any other object."""
    if isinstance(number, NumberedRank):
        return number.symbol
    return number if isinstance(number, Rank) else None
