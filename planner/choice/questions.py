"""What a search over configurations asks about them, and who answers."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Generic, Literal, Protocol, TypeVar

from shardwright.ir.errors import NotFoundError, ShardwrightError
from shardwright.planner.choice.configuration import Configuration
from shardwright.solver.work import Budget, Work

T = TypeVar("T")

Question = Literal["price", "plan", "search"]
"""What is asked about a configuration: what its plans take at least, and about how long the best
one takes; a plan put together from plans of its blocks; the best plan of all that it has."""


class NotFasterError(NotFoundError):
    """No plan is expected to be faster than one that is known.

    Parameters
    ----------
    below : float
        Seconds that a step must undercut.
    seconds : float
        About how long the best plan takes.
    """

    def __init__(self, below: float, seconds: float) -> None:
        super().__init__(f"no plan of blocks is expected below {below:.4g} s")
        self.below, self.seconds = below, seconds

    def __reduce__(self) -> tuple[type["NotFasterError"], tuple[float, float]]:
        """Return what another process makes it of."""
        return NotFasterError, (self.below, self.seconds)


class Prices(Protocol):
    """Bounds of many configurations, and estimates of some.

    Attributes
    ----------
    proof : str
        What proved the bounds.
    known : mapping
        What the prices of other configurations may begin with.
    """

    @property
    def proof(self) -> str:
        """What proved the bounds."""
        ...

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
class Task:
    """A question about a configuration.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    question : str
        What is asked about it.
    seconds : float
        Seconds of work that the answer may take; building a problem, and solving it, as many each.
    below : float
        The cost of the best plan, or a little less: no higher bound or plan is of use.
    known : mapping
        What earlier prices told. A process keeps nothing of the kind by itself: its answer would
        depend on what it did before.
    """

    configuration: Configuration
    question: Question
    seconds: float
    below: float = inf
    known: Mapping[Hashable, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the search of {self.configuration}"


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What is answered, or why nothing is, and the seconds of work that were spent on it."""

    value: Found[T] | Prices | ShardwrightError
    seconds: float


class Judge(Protocol[T]):
    """Bounds and plans configurations.

    Attributes
    ----------
    prices : bool
        Whether configurations are priced before they are planned.
    is_large : bool
        Whether the searches of a whole program take long.
    """

    @property
    def prices(self) -> bool:
        """Whether configurations are priced before they are planned."""
        ...

    @property
    def is_large(self) -> bool:
        """Whether the searches of a whole program take long."""
        ...

    def plans_blocks(self, configuration: Configuration) -> bool:
        """Return whether a plan is put together from plans of blocks, before a search."""
        ...

    def price(
        self,
        configuration: Configuration,
        budget: Budget,
        below: float,
        known: Mapping[Hashable, object],
    ) -> Prices:
        """Return bounds and estimates of what shares a mesh and a number of micro-batches."""
        ...

    def plan(self, configuration: Configuration, budget: Budget, below: float) -> Found[T]:
        """Return a plan of blocks, without a bound, if it may undercut a cost."""
        ...

    def search(self, configuration: Configuration, budget: Budget) -> Found[T]:
        """Return the best plan of a configuration, with a bound."""
        ...

    def name(
        self, configurations: Sequence[Configuration], budget: Budget
    ) -> tuple[Configuration, Found[T]] | None:
        """Return a named plan that fits, whatever that takes; None without one."""
        ...

    def covers(self, one: Configuration, other: Configuration) -> bool:
        """Return whether the plans of another configuration are among those of a first one."""
        ...


@dataclass
class Answers(Generic[T]):
    """Answers the tasks of a search; an answer depends on its task alone.

    Parameters
    ----------
    judge : Judge
        Bounds and plans configurations.
    work : Work
        Counts what tasks do; each has its own.
    """

    judge: Judge[T]
    work: Work

    def __call__(self, task: Task) -> Answer[T]:
        """Answer a task."""
        budget = Budget(task.seconds, self.work.anew())
        try:
            return Answer(self._value_of(task, budget), budget.spent)
        except ShardwrightError as error:
            # Another process would send no frames either, which hold the task.
            error.__cause__ = error.__context__ = None
            return Answer(error.with_traceback(None), budget.spent)

    def _value_of(self, task: Task, budget: Budget) -> Found[T] | Prices:
        one = task.configuration
        if task.question == "price":
            return self.judge.price(one, budget, task.below, task.known)
        if task.question == "plan":
            return self.judge.plan(one, budget, task.below)
        return self.judge.search(one, budget)


def is_answer(task: Task, answer: object) -> bool:
    """Return whether an object can be the answer of a task: it has what the task asks for."""
    if not isinstance(answer, Answer) or not isinstance(answer.seconds, float | int):
        return False
    is_plan = isinstance(answer.value, Found)
    is_right = is_plan != (task.question == "price") and hasattr(answer.value, "proof") != is_plan
    return isfinite(answer.seconds) and (is_right or isinstance(answer.value, ShardwrightError))
