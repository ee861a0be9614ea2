"""Processes that are started one by one, without a launcher, and meet at a scheduler.

MindSpore's scripts start workers and one scheduler so, told apart by ``MS_ROLE``. The scheduler
gives every worker its rank, and serves MPICH's PMI-1, by which the workers of MPI find each other;
then it waits for their end. A worker keeps its connection: when one is lost, all others end.
A worker connects twice, once for MPICH, and proves both times that it knows the secret of the run.
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NoReturn

from shardwright.communication.processes import Processes, joined
from shardwright.communication.secret import (
    LINE,
    UnknownCallerError,
    check_caller,
    introduce,
    secret_at,
)
from shardwright.ir.errors import ModelError
from shardwright.ir.files.waiting import ARRIVAL, RETRY
from shardwright.runtime.encrypted.door import BACKLOG, Door

_ROLES = ("MS_SCHED", "MS_WORKER")
_KEY, _VALUE, _NAME = 64, 1024, 256  # greatest lengths in PMI-1
# Lines of a log about strangers, each of some 100 bytes: a few tell who has the wrong secret, and
# twice as many tell no more.
_MOST_TOLD = 100


@dataclass(frozen=True)
class Meeting:
    """Where workers meet, and how many.

    Parameters
    ----------
    host : str
        Address of the scheduler.
    port : int
        Its port.
    size : int
        Number of workers.
    rank : int, optional
        The rank that this worker asks for; that of its arrival unless given.
    """

    host: str
    port: int
    size: int
    rank: int | None = None

    @staticmethod
    def of_environment() -> "Meeting":
        """Return the meeting that MindSpore's variables describe.

        Raises
        ------
        ModelError
            If a variable is missing or is no whole number.
        """
        host, port = scheduler_of_environment()
        return Meeting(host, port, number_of_environment("MS_WORKER_NUM"), node_of_environment())


def scheduler_of_environment() -> tuple[str, int]:
    """Return the host and the port of the scheduler that MindSpore's variables name.

    Raises
    ------
    ModelError
        If a variable is missing, or the port is no whole number.
    """
    host = os.environ.get("MS_SCHED_HOST")
    if not host:
        raise ModelError("the variable `MS_SCHED_HOST` is missing", hint="set it to an address")
    return host, number_of_environment("MS_SCHED_PORT")


def node_of_environment() -> int | None:
    """Return the number that this process asks for; None where it asks for none."""
    number = os.environ.get("MS_NODE_ID", "")
    return int(number) if number.isdecimal() else None


def number_of_environment(variable: str) -> int:
    """Return the number in a variable.

    Raises
    ------
    ModelError
        If it is missing, or no integer of at least 1.
    """
    text = os.environ.get(variable, "")
    if not text.isdecimal() or int(text) < 1:
        found = f"is `{text}`" if text else "is missing"
        raise ModelError(f"the variable `{variable}` {found}, expected an integer of at least 1")
    return int(text)


def take_part(role: str) -> None:
    """Join the other workers; or, as the scheduler, serve them and end this process.

    Raises
    ------
    ModelError
        If the role is another one, or there is no scheduler.
    """
    if role not in _ROLES:
        raise ModelError(
            f"the variable `MS_ROLE` is `{role}`, expected MS_SCHED or MS_WORKER",
            hint="there are no parameter servers",
        )
    meeting = Meeting.of_environment()
    if role == "MS_SCHED":
        raise SystemExit(Scheduler(meeting).serve())
    if meeting.size > 1:
        join(meeting)


# A worker


def join(meeting: Meeting) -> None:
    """Join the other workers, and let MPI find them.

    Raises
    ------
    ModelError
        If the scheduler cannot be reached, or has no place left.
    """
    secret = secret_at(meeting.host)
    connection = _reached(meeting, secret)
    lines = connection.makefile("r")
    asked = -1 if meeting.rank is None else meeting.rank
    connection.sendall(f"cmd=join rank={asked} size={meeting.size}\n".encode())
    answer = _parsed(lines.readline())
    if answer.get("cmd") != "joined":
        raise ModelError(f"the scheduler refuses this worker: {answer.get('why', 'no answer')}")
    rank = int(answer["rank"])
    of_mpi = _reached(meeting, secret)
    of_mpi.sendall(f"cmd=mpi rank={rank}\n".encode())
    variables = {"PMI_FD": of_mpi.detach(), "PMI_RANK": rank, "PMI_SIZE": meeting.size}
    os.environ.update({name: str(value) for name, value in variables.items()})
    joined(Processes(rank, meeting.size))

    def watch() -> None:
        line = lines.readline()
        if not line.startswith("cmd=end"):
            _end(f"rank {rank}: another worker has ended early\n", connection)

    threading.Thread(target=watch, daemon=True).start()


def _end(message: str, connection: socket.socket) -> NoReturn:
    """End this process from any of its threads."""
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    connection.close()
    os._exit(1)


def _reached(meeting: Meeting, secret: bytes) -> socket.socket:
    """Return a connection to the scheduler; both ends know the secret.

    Raises
    ------
    ModelError
        If there is none in time.
    """
    begin = time.monotonic()
    while True:
        try:
            with ExitStack() as held:
                place = meeting.host, meeting.port
                connection = held.enter_context(socket.create_connection(place, ARRIVAL))
                introduce(connection, secret)
                held.pop_all()
        except (OSError, UnknownCallerError) as error:
            if time.monotonic() - begin > ARRIVAL:
                raise ModelError(
                    f"no scheduler of this run answers at {meeting.host}:{meeting.port}: {error}",
                    hint="start the script once with MS_ROLE=MS_SCHED",
                ) from None
            time.sleep(RETRY)
        else:
            connection.settimeout(None)
            return connection


def _parsed(line: str) -> dict[str, str]:
    """Return the fields of a line: ``cmd=put key=a value=b``."""
    items = (item.partition("=") for item in line.strip().split(" ") if "=" in item)
    return {name: value for name, _, value in items}


# The scheduler


class Scheduler:
    """Gives workers their ranks, and serves PMI-1.

    Parameters
    ----------
    meeting : Meeting
        Where it listens, and for how many workers.
    log : callable
        Writes a line.
    """

    def __init__(self, meeting: Meeting, log: Callable[[str], None] | None = None) -> None:
        self.meeting = meeting
        self._log = log or (lambda line: print(line, flush=True))
        # MPICH names the shared memory of a host after it: workers that were killed leave theirs
        # behind, and later ones of the same name would wait in it for ever.
        self._name = f"workers-{secrets.token_hex(8)}"
        self._values: dict[str, str] = {}
        self._free = set(range(meeting.size))
        self._workers: dict[int, socket.socket] = {}
        self._waiting: list[Callable[[str], None]] = []
        self._finished: set[int] = set()
        self._failed = False
        self._changed = threading.Condition()
        self._secret = b""
        self._told = 0

    def serve(self) -> int:
        """Serve until all workers have ended; return 0, or 1 if one ended early."""
        host, port = self.meeting.host, self.meeting.port
        self._secret = secret_at(host)
        try:
            server = socket.create_server((host, port), backlog=BACKLOG)
        except OSError as error:
            raise ModelError(f"the scheduler cannot listen at {host}:{port}: {error}") from None
        self._log(f"scheduler: listening at {host}:{port} for {self.meeting.size} workers")
        self._door = Door(server, self._follow)
        threading.Thread(target=self._door.take, daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._failed or not self._free, ARRIVAL)
            if self._free:
                self._failed = True
                self._log(f"scheduler: {len(self._free)} workers have not arrived")
            self._changed.wait_for(lambda: self._failed or len(self._finished) == self.meeting.size)
            for worker in self._workers.values():
                _send(worker, "cmd=abort" if self._failed else "cmd=end")
        server.close()
        self._log(f"scheduler: {'a worker ended early' if self._failed else 'all workers ended'}")
        return int(self._failed)

    def _follow(self, connection: socket.socket) -> None:
        """Answer the lines of one connection: a worker's own, or that of its MPI."""
        try:
            check_caller(connection, self._secret)
        except UnknownCallerError as error:
            self._door.know(connection)
            connection.close()
            self._tell(f"scheduler: a caller is refused: {error}")
            return
        if not self._door.know(connection):
            connection.close()
            return
        connection.settimeout(None)
        state = _Connection()
        try:
            with connection, connection.makefile("r", errors="replace") as lines:
                while line := lines.readline(LINE):
                    self._answer(_parsed(line), state, connection)
        except OSError:
            pass
        except (KeyError, ValueError):  # no message of a worker
            self._tell(f"scheduler: a connection is closed that sent {line[:80]!r}")
        with self._changed:
            if state.worker is not None and state.worker not in self._finished:
                self._failed = True
                self._log(f"scheduler: the connection of worker {state.worker} is lost")
            self._changed.notify_all()

    def _tell(self, what: str) -> None:
        """Log what strangers have done, so often that they do not fill a disk."""
        self._told += 1
        if self._told <= _MOST_TOLD:
            self._log(what)
        if self._told == _MOST_TOLD:
            self._log("scheduler: no more of such lines are written")

    def _answer(
        self, line: dict[str, str], state: "_Connection", connection: socket.socket
    ) -> None:
        command = line.get("cmd", "")
        if command == "join":
            self._join(line, state, connection)
        elif command == "mpi":
            state.rank = int(line["rank"])
        elif command == "barrier_in":
            self._barrier(connection)
        elif command in ("finalize", "abort"):
            self._finish(command, state, connection)
        else:
            with self._changed:
                _send(connection, _simple(line, self._values, self.meeting.size, self._name))

    def _join(self, line: dict[str, str], state: "_Connection", connection: socket.socket) -> None:
        with self._changed:
            asked = int(line["rank"])
            if int(line["size"]) != self.meeting.size or not self._free:
                _send(connection, "cmd=refused why=another_number_of_workers")
                return
            rank = asked if asked in self._free else min(self._free)
            self._free.discard(rank)
            self._workers[rank], state.worker = connection, rank
            _send(connection, f"cmd=joined rank={rank}")
            self._log(f"scheduler: worker {rank} has joined")
            self._changed.notify_all()

    def _barrier(self, connection: socket.socket) -> None:
        with self._changed:
            self._waiting.append(lambda answer: _send(connection, answer))
            if len(self._waiting) == self.meeting.size:
                for answer in self._waiting:
                    answer("cmd=barrier_out rc=0")
                self._waiting.clear()

    def _finish(self, command: str, state: "_Connection", connection: socket.socket) -> None:
        with self._changed:
            if state.rank not in self._workers:
                raise ValueError(f"{command} of rank {state.rank}, which has not joined")
            if command == "finalize":
                _send(connection, "cmd=finalize_ack rc=0")
                self._finished.add(state.rank)
            else:
                self._failed = True
            self._changed.notify_all()


@dataclass
class _Connection:
    """Whose connection it is: the rank of a worker, or of its MPI."""

    worker: int | None = None
    rank: int = -1


def _simple(line: dict[str, str], values: dict[str, str], size: int, name: str) -> str:
    """Return the answer to a command that concerns only the values that workers have put."""
    command = line.get("cmd", "")
    if command == "put":
        values[line["key"]] = line["value"]
        return "cmd=put_result rc=0 msg=success"
    if command == "get":
        found = values.get(line["key"])
        if found is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={found}"
    maxima = f"kvsname_max={_NAME} keylen_max={_KEY} vallen_max={_VALUE}"
    answers = {
        "init": "response_to_init pmi_version=1 pmi_subversion=1",
        "get_maxes": f"maxes {maxima}",
        "get_appnum": "appnum appnum=0",
        "get_my_kvsname": f"my_kvsname kvsname={name}",
        "get_universe_size": f"universe_size size={size}",
    }
    return f"cmd={answers[command]} rc=0" if command in answers else f"cmd={command} rc=-1"


def _send(connection: socket.socket, line: str) -> None:
    with suppress(OSError):  # the worker has ended
        connection.sendall(f"{line}\n".encode())
