"""Configurations in the queue of an outer search, and what is asked and answered about them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.named_family import NamedSeed
from shardwright.compiler.outer.trace import Outcome, Tried
from shardwright.ir.errors import ShardwrightError
from shardwright.search.named_plan import NamedPlan
from shardwright.solver.work import Budget

T = TypeVar("T")
_SAME = 1.001  # times a bound: a higher one that is of little use
PRICING = -1
"""The tier of what is to be priced with others."""

DRAFTING = -3
"""The tier of what is to be planned block by block, without a bound."""

NAMING = -4
"""The tier of a question about all configurations: which named plans are to be built early."""

BUILDING = -5
"""The tier of a named plan that is to be built."""

SHORT = (NAMING, PRICING)
"""The tiers in which no program is emitted."""


class Prices(Protocol):
    """Bounds and estimates of many configurations.

    Attributes
    ----------
    known : mapping
        What the prices of other configurations may begin with.
    """

    @property
    def known(self) -> Mapping[Hashable, object]:
        """What the prices of other configurations may begin with."""
        ...

    def bound(self, other: Configuration) -> float:
        """Return a bound of every plan of a configuration; 0 where nothing is known of it."""
        ...

    def estimate(self, other: Configuration) -> float | None:
        """Return about what the plan of a configuration costs; None where nothing is known."""
        ...

    def is_short_of_memory(self, other: Configuration) -> bool:
        """Return whether the memory limit makes plans of a configuration slower."""
        ...


@dataclass(frozen=True)
class Found(Generic[T]):
    """The best plan of a configuration.

    Parameters
    ----------
    cost : float
        Its cost.
    lower_bound : float
        Proven: no plan of the configuration costs less.
    memory_bytes : float
        Peak memory of its program on a rank.
    plan : T
        The plan itself.
    is_cut_short : bool
        Whether the budget ended its search.
    """

    cost: float
    lower_bound: float
    memory_bytes: float
    plan: T
    is_cut_short: bool = False


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost of all plans of a configuration.

    Parameters
    ----------
    cost : float
        The bound.
    is_last : bool
        Whether the tiers behind it would not raise it.
    proof : str
        What proved it, where that is not what the tier says.
    is_cut_short : bool
        Whether the budget ended its search.
    """

    cost: float
    is_last: bool = False
    proof: str = ""
    is_cut_short: bool = False


@dataclass(frozen=True)
class Task:
    """What a process is asked.

    Parameters
    ----------
    configurations : tuple of Configuration
        The configuration; several to be priced, one after the other.
    tier : int
        The tier of the bound; that behind the last one is the compilation. Before all are
        `NAMING`, `BUILDING`, `PRICING` and `DRAFTING`.
    seconds : float
        Seconds of work that it may spend; building a problem, and solving it, as many each.
    plan : NamedPlan, optional
        The named plan that is to be built.
    below : float
        The cost of the best plan, or a little less: no higher bound or plan is of use.
    known : mapping
        What earlier prices told. A process keeps nothing of the kind by itself: its answer would
        depend on what it did before.
    """

    configurations: tuple[Configuration, ...]
    tier: int
    seconds: float
    plan: NamedPlan | None = None
    below: float = inf
    known: Mapping[Hashable, object] = field(default_factory=dict)

    @property
    def configuration(self) -> Configuration:
        """The first configuration."""
        return self.configurations[0]


Value = Bound | Found[T] | tuple[Prices | None, ...] | list[NamedSeed]
"""What is asked."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a process answers, and the seconds of work that it spent.

    The value is a bound, a plan, prices, named plans, or why there is none of these.
    """

    value: Value[T] | ShardwrightError
    seconds: float


class Judge(Protocol[T]):
    """Bounds and compiles configurations.

    Attributes
    ----------
    tiers : tuple of str
        What proves the bounds of each tier, cheap ones first.
    prices_blocks : bool
        Whether configurations are priced with others first.
    plans_blocks : bool
        Whether one stage is planned block by block first.
    names_plans : bool
        Whether named plans are built: before others are searched, where blocks are priced; else
        where there is no plan when the time is over.
    """

    @property
    def tiers(self) -> Sequence[str]:
        """What proves the bounds of each tier."""
        ...

    @property
    def prices_blocks(self) -> bool:
        """Whether configurations are priced with others first."""
        ...

    @property
    def plans_blocks(self) -> bool:
        """Whether one stage is planned block by block first."""
        ...

    @property
    def names_plans(self) -> bool:
        """Whether named plans are built, where there is no other plan yet."""
        ...

    def named_seeds(
        self, configurations: Sequence[Configuration], budget: Budget
    ) -> list[NamedSeed]:
        """Return the named plans of some configurations that are to be built, the best first."""
        ...

    def build(self, plan: NamedPlan, configuration: Configuration, budget: Budget) -> Found[T]:
        """Return a named plan."""
        ...

    def price(
        self,
        configuration: Configuration,
        budget: Budget,
        below: float,
        known: Mapping[Hashable, object],
    ) -> Prices:
        """Return bounds and estimates of configurations that share a mesh and micro-batches."""

    def draft(self, configuration: Configuration, budget: Budget, below: float) -> Found[T]:
        """Return a plan that is found soon, without a bound, if it may undercut a cost."""

    def bound(self, configuration: Configuration, tier: int, budget: Budget) -> Bound:
        """Return a lower bound on the cost of all plans of a configuration."""
        ...

    def compile(self, configuration: Configuration, budget: Budget) -> Found[T]:
        """Return the best plan of a configuration."""
        ...

    def holds_for(self, bounded: Configuration, other: Configuration) -> bool:
        """Return whether a bound of one configuration without memory limit holds for another."""
        ...


@dataclass
class Entry(Generic[T]):
    """A configuration in the queue.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    bound : float
        The lower bound that is known.
    proof : str
        What proved it.
    tier : int
        What is asked about it next.
    estimate : float or None
        About what its plan costs; None where nothing is known.
    is_short_of_memory : bool
        Whether the memory limit makes its plans slower, as far as prices say.
    has_no_draft : bool
        Whether no draft was found, in one stage.
    is_covered : bool
        Whether its plans are among those of a configuration that has a plan close to its bound.
    """

    configuration: Configuration
    bound: float
    proof: str
    tier: int = 0
    outcome: Outcome | None = None
    found: Found[T] | None = None
    error: ShardwrightError | None = None
    seconds: float = 0.0
    is_running: bool = False
    is_infeasible: bool = False
    fits_at_bound: bool = False
    is_priced: bool = False
    estimate: float | None = None
    is_short_of_memory: bool = False
    has_no_draft: bool = False
    is_covered: bool = False
    asked: int = PRICING  # the tier of the last task
    named_seconds: float = inf  # about what its named plan takes that is being built

    @property
    def is_compiling(self) -> bool:
        """Whether a program of it is being emitted."""
        return self.is_running and self.asked not in SHORT

    @property
    def is_all_in_draft(self) -> bool:
        """Whether a search of the whole program finds nothing better than the plan of its blocks.

        Where memory is short, it takes long, and its plans are the slower ones.
        """
        return self.configuration.stages == 1 and self.is_short_of_memory

    @property
    def has_begun(self) -> bool:
        """Whether a program of it that is searched was to be emitted."""
        return self.asked not in (*SHORT, BUILDING)

    @property
    def promise(self) -> tuple[float, ...]:
        """Less where more is known, of few stages, and where problems are small."""
        configuration = self.configuration
        return -self.tier, configuration.stages, configuration.axes, self.bound

    @property
    def is_open(self) -> bool:
        """Whether it may be judged next."""
        return self.outcome is None and not self.is_running

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound, if it is higher."""
        if bound > self.bound:
            self.bound, self.proof = bound, proof

    def take_estimate(self, prices: Prices | None) -> None:
        """Take what its own prices expect; nothing where there are none."""
        one, self.is_priced = self.configuration, True
        self.estimate = None if prices is None else prices.estimate(one)
        self.is_short_of_memory = prices is not None and prices.is_short_of_memory(one)

    def take_estimate_of_merged(self, merged: "Entry[T]", prices: Prices) -> None:
        """Take the estimate of a mesh that merges axes of its own, where its own says no more.

        Its own bound is no higher, and estimates are near the bound unless memory is short.
        """
        one, other = self.configuration, merged.configuration
        finer = one.divides(other) and one.micro_batches == other.micro_batches
        if self.is_priced or self.is_running or not finer or prices.is_short_of_memory(other):
            return
        estimate = prices.estimate(other)
        if estimate is not None and prices.bound(other) <= _SAME * self.bound:
            self.is_priced, self.estimate = True, estimate

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


def cost_of(entry: Entry[T]) -> float:
    """Return the cost of the best plan of a configuration that has one."""
    assert entry.found is not None
    return entry.found.cost
