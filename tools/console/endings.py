"""How a command ends: the signals that end it, its exit code, and what it says then."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType

# What launchers call the rank of a process.
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MS_NODE_ID")


class ExitCode(IntEnum):
    """How a command ends, as `docs/scripts.md` says: no number changes its meaning."""

    RIGHT = 0
    DIFFERENT = 1  # a plan differs, or a proof fails
    MISTAKE = 2  # an error that the user can fix
    INFEASIBLE = 3  # it is proven that no plan fits
    UNDECIDED = 4  # no plan was found, or no proof could be tried
    INTERRUPTED = 130  # as of shells: 128 and the number of SIGINT
    BROKEN_PIPE = 141  # the output is closed: 128 and the number of SIGPIPE


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat the signals to terminate and to hang up as interrupts, where nobody else does."""

    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, raise_interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def say(text: str) -> None:
    """Write a line to standard error."""
    if sys.stderr is not None:  # it is None where a program is started with it closed
        line = " ".join(text.splitlines())
        with suppress(OSError):
            sys.stderr.write(f"shardwright: {line}\n")
            sys.stderr.flush()


def own_rank() -> int:
    """Return the rank of this process by its launcher, before it has met the others."""
    found = (os.environ[name] for name in _RANKS if os.environ.get(name, "").isdecimal())
    return int(next(found, "0"))
