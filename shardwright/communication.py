"""The world of a hand-written parallel program: the number of ranks, and the rank as a symbol.

A program is traced once for all ranks, so the rank is a symbol: a program may slice by it, and may
not branch on it. In a world of one rank it is the number 0, and the same script is the program of
one device.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_choice

WORLD_AXIS = "world"
_BACKENDS = ("hccl", "nccl", "mccl")
_ENVIRONMENT = "SHARDWRIGHT_WORLD"
_WORLD: ContextVar[int | None] = ContextVar("world", default=None)


@contextmanager
def world(size: int) -> Iterator[None]:
    """Make `size` the number of ranks while a model is loaded and traced.

    Raises
    ------
    OptionError
        If `size` is no positive integer.
    """
    POSITIVE_INTEGER.check("size", size)
    token = _WORLD.set(size)
    try:
        yield
    finally:
        _WORLD.reset(token)


def init(backend_name: str | None = None) -> None:
    """Do nothing; scripts written for MindSpore call it first.

    Parameters
    ----------
    backend_name : str, optional
        ``hccl``, ``nccl`` or ``mccl``, so that scripts written for MindSpore run; the communicator
        is chosen when a plan runs.

    Raises
    ------
    OptionError
        If there is no such backend.
    """
    if backend_name is not None:
        check_choice("backend_name", backend_name, _BACKENDS)


def get_group_size() -> int:
    """Return the number of ranks in effect: of `world`, else of ``SHARDWRIGHT_WORLD``, else 1.

    Raises
    ------
    ModelError
        If the environment variable is not a whole number of at least 1.
    """
    size = _WORLD.get()
    if size is not None:
        return size
    text = os.environ.get(_ENVIRONMENT, "1")
    if not text.isdecimal() or int(text) < 1:
        expected = POSITIVE_INTEGER.expected
        raise ModelError(f"the variable `{_ENVIRONMENT}` is `{text}`, expected {expected}")
    return int(text)


def get_rank() -> "Rank":
    """Return the rank, as a symbol that stands for all of them."""
    return Rank(get_group_size())


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
