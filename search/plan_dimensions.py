"""What a named plan says beside its degrees: how parameters are held, and words of other files.

Degrees are axes of a mesh (`plan_axes`). How a rank holds a parameter follows from the ZeRO stage,
and from dimensions, which files from outside add: a word of plans that holds some parameters
otherwise, or divides some operators otherwise. The plan that is built, its bounds, the plans that
are tried and exports ask here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.registry import Registry
from shardwright.search.plan_axes import PlanAxes

Word = int | float | str | bool
Words = tuple[tuple[str, Word], ...]
"""Values of dimensions by name, those that differ from the defaults."""


class Held(NamedTuple):
    """How the ranks that share the batch hold a parameter.

    Parameters
    ----------
    divided : bool
        Whether each has a part of it, of its optimizer states and of its update; else all of it.
    in_passes : bool
        Whether it is gathered for every forward and again for every backward pass, and else once.
    reduced_in_passes : bool
        Whether its gradient is reduced in every pass and accumulated in parts, and else once.
    """

    divided: bool = False
    in_passes: bool = False
    reduced_in_passes: bool = False


WHOLE = Held()
ZERO_STAGES = (WHOLE, Held(True), Held(True, False, True), Held(True, True, True))
"""How a parameter is held by the stages of ZeRO."""


class Dimension(ABC):
    """A word of named plans; what it does not override is as without it.

    Attributes
    ----------
    name : str
        The key of the word.
    default : int, float, str or bool
        The value of plans without it; a word whose default is False has no value.
    tried : sequence of values
        The values that ``fit`` tries beside the default.
    """

    name: ClassVar[str]
    default: ClassVar[Word]
    tried: ClassVar[Sequence[Word]] = ()

    @staticmethod
    @abstractmethod
    def check(value: Word) -> None:
        """Raise an `OptionError` if a value is not allowed."""

    @staticmethod
    def refusal(value: Word, plan: Mapping[str, Any]) -> str:
        """Return why a value has no effect in a plan, as a clause; empty if it has one.

        Parameters
        ----------
        value : int, float, str or bool
            The value.
        plan : mapping
            The values of all keys of named plans, ``zero`` and ``tensor`` among them.
        """
        return ""

    @staticmethod
    def held(value: Word, parameter: Value, held: Held) -> Held:
        """Return how a parameter is held.

        Parameters
        ----------
        value : int, float, str or bool
            The value.
        parameter : Value
            The whole parameter, or what is made of it alone.
        held : Held
            How it is held without the dimension.
        """
        return held

    @staticmethod
    def strategies(
        value: Word, graph: Graph, mesh: Mesh, axes: PlanAxes, strategies: Mapping[str, Strategy]
    ) -> Mapping[str, Strategy]:
        """Return the strategies of the operators whose strategy is another one than without it."""
        return {}

    @classmethod
    def divides_operators(cls) -> bool:
        """Return whether it says how operators are divided."""
        return cls.strategies is not Dimension.strategies


DIMENSIONS: Registry[type[Dimension]] = Registry("dimension of plans", base=Dimension)
"""The dimensions by name."""

register_dimension = DIMENSIONS.registered
"""Register a dimension of plans, a class, under its name; a decorator."""


def held_by(zero: int, words: Words, parameter: Value) -> Held:
    """Return how a plan holds a parameter."""
    held = ZERO_STAGES[zero]
    for name, value in words:
        held = DIMENSIONS[name].held(value, parameter, held)
    return held


def tried_words() -> Iterator[Words]:
    """Yield the values of dimensions that are tried, first the defaults."""
    each = [[(name, one) for one in values_of(name)] for name in DIMENSIONS]
    yield from (differing(words) for words in product(*each))


def values_of(name: str) -> tuple[Word, ...]:
    """Return the values of a dimension that are tried, first its default."""
    return (DIMENSIONS[name].default, *DIMENSIONS[name].tried)


def differing(words: Words) -> Words:
    """Return checked values of dimensions in the order of registration, without defaults.

    Raises
    ------
    OptionError
        If a dimension is unknown, or a value is not allowed.
    """
    for name, value in words:
        DIMENSIONS[name].check(value)
    given = dict(words)
    return tuple(
        (name, given[name])
        for name in DIMENSIONS
        if name in given and given[name] != DIMENSIONS[name].default
    )


def word_text(name: str, value: object) -> str:
    """Return a word of a plan as it is written."""
    return name if value is True else f"{name}={value}"
