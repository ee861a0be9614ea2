"""Tasks run in processes of their own, begun in the order in which they are given.

The processes are forked, so they have the program, the registered operators and the plugins of
this one. Where a process cannot be forked, or one is enough, tasks run in this process.
"""

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, Protocol, TypeVar

from shardwright.ir.errors import NotFoundError, ShardwrightError

Task = TypeVar("Task")
Answer = TypeVar("Answer")
TaskIn = TypeVar("TaskIn", contravariant=True)
AnswerOut = TypeVar("AnswerOut", covariant=True)
_BYTES_OF_SEARCH = 4 * 2**30  # memory that is set aside for one search
_JOIN_SECONDS = 1.0


class OutOfTimeError(Exception):
    """The deadline passed before the answer came."""


class Answering(Protocol[TaskIn, AnswerOut]):
    """Runs tasks, and returns their answers by number.

    Attributes
    ----------
    deadline : float
        Until when answers are waited for, by `time.perf_counter`.
    """

    deadline: float

    def submit(self, task: TaskIn, *, first: bool = False) -> int:
        """Queue a task, before those that wait if it is to be the first; return its number."""
        ...

    def answer(self, number: int) -> AnswerOut | ShardwrightError:
        """Return the answer, or the error, of a task; once.

        Raises
        ------
        OutOfTimeError
            If the deadline passes first.
        """
        ...

    def is_answered(self, number: int) -> bool:
        """Return whether the answer of a task is there."""
        ...

    def close(self) -> None:
        """End all tasks."""
        ...


@dataclass
class Inline(Generic[Task, Answer]):
    """Runs tasks in this process, when their answers are asked for.

    Parameters
    ----------
    run : callable
        Runs a task.
    deadline : float
        By `time.perf_counter`: no task begins later.
    """

    run: Callable[[Task], Answer]
    deadline: float

    def __post_init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._submitted = 0

    def submit(self, task: Task, *, first: bool = False) -> int:
        """Keep a task until its answer is asked for, be it the first one or not."""
        self._tasks[self._submitted] = task
        self._submitted += 1
        return self._submitted - 1

    def answer(self, number: int) -> Answer | ShardwrightError:
        """Run a task."""
        if time.perf_counter() >= self.deadline:
            raise OutOfTimeError
        return _answer(self.run, self._tasks.pop(number))

    def is_answered(self, number: int) -> bool:
        """Return that no task is, before its answer is asked for."""
        return False

    def close(self) -> None:
        """Forget the tasks."""
        self._tasks.clear()


class Processes(Generic[Task, Answer]):
    """Runs tasks in forked processes.

    Parameters
    ----------
    run : callable
        Runs a task.
    workers : int
        Number of processes.
    subject : callable
        Returns what a task is about: it goes to the process that had one about the same before, if
        that is idle, and finds there what was kept.
    deadline : float
        By `time.perf_counter`: what runs then is ended.
    """

    def __init__(
        self,
        run: Callable[[Task], Answer],
        workers: int,
        deadline: float,
        subject: Callable[[Task], object],
    ) -> None:
        self._run, self.deadline, self._subject = run, deadline, subject
        self._last: dict[object, int] = {}  # subject: worker
        self._workers = [self._started() for _ in range(workers)]
        self._waiting: deque[tuple[int, Task]] = deque()
        self._running: dict[int, int] = {}  # worker: task
        self._answers: dict[int, Answer | ShardwrightError] = {}
        self._submitted = 0

    def submit(self, task: Task, *, first: bool = False) -> int:
        """Queue a task, and start it where a worker is idle."""
        self._waiting.insert(0 if first else len(self._waiting), (self._submitted, task))
        self._submitted += 1
        self._start_waiting()
        return self._submitted - 1

    def answer(self, number: int) -> Answer | ShardwrightError:
        """Return the answer of a task, once it is there."""
        while number not in self._answers:
            if not self._receive(max(self.deadline - time.perf_counter(), 0.0)):
                raise OutOfTimeError
        return self._answers.pop(number)

    def is_answered(self, number: int) -> bool:
        """Return whether the answer of a task is there."""
        if number not in self._answers:
            self._receive(0.0)
        return number in self._answers

    def _receive(self, seconds: float) -> bool:
        """Wait for answers, and return whether there are some."""
        busy = [self._workers[i].connection for i in self._running]
        ready = wait(busy, None if seconds == inf else seconds)
        for i in [i for i in self._running if self._workers[i].connection in ready]:
            self._answers[self._running.pop(i)] = self._received(i)
        self._start_waiting()
        return bool(ready)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def _start_waiting(self) -> None:
        idle = [i for i in range(len(self._workers)) if i not in self._running]
        while idle and self._waiting:
            number, task = self._waiting.popleft()
            subject = self._subject(task)
            before = self._last.get(subject)
            i = before if before in idle else idle[0]
            idle.remove(i)
            self._last[subject], self._running[i] = i, number
            self._workers[i].connection.send(task)

    def _received(self, i: int) -> Answer | ShardwrightError:
        """Return the answer of a worker; where its process has died, a new one takes its place."""
        try:
            kind, content = self._workers[i].connection.recv()
        except (EOFError, OSError):
            self._workers[i].end()
            self._workers[i] = self._started()
            return NotFoundError(
                "the process of a search ended before its answer", hint="allow it more memory"
            )
        if kind == "failure":
            raise content
        answer: Answer | ShardwrightError = content
        return answer

    def _started(self) -> "_Worker":
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._run), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)


@dataclass(frozen=True)
class _Worker:
    process: ForkProcess
    connection: Connection

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(_JOIN_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(connection: Connection, run: Callable[[Task], Answer]) -> None:
    """Answer tasks until the connection is closed."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task = connection.recv()
            try:
                connection.send(("answer", _answer(run, task)))
            except OSError:
                return
            except Exception as error:  # of the program itself: raised by the parent
                connection.send(("failure", error))


def _answer(run: Callable[[Task], Answer], task: Task) -> Answer | ShardwrightError:
    try:
        return run(task)
    except ShardwrightError as error:
        return error


def answering(
    run: Callable[[Task], Answer],
    workers: int,
    deadline: float,
    subject: Callable[[Task], object] = lambda task: None,
) -> Answering[Task, Answer]:
    """Return what runs tasks: processes, where several workers are asked for and can be forked."""
    if workers > 1 and can_fork():
        return Processes(run, workers, deadline, subject)
    return Inline(run, deadline)


def can_fork() -> bool:
    """Return whether processes can be forked: not beside threads that may hold locks."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    if multiprocessing.current_process().daemon or not all(thread.daemon for thread in others):
        return False
    return "fork" in multiprocessing.get_all_start_methods()


def usable_workers(most: int) -> int:
    """Return how many searches may run at once: by the cores, and by the memory that is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(min(cores or 1, most, int(_free_bytes() // _BYTES_OF_SEARCH)), 1)


def _free_bytes() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return _BYTES_OF_SEARCH
