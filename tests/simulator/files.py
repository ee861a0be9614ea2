"""Calls of the operating system that change files, each of which a world may let fail.

The files are real, in a folder of memory; what is here stands between the product and the functions
of `os`, `io` and `fcntl`. It tells a model of the disk of every change. Each call is a step, at
which another process may go on. At one of them the process may die, the power may go, or the disk
may be full or broken.
"""

import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shardwright.ir.files import aside
from tests.simulator.disk import Disk, Folder, put
from tests.simulator.replacing import replaced
from tests.simulator.world import Died, Process, World

DEATH, POWER, STOP = "death", "power", "stop"
_STOPPED = 12.0  # seconds that a process stands still at most, longer than two starts of a run
_NAMES = ("open", "close", "mkdir", "rename", "replace", "unlink", "remove", "rmdir", "fsync")
_REAL: dict[str, Callable[..., Any]] = {
    **{name: getattr(os, name) for name in (*_NAMES, "chmod", "listdir", "scandir")},
    "flock": fcntl.flock,
    "io": io.open,
}
_REAL["exchanged"] = aside._exchanged


@dataclass
class Fault:
    """What happens at a call of a process.

    Parameters
    ----------
    process : Process
        Whose calls are counted.
    at : int
        At which call, from 0.
    kind : str or int
        `DEATH`, `POWER`, `STOP` (it goes on later), or the number of an error of the system.
    lasts : bool
        Whether an error comes at all later calls, too.
    """

    process: Process
    at: int
    kind: str | int
    lasts: bool = False
    seen: int = 0
    happened: bool = False

    def is_due(self) -> bool:
        """Count a call, and return whether the fault is at it."""
        place, self.seen = self.seen, self.seen + 1
        due = place == self.at or (self.lasts and place > self.at)
        self.happened |= due
        return due


class Files:
    """The files below a folder, on a disk of their own.

    Parameters
    ----------
    world : World
        The world.
    root : Path
        The folder, which exists.
    """

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.disk, self._root = Disk(root), f"{root}/"
        self.faults: list[Fault] = []
        self._open: dict[int, Process] = {}  # who holds a descriptor
        self._users: set[Process] = set()

    # Faults

    def power_off(self) -> None:
        """Let what was not synced be lost; all processes that write here are dead."""
        draw = self.world.draw
        left = self.disk.left(draw, names=draw.random() < 0.3, torn=True)
        self.world.note(f"power: {sorted(left)}")
        _empty(self.root)
        put(left, self.root)
        self.disk = Disk(self.root)

    def _step(self, call: str, path: str | None) -> None:
        """Let others run, then fail as the faults say."""
        world = self.world
        world.step()
        task = world.current
        if task is None or path is None:
            return
        if not task.process.is_alive:
            raise Died
        world.note(f"{task.process.name} {call} {path[len(self._root) :]}")
        for fault in self.faults:
            if fault.process is task.process and fault.is_due():
                self._fail(fault, path)

    def _fail(self, fault: Fault, path: str) -> None:
        if fault.kind == STOP:
            self.world.sleep(self.world.draw.uniform(0, _STOPPED))
            return
        if isinstance(fault.kind, int):
            raise OSError(fault.kind, os.strerror(fault.kind), path)
        dying = self.world.processes if fault.kind == POWER else [fault.process]
        for process in dying:
            self.world.kill(process)
        raise Died

    def _note_open(self, descriptor: int) -> None:
        task = self.world.current
        if task is None:
            return
        self._open[descriptor] = task.process
        if task.process not in self._users:
            self._users.add(task.process)
            task.process.buried.append(partial(self._close_all, task.process))

    def _close_all(self, process: Process) -> None:
        """Close what a process that has died has open, and so let go of its locks."""
        for descriptor in [d for d, p in self._open.items() if p is process]:
            del self._open[descriptor]
            _REAL["close"](descriptor)

    def close_of(self, process: Process | None, descriptor: int) -> None:
        """Close a descriptor, unless it was closed when its process died."""
        if process is None or self._open.pop(descriptor, None) is process:
            _REAL["close"](descriptor)

    # Calls

    def inside(self, path: Any, folder: int | None = None) -> str | None:
        """Return the whole path of a file below the folder; None for others."""
        if isinstance(path, int):
            found = os.readlink(f"/proc/self/fd/{path}")
        elif folder is None:
            found = os.fsdecode(path)
        else:
            found = os.readlink(f"/proc/self/fd/{folder}") + "/" + os.fsdecode(path)
        return found if f"{found}/".startswith(self._root) else None

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = self.inside(path, dir_fd)
        changes = bool(flags & (os.O_CREAT | os.O_TRUNC))
        if found is not None and changes:
            self._step("open", found)
        elif found is not None:
            self.world.step()
        descriptor = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if found is not None and changes:
            made = self.disk.entry(found) is None
            self.disk.open(found, creates=made, empties=bool(flags & os.O_TRUNC))
        if found is not None:
            self._note_open(descriptor)
        return int(descriptor)

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        _REAL["close"](descriptor)

    def listdir(self, path: Any = ".") -> list[str]:
        names = sorted(_REAL["listdir"](path))
        if self.inside(path) is not None:
            self.world.step()
            self.world.draw.shuffle(names)
        return names

    def scandir(self, path: Any = ".") -> "_Scan":
        with _REAL["scandir"](path) as scan:
            entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
        if self.inside(path) is not None:
            self.world.step()
            self.world.draw.shuffle(entries)
        return _Scan(entries)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        found = self.inside(path, dir_fd)
        self._step("mkdir", found)
        _REAL["mkdir"](path, mode, dir_fd=dir_fd)
        if found is not None:
            self.disk.change((self.disk.at(found), Folder()))

    def rename(self, source: Any, target: Any, name: str = "rename") -> None:
        found, other = self.inside(source), self.inside(target)
        self._step("rename", found)
        _REAL[name](source, target)
        if found is not None and other is not None:
            self.disk.rename(found, other, exchanges=False)

    def exchanged(self, first: Path, second: Path) -> bool:
        self._step("exchange", self.inside(first))
        done = bool(_REAL["exchanged"](first, second))
        if done and self.inside(first) is not None:
            self.disk.rename(first, second, exchanges=True)
        return done

    def remove(self, path: Any, *, dir_fd: int | None = None, name: str = "unlink") -> None:
        found = self.inside(path, dir_fd)
        self._step(name, found)
        _REAL[name](path, dir_fd=dir_fd)
        if found is not None:
            self.disk.change((self.disk.at(found), None))

    def fsync(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        found = self.inside(number)
        self._step("fsync", found)
        if found is not None:
            self.disk.sync(found)
        else:
            _REAL["fsync"](descriptor)

    def chmod(self, path: Any, mode: int, **how: Any) -> None:
        self._step("chmod", self.inside(path))
        _REAL["chmod"](path, mode, **how)

    def flock(self, descriptor: int, how: int) -> None:
        found = self.inside(descriptor)
        self._step("flock", found)
        _REAL["flock"](descriptor, how)

    def open_file(self, file: Any, mode: str = "r", *rest: Any, **how: Any) -> Any:
        found = None if isinstance(file, int) else self.inside(file)
        if isinstance(file, int):
            self._open.pop(file, None)  # the object closes it
        if found is None:
            return _REAL["io"](file, mode, *rest, **how)
        if not set(mode) & set("wxa+"):
            self.world.step()
            return _REAL["io"](file, mode, *rest, **how)
        flags = os.O_CREAT * (mode[0] in "wxa") | os.O_TRUNC * ("w" in mode)
        flags |= os.O_EXCL * ("x" in mode) | os.O_RDWR | os.O_CLOEXEC
        raw = _Raw(self, self.open(found, flags, 0o666))
        file = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return file if "b" in mode else io.TextIOWrapper(file, *rest[1:], **how)

    def write(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write some bytes; a write that fails may have written the first of them."""
        self.world.check()
        found = self.inside(descriptor)
        if found is None or self.disk.entry(found) is None:  # it was removed
            os.pwrite(descriptor, data, offset)
            return
        try:
            self._step("write", found)
        except (OSError, Died):
            data = data[: self.world.draw.randint(0, len(data))]
            if self.disk.entry(found) is not None:
                self._written(descriptor, found, offset, data)
            raise
        self._written(descriptor, found, offset, data)

    def _written(self, descriptor: int, path: str, offset: int, data: bytes) -> None:
        os.pwrite(descriptor, data, offset)
        self.disk.write(path, data, offset)


class _Scan(list[Any]):
    """The entries of a folder, as `os.scandir` gives them."""

    def __enter__(self) -> Iterator[Any]:
        return iter(self)

    def __exit__(self, *error: object) -> None:
        pass


class _Raw(io.RawIOBase):
    """A file that is open for writing."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files, self._descriptor, self._offset = files, descriptor, 0
        task = files.world.current
        self._process = None if task is None else task.process

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        size = os.fstat(self._descriptor).st_size
        self._offset = offset + (0, self._offset, size)[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, len(buffer), self._offset)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        if self._process is not None and not self._process.is_alive:
            raise Died  # what it had not yet written is lost with it
        content = bytes(data)
        self._files.write(self._descriptor, self._offset, content)
        self._offset += len(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._files.close_of(self._process, self._descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            _empty(path)
            path.rmdir()
        else:
            path.unlink()


@contextmanager
def intercepted(files: Files) -> Iterator[Files]:
    """Let all calls in the block go through files of a world."""
    calls = {
        (os, "open"): files.open,
        (os, "close"): files.close,
        (os, "mkdir"): files.mkdir,
        (os, "rename"): files.rename,
        (os, "replace"): partial(files.rename, name="replace"),
        (os, "unlink"): files.remove,
        (os, "remove"): partial(files.remove, name="remove"),
        (os, "rmdir"): partial(files.remove, name="rmdir"),
        (os, "fsync"): files.fsync,
        (os, "chmod"): files.chmod,
        (os, "listdir"): files.listdir,
        (os, "scandir"): files.scandir,
        (fcntl, "flock"): files.flock,
        (io, "open"): files.open_file,
        (aside, "_exchanged"): files.exchanged,
    }
    with replaced(calls):
        yield files


ERRORS = (errno.ENOSPC, errno.EIO)
