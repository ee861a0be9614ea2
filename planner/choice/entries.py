"""Configurations in a search, and what is known of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from typing import Generic, TypeVar

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.mesh import Mesh
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.questions import Found, Question
from shardwright.planner.choice.trace import Outcome, Tried

T = TypeVar("T")
Site = tuple[Mesh | None, int]
"""What prices are of: a mesh and a number of micro-batches."""

COMPUTATION = "least computation"
_FEW = 8
"""Micro-batches for each device group of the pipelines that are priced first.

The bubble is an eighth of the step. What is near the least estimate is priced next, so with twice
or half as many the same is found a round earlier or later."""

_FINER = 0.98
"""Times the cost of a plan, that a plan on a mesh that divides one of its axes costs at least.

Llama 3 70B on 64 H100 takes 1.0 % less on 8 x 2 x 4 than on 8 x 8, Mixtral 8x7B 0.1 % on 2 x 4 x 8.
With half of these 2 % the same is planned; with twice as many, finer meshes in two micro-batches
too, for 17 s of work of 120. Estimates tell which of these meshes gains at all; by how much they
do not, where memory is short: 7 % of Llama 3 405B on 1,024 H100 in four micro-batches."""

_LONGER = 8
"""Times the work of its prices, that must be left for a plan of blocks; beside another, twice that.

Plans take 2 (Mixtral 8x7B on 64 H100) to 13 times as much (Llama 3 70B). With half, that of Llama 3
405B on 16,384 H100 in one stage begins beside another, and spends a third of the work of the search
for 2.5 times the step; with twice as many, Mixtral has none at half the effort."""


@dataclass(eq=False)
class Entry(Generic[T]):
    """A configuration, and what is known of it.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    bound : float
        The lower bound that is known.
    proof : str
        What proved it.
    coarse : Entry or None
        The same on the mesh that merges axes, where that is another one that is tried.
    estimate : float or None
        About what its plan costs; None where nothing is known.
    told : float or None
        What its plan of blocks costs, or would cost by its blocks; None where there is none.
    slower : float
        How many times its estimate a plan costs at least, as one of the same site has told.
    """

    configuration: Configuration
    bound: float
    proof: str = COMPUTATION
    coarse: "Entry[T] | None" = None
    estimate: float | None = None
    told: float | None = None
    slower: float = 1.0
    is_short_of_memory: bool = False
    asked: set[Question] = field(default_factory=set)
    found: Found[T] | None = None
    error: ShardwrightError | None = None
    outcome: Outcome | None = None
    seconds: float = 0.0
    priced_seconds: float = 0.0

    @property
    def cost(self) -> float:
        """The cost of the best plan that was found; infinite without one."""
        return inf if self.found is None else self.found.cost

    @property
    def expected(self) -> float:
        """About what its plan costs, as far as is known; infinite where nothing is.

        A finer mesh costs less than the other one in proportion to their estimates, and a pipeline
        more than another one of its site.
        """
        known = inf if self.estimate is None else self.slower * self.estimate
        if self.coarse is None or self.coarse.told is None:
            return known
        other = self.coarse.estimate
        share = _FINER if self.estimate is None or not other else self.estimate / other
        return max(share, _FINER) * self.coarse.told

    @property
    def seconds_of_plan(self) -> float:
        """Work that a plan of blocks takes, by that of the prices; 0 where none is known."""
        both = self.priced_seconds, 0.0 if self.coarse is None else self.coarse.priced_seconds
        return _LONGER * min((one for one in both if one), default=0.0)

    def steps_to(self, other: "Entry[T]") -> float:
        """Return by how many factors of two stages and micro-batches differ."""
        one, two = self.configuration, other.configuration
        counts = log2(one.micro_batches / two.micro_batches)
        return abs(counts) + abs(log2(one.stages / two.stages))

    @property
    def size(self) -> tuple[int, int]:
        """What orders configurations by the size of their problems."""
        return self.configuration.stages, self.configuration.axes

    @property
    def distance_from_usual(self) -> float:
        """How far the number of micro-batches is from a usual one for the stages."""
        one = self.configuration
        return abs(log2(one.micro_batches / (_FEW * one.stages if one.stages > 1 else 1)))

    @property
    def site(self) -> Site:
        """What prices are of: the mesh and the number of micro-batches."""
        return self.configuration.mesh, self.configuration.micro_batches

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound, if it is higher."""
        if bound > self.bound:
            self.bound, self.proof = bound, proof

    def tried(self) -> Tried:
        """Return the account of it."""
        plan = self.found
        return Tried(
            self.configuration,
            self.outcome or ("left" if plan is None else "compiled"),
            inf if self.outcome in ("infeasible", "refused") else self.bound,
            self.proof,
            None if plan is None else plan.cost,
            None if plan is None else plan.memory_bytes,
            "" if self.error is None else str(self.error),
            self.seconds,
        )


def entries_of(
    candidates: Sequence[Configuration], floor: Callable[[Configuration], float]
) -> list[Entry[T]]:
    """Return the configurations with their first bounds, each with that of the merged mesh."""
    found: list[Entry[T]] = [Entry(one, floor(one)) for one in candidates]
    coarse = {one.configuration.merged: one for one in found if one.configuration.is_merged}
    for entry in found:
        if not entry.configuration.is_merged:
            entry.coarse = coarse.get(entry.configuration.merged)
    return found


def one_of_each_number(entries: Sequence[Entry[T]]) -> list[Entry[T]]:
    """Return a configuration of each number of stages, in a usual number of micro-batches."""
    coarse = [entry for entry in entries if entry.coarse is None]
    found: dict[int, Entry[T]] = {}
    for entry in sorted(coarse, key=lambda entry: entry.distance_from_usual):
        found.setdefault(entry.configuration.stages, entry)
    return sorted(found.values(), key=lambda entry: (entry.bound, entry.size))
