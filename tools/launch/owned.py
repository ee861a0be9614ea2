"""Run a command that ends when the process that started it does, however that one ends.

    python owned.py OWNER COMMAND ARGUMENTS...

`OWNER` is the number of the process that starts it. The file is run by its path: it imports nothing
of this package, so that it takes a hundredth of a second.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def owned(command: Sequence[str]) -> list[str]:
    """Return the command that runs another one, which is killed when this process ends."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), *command]


def end_with(owner: int) -> None:
    """Let the kernel kill this process when its parent ends; only Linux can.

    Parameters
    ----------
    owner : int
        The parent; where this process has another one, it has ended before, and so does this one.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != owner:
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
