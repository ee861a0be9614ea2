"""What a search over configurations tried, and why it cut the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from shardwright.planner.choice.configuration import Configuration

Outcome = Literal["compiled", "cut", "infeasible", "refused", "not found", "left"]


@dataclass(frozen=True)
class Tried:
    """A configuration, and what became of it.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    outcome : str
        ``compiled``: searched within the memory limit; ``cut``: its bound exceeds the cost of a
        plan; ``infeasible``: proven that no plan fits; ``refused``: it has no form of the program;
        ``not found``: the search ended without a plan or a proof; ``left``: the budget was spent
        first, or too little was to be gained.
    lower_bound : float
        Proven: no plan of the configuration costs less; infinite where it has none.
    proof : str
        What proved the bound.
    cost : float or None
        Cost of the best plan found.
    memory_bytes : float or None
        Peak memory of that plan's program on a rank.
    reason : str
        Why there is no plan, in words of the error.
    seconds : float
        Work of its searches.
    """

    configuration: Configuration
    outcome: Outcome
    lower_bound: float
    proof: str
    cost: float | None = None
    memory_bytes: float | None = None
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RankedPlan:
    """One of the best plans.

    Parameters
    ----------
    configuration : Configuration
        Its configuration.
    cost : float
        Its cost, in the unit of the objective.
    memory_bytes : float
        Peak memory of a rank.
    differs : tuple of str
        What it decides otherwise than the best plan; empty for the best.
    """

    configuration: Configuration
    cost: float
    memory_bytes: float
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryPoint:
    """The best plan of the chosen configuration within another memory limit.

    Parameters
    ----------
    limit_bytes : float
        The limit.
    cost : float or None
        Cost of the best plan found; None where none was found.
    lower_bound : float
        Proven: no plan of the configuration within this limit costs less.
    memory_bytes : float or None
        Peak memory of the plan.
    """

    limit_bytes: float
    cost: float | None
    lower_bound: float
    memory_bytes: float | None = None


@dataclass(frozen=True)
class SearchTrace:
    """The account of a search over configurations.

    Parameters
    ----------
    tried : tuple of Tried
        Every configuration, in the order in which they were listed.
    best : Configuration
        The configuration of the answer.
    plans : tuple of RankedPlan
        The best plans of different configurations, best first.
    memory_points : tuple of MemoryPoint
        The best plans within other memory limits, by rising limit; empty unless asked for.
    is_cut_short : bool
        Whether the budget ended the search, or that of a configuration.
    is_interrupted : bool
        Whether the user ended it.
    """

    tried: tuple[Tried, ...]
    best: Configuration
    plans: tuple[RankedPlan, ...] = ()
    memory_points: tuple[MemoryPoint, ...] = field(default=())
    is_cut_short: bool = False
    is_interrupted: bool = False

    @property
    def lower_bound(self) -> float:
        """Proven: no plan of any configuration costs less."""
        return min((item.lower_bound for item in self.tried), default=0.0)

    def best_by_shape(self) -> dict[str, float]:
        """Return the cost of the best plan found on each shape of the mesh."""
        found: dict[str, float] = {}
        for item in self.tried:
            if item.cost is not None:
                shape = item.configuration.shape
                found[shape] = min(found.get(shape, inf), item.cost)
        return found

    def bounds_by_shape(self) -> dict[str, float]:
        """Return the bound of all plans on each shape of the mesh; of none that is refused."""
        found: dict[str, float] = {}
        for item in self.tried:
            if item.outcome != "refused":
                shape = item.configuration.shape
                found[shape] = min(found.get(shape, inf), item.lower_bound)
        return found

    @property
    def covered(self) -> tuple[Configuration, ...]:
        """The configurations that the bound covers."""
        return tuple(item.configuration for item in self.tried if item.outcome != "refused")

    def memory_price(self) -> float | None:
        """Return the seconds that one more byte saves, between the limits around the answer's.

        None where fewer than two limits have a plan.
        """
        points = [point for point in self.memory_points if point.cost is not None]
        if len(points) < 2:
            return None
        return _slope(points)


def _slope(points: Sequence[MemoryPoint]) -> float:
    first, last = points[0], points[-1]
    assert first.cost is not None
    assert last.cost is not None
    return (first.cost - last.cost) / (last.limit_bytes - first.limit_bytes)
