"""What a worker sends to the servers, and gets from them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.files.waiting import ARRIVAL, RETRY
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.server.cache import RowCache
from shardwright.server.member import Member
from shardwright.server.messages import bytes_of, message, with_data
from shardwright.server.security import Security
from shardwright.server.store import NEVER, Task
from shardwright.server.tables import Division, Ids, divisions
from shardwright.server.transport import LONG, PIECE_BYTES, CallError, Connection

_MOST_KEPT = 2**28  # bytes of pushes that are kept for one server before it is asked to save
_ROWS = 2**16  # rows in a message
T = TypeVar("T")
Sparse = Mapping[int, tuple[Ids, Array]]


@dataclass
class _Link:
    """The connection to one server, and what it may have to be sent again.

    Parameters
    ----------
    number : int
        Number of the server.
    connection : Connection, optional
        The connection, once the server has what was sent before.
    log : dict of int to list
        The pushes that are not in its checkpoint, by step.
    standing : Standing
        What the server has said last when it was connected to.

    Attributes
    ----------
    lock : Lock
        Held while the server is called.
    """

    number: int
    connection: Connection | None = None
    standing: Any = None
    log: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


@dataclass
class _Wanted:
    """Rows that are asked for: their places, and what is known of them."""

    table: int
    places: Ids
    versions: Array
    values: Array

    def __post_init__(self) -> None:
        self.known = self.versions.copy()


class Client:
    """The servers, as a worker sees them.

    Parameters
    ----------
    member : Member
        The place of this process.
    task : Task
        What the servers hold.
    security : Security
        How messages are encrypted.
    initial : callable
        Returns the initial values of a table that no server can draw.
    cache_rows : int
        Rows of each table by rows that are kept here.
    """

    def __init__(
        self,
        member: Member,
        task: Task,
        security: Security,
        initial: Callable[[int], Array],
        cache_rows: int = 0,
    ) -> None:
        self.member, self.task, self._security, self._initial = member, task, security, initial
        member.wait_for(lambda: member.view.ready, ARRIVAL, "not all members have arrived")
        count = len(member.servers)
        self.divisions = divisions(task.tables, count)
        self._links = [_Link(number) for number in range(count)]
        self._caches = {
            number: RowCache(cache_rows, table.width, numpy_dtype(table.type.dtype))
            for number, table in enumerate(task.tables)
            if cache_rows and table.by_rows
        }
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="servers")
        standings = self._each(self._begun)
        self.step = max(int(standing.applied) for standing in standings)
        self._keeps = any(standing.durable != NEVER for standing in standings)
        if task.synchronous and len({standing.applied for standing in standings}) > 1:
            counts = ", ".join(str(standing.applied) for standing in standings)
            raise ModelError(
                f"the checkpoints of the servers have {counts} updates, expected one number",
                hint="remove them, and begin anew",
            )

    def _each(self, work: Callable[[_Link], T]) -> list[T]:
        """Work with all servers at the same time."""
        return list(self._threads.map(work, self._links))

    def settle(self) -> None:
        """Wait until all that was pushed is in checkpoints, where the servers write any.

        Raises
        ------
        ModelError
            If the run ends early, or another worker has ended without a step of this one.
        """
        for link in self._links:  # one by one: at the end of a process a pool has no threads
            while link.log:
                first, *rest = link.log[max(link.log)]
                head = message("Piece", step=first.step, save=True, rates=first.rates)
                again = partial(_pushed, pieces=[head, *rest])
                self._forget(link, self._persistently(link, again))

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        for link in self._links:
            if link.connection is not None:
                link.connection.close()

    # Connections

    def _begun(self, link: _Link) -> Any:
        """Connect to a server for the first time."""
        return self._persistently(link, lambda _: link.standing)

    def _connect(self, link: _Link) -> Connection:
        """Connect to a server that has just come, and send it what it lacks.

        The connection counts when the server has all of that: values that are pulled from it wait
        for pushes that were sent before.
        """
        member, number = self.member, link.number
        member.wait_for(
            lambda: member.servers[number],
            ARRIVAL,
            f"server {number} has ended early, and has not come back",
        )
        address, caller = member.servers[number], member.caller
        connection = Connection("ParameterServer", address, self._security, caller)
        try:
            link.standing = self._declared(link, connection)
            for step in sorted(link.log):
                if step >= link.standing.applied:
                    link.standing = connection.call("Push", iter(link.log[step]), LONG)
        except CallError:
            connection.close()
            raise
        link.connection = connection
        self._forget(link, link.standing)
        return connection

    def _disconnect(self, link: _Link) -> None:
        """Close the connection to a server; nothing is known of what another one has."""
        if link.connection is not None:
            link.connection.close()
            link.connection = None
            for cache in self._caches.values():
                cache.clear()

    def _declared(self, link: _Link, connection: Connection) -> Any:
        task = self.task
        model = message(
            "Model",
            workers=task.workers,
            synchronous=task.synchronous,
            seed=task.seed,
            tables=[table.as_message() for table in task.tables],
        )
        standing = connection.call("Declare", model, LONG)
        if standing.wanted and self.member.number == 0:
            pieces = self._filling(link, standing.wanted)
            standing = connection.call("Fill", pieces, LONG)
        return standing

    def _filling(self, link: _Link, tables: Sequence[int]) -> Iterator[Any]:
        for table in tables:
            whole = self._initial(table).reshape(self.task.tables[table].rows, -1)
            rows = self.divisions[table].rows_of(link.number)
            yield from self._pieces(table, np.ascontiguousarray(whole[rows]), 0)
        yield message("Piece", last=True)

    def _persistently(self, link: _Link, work: Callable[[Connection], T]) -> T:
        """Call a server until it answers; a server that is lost may come back.

        Raises
        ------
        ModelError
            If the run ends early, or the call is refused.
        """
        while True:
            try:
                with link.lock:
                    return self._worked(link, work)
            except CallError as error:
                self.member.check()
                if not (error.is_lost or error.may_repeat):
                    raise ModelError(f"server {link.number} refuses a call: {error}") from None
            if self.task.synchronous:
                self._catch_up()
            time.sleep(RETRY)

    def _worked(self, link: _Link, work: Callable[[Connection], T]) -> T:
        try:
            return work(link.connection or self._connect(link))
        except CallError as error:
            if error.is_lost:
                self._disconnect(link)
            raise

    def _catch_up(self) -> None:
        """Send servers that have come back what they lack, where nothing else is asked of them.

        The call that is repeated may wait for a worker that waits for one of these servers.
        """
        servers = self.member.servers
        for link in self._links:
            address = servers[link.number]
            is_current = link.connection is not None and link.connection.address == address
            if address and not is_current and link.lock.acquire(blocking=False):
                try:
                    self._disconnect(link)
                    self._connect(link)
                except CallError:
                    pass  # it is tried again
                finally:
                    link.lock.release()

    # Values

    def pull(
        self, tables: Sequence[int], into: Mapping[int, Array] | None = None
    ) -> dict[int, Array]:
        """Return whole tables: after the updates of all steps so far, in synchronous mode.

        Parameters
        ----------
        tables : sequence of int
            Which.
        into : mapping of int to array, optional
            What an earlier call has returned, to be overwritten: new memory costs more than to
            fill it.
        """
        arrays = {}
        for table in tables:
            described = self.task.tables[table]
            shape = (described.rows, described.width)
            if into is not None and table in into:
                arrays[table] = into[table].reshape(shape)
            else:
                arrays[table] = np.empty(shape, numpy_dtype(described.type.dtype))
        self._each(lambda link: self._pull_from(link, arrays))
        return {
            table: array.reshape(self.task.tables[table].type.shape)
            for table, array in arrays.items()
        }

    def _pull_from(self, link: _Link, arrays: Mapping[int, Array]) -> None:
        number = link.number
        tables = [table for table in arrays if self.divisions[table].count(number)]
        wish = message("Wish", clock=self._clock, tables=tables)

        def pull(connection: Connection) -> None:
            for piece in connection.calls("Pull", wish):
                _put(piece, arrays[piece.table], self.divisions[piece.table], number)

        if tables:
            self._persistently(link, pull)

    def pull_rows(self, table: int, rows: Ids) -> Array:
        """Return some rows of a table, each given once, after the updates of all steps so far."""
        described, division = self.task.tables[table], self.divisions[table]
        servers, places = division.places(rows)
        cache = self._caches.get(table)
        if cache is None:
            values = np.empty((len(rows), described.width), numpy_dtype(described.type.dtype))
            versions = np.zeros(len(rows), np.uint64)
        else:
            values, versions = cache.known(rows)

        def pull_from(link: _Link) -> None:
            at = np.flatnonzero(servers == link.number)
            wanted = _Wanted(table, places[at], versions[at], values[at])
            if len(at):
                self._persistently(link, lambda c: self._pull_rows(c, wanted))
                values[at], versions[at] = wanted.values, wanted.versions

        self._each(pull_from)
        if cache is not None:
            cache.keep(rows, values, versions)
        return values

    def _pull_rows(self, connection: Connection, wanted: "_Wanted") -> None:
        """Ask a server for the rows that have changed; none of them is known after a retry."""
        known, wanted.known = wanted.known, np.zeros_like(wanted.versions)

        def wishes() -> Iterator[Any]:
            for begin in range(0, len(wanted.places), _ROWS):
                part = slice(begin, begin + _ROWS)
                yield message(
                    "Rows",
                    clock=self._clock,
                    table=wanted.table,
                    rows=wanted.places[part].tobytes(),
                    versions=known[part].tobytes(),
                )

        for piece in connection.calls("PullRows", wishes()):
            at = np.frombuffer(piece.rows, np.int64)
            data = np.frombuffer(piece.data, wanted.values.dtype)
            wanted.values[at] = data.reshape(len(at), -1)
            wanted.versions[at] = np.frombuffer(piece.versions, np.uint64)

    @property
    def _clock(self) -> int:
        """The updates that values must have."""
        return self.step if self.task.synchronous else 0

    # Gradients

    def push(
        self, dense: Mapping[int, Array], by_rows: Sparse, rates: Mapping[int, float] | None = None
    ) -> None:
        """Send the gradients of a step, and the learning rates that follow it, by table."""
        told = np.zeros(len(self.task.tables) if rates else 0)
        for table, rate in (rates or {}).items():
            told[table] = rate
        self._each(lambda link: self._push_to(link, dense, by_rows, told.tobytes()))
        self.step += 1

    def _push_to(
        self, link: _Link, dense: Mapping[int, Array], by_rows: Sparse, rates: bytes
    ) -> None:
        kept = sum(map(len, link.log.values()))
        saves = kept * PIECE_BYTES > _MOST_KEPT
        head = message("Piece", step=self.step, save=saves, rates=rates)
        number = link.number

        def pieces() -> Iterator[Any]:
            yield head
            for table, gradient in dense.items():
                division = self.divisions[table]
                if division.count(number):
                    rows = gradient.reshape(division.rows, -1)
                    held = rows[division.begins[number] : division.begins[number + 1]]
                    yield from self._pieces(table, held, self.step)
            for table, (rows, gradient) in by_rows.items():
                yield from self._row_pieces(number, table, rows, gradient)
            yield message("Piece", step=self.step, last=True)

        sent = list(pieces()) if self._keeps else None
        if sent is not None:
            link.log[self.step] = sent
        standing = self._persistently(
            link, lambda c: c.call("Push", iter(sent) if sent is not None else pieces(), LONG)
        )
        self._forget(link, standing)

    def _row_pieces(self, server: int, table: int, rows: Ids, gradient: Array) -> Iterator[Any]:
        """Yield the gradients of the rows that a server has, by ascending place."""
        servers, places = self.divisions[table].places(rows)
        held = np.flatnonzero(servers == server)
        held = held[np.argsort(places[held])]
        each = max(1, min(_ROWS, PIECE_BYTES // max(1, gradient[:1].nbytes)))
        for begin in range(0, len(held), each):
            at = held[begin : begin + each]
            piece = message("Piece", step=self.step, table=table, rows=places[at].tobytes())
            yield with_data(piece, bytes_of(gradient[at]))

    def _forget(self, link: _Link, standing: Any) -> None:
        if standing.durable == NEVER:
            link.log.clear()
        for step in [step for step in link.log if step < standing.durable]:
            del link.log[step]

    def _pieces(self, table: int, values: Array, step: int) -> Iterator[Any]:
        flat = values.reshape(-1)
        each = PIECE_BYTES // flat.itemsize
        for begin in range(0, flat.size, each):
            piece = message("Piece", step=step, table=table, begin=begin)
            yield with_data(piece, bytes_of(flat[begin : begin + each]))


def _pushed(connection: Connection, pieces: Sequence[Any]) -> Any:
    return connection.call("Push", iter(pieces), LONG)


def _put(piece: Any, whole: Array, division: Division, server: int) -> None:
    """Write a piece of a server into the whole table.

    Raises
    ------
    ModelError
        If it does not fit.
    """
    data = np.frombuffer(piece.data, whole.dtype)
    width = whole.shape[1]
    end = int(piece.begin) + data.size
    if end > division.count(server) * width:
        raise ModelError(f"server {server} sends more of a table than it has")
    if not division.hashed:
        first = int(division.begins[server]) * width
        whole.reshape(-1)[first + piece.begin : first + end] = data
        return
    places = np.arange(piece.begin // width, end // width)
    whole[division.rows_of(server, places)] = data.reshape(-1, width)
