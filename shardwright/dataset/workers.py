"""Processes that make samples ahead, in the order of their keys.

A sample is a function of its key, so it does not depend on which process makes it, or how many
there are. Processes are forked when an epoch begins, with the dataset as it is; a process ends
with the epoch, or when the one that trains is gone.
"""

import multiprocessing
import pickle
import random
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from shardwright.dataset.profile import PROFILE
from shardwright.ir.errors import ModelError
from shardwright.ir.files.waiting import END


@dataclass
class Made:
    """What a process has made of a key.

    Parameters
    ----------
    number : int
        Number of the key in the epoch.
    sample : object
        The sample; or the error, if it failed.
    failed : bool
        Whether it did.
    seconds, processor_seconds : float
        Time that it took, and of the processor.
    steps : dict of str to float
        Seconds of each step of the pipeline.
    """

    number: int
    sample: Any
    failed: bool
    seconds: float
    processor_seconds: float
    steps: dict[str, float] = field(default_factory=dict)


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    outstanding: int = 0
    retires: bool = False


class Workers:
    """Processes that make samples.

    Parameters
    ----------
    make : callable
        Makes a sample of a key.
    count : int
        Number of processes.
    prefetch : int
        Samples that each makes ahead.
    seed : tuple of int
        With the number of the sample the seed of Python's and numpy's global generators, from which
        code of the user may draw.
    """

    def __init__(
        self, make: Callable[[Any], Any], count: int, prefetch: int, seed: tuple[int, ...] = ()
    ) -> None:
        self._make, self._prefetch, self._seed = make, prefetch, seed
        self._context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        self.measured: deque[Made] = deque(maxlen=1000)  # without their samples
        self.waited = 0.0  # seconds in which the next sample was not there
        self.set_count(count)

    @property
    def count(self) -> int:
        """Number of processes that get samples to make."""
        return sum(not worker.retires for worker in self._workers)

    def set_count(self, count: int) -> None:
        """Start processes, or let some end when they have made what they were given."""
        active = [worker for worker in self._workers if not worker.retires]
        for worker in active[count:]:
            worker.retires = True
        for _ in range(count - len(active)):
            self._workers.append(self._start())
        self._remove_idle()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        others = [worker.connection for worker in self._workers]
        arguments = (theirs, [ours, *others], self._make, self._seed)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def run(self, keys: Iterator[Any]) -> Iterator[Any]:
        """Yield the sample of every key, in their order."""
        made: dict[int, Made] = {}
        given, number = 0, 0
        numbered = enumerate(keys)
        try:
            while True:
                given += self._give(numbered)
                if number == given:
                    return
                begin = time.perf_counter()
                while number not in made:
                    self._receive(made, block=True)
                self._receive(made, block=False)
                self.waited += time.perf_counter() - begin
                found = made.pop(number)
                number += 1
                if found.failed:
                    raise found.sample
                sample, found.sample = found.sample, None
                self.measured.append(found)
                yield sample
        finally:
            self.end()

    def _give(self, numbered: Iterator[tuple[int, Any]]) -> int:
        """Give free processes keys, and return how many."""
        given = 0
        while True:
            free = [w for w in self._workers if not w.retires and w.outstanding < self._prefetch]
            if not free:
                return given
            item = next(numbered, None)
            if item is None:
                return given
            worker = min(free, key=lambda w: w.outstanding)
            self._send(worker, item)
            worker.outstanding += 1
            given += 1

    def _send(self, worker: _Worker, item: tuple[int, Any]) -> None:
        try:
            worker.connection.send(item)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(worker) from None

    def _receive(self, made: dict[int, Made], block: bool) -> None:
        """Take what processes have made."""
        busy = {w.connection: w for w in self._workers if w.outstanding}
        for ready in wait(list(busy), None if block else 0):
            assert isinstance(ready, Connection)
            worker = busy[ready]
            try:
                found: Made = pickle.loads(ready.recv_bytes())
            except (EOFError, ConnectionResetError):
                raise self._died(worker) from None
            worker.outstanding -= 1
            made[found.number] = found
        self._remove_idle()

    def _remove_idle(self) -> None:
        for worker in [w for w in self._workers if w.retires and not w.outstanding]:
            self._workers.remove(worker)
            worker.connection.close()
            worker.process.join()

    def _died(self, worker: _Worker) -> ModelError:
        worker.process.join(END)
        return ModelError(
            f"a process that makes samples died with the code {worker.process.exitcode}",
            hint="use fewer `num_parallel_workers` if memory is short",
        )

    def end(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(END)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


def _serve(
    connection: Connection,
    others: list[Connection],
    make: Callable[[Any], Any],
    seed: tuple[int, ...],
) -> None:
    """Make samples until the other end of the connection is closed."""
    for other in others:  # of the process that trains: its end must close them
        other.close()
    PROFILE.start()
    while True:
        try:
            number, key = connection.recv()
        except (EOFError, ConnectionResetError, KeyboardInterrupt):
            return
        state = np.random.SeedSequence((*seed, number)).generate_state(2)
        np.random.seed(state[0])
        random.seed(int(state[1]))
        begin, used = time.perf_counter(), time.process_time()
        try:
            sample, failed = make(key), False
        except Exception as error:
            sample, failed = _sendable(error), True
        seconds, processor = time.perf_counter() - begin, time.process_time() - used
        made = Made(number, sample, failed, seconds, processor, PROFILE.take())
        try:
            connection.send_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            return


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can raise, with the traceback of this one."""
    text = "".join(traceback.format_exception(error))
    try:
        copied: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return ModelError(f"a process that makes samples failed: {type(error).__name__}: {error}")
    copied.add_note(f"in a process that makes samples:\n{text}")
    return copied
