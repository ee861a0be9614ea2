"""A model of a disk: what stays of files and folders when the power is gone.

A file has the bytes of its last `fsync`, and a folder the names of its last `fsync`; a rename is
there whole or not at all. Of what was not synced some is there and some is not.
"""

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Of bytes: a disk writes so many at once, and all of them or none. Of files as small as those here
# half as many make more remains that differ; with twice as many, few files would be torn at all.
SECTOR = 512


@dataclass(eq=False)
class File:
    """A file: its bytes, and those that were synced."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    """A folder: its names, and those that were synced."""

    now: "dict[str, Entry]" = field(default_factory=dict)
    synced: "dict[str, Entry]" = field(default_factory=dict)


Entry = File | Folder
Place = tuple[Folder, str]
Change = list[tuple[Folder, str, Entry | None]]  # names that change at once


class Disk:
    """A disk with a folder, all of which is synced.

    Parameters
    ----------
    root : Path
        The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = _read(root)
        self.pending: list[Change] = []
        self._offsets: dict[str, int] = {}

    def at(self, path: Path | str) -> Place | None:
        """Return the folder and the name of a path; None if it is outside, or in no folder now."""
        text, root = os.fspath(path), os.fspath(self.root)
        if not text.startswith(root + "/"):
            return None
        *parents, name = text[len(root) + 1 :].split("/")
        folder = self.top
        for part in parents:
            inner = folder.now.get(part)
            if not isinstance(inner, Folder):
                return None  # the folder was removed, and the file is still open
            folder = inner
        return folder, name

    def entry(self, path: Path | str) -> Entry | None:
        """Return what has a path."""
        if os.fspath(path) == os.fspath(self.root):
            return self.top
        place = self.at(path)
        return None if place is None else place[0].now.get(place[1])

    def change(self, *names: tuple[Place | None, Entry | None]) -> None:
        """Change names, all at once."""
        change: Change = [(*place, entry) for place, entry in names if place is not None]
        _apply(change, "now")
        self.pending.append(change)

    def rename(self, source: Path | str, target: Path | str, *, exchanges: bool) -> None:
        """Rename a file or folder; where both names are exchanged, the other one too."""
        moved, other = self.entry(source), self.entry(target)
        self.change((self.at(source), other if exchanges else None), (self.at(target), moved))

    def sync(self, path: Path | str) -> None:
        """Sync a file or a folder."""
        entry = self.entry(path)
        if isinstance(entry, File):
            entry.synced = bytes(entry.now)
        elif isinstance(entry, Folder):
            mine = [c for c in self.pending if any(folder is entry for folder, _, _ in c)]
            for change in mine:
                _apply(change, "synced")
            self.pending = [change for change in self.pending if change not in mine]

    def open(self, path: Path | str, *, creates: bool, empties: bool) -> None:
        """Open a file, make it, or empty it."""
        place = self.at(path)
        if place is None:
            return
        entry = self.entry(path)
        if entry is None and creates:
            self.change((place, File()))
        elif isinstance(entry, File) and empties:
            entry.now.clear()
        self._offsets[str(path)] = 0

    def write(self, path: Path | str, data: bytes, offset: int | None = None) -> None:
        """Write to a file, where it was last written or read."""
        entry = self.entry(path)
        if not isinstance(entry, File):
            return
        begin = self._offsets.get(str(path), 0) if offset is None else offset
        entry.now.extend(bytes(max(0, begin - len(entry.now))))
        entry.now[begin : begin + len(data)] = data
        if offset is None:
            self._offsets[str(path)] = begin + len(data)

    def seek(self, path: Path | str, offset: int) -> None:
        """Set where a file is written next."""
        self._offsets[str(path)] = offset

    # What is left

    def left(
        self, draw: random.Random | None, *, names: bool, torn: bool = False
    ) -> dict[str, bytes | None]:
        """Return what is left when the power is gone: bytes by path, None for folders.

        Parameters
        ----------
        draw : Random, optional
            Draws which of the bytes, and of the names unless all stay, are left without a sync.
        names : bool
            Whether all names stay.
        torn : bool
            Whether some sectors of a file may be there, and others not.
        """
        kept = {id(f): dict(f.synced) for f in self._folders()}
        for change in self.pending:
            if names or (draw is not None and draw.random() < 0.5):
                for folder, name, entry in change:
                    target = kept.setdefault(id(folder), dict(folder.synced))
                    target.pop(name, None)
                    if entry is not None:
                        target[name] = entry
        found: dict[str, bytes | None] = {}

        def walk(folder: Folder, path: str) -> None:
            for name, entry in sorted(kept.get(id(folder), folder.synced).items()):
                if isinstance(entry, File):
                    found[path + name] = _bytes_left(entry, draw, torn=torn)
                else:
                    found[path + name] = None
                    walk(entry, f"{path}{name}/")

        walk(self.top, "")
        return found

    def _folders(self) -> Iterator[Folder]:
        waiting = [self.top]
        while waiting:
            folder = waiting.pop()
            yield folder
            entries = (*folder.now.values(), *folder.synced.values())
            waiting += {id(e): e for e in entries if isinstance(e, Folder)}.values()


def _bytes_left(file: File, draw: random.Random | None, *, torn: bool) -> bytes:
    """Return the bytes of a file: those that were synced, the last ones, or some of both."""
    if draw is None or file.now == file.synced:
        return file.synced
    if not torn:
        return bytes(file.now) if draw.random() < 0.5 else file.synced
    kind = draw.randrange(3)
    if kind < 2:
        return bytes(file.now) if kind else file.synced
    late = bytes(file.now)
    length = draw.choice((len(late), draw.randint(0, len(late))))
    sectors = range(0, length, SECTOR)
    old = file.synced.ljust(length, b"\0")
    return b"".join((late if draw.randrange(2) else old)[i : i + SECTOR] for i in sectors)[:length]


def _apply(change: Change, when: str) -> None:
    for folder, name, _ in change:
        getattr(folder, when).pop(name, None)
    for folder, name, entry in change:
        if entry is not None:
            getattr(folder, when)[name] = entry


def _read(path: Path) -> Folder:
    folder = Folder()
    for inner in sorted(path.iterdir()):
        content = inner.read_bytes() if inner.is_file() else b""
        folder.now[inner.name] = (
            _read(inner) if inner.is_dir() else File(bytearray(content), content)
        )
    folder.synced = dict(folder.now)
    return folder


def put(left: Mapping[str, bytes | None], folder: Path) -> None:
    """Write what is left into a folder."""
    folder.mkdir(exist_ok=True)
    for name, content in left.items():
        if content is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).write_bytes(content)
