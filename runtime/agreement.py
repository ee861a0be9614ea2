"""What processes of one program agree on before they run it, over MPI."""

import atexit
import os
import re
import stat
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.files.waiting import ANSWER
from shardwright.operators.info import Array
from shardwright.runtime.encrypted import messaging
from shardwright.runtime.faults import STANDING
from shardwright.runtime.messages import (
    checked_size,
    decoded,
    encoded,
    gathered_from_all,
)

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import FIONREAD

Made = TypeVar("Made")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its text
_BLOCK = 1021  # words of a block of a checksum
_PAUSE = 0.002  # seconds between two looks for a message: waiting takes no processor
_GRACE = 2.0  # seconds in which the other processes may fail, too


def from_first(make: Callable[[], Made], *kinds: type) -> Made:
    """Return in every process what the first one makes.

    Parameters
    ----------
    make : callable
        Makes it.
    *kinds : type
        The dataclasses that may be in it; see `encoded` for what else may be.

    Raises
    ------
    ShardwrightError
        In every process, if it cannot be made.
    """
    world = _world()
    outcome: Any = None
    if world.rank == 0:
        try:
            outcome = True, make()
        except ShardwrightError as error:
            outcome = False, error
    succeeded, made = _broadcast(world, outcome, kinds)
    if not succeeded:
        raise made
    return made


def _broadcast(world: Any, item: Any, kinds: Sequence[type]) -> Any:
    """Return the first process's value; the others sleep until it is there."""
    data = np.frombuffer(encoded(item), np.uint8) if world.rank == 0 else None
    size = np.array([0 if data is None else data.size], np.int64)
    request = world.Ibcast(size)
    while not request.Test():
        time.sleep(_PAUSE)
    if data is None:
        data = np.empty(checked_size(int(size[0]), 0), np.uint8)
    world.Bcast(data)
    return item if world.rank == 0 else decoded(data, kinds)


def differing_process(digest: bytes) -> int | None:
    """Return the first process whose digest differs from that of process 0; None if all agree."""
    with STANDING.waiting("comparison of programs"):
        digests = gathered_from_all(_world(), digest)
    return next((i for i, other in enumerate(digests) if other != digests[0]), None)


def check_equal(kind: str, facts: Mapping[str, object], error: type[ShardwrightError]) -> None:
    """Refuse facts of which processes have different values.

    Parameters
    ----------
    kind : str
        What they are: ``options``.
    facts : mapping of str to object
        By name; compared by their texts.
    error : type
        The error to raise.

    Raises
    ------
    ShardwrightError
        In every process, which names the first fact that differs, and its values.
    """
    own = {name: _ADDRESS.sub("", repr(value)) for name, value in facts.items()}
    everyone = gathered(kind, own)
    for name, value in everyone[0].items():
        for process, others in enumerate(everyone):
            if others.get(name) != value:
                raise error(
                    f"the processes have different {kind}: `{name}` is {value} in process 0, and "
                    f"{others.get(name)} in process {process}",
                    hint=f"give all processes the same `{name}`",
                )


def gathered(kind: str, item: Made, *kinds: type) -> list[Made]:
    """Return the items of all processes, which call this together.

    Parameters
    ----------
    kind : str
        What the items are.
    item : object
        That of this process.
    *kinds : type
        The dataclasses that may be in it; see `encoded` for what else may be.

    Raises
    ------
    ExecutionError
        If a process is elsewhere in its program.
    """
    with STANDING.waiting(kind):
        messages = gathered_from_all(_world(), encoded((kind, item)))
    found = [decoded(message, kinds) for message in messages]
    for number, other in enumerate(found):
        if not isinstance(other, tuple) or len(other) != 2 or other[0] != kind:
            raise ExecutionError(
                f"process {number} does not name its {kind} where process {_world().rank} does",
                hint="let all processes run one program",
            )
    return [other[1] for other in found]


def in_all(make: Callable[[], Made]) -> Made:
    """Return what this process makes, where every process makes its own.

    Raises
    ------
    ShardwrightError
        In every process the error of the first one that fails.
    """
    made: Any = None
    error: ShardwrightError | None = None
    try:
        made = make()
    except ShardwrightError as failure:
        error = failure
    first = next(filter(None, gathered("outcome", error)), None)
    if first is not None:
        raise first
    own: Made = made
    return own


@contextmanager
def told_once() -> Iterator[None]:
    """Raise an error that all processes have in the first one alone; the others exit."""
    try:
        yield
    except ShardwrightError:
        if _world().rank:  # the first process's exit code is that of `mpiexec`
            raise SystemExit(0) from None
        raise


@lru_cache(maxsize=1)
def failure_messages() -> Any:
    """Return the communicator of messages about failures; the first call is of all processes."""
    return _world().Dup()


def failing_processes() -> list[int]:
    """Return the processes that fail together with this one, which tells the others that it does.

    The others may wait in a collective for this one, and never hear of it.
    """
    messages, status = failure_messages(), _mpi().Status()
    failing, deadline = {messages.rank}, time.monotonic() + _GRACE
    others = [process for process in range(messages.size) if process != messages.rank]
    told = np.zeros(1, np.uint8)
    sends = [messages.Isend(told, dest=process) for process in others]
    while len(failing) <= len(others) and time.monotonic() < deadline:
        if messages.iprobe(status=status):
            messages.Recv(np.empty(1, np.uint8), source=status.source)
            failing.add(status.source)
        else:
            time.sleep(_PAUSE)
    if len(failing) > len(others):
        _mpi().Request.Waitall(sends)
    return sorted(failing)


def check_processes(size: int) -> None:
    """Refuse a number of processes that MPI does not run.

    Raises
    ------
    ExecutionError
        If the launcher started them, but MPI does not know of it.
    """
    found = _world().size
    if found != size:
        raise ExecutionError(
            f"the launcher started {size} processes, MPI runs {found}",
            hint="use the launcher of the MPI that mpi4py was built with: `shardwright launch`",
        )


_OPEN: list["Agreement"] = []  # whose comparisons may be under way when the process ends


class Agreement:
    """A check, step by step, that all processes read the same arrays.

    The comparison of a step is awaited in the next, so that no process waits for it.
    """

    def __init__(self) -> None:
        self._pending: tuple[Any, Any, int] | None = None
        self._step = 0
        _OPEN.append(self)

    def note(self, arrays: Sequence[Array]) -> None:
        """Compare the arrays of a step.

        Raises
        ------
        ExecutionError
            If those of the step before differed.
        """
        self.settle()
        self._step += 1
        check = checksum(arrays)
        sent, received = np.array([check, -check]), np.empty(2, np.int64)
        request = _world().Iallreduce(sent, received, op=_mpi().MAX)
        self._pending = request, (sent, received), self._step

    def settle(self) -> None:
        """Wait for the comparison of the last step.

        Raises
        ------
        ExecutionError
            If the arrays differed.
        """
        if self._pending is None:
            return
        request, (_, received), step = self._pending
        with STANDING.waiting("comparison of batches"):
            request.Wait()
        self._pending = None
        if received[0] != -received[1]:
            raise ExecutionError(
                f"the processes read different batches in step {step}, which were equal before",
                hint="seed what draws random numbers, or give the dataset `num_shards` and "
                "`shard_id`",
            )


class Vote:
    """A question to all processes, step by step: whether one of them says yes.

    The answers of a step are awaited in the next, so that no process waits for them.
    """

    def __init__(self) -> None:
        self._pending: tuple[Any, Any] | None = None

    def cast(self, answer: bool) -> bool:
        """Answer, and return whether any process said yes in the step before."""
        found = False
        if self._pending is not None:
            request, (_, received) = self._pending
            with STANDING.waiting("end of the step"):
                request.Wait()
            found = bool(received[0])
        sent, received = np.array([int(answer)]), np.empty(1, np.int64)
        self._pending = _world().Iallreduce(sent, received, op=_mpi().MAX), (sent, received)
        return found

    def settle(self) -> None:
        """Wait for the last answers, before MPI ends."""
        if self._pending is not None:
            self._pending[0].Wait()
            self._pending = None


def all_equal(arrays: Sequence[Array]) -> bool:
    """Return whether all processes have the same arrays."""
    shapes = [(array.shape, array.dtype.name) for array in arrays]
    with STANDING.waiting("comparison of batches"):
        own = encoded((checksum(arrays), repr(shapes)))
        return len(set(map(bytes, gathered_from_all(_world(), own)))) == 1


def checksum(arrays: Sequence[Array]) -> int:
    """Return a number that tells apart arrays of one shape, in about the time to read them.

    Blocks of words are added up before their checksum is taken. Their length is a prime number, so
    that rows in another order fall into other places.
    """
    check = 0
    for array in arrays:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        blocks = data.size // (8 * _BLOCK)
        if blocks:
            words = data[: blocks * 8 * _BLOCK].view(np.uint64).reshape(blocks, _BLOCK)
            check = zlib.crc32(np.add.reduce(words, axis=0).data, check)
        check = zlib.crc32(data[blocks * 8 * _BLOCK :].data, check)
    return check


@lru_cache(maxsize=1)
def end_together() -> None:
    """End all processes when an error ends this one, so that none waits for it forever."""
    before = sys.excepthook
    _mpi()  # what is registered after MPI's own end runs before it
    atexit.register(_settle_all)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        STANDING.fail(error)
        if issubclass(kind, ShardwrightError):
            sys.stderr.write(f"rank {_world().rank}: {error}\n")
        else:
            tell_trace(error)
        if issubclass(kind, Exception):
            end_all(1)
        before(kind, error, trace)

    sys.excepthook = hook


def end_all(code: int) -> NoReturn:
    """End all processes, when MPI's launcher has read what this one wrote.

    MPICH's launcher reads nothing more from the moment at which it hears of the end: what is still
    in a pipe then, such as the sentence that says why, would be lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    for descriptor in (1, 2):
        with suppress(OSError):
            wait_until_read(descriptor, ANSWER)
    _world().Abort(code)
    os._exit(code)  # the launcher ends this process; what follows would speak once more


def wait_until_read(descriptor: int, seconds: float) -> None:
    """Wait until the other end of a pipe has read what was written to it, or the time is over."""
    if sys.platform == "win32" or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        unread = ioctl(descriptor, FIONREAD, bytes(4))
        if not any(unread):
            return
        time.sleep(_PAUSE)


def tell_trace(error: BaseException) -> None:
    """Write a traceback at once: MPI's launcher may lose the later of several pieces."""
    sys.stderr.write("".join(traceback.format_exception(error)))
    sys.stderr.flush()


def _settle_all() -> None:
    for agreement in _OPEN:
        agreement.settle()


def _mpi() -> Any:
    return messaging()


def _world() -> Any:
    return _mpi().COMM_WORLD
