"""The lease of a folder of checkpoints: the start of a training run that came last writes there.

The process of rank 0 takes the lease before it writes, and looks at it, in a lock, whenever it
completes or removes a checkpoint. A process of an earlier start that was stopped, or cut off from
its launcher, and goes on later finds another name there and is refused.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from shardwright.ir.errors import OutputError
from shardwright.ir.files.folders import locked
from shardwright.ir.files.reading import from_json, read_text
from shardwright.ir.files.writing import failing_as, write_file

LEASE: Final = ".lease"
_WHAT: Final = "the checkpoint"


@dataclass(frozen=True)
class Start:
    """One start of a training run.

    Parameters
    ----------
    attempt : str
        Its name.
    launch : str
        The launcher that has started it; empty without one.
    number : int
        How often this launcher has started the run before.
    """

    attempt: str
    launch: str = ""
    number: int = 0


def take(folder: Path, start: Start) -> None:
    """Let a start be the one that writes.

    Raises
    ------
    OutputError
        If its launcher has started the run again after it, or the folder cannot be written to.
    """
    with failing_as(_WHAT, folder), locked(folder, alone=True):
        holder = _holder(folder)
        if start.launch and holder is not None and holder.launch == start.launch:
            _check(holder.number <= start.number, folder)
        if os.path.lexists(folder / LEASE) and not _is_regular(folder / LEASE):
            raise OSError(errno.EINVAL, f"`{LEASE}` is a folder, a link, a pipe or a device")
        text = json.dumps(asdict(start))
        write_file(folder / LEASE, text.encode(), "the lease", _is_lease)


@contextmanager
def holding(folder: Path, start: Start) -> Iterator[None]:
    """Hold a folder during the block, as the start that writes there.

    Raises
    ------
    OutputError
        If another one has taken the lease.
    """
    with locked(folder, alone=True):
        _check(_holder(folder) == start, folder)
        yield


def _check(is_ours: bool, folder: Path) -> None:
    if not is_ours:
        raise OutputError(
            "the checkpoint cannot be written: a later start of the training run writes there",
            str(folder),
            "end this process, or name another folder",
        )


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _is_lease(path: Path) -> bool:
    return path.name == LEASE


def _holder(folder: Path) -> Start | None:
    """Return the start that has the lease; None if there is none that can be read."""
    try:
        return Start(**from_json(read_text(folder / LEASE)))
    except (OSError, ValueError, TypeError):
        return None
