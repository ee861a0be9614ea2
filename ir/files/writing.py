"""Atomic output files, which never overwrite a file of the user.

Content goes into a temporary file, which is renamed when complete: a full disk or an interrupt
leaves the old file. An existing file is replaced only if the program recognizes it as its own.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from shardwright.ir.errors import OutputError
from shardwright.ir.files.folders import exchange, is_unsettled, locked, settle, synced

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
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with failing_as(what, path):
        if _is_stream(target):
            with target.open("wb") as file:
                yield file
            return
        _sweep(target)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
            synced(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


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
    new = [folder for folder in (target, *target.parents) if not folder.exists()]
    with failing_as(what, directory):
        try:
            target.mkdir(parents=True, exist_ok=True)
            with locked(target, alone=True):
                exchange(target, files, obsolete)
        finally:
            for folder in new:
                with suppress(OSError):
                    folder.rmdir()  # only if it is empty: nothing was written


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


def _sweep(target: Path) -> None:
    """Remove what processes that were killed while they wrote a file have left beside it."""
    for path in target.parent.glob(f".{escape(target.name)}.*"):
        process = path.name.removeprefix(f".{target.name}.")
        if process.isdecimal() and not _is_alive(int(process)) and path.is_file():
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


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
