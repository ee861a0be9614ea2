"""What workers do for an outer search: they answer tasks, each of which has a budget of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.entries import (
    BUILDING,
    DRAFTING,
    NAMING,
    PRICING,
    Answer,
    Bound,
    Found,
    Judge,
    Prices,
    Task,
    Value,
)
from shardwright.ir.errors import ShardwrightError
from shardwright.solver.work import Budget, Work

T = TypeVar("T")


@dataclass
class Answers(Generic[T]):
    """Answers the tasks of a search; an answer depends on its task alone.

    Parameters
    ----------
    judge : Judge
        Bounds and compiles configurations.
    candidates : sequence of Configuration
        All configurations.
    work : Work
        Counts what tasks do; each has its own.
    """

    judge: Judge[T]
    candidates: Sequence[Configuration]
    work: Work

    def __call__(self, task: Task) -> Answer[T]:
        """Answer a task."""
        stops = task.tier not in (NAMING, BUILDING)  # without a plan, they cannot wait
        budget = Budget(task.seconds, self.work.anew() if stops else Work())
        try:
            return Answer(self._value_of(task, budget), budget.spent)
        except ShardwrightError as error:
            return Answer(_as_sent(error), budget.spent)

    def _value_of(self, task: Task, budget: Budget) -> Value[T]:
        """Return what is asked."""
        if task.tier == PRICING:
            return tuple(self._prices(one, task, budget) for one in task.configurations)
        if task.tier == NAMING:
            return self.judge.named_seeds(self.candidates, budget)
        if task.tier == BUILDING:
            assert task.plan is not None
            return self.judge.build(task.plan, task.configuration, budget)
        if task.tier == DRAFTING:
            return self.judge.draft(task.configuration, budget, task.below)
        if task.tier < len(self.judge.tiers):
            return self.judge.bound(task.configuration, task.tier, budget)
        return self.judge.compile(task.configuration, budget)

    def _prices(self, configuration: Configuration, task: Task, budget: Budget) -> Prices | None:
        """Return the prices of a configuration; None where it has none."""
        try:
            return self.judge.price(
                configuration, budget.beyond(budget.seconds), task.below, task.known
            )
        except ShardwrightError:
            return None


def is_answer(task: Task, answer: object) -> bool:
    """Return whether an object can be the answer of a task: it has what the task asks for."""
    if not isinstance(answer, Answer) or not isinstance(answer.seconds, float | int):
        return False
    value = answer.value
    if isinstance(value, tuple) and len(value) != len(task.configurations):
        return False
    wanted = ShardwrightError | _WANTED.get(task.tier, Bound | Found)
    return isfinite(answer.seconds) and isinstance(value, wanted)


_WANTED = {PRICING: tuple, NAMING: list, BUILDING: Found, DRAFTING: Found}


def _as_sent(error: ShardwrightError) -> ShardwrightError:
    """Return an error as another process would send it: without the frames, which hold the task."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
