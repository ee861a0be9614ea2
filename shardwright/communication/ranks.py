"""Ranks: a symbol that stands for all of them, and the number of this process."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub
from typing import Any, Self

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

    def __add__(self, other: "Number") -> Any:
        if isinstance(other, ByRank):
            return NotImplemented
        if isinstance(other, Rank):
            return Rank(self.world, self.scale + other.scale, self.offset + other.offset)
        return Rank(self.world, self.scale, self.offset + other)

    def __sub__(self, other: "Number") -> Any:
        return self + other * -1

    def __mul__(self, other: int) -> "Rank":
        return Rank(self.world, self.scale * other, self.offset * other)

    def __neg__(self) -> "Rank":
        return self * -1

    def __rsub__(self, other: int) -> Any:
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def values(self) -> tuple[int, ...]:
        """The number on each rank."""
        return tuple(self.scale * rank + self.offset for rank in range(self.world))

    def __mod__(self, other: int) -> "ByRank":
        return ByRank(tuple(value % other for value in self.values))

    def __floordiv__(self, other: int) -> "ByRank":
        return ByRank(tuple(value // other for value in self.values))

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


@dataclass(frozen=True)
class ByRank:
    """A number for each rank, where it is no linear function of the rank.

    Examples
    --------
    >>> ((Rank(4) + 1) % 4).values, (Rank(4) // 2 * 2 + 1).values
    ((1, 2, 3, 0), (1, 1, 3, 3))
    """

    values: tuple[int, ...]

    def __add__(self, other: "Number") -> "ByRank":
        return self._with(add, other)

    def __sub__(self, other: "Number") -> "ByRank":
        return self._with(sub, other)

    def __mul__(self, other: "Number") -> "ByRank":
        return self._with(mul, other)

    def __mod__(self, other: "Number") -> "ByRank":
        return self._with(mod, other)

    def __floordiv__(self, other: "Number") -> "ByRank":
        return self._with(floordiv, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "ByRank":
        return self * -1

    def __rsub__(self, other: int) -> "ByRank":
        return self * -1 + other

    def _with(self, function: Callable[[int, int], int], other: "Number") -> "ByRank":
        pairs = zip(self.values, values_of(other, len(self.values)), strict=True)
        return ByRank(tuple(function(a, b) for a, b in pairs))

    def __index__(self) -> int:
        if len(set(self.values)) == 1:
            return self.values[0]
        raise ModelError(
            f"one number is needed while the program of all {len(self.values)} ranks is traced, "
            f"it is {list(self.values)} on them",
            hint="a program may slice by its rank, it may not branch or compute with it",
        )

    __int__ = __index__

    def __str__(self) -> str:
        return f"one of {list(self.values)}"


class NumberedRank(int):
    """The rank of this process: a number, and the symbol of all ranks where a program slices by it.

    Sums with integers, products by them, and quotients and remainders keep the symbol; all else is
    a plain number.

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

    symbol: Rank | ByRank

    def __new__(cls, number: int, symbol: Rank | ByRank) -> Self:
        """Make the number of a process."""
        made = super().__new__(cls, number)
        made.symbol = symbol
        return made

    def __mod__(self, other: int) -> int:
        return self._like(int(self) % int(other), self.symbol % int(other))

    def __floordiv__(self, other: int) -> int:
        return self._like(int(self) // int(other), self.symbol // int(other))

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

    def _like(self, number: int, symbol: Rank | ByRank) -> "NumberedRank":
        return type(self)(number, symbol)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (int(self), self.symbol)


Number = int | Rank | ByRank


def symbol_of(number: object) -> Rank | None:
    """Return the symbol of a rank; None for any other object."""
    if isinstance(number, NumberedRank):
        number = number.symbol
    return number if isinstance(number, Rank) else None


def values_of(number: Number, world: int) -> tuple[int, ...]:
    """Return what a number is on each rank of a world.

    Raises
    ------
    ModelError
        If it is no number.
    """
    if isinstance(number, NumberedRank):
        number = number.symbol
    if isinstance(number, Rank | ByRank):
        return number.values
    if isinstance(number, bool) or not isinstance(number, int):
        raise ModelError(f"{number!r} is given for a rank, expected an integer")
    return (number,) * world
