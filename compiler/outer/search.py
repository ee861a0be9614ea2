"""The outer search: configurations in the order of their bounds, each judged only as far as needed.

Every configuration has a lower bound on the cost of all its plans, which rises tier by tier: of the
cheapest computation, of an exact search without the memory limit, of a rough one within it, and at
last of the compilation itself. The configuration of the least bound is judged next. It is cut once
its bound is no less than the cost of a plan that was found, up to the relative gap. So the least
bound of all configurations bounds every plan of the space, whatever was left out.

Tasks run in processes, up to `_AHEAD` at once. Their answers are taken in the order in which the
tasks were given, and a decision depends on the answers before it alone: the result is the same for
any number of processes, unless the time limit ends the search.

References
----------
Land and Doig, "An automatic method of solving discrete programming problems", 1960 (best first).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.processes import Answering, OutOfTimeError, answering
from shardwright.compiler.outer.trace import Outcome, Tried
from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    OptionError,
    ShardwrightError,
    StrategyError,
    TimeLimitError,
)
from shardwright.search.options import Progress
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_AHEAD = 4  # tasks that are decided on before the answer of the first
_FAR = 1.1  # of the least bound: how high the bound of what is begun ahead may be
_SHARE = 1 / 2  # of the time left that building a problem may take, and solving it

T = TypeVar("T")


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
    """

    cost: float
    lower_bound: float
    memory_bytes: float
    plan: T


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
    """

    cost: float
    is_last: bool = False
    proof: str = ""


class Judge(Protocol[T]):
    """Bounds and compiles configurations.

    Attributes
    ----------
    tiers : tuple of str
        What proves the bounds of each tier, cheap ones first.
    """

    @property
    def tiers(self) -> Sequence[str]:
        """What proves the bounds of each tier."""
        ...

    def bound(self, configuration: Configuration, tier: int, seconds: float) -> Bound:
        """Return a lower bound on the cost of all plans of a configuration."""
        ...

    def compile(self, configuration: Configuration, seconds: float) -> Found[T]:
        """Return the best plan of a configuration."""
        ...

    def holds_for(self, bounded: Configuration, other: Configuration) -> bool:
        """Return whether a bound of one configuration without memory limit holds for another."""
        ...


@dataclass(frozen=True)
class Task:
    """What a process is asked.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    tier : int
        The tier of the bound; that behind the last one is the compilation.
    seconds : float
        Time limit of building the problem, and of solving it.
    """

    configuration: Configuration
    tier: int
    seconds: float


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a process answers: the bound or the plan, and the time that it took."""

    value: Bound | Found[T]
    seconds: float


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

    @property
    def is_open(self) -> bool:
        """Whether it may be judged next."""
        return self.outcome is None and not self.is_running

    def raise_bound(self, bound: float, proof: str) -> None:
        """Take a bound, if it is higher."""
        if bound > self.bound:
            self.bound, self.proof = bound, proof

    def tried(self) -> Tried:
        """Return the account of it."""
        plan = self.found
        return Tried(
            self.configuration,
            self.outcome or "left",
            inf if self.outcome in ("infeasible", "refused") else self.bound,
            self.proof,
            None if plan is None else plan.cost,
            None if plan is None else plan.memory_bytes,
            "" if self.error is None else str(self.error),
            self.seconds,
        )


@dataclass
class OuterSearch(Generic[T]):
    """The search over configurations.

    Parameters
    ----------
    judge : Judge
        Bounds and compiles them.
    candidates : sequence of Configuration
        The configurations.
    floor : callable
        Returns a lower bound on the cost of every plan of a configuration.
    deadline : float
        The end of the search, by `time.perf_counter`.
    gap : float
        Relative gap between the cost and the bound at which the search stops.
    workers : int
        Number of processes.
    progress : callable, optional
        Follows the search.
    plans : int
        Number of configurations that are compiled at least, where so many have a plan.
    seed : Configuration, optional
        The one that is compiled first, whatever its bounds: its plan cuts others.
    """

    judge: Judge[T]
    candidates: Sequence[Configuration]
    floor: Callable[[Configuration], float]
    deadline: float
    gap: float
    workers: int = 1
    progress: Progress | None = None
    plans: int = 1
    seed: Configuration | None = None
    entries: list[Entry[T]] = field(default_factory=list)

    def run(self) -> list[Entry[T]]:
        """Judge the configurations, and return what became of each."""
        self.begin = time.perf_counter()
        self.entries = [Entry(c, self.floor(c), "least computation") for c in self.candidates]
        self.steps, self.wanted = 0, 1
        for entry in self.entries:
            if entry.configuration == self.seed:
                entry.tier = len(self.judge.tiers)
        tasks = answering(
            self._answered,
            min(self.workers, _AHEAD),
            self.deadline,
            lambda task: task.configuration,
        )
        try:
            self._judge_all(tasks)
            if self.best is None:
                self._reopen_infeasible()
                self._judge_all(tasks)
            elif self.plans > 1:
                self._reopen_cut()
                self._judge_all(tasks)
        except OutOfTimeError:
            pass
        finally:
            tasks.close()
        self._cut_left()
        return self.entries

    def _judge_all(self, tasks: Answering[Task, Answer[T]]) -> None:
        running: deque[Entry[T]] = deque()
        while self._fill(tasks, running) or running:
            self._take(running.popleft(), tasks.next_answer())

    def _reopen_cut(self) -> None:
        """Go on with what was cut, for more plans than the best one."""
        self.wanted = self.plans
        for entry in self.entries:
            if entry.outcome == "cut":
                entry.outcome = None

    def _cut_left(self) -> None:
        """Cut what is left and cannot be better than the best plan."""
        if self.best is None:
            return
        near, best = max(self.gap, OPTIMALITY_GAP), _cost(self.best)
        for entry in self.entries:
            is_left = entry.outcome in (None, "left", "not found")
            if is_left and relative_gap(best, entry.bound) <= near:
                entry.outcome, entry.is_running = "cut", False

    def _reopen_infeasible(self) -> None:
        """Compile what a bound proved infeasible: the compilation tells what memory it takes."""
        for entry in self.entries:
            if entry.outcome == "infeasible" and entry.tier < len(self.judge.tiers):
                entry.outcome, entry.tier, entry.is_infeasible = None, len(self.judge.tiers), True

    @property
    def best(self) -> Entry[T] | None:
        """The cheapest plan, the first of several that cost the same."""
        return min((e for e in self.entries if e.found), key=_cost, default=None)

    # The queue

    def _fill(self, tasks: Answering[Task, Answer[T]], running: deque[Entry[T]]) -> bool:
        """Submit tasks as long as there are some to decide on; return whether there was one."""
        begun = False
        while len(running) < _AHEAD and (entry := self._next()) is not None:
            entry.is_running = begun = True
            running.append(entry)
            tasks.submit(self._task(entry))
        return begun

    def _next(self) -> Entry[T] | None:
        """Return the configuration to judge next.

        While there is no plan, every second time it is the one that is judged furthest, of the
        fewest stages, and on the mesh of the fewest axes, whose problems are small. None is begun
        ahead of the answers whose bound is far above the least.
        """
        self._cut()
        left = [entry for entry in self.entries if entry.is_open]
        if not left:
            return None
        self.steps += 1
        if self.best is None and self.steps % 2:
            return min(left, key=_by_promise)
        known = [entry.bound for entry in self.entries if entry.outcome is None]
        near = [e for e in left if e.bound <= _FAR * min(known) and not self._awaits(e)]
        return min(near, key=lambda entry: entry.bound, default=None)

    def _awaits(self, entry: Entry[T]) -> bool:
        """Return whether what is still to come of others is likely to cut a configuration.

        It is a first bound that holds for it too, or a plan that is as good as such a bound.
        """
        return entry.tier == 0 < len(self.judge.tiers) and any(
            other.outcome is None
            and other is not entry
            and (other.tier == 0 or other.fits_at_bound)
            for other in self.entries
            if self.judge.holds_for(other.configuration, entry.configuration)
        )

    def _cut(self) -> None:
        """Cut what cannot be better than the plans that are found."""
        found = sorted(_cost(entry) for entry in self.entries if entry.found)
        if len(found) < self.wanted:
            return
        near, worst = max(self.gap, OPTIMALITY_GAP), found[self.wanted - 1]
        for entry in self.entries:
            if entry.is_open and relative_gap(worst, entry.bound) <= near:
                entry.outcome = "cut"

    def _task(self, entry: Entry[T]) -> Task:
        seconds = _SHARE * (self.deadline - time.perf_counter())
        return Task(entry.configuration, entry.tier, max(seconds, 1e-3))

    # Answers

    def _answered(self, task: Task) -> Answer[T]:
        """Run a task; in the process that was forked for it."""
        begin = time.perf_counter()
        value: Bound | Found[T]
        if task.tier < len(self.judge.tiers):
            value = self.judge.bound(task.configuration, task.tier, task.seconds)
        else:
            value = self.judge.compile(task.configuration, task.seconds)
        return Answer(value, time.perf_counter() - begin)

    def _take(self, entry: Entry[T], answer: Answer[T] | ShardwrightError) -> None:
        entry.is_running = False
        if isinstance(answer, ShardwrightError):
            self._take_error(entry, answer)
            return
        entry.seconds += answer.seconds
        if isinstance(answer.value, Found):
            entry.outcome, entry.found = "compiled", answer.value
            entry.raise_bound(answer.value.lower_bound, "search within the memory limit")
        else:
            self._take_bound(entry, answer.value)
        self._report()

    def _take_bound(self, entry: Entry[T], bound: Bound) -> None:
        proof = bound.proof or self.judge.tiers[entry.tier]
        entry.raise_bound(bound.cost, proof)
        for other in self.entries if entry.tier == 0 else ():
            if other is not entry and self.judge.holds_for(
                entry.configuration, other.configuration
            ):
                other.raise_bound(bound.cost, f"{proof}, of {entry.configuration}")
        entry.fits_at_bound = bound.is_last
        entry.tier = len(self.judge.tiers) if bound.is_last else entry.tier + 1

    def _take_error(self, entry: Entry[T], error: ShardwrightError) -> None:
        """Note why a configuration has no plan.

        Raises
        ------
        ShardwrightError
            If the error is not about this configuration.
        """
        entry.error = error
        if isinstance(error, InfeasibleError) or entry.is_infeasible:
            entry.outcome = "infeasible"
        elif isinstance(error, TimeLimitError):
            entry.outcome = "left"
        elif isinstance(error, NoPlanError):
            self._take_no_answer(entry)
        elif self._is_refused(entry, error):
            entry.outcome = "refused"
        else:
            raise error

    def _is_refused(self, entry: Entry[T], error: ShardwrightError) -> bool:
        """Return whether an error is about a mesh, or about micro-batches or stages."""
        divided = max(entry.configuration.micro_batches, entry.configuration.stages) > 1
        return isinstance(error, StrategyError) or (divided and isinstance(error, OptionError))

    def _take_no_answer(self, entry: Entry[T]) -> None:
        """Go on to the next tier without a bound of this one; without a plan, give it up."""
        if entry.tier < len(self.judge.tiers):
            entry.tier += 1
        else:
            entry.outcome = "not found"

    def _report(self) -> None:
        if self.progress is None or self.best is None:
            return
        bound = min(e.bound for e in self.entries if e.outcome not in ("infeasible", "refused"))
        cost = _cost(self.best)
        self.progress(time.perf_counter() - self.begin, cost, min(bound, cost))


def _by_promise(entry: Entry[T]) -> tuple[float, ...]:
    configuration = entry.configuration
    return -entry.tier, configuration.stages, configuration.axes, entry.bound


def _cost(entry: Entry[T]) -> float:
    assert entry.found is not None
    return entry.found.cost
