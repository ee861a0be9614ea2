"""A folder of files that belong together, of which readers see the old ones or the new ones.

New files are written into a folder inside, which is renamed when all of them are on the disk: this
is the moment from which the new ones count. Then they take the places of the old ones. A process
that is killed before that moment leaves the old files, and one that is killed after it leaves the
rest of its work to whoever comes next: readers look at the renamed folder first, and the next
writer moves what is left in it.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from shardwright.ir.files.waiting import ANSWER, LOOK

_WRITING: Final = ".shardwright-writing"  # not complete yet: nobody reads it
_WRITTEN: Final = ".shardwright-written"  # complete: it goes before what is beside it
_OBSOLETE: Final = ".obsolete"  # in it: names of files that the new ones have no place for

# What file systems without locks answer. There a writer holds nothing, and nothing is swept.
NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a folder, for a writer alone, or among readers.

    Raises
    ------
    OSError
        If another process does not let go of it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = monotonic() + ANSWER
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > end:
                    what = "another process writes or reads there"
                    raise OSError(errno.EBUSY, what, str(folder)) from None
                sleep(LOOK)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                break
        yield
    finally:
        os.close(descriptor)


def is_name(text: str) -> bool:
    """Return whether a text is the name of a file, and leads to no other folder."""
    return Path(text).name == text and text not in ("", "..") and "\0" not in text


def member(folder: Path, name: str) -> Path:
    """Return where the file of a name is now; not where a link in place of the new ones leads."""
    stage = folder / _WRITTEN
    is_there = os.path.lexists(stage / name) and not stage.is_symlink()
    return (stage if is_there else folder) / name


def exchange(folder: Path, files: Mapping[str, bytes], obsolete: Iterable[str]) -> None:
    """Write files in the place of those that are there, all of them or none.

    Parameters
    ----------
    folder : Path
        The folder, which is `locked` by the caller alone.
    files : mapping of str to bytes
        Contents by names.
    obsolete : iterable of str
        Names of files that are removed.

    Raises
    ------
    OSError
        If the files cannot be written, or not be moved.
    """
    settle(folder)
    stage = folder / _WRITING
    try:
        stage.mkdir()
        for name, content in (*files.items(), (_OBSOLETE, "\n".join(obsolete).encode())):
            write_synced(stage / name, content)
        synced(stage)
        stage.rename(folder / _WRITTEN)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    synced(folder)
    settle(folder)


def is_unsettled(folder: Path) -> bool:
    """Return whether a writer that was stopped has left something."""
    return any(os.path.lexists(folder / name) for name in (_WRITING, _WRITTEN))


def settle(folder: Path) -> None:
    """Complete what a writer that was stopped has left; the caller holds the folder alone."""
    for name in (_WRITING, _WRITTEN):
        if (folder / name).is_symlink():
            raise OSError(errno.ELOOP, f"`{name}` is a link", str(folder))
    shutil.rmtree(folder / _WRITING, ignore_errors=True)
    complete = folder / _WRITTEN
    if not complete.is_dir():
        return
    notes = complete / _OBSOLETE
    for name in notes.read_text("utf-8").splitlines() if notes.exists() else ():
        if is_name(name):
            (folder / name).unlink(missing_ok=True)
    for path in sorted(complete.iterdir()):
        if path != notes:
            path.replace(folder / path.name)
    synced(folder)
    notes.unlink(missing_ok=True)
    complete.rmdir()


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, so that a loss of power keeps them."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        synced(each.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def synced(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
