"""Reading what others wrote: regular files, at most so large, and texts nested at most so deep.

A pipe or a device is read without end, and a file of a few lines can stand for more than memory
holds. What is refused here is an `OSError` or a `ValueError`, as what the operating system and the
parsers refuse: every reader makes its sentence of both.
"""

import errno
import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Final

import numpy as np

from shardwright.ir.files.folders import is_name, member

# Of bytes. The program of a plan for ten thousand devices is some 50 MB long, and a thousand times
# what people write by hand is far less. Half would refuse no known file; twice as much takes twice
# the memory before a file is refused.
MOST_BYTES: Final = 2**28

# Of lists, mappings and variables within each other; a plan has 9, and Python's own limit is some
# 1,000. Half would refuse no known file, and twice as many could exceed that limit in readers.
DEEPEST: Final = 100

# Characters of a number; a float has 25, and the work is their square. Half would do, and twice as
# many change nothing.
MOST_DIGITS: Final = 100


class TooDeepError(ValueError):
    """A text is nested more deeply than any that is known."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        If it cannot be opened, or is a folder, a pipe or a device.
    """
    # Without a writer, the opening of a pipe would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, expected a file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return what a regular file holds.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file, or has more bytes than ``most``.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text in a regular file, in UTF-8; see `read_bytes`.

    Raises
    ------
    UnicodeDecodeError
        If it is not text.
    """
    return read_bytes(path, most).decode("utf-8")


def read_member(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """Return what a file of a folder holds; see `read_bytes`.

    Raises
    ------
    OSError
        If the name is that of no file in the folder, or of a link that leads out of it.
    """
    path = member(folder, name)
    check_member(path.parent, name)
    return read_bytes(path, most)


def check_member(folder: Path, name: str) -> None:
    """Check that a name, which stands in a file, is that of a file in a folder.

    Raises
    ------
    OSError
        If it leads out of the folder, by itself or as a link.
    """
    if not is_name(name):
        raise OSError(errno.EINVAL, "it is no name of a file", name)
    if os.path.dirname(os.path.realpath(folder / name)) != os.path.realpath(folder):
        raise OSError(errno.ELOOP, "it is a link that leads out of its folder", name)


def from_json(
    text: str | bytes, pairs: Callable[[Iterable[tuple[str, Any]]], dict[str, Any]] | None = None
) -> Any:
    """Return what a text of JSON says.

    Parameters
    ----------
    text : str or bytes
        The text.
    pairs : callable, optional
        Makes a mapping of pairs: `given_once` refuses keys that are given twice.

    Raises
    ------
    ValueError
        If it is no JSON, holds half a character, or is nested too deeply (`TooDeepError`).
    """
    try:
        found = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise TooDeepError("it is nested too deeply") from None
    check_depth(found)
    return found


def check_depth(found: Any) -> None:
    """Refuse lists and mappings within each other that are nested more deeply than any known.

    Raises
    ------
    ValueError
        If they are (`TooDeepError`), or hold half a character.
    """
    level = [found]
    for _ in range(DEEPEST + 1):
        # Half a character can be written as an escape, and not be written to any file again.
        for part in level:
            texts = part if isinstance(part, dict) else [part] if isinstance(part, str) else ()
            if not all(t.isascii() or _is_whole(t) for t in texts):
                raise ValueError("it holds half a character (a lone surrogate)")
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return
        level = [x for part in level for x in (part.values() if isinstance(part, dict) else part)]
    raise TooDeepError("it is nested too deeply")


def _is_whole(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def read_arrays(file: BinaryIO) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays that `numpy.savez` wrote to a file, by name.

    Raises
    ------
    ValueError
        If it is no such file, or its arrays would take more memory than the file is long.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            whole = sum(member.file_size for member in archive.infolist())
        if whole > file.seek(0, os.SEEK_END):
            raise ValueError("its arrays are compressed, or share their bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except _NO_ARRAYS as error:
        raise ValueError("it is no archive of arrays") from error
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise ValueError("it holds something that is no array")
    return found


# What the libraries raise for archives and headers that are damaged or made to do harm.
_NO_ARRAYS: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    zipfile.BadZipFile,
)
