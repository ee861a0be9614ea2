"""The store of a server: its shards, and the clock of their updates.

In synchronous mode an update takes one push of every worker, and adds their gradients in the order
of the workers: its bits do not depend on who comes first. In asynchronous mode every push is an
update.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.server.shards import Shard
from shardwright.server.tables import Ids, Table, divisions
from shardwright.server.transport import LATE, STRANGER, WAIT, CallError

NEVER = 2**63 - 1


@dataclass(frozen=True)
class Task:
    """What a server is to hold, and for whom.

    Parameters
    ----------
    tables : tuple of Table
        All tables of the run.
    workers : int
        Number of workers.
    synchronous : bool
        Whether an update takes a push of every worker.
    seed : int
        Seed of the initial values.
    """

    tables: tuple[Table, ...]
    workers: int
    synchronous: bool
    seed: int


@dataclass
class Push:
    """The gradients that a worker sends to a server for one step.

    Parameters
    ----------
    worker : int
        Who.
    step : int
        How many pushes it has made before.
    dense : mapping of int to array
        By table, the gradient of all rows on the server.
    by_rows : mapping of int to (array, array)
        By table, places and the gradients of these rows.
    saves : bool
        Whether the worker asks for a checkpoint after the update.
    rates : array, optional
        The learning rate of each table, where some follow the step.
    """

    worker: int
    step: int
    dense: dict[int, Array] = field(default_factory=dict)
    by_rows: dict[int, tuple[Ids, Array]] = field(default_factory=dict)
    saves: bool = False
    rates: Array | None = None


class Rooms:
    """Arrays of gradients that are filled again: new memory costs more than to fill it."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self._lock = threading.Lock()

    def take(self, table: int, size: int, dtype: "np.dtype[Any]") -> Array:
        """Return an array for the gradient of a table, which nobody else has."""
        with self._lock:
            free = self._free.get(table, [])
            while free:
                array = free.pop()
                if array.size == size and array.dtype == dtype:
                    return array
        return np.empty(size, dtype)

    def give_back(self, arrays: Mapping[int, Array]) -> None:
        """Take back the arrays of a push that has been applied."""
        with self._lock:
            for table, array in arrays.items():
                self._free.setdefault(table, []).append(array)


class Store:
    """The shards of one server.

    Parameters
    ----------
    task : Task
        What it holds.
    server, servers : int
        Number of the server, and of all.
    save : callable, optional
        Called after every update, and with whether a worker asks to save.

    Attributes
    ----------
    clock : int
        Number of updates.
    applied : list of int
        Pushes of each worker that are in the shards.
    durable : list of int
        Of which this many are in the checkpoint.
    """

    def __init__(
        self,
        task: Task,
        server: int,
        servers: int,
        save: Callable[["Store", bool], None] | None = None,
    ) -> None:
        self.task, self.server = task, server
        self.shards = [
            Shard(table, division, server, task.seed)
            for table, division in zip(task.tables, divisions(task.tables, servers), strict=True)
        ]
        self.clock = 0
        self.applied = [0] * task.workers
        self.durable = [NEVER if save is None else 0] * task.workers
        self.changed = threading.Condition()
        self.rooms = Rooms()
        self.failure = ""
        self.gone: frozenset[int] = frozenset()
        self._save = save
        self._waiting: dict[int, Push] = {}

    @property
    def wanted(self) -> list[int]:
        """The tables whose initial values are missing."""
        return [i for i, shard in enumerate(self.shards) if not shard.is_filled]

    def fill(self, values: Mapping[int, Array]) -> None:
        """Begin with given values of some tables; those that have values keep them."""
        with self.changed:
            for table, array in values.items():
                if not self.shards[table].is_filled:
                    self.shards[table].fill(array)
            if not self.wanted:
                self.save()
            self.changed.notify_all()

    def wait_for(self, clock: int, seconds: float) -> None:
        """Wait until there were so many updates.

        Raises
        ------
        CallError
            With the code ``WAIT`` if that takes longer; ``LATE`` if it never happens.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    self.failure
                    or (self.clock >= clock and not self.wanted)
                    or self._missing(clock)
                    or self._stays_empty
                ),
                seconds,
            )
            if self.failure:
                raise CallError(self.failure, LATE)
            if self._stays_empty:
                raise CallError(
                    "worker 0 has ended before it sent the initial values; start the run again",
                    LATE,
                )
            if self._missing(clock):
                worker = self._missing(clock)[0]
                raise CallError(
                    f"worker {worker} has ended after {self.counted(worker)} steps, and another "
                    f"waits for its step {clock}; give all workers the same number of batches",
                    LATE,
                )
            if self.clock < clock or self.wanted:
                raise CallError(f"there were {self.clock} updates, {clock} are asked for", WAIT)

    @property
    def _stays_empty(self) -> bool:
        """Whether the worker that sends the initial values has ended without them."""
        return 0 in self.gone and bool(self.wanted)

    def _missing(self, clock: int) -> list[int]:
        """Return the workers that have ended without the steps that others wait for."""
        if not self.task.synchronous:
            return []
        return [worker for worker in self.gone if self.counted(worker) < clock]

    def note_gone(self, workers: Iterable[int]) -> None:
        """Note which workers have ended."""
        with self.changed:
            self.gone = frozenset(workers)
            self.changed.notify_all()

    def save(self) -> None:
        """Write a checkpoint, if the server writes any."""
        with self.changed:
            if self._save is not None:
                self._save(self, True)

    def fail(self, why: str) -> None:
        """End all waiting."""
        with self.changed:
            self.failure = why
            self.changed.notify_all()

    def counted(self, worker: int) -> int:
        """Return how many pushes of a worker have arrived."""
        return self.applied[worker] + (worker in self._waiting)

    def push(self, push: Push, seconds: float = 0.0) -> None:
        """Take a push; one that has arrived before is ignored.

        A worker may send the next push while its last one waits for those of others: to a server
        that has come back, and to one of which its step reads nothing.

        Parameters
        ----------
        push : Push
            The push.
        seconds : float
            How long it may wait for the update before.

        Raises
        ------
        CallError
            If the worker has skipped one, or the values are not there yet; with the code ``WAIT``
            if the update before takes longer.
        """
        if push.rates is None and any(table.scheduled for table in self.task.tables):
            raise CallError("gradients arrive without the learning rates of their step")
        with self.changed:
            following = push.step == self.applied[push.worker] + 1
            if self.task.synchronous and following and push.worker in self._waiting:
                self.wait_for(push.step, seconds)
            counted = self.counted(push.worker)
            if self.wanted:
                raise CallError("gradients arrive before the initial values", LATE)
            if push.step < counted:
                if push.saves:
                    self._save_push(push, seconds)
                return
            if push.step > counted and self.task.synchronous:
                raise CallError(
                    f"worker {push.worker} pushes its step {push.step}, expected {counted}", LATE
                )
            if self.task.synchronous:
                self._waiting[push.worker] = push
                if len(self._waiting) < self.task.workers:
                    return
                pushes = [self._waiting[worker] for worker in range(self.task.workers)]
                self._waiting.clear()
            else:
                pushes = [push]
            self._update(pushes)

    def _save_push(self, push: Push, seconds: float) -> None:
        """Write a checkpoint with a push that has arrived before."""
        if self.task.synchronous:
            self.wait_for(push.step + 1, seconds)
        if self.durable[push.worker] <= push.step:
            self.save()

    def _update(self, pushes: Sequence[Push]) -> None:
        self.clock += 1
        rates = pushes[0].rates
        for number, shard in enumerate(self.shards):
            if not shard.rows:
                continue
            rate = 0.0 if rates is None else float(rates[number])
            if shard.table.by_rows:
                several = [push.by_rows[number] for push in pushes if number in push.by_rows]
                several = several or [_no_rows(shard)]
                shard.update_rows(*_mean_of_rows(several, len(pushes)), self.clock, rate)
            else:
                mean = _mean([push.dense[number] for push in pushes])
                shard.update(mean, self.clock, rate)
        for push in pushes:
            self.applied[push.worker] = push.step + 1
            self.rooms.give_back(push.dense)
        if self._save is not None:
            self._save(self, any(push.saves for push in pushes))
        self.changed.notify_all()

    def check_worker(self, worker: int) -> None:
        """Refuse a worker that there is none of.

        Raises
        ------
        CallError
            If there is none.
        """
        if worker >= self.task.workers:
            raise CallError(f"worker {worker} of {self.task.workers}", STRANGER)


def _mean(gradients: Sequence[Array]) -> Array:
    if len(gradients) == 1:
        return gradients[0]
    total = reduce(np.add, gradients)
    return np.asarray(total / len(gradients), total.dtype)


def _mean_of_rows(several: Sequence[tuple[Ids, Array]], workers: int) -> tuple[Ids, Array]:
    """Return rows, each once, and their gradients summed in order and divided."""
    if workers == 1:
        return several[0]
    places = np.concatenate([rows for rows, _ in several])
    found, inverse = np.unique(places, return_inverse=True)
    terms = np.concatenate([gradient for _, gradient in several])
    total = np.zeros((len(found), terms.shape[1]), terms.dtype)
    np.add.at(total, inverse, terms)
    return found, np.asarray(total / workers, total.dtype)


def _no_rows(shard: Shard) -> tuple[Ids, Array]:
    return np.zeros(0, np.int64), np.zeros((0, shard.table.width), gradient_dtype(shard))


def gradient_dtype(shard: Shard) -> "np.dtype[np.generic]":
    """Return the numpy type of a shard's gradient."""
    return numpy_dtype(shard.table.gradient)
