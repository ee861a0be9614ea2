"""Atomic output files, which never overwrite a file of the user.

Content goes into a temporary file or folder, which is renamed when complete: a full disk, an
interrupt or a loss of power leaves what was there. An existing file is replaced only if the program
recognizes it as its own.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shardwright.ir.errors import OutputError
from shardwright.ir.files.aside import aside, commit, new_file
from shardwright.ir.files.folders import (
    exchange,
    is_unsettled,
    locked,
    make_folder,
    settle,
    synced,
    write_synced,
)

Recognizer = Callable[[Path], bool]  # whether the program wrote a file


def begins(*beginnings: bytes) -> Recognizer:
    """Return a recognizer of files with one of some prefixes; it accepts empty files."""

    def recognizes(path: Path) -> bool:
        with path.open("rb") as file:
            found = file.read(max(map(len, beginnings)))
        return not found or found.startswith(beginnings)

    return recognizes


# One file


def check_file(path: Path, what: str, ours: Recognizer) -> None:
    """Check that a file can be written, before long work.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        Its content, for messages: ``the trace``.
    ours : callable
        Recognizes files that may be replaced.

    Raises
    ------
    OutputError
        If the folder is missing or read-only, or another file exists.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise OutputError(f"{what} cannot be written: there is no folder `{path.parent}`")
    if target.is_dir():
        raise OutputError(f"{what} cannot be written: a folder is there", str(path))
    if _is_stream(target):
        return
    check_writable(target.parent, what, path)
    if not target.exists():
        return
    check_writable(target, what, path)
    if not _recognized(target, what, ours):
        raise OutputError(
            f"{what} cannot be written: a file that is something else is there",
            str(path),
            "name another file",
        )


def write_file(path: Path, content: bytes, what: str, ours: Recognizer) -> None:
    """Write a file; see `check_file`."""
    check_file(path, what, ours)
    with replacing(path, what) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, what: str) -> Iterator[BinaryIO]:
    """Open a file that replaces another when the block ends without an error.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    target = Path(os.path.realpath(path))
    with failing_as(what, path):
        if _is_stream(target):
            with target.open("wb") as file:
                yield file
            return
        with aside(target, new_file) as temporary:
            with temporary.open("r+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            commit(temporary, target)


# Several files


def check_folder(directory: Path, what: str) -> None:
    """Check that files can be written into a folder, which may be new.

    What a process that was killed while it wrote there has left is completed first.

    Raises
    ------
    OutputError
        If it cannot be created or written to.
    """
    target = Path(os.path.realpath(directory))
    existing = next(folder for folder in (target, *target.parents) if os.path.lexists(folder))
    if not existing.is_dir():
        place = "" if existing == target else f" in the place of the folder `{existing.name}`"
        raise OutputError(f"{what} cannot be written: a file is there{place}", str(directory))
    check_writable(existing, what, directory)
    if is_unsettled(target):
        with failing_as(what, directory), locked(target, alone=True):
            settle(target)


def check_names(directory: Path, names: Iterable[str], what: str, ours: Recognizer) -> None:
    """Check that files of these names can be written into a folder.

    Raises
    ------
    OutputError
        If the folder cannot be written to, or another file has one of the names.
    """
    check_folder(directory, what)
    for name in names:
        path = directory / name
        if path.is_file() and not path.is_symlink() and _recognized(path, what, ours):
            continue
        if os.path.lexists(path):
            raise OutputError(
                f"{what} cannot be written: `{name}` is something else, it is not overwritten",
                str(directory),
                "name another folder",
            )


def write_files(
    directory: Path, files: Mapping[str, bytes], what: str, obsolete: Iterable[str] = ()
) -> None:
    """Write files into a folder and remove obsolete ones, all or nothing; see `folders`.

    Existing files are replaced; call `check_names` first.

    Raises
    ------
    OutputError
        If they cannot be written; the folder is unchanged.
    """
    target = Path(os.path.realpath(directory))
    with failing_as(what, directory), _made(target), locked(target, alone=True):
        exchange(target, files, obsolete)


def check_new_folder(directory: Path, what: str) -> None:
    """Check that `write_folder` can make a folder, before long work.

    Raises
    ------
    OutputError
        If the folder has files, cannot be created, or cannot be renamed.
    """
    check_folder(directory, what)
    target = Path(os.path.realpath(directory))
    if not target.is_dir():
        return
    with failing_as(what, directory):
        files = os.listdir(target)
    if files:
        found = "the folder has files, they are not overwritten"
    elif os.path.ismount(target) or target.samefile(os.curdir):
        mounted = os.path.ismount(target)
        place = "something is mounted there" if mounted else "the command runs in this one"
        found = f"{what} cannot be written: it comes as a new folder, and {place}"
    else:
        check_writable(target.parent, what, directory)
        return
    raise OutputError(found, str(directory), "name a new folder")


def write_folder(directory: Path, files: Mapping[str, bytes], what: str) -> None:
    """Write a folder of files that appears complete or not at all; see `check_new_folder`.

    Programs that know nothing of this storage may read it at any time, as Python imports packages.

    Raises
    ------
    OutputError
        If it cannot be written, or has files.
    """
    check_new_folder(directory, what)
    target = Path(os.path.realpath(directory))
    with failing_as(what, directory), _made(target.parent), aside(target, Path.mkdir) as stage:
        for name, content in files.items():
            make_folder((stage / name).parent)
            write_synced(stage / name, content)
        for folder in dict.fromkeys((stage, *((stage / name).parent for name in files))):
            synced(folder)
        if target.exists():
            shutil.copymode(target, stage)
        commit(stage, target)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; if nothing was written to it in the block, remove what was made."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        make_folder(folder)
        yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()  # only if it is empty


# Shared


@contextmanager
def failing_as(what: str, place: Path) -> Iterator[None]:
    """Convert errors of the operating system to an `OutputError`.

    Raises
    ------
    OutputError
        For an `OSError`.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"{what} cannot be written: {reason}", str(place)) from error


def check_writable(existing: Path, what: str, place: Path) -> None:
    """Check that an existing file or folder is writable.

    Raises
    ------
    OutputError
        If not.
    """
    folder = existing.is_dir()
    if not os.access(existing, os.W_OK | (os.X_OK if folder else 0)):
        raise OutputError(f"{what} cannot be written: permission denied", str(place))


def _recognized(path: Path, what: str, ours: Recognizer) -> bool:
    with failing_as(what, path):
        return ours(path)


def _is_stream(path: Path) -> bool:
    """Return whether a path is a pipe or device, which is written in place."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
