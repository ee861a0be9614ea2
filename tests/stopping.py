"""Processes that are stopped before any one of the changes that they make to files."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Events of the interpreter before a file, or the name of one, is changed.
CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def in_child(work: Callable[[], None]) -> int:
    """Do work in a process of its own, and return how it ends."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stopping(folder: Path, place: int, stop: Callable[[], None]) -> None:
    """Stop this process before its change of a number in a folder."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in CHANGES and str(folder) in str(arguments[0]):
            seen += 1
            if seen == place:
                stop()

    sys.addaudithook(hook)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
