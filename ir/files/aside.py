"""A file or folder that is made beside its place, and takes it by one rename when it is complete.

Its writer holds it by a lock, which ends with the process. Whoever writes to the same place next
removes what nobody holds: what a process that was killed has left.
"""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import Final

from shardwright.ir.files.folders import NO_LOCKS, synced

_MARK: Final = ".writing-"

# Attempts at what is lost only if another writer sweeps or rotates in between. Two would hardly
# ever be needed; twice as many change nothing.
ATTEMPTS: Final = 20

_HERE: Final = -100  # AT_FDCWD of Linux
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux


@contextmanager
def aside(target: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Make a file or folder beside a target; remove it at the end, unless it was renamed.

    Parameters
    ----------
    target : Path
        Whose place it will take.
    make : callable
        Makes it: `Path.mkdir`, or `new_file`.

    Yields
    ------
    Path
        Where it is.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    sweep(target)
    path, descriptor = _begun(target, make)
    try:
        yield path
    finally:
        discard(path)
        os.close(descriptor)


def new_file(path: Path) -> None:
    """Make an empty file."""
    path.touch(exist_ok=False)


def sweep(target: Path) -> None:
    """Remove what writers that were killed have left beside a target."""
    for path in target.parent.glob(f".{escape(target.name)}{_MARK}*"):
        with suppress(OSError):
            descriptor = _opened(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                discard(path)
            finally:
                os.close(descriptor)


def commit(path: Path, target: Path) -> None:
    """Let what was made aside take its place: this is the moment from which it counts.

    A folder with files is exchanged: what was there is where the new one was made. Where the system
    cannot exchange two names at once, there is neither of them for a moment.
    """
    if not (target.is_dir() and any(target.iterdir())):
        path.rename(target)
    elif not _exchanged(path, target):
        old = path.with_name(f"{path.name}{token_hex(4)}")
        target.rename(old)
        path.rename(target)
        old.rename(path)
    synced(target.parent)


def discard(path: Path) -> None:
    """Remove a file, or a folder with all in it, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two names at once; return False, and do nothing, where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def _begun(target: Path, make: Callable[[Path], object]) -> tuple[Path, int]:
    """Return what was made, and the descriptor that holds it."""
    for _ in range(ATTEMPTS):
        path = target.with_name(f".{target.name}{_MARK}{token_hex(4)}")
        try:
            make(path)
            descriptor = _opened(path)
        except FileNotFoundError:
            if target.parent.is_dir():
                continue  # it was swept
            raise
        except BaseException:
            discard(path)
            raise
        try:
            if _is_held(descriptor):
                return path, descriptor
        except BaseException:
            discard(path)
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EBUSY, "other processes write there", str(target))


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_held(descriptor: int) -> bool:
    """Lock a new file or folder; return whether it is still there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # another process sweeps it
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return os.fstat(descriptor).st_nlink > 0
