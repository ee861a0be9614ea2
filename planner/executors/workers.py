"""Workers that run tasks: here, processes of this machine.

They are forked, so they have the program, the registered operators and the plugins of this one.
"""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from signal import SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGTERM, signal
from typing import Any, Protocol

from shardwright.ir.errors import ShardwrightError

Run = Callable[[Any], Any]
_BYTES_OF_SEARCH = 4 * 2**30  # memory that is set aside for one search


class Workers(Protocol):
    """Runs tasks elsewhere."""

    @property
    def count(self) -> int:
        """How many tasks may run at once; 0 where no worker is left."""
        ...

    def submit(self, number: int, task: object) -> "Future[Any]":
        """Begin a task; the result is its number and its answer, or error."""
        ...

    def read(self, result: Any) -> tuple[int, Any]:
        """Return the number and the answer of the result of a task."""
        ...

    def lost(self) -> Sequence[str]:
        """Return the names of the workers that have gone since the last call."""
        ...

    def close(self) -> None:
        """End what was begun here."""
        ...


def answer_of(run: Run, task: Any) -> Any:
    """Return the answer to a task, or the user's error."""
    try:
        return run(task)
    except ShardwrightError as error:
        return error


class Forked:
    """Processes that are forked when the first task comes, and again once one has died.

    Parameters
    ----------
    run : callable
        Runs a task.
    count : int
        Number of processes.
    """

    def __init__(self, run: Run, count: int) -> None:
        self._run, self.count = run, count
        self._pool: ProcessPoolExecutor | None = None
        self._alive: Connection | None = None

    def submit(self, number: int, task: object) -> "Future[Any]":
        """Begin a task in a process."""
        if self._pool is not None:
            with suppress(BrokenExecutor):  # a process has died while it was idle
                return self._pool.submit(_answered, number, task)
            self.close()
        context = multiprocessing.get_context("fork")
        ended, self._alive = context.Pipe(duplex=False)
        begun = self._run, ended, self._alive
        self._pool = ProcessPoolExecutor(self.count, context, _begin, begun)
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread, also of a library's that waits for work; `can_fork`
            # has looked for those that may hold a lock.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            return self._pool.submit(_answered, number, task)

    def read(self, result: tuple[int, Any]) -> tuple[int, Any]:
        """Return the result as it is."""
        number, answer = result
        return number, answer

    def lost(self) -> Sequence[str]:
        """Return nothing: the tasks of a process that dies end with an error."""
        return ()

    def close(self) -> None:
        """End the processes, whatever they do."""
        if self._pool is not None and self._alive is not None:
            self._alive.close()
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._alive = None


_RUNS: list[Run] = []  # in a process that was forked: what runs its tasks


def _begin(run: Run, ended: Connection, alive: Connection) -> None:
    """Prepare a process that was forked: it ends when the one that forked it closes `alive`."""
    signal(SIGINT, SIG_IGN)  # the terminal's interrupt is for the process that has the answers
    for number in (SIGTERM, SIGHUP):  # whoever ends a worker ends it
        signal(number, SIG_DFL)
    alive.close()
    _RUNS[:] = [run]
    threading.Thread(target=_end_after, args=(ended,), daemon=True).start()


def _end_after(ended: Connection) -> None:
    with suppress(EOFError, OSError):
        ended.recv()
    os._exit(0)


def _answered(number: int, task: object) -> tuple[int, Any]:
    return number, answer_of(_RUNS[0], task)


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
