"""Tasks run on workers, and are begun in the order in which they are given.

An answer depends on its task alone, so it does not matter which worker gives it, nor when. What a
worker does not answer, since it dies, fails or answers something else, this machine does again.
"""

import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import Any, Generic, TypeVar

from shardwright.ir.errors import NotFoundError, ShardwrightError, ShardwrightWarning
from shardwright.ir.files.waiting import WATCH
from shardwright.planner.executors.workers import Forked, Workers, answer_of

Task = TypeVar("Task")
Answer = TypeVar("Answer")
_AGAIN = "it is done again"
_ENDED = "ended before its answer"


def _is_answer(task: object, answer: object) -> bool:
    return True


class Tasks(Generic[Task, Answer]):
    """Runs tasks, and returns their answers by number.

    Parameters
    ----------
    run : callable
        Runs a task.
    workers : Workers or None
        Who runs it; None for this process, when the answer is asked for.
    text_of : callable
        Returns what a task is, in words.
    is_answer : callable
        Returns whether an object can be the answer of a task.
    each : int
        How many tasks a worker has at once: with two, it goes on while this process is busy.
    """

    def __init__(
        self,
        run: Callable[[Task], Answer],
        workers: Workers | None,
        text_of: Callable[[Task], str],
        is_answer: Callable[[Task, object], bool] = _is_answer,
        each: int = 1,
    ) -> None:
        self._run, self._workers, self._text_of = run, workers, text_of
        self._is_answer, self._each = is_answer, each
        self._waiting: deque[int] = deque()
        self._tasks: dict[int, Task] = {}
        self._running: dict[Future[Any], int] = {}
        self._answers: dict[int, Answer | ShardwrightError] = {}
        self._submitted = 0

    def submit(self, task: Task) -> int:
        """Queue a task; return its number."""
        number = self._submitted
        self._submitted += 1
        self._tasks[number] = task
        self._waiting.append(number)
        self._start_waiting()
        return number

    def answer(self, number: int) -> Answer | ShardwrightError:
        """Return the answer, or the error, of a task; once. It is begun before others that wait."""
        if number in self._waiting:
            self._waiting.remove(number)
            self._waiting.appendleft(number)
        while number not in self._answers:
            if self._workers is not None and self._running:
                self._receive(self._workers)
            else:
                self._waiting.remove(number)
                self._answers[number] = answer_of(self._run, self._tasks.pop(number))
        return self._answers.pop(number)

    def close(self) -> None:
        """Forget all tasks, and end the workers that were begun for them."""
        self._waiting.clear()
        for future in self._running:
            future.cancel()
        if self._workers is not None:
            self._workers.close()

    def _start_waiting(self) -> None:
        workers = self._workers
        while workers and self._waiting and len(self._running) < self._each * workers.count:
            number = self._waiting.popleft()
            self._running[workers.submit(number, self._tasks[number])] = number

    def _receive(self, workers: Workers) -> None:
        """Wait for answers, and take them."""
        done, _ = wait(self._running, timeout=WATCH, return_when=FIRST_COMPLETED)
        for name in workers.lost():
            warnings.warn(
                f"the worker {name} has gone; its tasks are done again",
                ShardwrightWarning,
                stacklevel=2,
            )
        if not workers.count or any(_is_broken(future) for future in done):
            # The process that died ends those beside it; without a worker, none is begun.
            done = set(self._running)
            workers.close()
        for number, future in sorted((self._running.pop(future), future) for future in done):
            self._take(workers, number, future)
        self._start_waiting()

    def _take(self, workers: Workers, number: int, future: Future[Any]) -> None:
        """Take the answer of a worker, or do its task again on this machine."""
        task = self._tasks.pop(number)
        trouble = "answered something else"
        if not future.done() or future.cancelled():
            trouble = "has gone"
        elif _is_broken(future):
            trouble = _ENDED
        else:
            try:
                found, answer = workers.read(future.result())
            except Exception as error:  # of the program itself: this process raises it, too
                trouble = f"failed with {type(error).__name__}: {error}"
            else:
                if found == number and self._is_valid(task, answer):
                    self._answers[number] = answer
                    return
        what = f"the process of {self._text_of(task)} {trouble}"
        warnings.warn(f"{what}; {_AGAIN}", ShardwrightWarning, stacklevel=2)
        self._answers[number] = self._done_again(workers, number, task, what)

    def _is_valid(self, task: Task, answer: object) -> bool:
        return isinstance(answer, ShardwrightError) or self._is_answer(task, answer)

    def _done_again(
        self, workers: Workers, number: int, task: Task, what: str
    ) -> Answer | ShardwrightError:
        """Return the answer of a task, by a process that may end once more if the first did."""
        if not (isinstance(workers, Forked) and what.endswith(_ENDED)):
            return answer_of(self._run, task)
        try:
            return workers.submit(number, task).result()[1]
        except BrokenExecutor:
            workers.close()
            return NotFoundError(f"{what}, and so did one on its own", hint="allow it more memory")


def _is_broken(future: Future[Any]) -> bool:
    """Return whether the process of a task has died."""
    cancelled = future.cancelled()
    return future.done() and not cancelled and isinstance(future.exception(), BrokenExecutor)
