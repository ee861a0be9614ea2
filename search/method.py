"""Search methods: the base classes, and the result of a search."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import PassError
from shardwright.ir.units import bytes_text, shortened
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN


@dataclass(frozen=True)
class SearchResult:
    """A point of the search space and how good it is.

    Parameters
    ----------
    assignment : tuple of int
        An option for each choice.
    decisions : Decisions
        What the assignment decides; of a space of orbits, one element of each chosen orbit.
    cost : float
        Cost of the decisions, in the unit of the profile.
    lower_bound : float
        Proven: no plan costs less; 0 where the method proves nothing.
    status : str
        ``optimal`` where cost and bound meet, else ``feasible``.
    memory_bytes : float
        Peak memory by the account of the search.
    seconds : float
        Time that the search took.
    how : str
        What found the assignment and what proved the bound.
    unlimited : bool
        Whether the solution without a memory limit is within the limit, and so is this one.
    timed : bool
        Whether the clock ended a part of the search: another run may give another plan.
    """

    assignment: tuple[int, ...]
    decisions: Decisions
    cost: float
    lower_bound: float
    status: str
    memory_bytes: float
    seconds: float
    how: str
    unlimited: bool = False
    timed: bool = False

    def __repr__(self) -> str:
        return (
            f"<SearchResult {self.status}: cost {self.cost:g}, lower bound {self.lower_bound:g}, "
            f"{bytes_text(self.memory_bytes)}>"
        )


class SearchMethod(ABC):
    """One way to choose an option for every choice; a subclass sets `name` and overrides `find`.

    Attributes
    ----------
    name : str
        The value of the option ``search``.
    keeps_memory_limit : bool
        Whether the assignment takes no more than `SearchOptions.memory_limit`.
    minimizes_cost : bool
        Whether the method minimises the cost of the profile.
    by_orbit : bool
        Whether the method can search a space whose options are orbits.
    recomputes : bool
        Whether the method decides what is recomputed, where memory is short.
    minimizes_step : bool
        Whether lower bounds of the method lead to a plan of the least overlapped step.
    is_listed : bool
        Whether people are told of it, as a value of the option.
    """

    name: ClassVar[str]
    is_listed: ClassVar[bool] = True
    keeps_memory_limit: ClassVar[bool] = False
    minimizes_cost: ClassVar[bool] = False
    by_orbit: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    minimizes_step: ClassVar[bool] = False

    @abstractmethod
    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Return the best point that the method finds within the limits.

        Raises
        ------
        NoPlanError
            If there is none, or none was found.
        """


class Heuristic(SearchMethod):
    """A method that proves nothing; a subclass sets `name` and overrides `assignment`."""

    @abstractmethod
    def assignment(self, space: SearchSpace) -> Sequence[int]:
        """Return an option for every choice, by position."""

    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Return the assignment with its cost and memory.

        Raises
        ------
        PassError
            If the assignment takes a forbidden entry of a table.
        """
        chosen = self._positions(self.assignment(space))
        evaluation = evaluate(space.problem, chosen)
        if evaluation.cost >= FORBIDDEN:
            raise PassError(
                f"`{self.name}` chose layouts between which a tensor cannot be redistributed"
            )
        cost, peak = float(evaluation.cost) + space.constant, float(evaluation.peak_usage)
        decisions = space.decisions(chosen)
        return SearchResult(chosen, decisions, cost, 0.0, "feasible", peak, 0.0, self.name)

    def _positions(self, assignment: object) -> tuple[int, ...]:
        if isinstance(assignment, Iterable):
            positions = tuple(assignment)
            if all(isinstance(position, Integral) for position in positions):
                return tuple(int(position) for position in positions)
        raise PassError(
            f"the search `{self.name}` returns {shortened(repr(assignment), 60)}, expected the "
            "position of an option for every choice"
        )
