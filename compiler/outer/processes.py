"""Tasks run in processes of their own, begun in the order in which they are given.

The processes are forked, so they have the program, the registered operators and the plugins of
this one. Where a process cannot be forked, or one is enough, tasks run in this process. An answer
depends on its task alone, so it does not matter which process gives it, nor when.
"""

import multiprocessing
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, Protocol, TypeVar

from shardwright.ir.errors import NotFoundError, ShardwrightError, ShardwrightWarning

Task = TypeVar("Task")
Answer = TypeVar("Answer")
TaskIn = TypeVar("TaskIn", contravariant=True)
AnswerOut = TypeVar("AnswerOut", covariant=True)
_BYTES_OF_SEARCH = 4 * 2**30  # memory that is set aside for one search
_JOIN_SECONDS = 1.0


class Answering(Protocol[TaskIn, AnswerOut]):
    """Runs tasks, and returns their answers by number."""

    def submit(self, task: TaskIn, *, first: bool = False) -> int:
        """Queue a task, before those that wait if it is to be the first; return its number."""
        ...

    def answer(self, number: int) -> AnswerOut | ShardwrightError:
        """Return the answer, or the error, of a task; once."""
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
    """

    run: Callable[[Task], Answer]

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
        return _answer(self.run, self._tasks.pop(number))

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
    text_of : callable
        Returns what a task is, in words.
    subject : callable
        Returns what a task is about: it goes to the process that had one about the same before, if
        that is idle, and finds there what was kept.
    """

    def __init__(
        self,
        run: Callable[[Task], Answer],
        workers: int,
        text_of: Callable[[Task], str],
        subject: Callable[[Task], object],
    ) -> None:
        self._run, self._text_of, self._subject = run, text_of, subject
        self._last: dict[object, int] = {}  # subject: worker
        self._workers = [self._started() for _ in range(workers)]
        self._waiting: deque[tuple[int, Task]] = deque()
        self._running: dict[int, tuple[int, Task]] = {}  # worker: task
        self._again: set[int] = set()  # tasks whose process has ended before
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
            self._receive()
        return self._answers.pop(number)

    def _receive(self) -> None:
        """Wait for answers."""
        ready = wait([self._workers[i].connection for i in self._running])
        for i in [i for i in self._running if self._workers[i].connection in ready]:
            self._take_from(i)
        self._start_waiting()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def _start_waiting(self) -> None:
        idle = [i for i in range(len(self._workers)) if i not in self._running]
        while idle and self._waiting:
            number, task = self._waiting.popleft()
            i = self._worker_for(task, idle)
            idle.remove(i)
            self._last[self._subject(task)], self._running[i] = i, (number, task)
            try:
                self._workers[i].connection.send(task)
            except OSError:  # it has died while it was idle
                self._replace(i)
                idle.append(i)

    def _worker_for(self, task: Task, idle: Sequence[int]) -> int:
        """Return the idle worker that gets a task: it may know something, which saves time."""
        before = self._last.get(self._subject(task))
        return before if before is not None and before in idle else idle[0]

    def _take_from(self, i: int) -> None:
        """Take the answer of a worker; where its process has died, a new one takes its place."""
        try:
            kind, content = self._workers[i].connection.recv()
        except (EOFError, OSError):
            self._replace(i)
            return
        if kind == "failure":
            raise content
        number, _ = self._running.pop(i)
        self._answers[number] = content

    def _replace(self, i: int) -> None:
        """Begin a process in the place of one that has died, and do its task again, once."""
        number, task = self._running.pop(i)
        self._workers[i].end()
        self._workers[i] = self._started()
        what = f"the process of {self._text_of(task)} ended before its answer"
        if number in self._again:
            hint = "allow it more memory"
            self._answers[number] = NotFoundError(f"{what}, and so did a second one", hint=hint)
            return
        warnings.warn(f"{what}; it is done again", ShardwrightWarning, stacklevel=2)
        self._again.add(number)
        self._waiting.appendleft((number, task))

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
    text_of: Callable[[Task], str],
    subject: Callable[[Task], object] = lambda task: None,
) -> Answering[Task, Answer]:
    """Return what runs tasks: processes, where several workers are asked for and can be forked."""
    if workers > 1 and can_fork():
        return Processes(run, workers, text_of, subject)
    return Inline(run)


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
