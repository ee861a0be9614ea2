"""What is asked of a model next, found by other processes meanwhile.

Parts of a model and numbers of a plan depend on the model and the question alone. So whoever knows
which questions come can let other processes begin them; the answers are the same, and so is the
order in which they are read.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from shardwright.ir.errors import ShardwrightError
from shardwright.planner.executors.tasks import Tasks
from shardwright.planner.executors.workers import Forked, can_fork
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_dimensions import Words

_EACH = 2
"""Questions that a process has at once: the one that it answers, and the next.

With one it waits for who asks, that tells bounds meanwhile; more are asked before it is known
whether they matter."""


class PartsAsked(NamedTuple):
    """What the parts of the model take on some ranks.

    Parameters
    ----------
    ranks : NamedPlan
        The tensor and expert ranks, with what a pass is of.
    words : Words
        Words of plans that say how parameters are held.
    """

    ranks: NamedPlan
    words: Words

    @property
    def key(self) -> Hashable:
        """What is asked."""
        return self

    def __str__(self) -> str:
        return f"the parts of the model on `{self.ranks.text}`"


class NumbersAsked(NamedTuple):
    """The numbers of a plan.

    Parameters
    ----------
    plan : NamedPlan
        The plan.
    devices : int
        Number of devices.
    numbers : tuple of str
        Attributes of `Evaluation`, in the order in which they are found.
    least : float
        Seconds of a step from which on nothing but the step matters.
    """

    plan: NamedPlan
    devices: int
    numbers: tuple[str, ...]
    least: float

    @property
    def key(self) -> Hashable:
        """What is asked, however much of it matters."""
        return self.plan, self.devices

    def __str__(self) -> str:
        return f"the plan `{self.plan.text}`"


Question = PartsAsked | NumbersAsked


class Ahead:
    """Questions that other processes have begun.

    Parameters
    ----------
    answer : callable
        Answers a question, in a process that was forked.
    workers : int
        Number of processes; with fewer than two, or where none can be forked, nothing is begun.
    """

    def __init__(self, answer: Callable[[Question], Any], workers: int) -> None:
        self.workers = workers if workers > 1 and can_fork() else 0
        begun = Forked(answer, self.workers) if self.workers else None
        self._tasks = Tasks[Question, Any](answer, begun, str, each=_EACH)
        self._numbers: dict[Hashable, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether as many questions are begun, and not taken, as processes have at once."""
        return len(self._numbers) >= _EACH * self.workers

    def is_open(self, question: Question) -> bool:
        """Return whether a process could begin a question, and none has."""
        return self.workers > 0 and question.key not in self._numbers

    def begin(self, question: Question) -> None:
        """Let another process answer a question, unless one does already."""
        if self.is_open(question):
            self._numbers[question.key] = self._tasks.submit(question)

    def take(self, key: Hashable) -> Any:
        """Return the answer of a question; None where it was not begun, or has an error.

        Who asks then finds it, or the same error: what a process cannot do, since it has no memory
        left, is no property of a plan.
        """
        if key not in self._numbers:
            return None
        answer = self._tasks.answer(self._numbers.pop(key))
        return None if isinstance(answer, ShardwrightError) else answer

    def close(self) -> None:
        """End the processes; what was begun and not taken is forgotten."""
        self.workers = 0
        self._numbers.clear()
        self._tasks.close()
