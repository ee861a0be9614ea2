"""The parent of a rank: notes by which signal the rank died, and dies in the same way.

MPI's launcher ends all ranks when one has died, by the same signal, and may name any of them. It
ends their parents; so only the rank that died by itself has a parent that can note it.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shardwright.runtime.faults import note_signal
from shardwright.tools.launch.owned import end_with

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_under_parent(board: Path | None) -> None:
    """Go on in a child of this process, which ends with it; the parent never returns.

    Parameters
    ----------
    board : Path, optional
        The board of the rank; nothing is done without one, or where Linux is not the system.
    """
    if board is None or sys.platform != "linux":
        return
    parent = os.getpid()
    child = os.fork()
    if child:
        _wait(child, board)
    end_with(parent)
    os.setpgid(0, 0)


def _wait(child: int, board: Path) -> NoReturn:
    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        moment = time.monotonic_ns()
        with suppress(OSError):  # the launcher has gone with its folder
            note_signal(board, child, -code, moment)
        if -code != signal.SIGKILL:  # which nobody can handle
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1.0)
    os._exit(code if code >= 0 else 1)
