"""The calls that a parameter server answers."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shardwright.operators.info import Array
from shardwright.server.callers import Caller, Quotas, TooManyCallsError
from shardwright.server.context import MOST_RANKS
from shardwright.server.messages import bytes_of, message, with_data
from shardwright.server.shards import Shard
from shardwright.server.store import Push, Store, Task, gradient_dtype
from shardwright.server.tables import Ids, Table, divisions
from shardwright.server.transport import (
    LATE,
    PIECE_BYTES,
    SHORT,
    STRANGER,
    WAIT,
    CallError,
    Handler,
)

_MOST_TABLES = 100_000  # of a model; of more, none is made
_SHARE = 0.9  # share of the machine's memory that tables may take
_WAIT = SHORT / 2  # seconds that a call waits for others


class ParameterServer:
    """The service of one parameter server.

    Parameters
    ----------
    number, servers : int
        Number of this server, and of all.
    begin : callable
        Makes the store for a task, or returns the one of a checkpoint.
    """

    def __init__(self, number: int, servers: int, begin: Callable[[Task], Store]) -> None:
        self.number, self.servers = number, servers
        self._begin = begin
        self.store: Store | None = None
        self._lock = threading.Lock()
        self._streams = Quotas(lambda role: 1)

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers of the methods."""
        return {
            "Declare": self.declare,
            "Fill": self.fill,
            "Push": self.push,
            "Pull": self.pull,
            "PullRows": self.pull_rows,
        }

    # Beginning

    def declare(self, model: Any, seconds: float, caller: Caller) -> Any:
        """Take what is to be held; every worker says the same."""
        task = self._task(model, caller.number)
        with self._lock:
            if self.store is None:
                self.store = self._begin(task)
            elif task != self.store.task:
                raise CallError(
                    f"worker {caller.number} trains another model than the workers before it, or "
                    f"in another mode"
                )
        return self._standing(self.store, caller.number)

    def _task(self, model: Any, worker: int) -> Task:
        if len(model.tables) > _MOST_TABLES or not 0 < model.workers <= MOST_RANKS:
            raise CallError(f"{len(model.tables)} tables of {model.workers} workers are too many")
        if worker >= model.workers:
            raise CallError(f"worker {worker} of {model.workers}", STRANGER)
        tables = tuple(map(Table.of_message, model.tables))
        parts = zip(tables, divisions(tables, self.servers), strict=True)
        size = sum(division.count(self.number) * table.row_bytes for table, division in parts)
        limit = _SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size > limit:
            raise CallError(
                f"the tables of server {self.number} have {size:,} bytes, this machine has "
                f"{limit:,.0f} for them"
            )
        return Task(tables, model.workers, model.synchronous, model.seed)

    def fill(self, pieces: Iterable[Any], seconds: float, caller: Caller) -> Any:
        """Take the initial values of tables."""
        store = self._known(caller)
        gathered = self._gathered(
            store, caller, pieces, lambda shard: shard.values.dtype, store.wanted
        )
        store.fill(gathered.dense)
        return self._standing(store, caller.number)

    # Gradients

    def push(self, pieces: Iterable[Any], seconds: float, caller: Caller) -> Any:
        """Take the gradients of a step; they count when the last piece has arrived."""
        store = self._known(caller)
        whole = [i for i, s in enumerate(store.shards) if not s.table.by_rows and s.rows]
        push = self._gathered(store, caller, pieces, gradient_dtype, whole)
        store.push(push, min(_WAIT, seconds / 2))
        return self._standing(store, caller.number)

    def _gathered(
        self,
        store: Store,
        caller: Caller,
        pieces: Iterable[Any],
        dtype_of: Callable[[Shard], Any],
        expected: Iterable[int],
    ) -> Push:
        """Return the arrays of a stream of pieces.

        Raises
        ------
        CallError
            If one does not fit, or some are missing.
        """
        stream = iter(pieces)
        first = next(stream, None)
        if first is None:
            raise CallError("a stream has no messages")
        with self._alone(caller):
            push, ends = Push(caller.number, first.step), dict.fromkeys(expected, 0)
            is_whole = False
            while first is not None:
                is_whole |= first.last
                if first.step != push.step:
                    raise CallError("a stream has messages of several steps")
                self._note(first, store, push)
                self._take(first, store, push, ends, dtype_of)
                first = next(stream, None)
            if not is_whole:
                raise CallError("a stream ends before its last message", WAIT)
            for table, end in ends.items():
                if end < store.shards[table].values.size:
                    name = store.shards[table].table.name
                    raise CallError(f"a stream ends after {end} elements of `{name}`")
        return push

    def _note(self, piece: Any, store: Store, push: Push) -> None:
        """Note what a message says of the whole step."""
        push.saves |= piece.save
        if piece.rates:
            push.rates = numbers(piece.rates, np.dtype("<f8"))
            if len(push.rates) != len(store.shards):
                raise CallError(f"{len(push.rates)} learning rates of {len(store.shards)} tables")

    def _take(
        self,
        piece: Any,
        store: Store,
        push: Push,
        ends: dict[int, int],
        dtype_of: Callable[[Shard], Any],
    ) -> None:
        if piece.table >= len(store.shards):
            raise CallError(f"there is no table {piece.table}")
        if not piece.data:
            return  # the first message of a stream
        shard = store.shards[piece.table]
        array = numbers(piece.data, dtype_of(shard))
        if piece.rows:
            self._take_rows(piece, shard, push, array)
            return
        if piece.table not in ends or piece.begin != ends[piece.table]:
            raise CallError(f"a piece of `{shard.table.name}` at {piece.begin} is not expected")
        ends[piece.table] += len(array)
        if ends[piece.table] > shard.values.size:
            raise CallError(f"`{shard.table.name}` has {shard.values.size} elements here")
        if piece.table not in push.dense:
            push.dense[piece.table] = store.rooms.take(piece.table, shard.values.size, array.dtype)
        push.dense[piece.table][piece.begin : piece.begin + len(array)] = array

    def _take_rows(self, piece: Any, shard: Shard, push: Push, array: Array) -> None:
        """Take the gradients of some rows; they come in ascending order."""
        places = places_of(piece.rows, shard)
        if array.size != len(places) * shard.table.width:
            raise CallError(
                f"{len(places)} rows of `{shard.table.name}` have {array.size} elements"
            )
        gradient = array.reshape(len(places), shard.table.width)
        before = push.by_rows.get(piece.table)
        if before is not None:
            places = np.concatenate([before[0], places])
            gradient = np.concatenate([before[1], gradient])
        if (np.diff(places) <= 0).any():
            raise CallError(f"rows of `{shard.table.name}` are not in ascending order")
        push.by_rows[piece.table] = places, gradient

    # Values

    def pull(self, wish: Any, seconds: float, caller: Caller) -> Iterator[Any]:
        """Send tables, after some number of updates."""
        store = self._known(caller)
        for table in wish.tables:
            if table >= len(store.shards) or not store.shards[table].rows:
                raise CallError(f"there is no table {table} here")
        store.wait_for(wish.clock, min(_WAIT, seconds / 2))
        for table in wish.tables:
            yield from self._sent(store, table)

    def _sent(self, store: Store, table: int) -> Iterator[Any]:
        shard = store.shards[table]
        flat, step = shard.values.reshape(-1), PIECE_BYTES // shard.values.itemsize
        for begin in range(0, flat.size, step):
            piece = message("Piece", table=table, begin=begin)
            part = flat[begin : begin + step]
            with store.changed:
                if shard.table.by_rows:
                    first, last = begin // shard.table.width, (begin + len(part) - 1)
                    shard.at(np.arange(first, last // shard.table.width + 1))  # draws new rows
                sent = with_data(piece, bytes_of(part))
            yield sent

    def pull_rows(self, wishes: Iterable[Any], seconds: float, caller: Caller) -> Iterator[Any]:
        """Send rows that have changed since the worker got them."""
        store, begin = self._known(caller), 0
        for wish in wishes:
            if wish.table >= len(store.shards) or not store.shards[wish.table].table.by_rows:
                raise CallError(f"the rows of table {wish.table} cannot be pulled one by one")
            shard = store.shards[wish.table]
            places = places_of(wish.rows, shard)
            known = numbers(wish.versions, np.dtype(np.uint64))
            if len(known) != len(places):
                raise CallError(f"{len(places)} rows have {len(known)} versions")
            store.wait_for(wish.clock, min(_WAIT, seconds / 2))
            with store.changed:
                values, versions = shard.at(places)
            changed = np.flatnonzero(versions != known)
            step = max(1, PIECE_BYTES // max(1, values[:1].nbytes))
            for first in range(0, len(changed), step):
                at = changed[first : first + step]
                piece = message(
                    "Piece",
                    table=wish.table,
                    rows=(at + begin).tobytes(),
                    versions=versions[at].tobytes(),
                )
                yield with_data(piece, bytes_of(values[at]))
            begin += len(places)

    # Checks

    def _known(self, caller: Caller) -> Store:
        """Return the store, for a worker that may use it."""
        if self.store is None:
            raise CallError("the server has not been told what to hold", LATE)
        self.store.check_worker(caller.number)
        return self.store

    @contextmanager
    def _alone(self, caller: Caller) -> Iterator[None]:
        """Let a worker have one stream at a time, so that it fills no more memory than its own."""
        try:
            with self._streams.one_more(caller):
                yield
        except TooManyCallsError:
            what = f"another stream of worker {caller.number} has not ended"
            raise CallError(what, WAIT) from None

    def _standing(self, store: Store, worker: int) -> Any:
        return message(
            "Standing",
            clock=store.clock,
            applied=store.counted(worker),
            durable=store.durable[worker],
            wanted=store.wanted,
        )


def numbers(data: bytes, dtype: "np.dtype[Any]") -> Array:
    """Return the numbers in a message.

    Raises
    ------
    CallError
        If the bytes are no whole number of them.
    """
    if len(data) % dtype.itemsize:
        raise CallError(f"{len(data)} bytes are no whole number of {dtype}")
    return np.frombuffer(data, dtype)


def places_of(data: bytes, shard: Shard) -> Ids:
    """Return the places of rows in a message.

    Raises
    ------
    CallError
        If one is outside.
    """
    if not shard.table.by_rows:
        raise CallError(f"`{shard.table.name}` is not divided into rows")
    places = numbers(data, np.dtype("<i8"))
    if len(places) and not 0 <= places.min() <= places.max() < shard.rows:
        raise CallError(f"a row of `{shard.table.name}` is outside of the {shard.rows} rows here")
    return places
