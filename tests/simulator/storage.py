"""Writers of files in a world: they die, the power goes, disks fill, and two write at once.

Every seed draws a kind of writer and some turns. In a turn one or two processes each write a new
generation over what is there, while another one reads; then what is there is read. At the end one
more generation is written without any fault.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from shardwright.compiler.plans.files import _among_readers
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.files.folders import synced
from shardwright.ir.files.reading import read_bytes, read_member
from shardwright.ir.files.writing import begins, check_folder, write_file, write_files, write_folder
from shardwright.ir.text import parse
from shardwright.runtime import LocalCommunicator, initialize
from shardwright.runtime.checkpoint import read_arrays, write_arrays
from shardwright.runtime.checkpoints import (
    Progress,
    begin_writing,
    load_slices,
    newest,
    open_checkpoint,
)
from tests.simulator.files import DEATH, POWER, Fault, Files, intercepted
from tests.simulator.threads import entered
from tests.simulator.world import Process, World

# Calls of a process among which a fault is drawn; the longest writers have some 60. With half as
# many the last calls would not be reached; with twice as many most seeds have no fault.
_CALLS = 70
_BUSY = "another process writes"
_MEMORY = Path("/dev/shm")
PROGRAM = parse(
    """graph g on x=2 {
      parameter w: f32[12@x, 7]
      parameter b: bf16[13]
      return
    }"""
)


@dataclass(frozen=True)
class Kind:
    """A writer of generations, which are numbers from 1.

    Parameters
    ----------
    name : str
        What it writes.
    write : callable
        Writes a generation into a folder.
    read : callable
        Returns the generation that is there, 0 if there is none; raises `AssertionError` where
        parts are of several.
    names : callable
        Return the names that are in the folder when only a generation is.
    several : bool
        Whether two may write at once.
    removes : bool
        Whether the old generation is moved away before, as the user is asked to.
    """

    name: str
    write: Callable[[Path, int], object]
    read: Callable[[Path], int]
    names: Callable[[int], set[str]]
    several: bool = True
    removes: bool = False


def _content(generation: int, part: int) -> bytes:
    """Return the content of a part of a generation: of a length of its own, over some sectors."""
    return f"generation {generation} part {part}\n".encode() * (27 + 20 * part + generation)


def _generation(parts: Iterator[bytes] | list[bytes]) -> int:
    """Return the generation whose parts these are."""
    contents = list(parts)
    found = contents[0].split(b" ", 2)[1] if contents[0].count(b" ") >= 2 else b""
    assert found.isdigit(), f"a torn file: {contents[0][:40]!r}"
    expected = [_content(int(found), part) for part in range(len(contents))]
    assert contents == expected, f"parts of several generations, the first of {int(found)}"
    return int(found)


# The kinds

_NAMES = ["a", "b", "c"]


def _write_plan(folder: Path, generation: int) -> None:
    check_folder(folder / "plan", "the plan")
    names = [*_NAMES, f"of{generation % 2}"]  # a name that the next one has not
    files = {name: _content(generation, part) for part, name in enumerate(names)}
    write_files(folder / "plan", files, "the plan", [f"of{1 - generation % 2}"])


def _read_plan(folder: Path) -> int:
    if not (folder / "plan").exists():
        return 0
    with _among_readers(folder / "plan"):
        try:
            contents = [read_member(folder / "plan", name) for name in _NAMES]
        except FileNotFoundError:
            return 0
        found = _generation(contents)
        last = f"of{found % 2}"
        contents.append(read_member(folder / "plan", last))
    return _generation(contents)


def _write_export(folder: Path, generation: int) -> None:
    old = folder / "old"
    if old.exists():
        shutil.rmtree(old)
    if (folder / "export").exists():  # the user moves it away, as the refusal asks
        (folder / "export").rename(old)
        synced(folder)
        shutil.rmtree(old)
    files = {name: _content(generation, part) for part, name in enumerate(_NAMES)}
    write_folder(folder / "export", files, "the export")


def _read_export(folder: Path) -> int:
    """Read the files of one folder, as it was opened: it may be moved away and another one come."""
    try:
        opened = os.open(folder / "export", os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        contents = []
        for name in _NAMES:
            with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=opened), "rb") as file:
                contents.append(file.read())
    finally:
        os.close(opened)
    return _generation(contents)


def _write_page(folder: Path, generation: int) -> None:
    write_file(folder / "page", _content(generation, 0), "the page", begins(b"generation"))


def _read_page(folder: Path) -> int:
    if not (folder / "page").exists():
        return 0
    return _generation([read_bytes(folder / "page")])


def _write_snapshot(folder: Path, generation: int) -> None:
    arrays = {"clock": np.array(generation), "w": np.full((40, 3), generation, np.float32)}
    write_arrays(folder / "server_0.npz", arrays)


def _read_snapshot(folder: Path) -> int:
    if not (folder / "server_0.npz").exists():
        return 0
    arrays = read_arrays(folder / "server_0.npz")
    found = int(arrays["clock"])
    assert (arrays["w"] == found).all(), "parts of several generations"
    return found


def _write_checkpoint(folder: Path, generation: int, *, asynchronous: bool) -> None:
    assert PROGRAM.mesh is not None
    communicator = LocalCommunicator(PROGRAM.mesh)
    place = newest(folder)
    writer = begin_writing(
        folder,
        PROGRAM,
        communicator,
        keep=1,
        asynchronous=asynchronous,
        resumed=None if place is None else open_checkpoint(place),
        run="0123456789abcdef",
    )
    step = (generation + 1) // 2  # each step is written twice, as by a run that was resumed
    writer.save(state_of(generation), Progress(step=step))
    writer.settle()


@cache
def state_of(generation: int) -> Mapping[str, dict[int, np.ndarray]]:
    assert PROGRAM.mesh is not None
    return initialize(PROGRAM, generation, LocalCommunicator(PROGRAM.mesh))


@cache
def _sums() -> dict[str, int]:
    return {_sum(state_of(generation)): generation for generation in range(1, 30)}


def _sum(state: Mapping[str, Mapping[int, np.ndarray]]) -> str:
    parts = [part.tobytes() for name in sorted(state) for _, part in sorted(state[name].items())]
    return sha256(b"".join(parts)).hexdigest()


def _read_checkpoint(folder: Path) -> int:
    assert PROGRAM.mesh is not None
    if newest(folder) is None:
        return 0
    checkpoint = open_checkpoint(folder)
    checkpoint.check()
    found = _sum(load_slices(checkpoint, PROGRAM, LocalCommunicator(PROGRAM.mesh)))
    assert found in _sums(), "slices of several generations"
    generation = _sums()[found]
    assert checkpoint.manifest.progress.step == (generation + 1) // 2, "a manifest of another step"
    return generation


def _checkpoint_names(generation: int) -> set[str]:
    step = f"step-{(generation + 1) // 2}"
    files = ("manifest.json", "strategy.json", "rank.0.safetensors", "rank.1.safetensors")
    return {".lease", step, *(f"{step}/{name}" for name in files)}


KINDS = (
    Kind(
        "plan",
        _write_plan,
        _read_plan,
        lambda g: {"plan", *(f"plan/{n}" for n in (*_NAMES, f"of{g % 2}"))},
    ),
    Kind(
        "export",
        _write_export,
        _read_export,
        lambda g: {"export", *(f"export/{n}" for n in _NAMES)},
        several=False,
        removes=True,
    ),
    Kind("page", _write_page, _read_page, lambda g: {"page"}),
    Kind("snapshot", _write_snapshot, _read_snapshot, lambda g: {"server_0.npz"}),
    *(
        Kind(
            name,
            partial(_write_checkpoint, asynchronous=asynchronous),
            _read_checkpoint,
            _checkpoint_names,
            several=False,
        )
        for name, asynchronous in (("checkpoint", False), ("checkpoint, asynchronous", True))
    ),
)


# A seed


@dataclass
class Case:
    """A seed: what may be read, what survives, and what is wrong.

    Attributes
    ----------
    shown : set of int
        Generations one of which is there.
    durable : set of int
        Generations one of which is there after a loss of power.
    """

    world: World
    files: Files
    kind: Kind
    shown: set[int] = field(default_factory=lambda: {0})
    durable: set[int] = field(default_factory=lambda: {0})
    generation: int = 0
    wrong: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def turn(self, *, faults: bool) -> None:
        """Let some processes write and read."""
        draw, world = self.world.draw, self.world
        writers = 1 + (faults and self.kind.several and draw.random() < 0.4)
        attempts = range(self.generation + 1, self.generation + 1 + writers)
        self.generation += writers
        ended: set[int] = set()
        made: list[Process] = []
        for generation in attempts:
            name = f"writer {generation}"
            made.append(world.process(name, partial(self._write, generation, ended)))
        self.files.faults = [fault for process in made for fault in self._faults(process, faults)]
        failing = self.files.faults
        if self.kind.removes:
            self.shown.add(0)
            self.durable.add(0)
        if faults:
            world.process("reader", partial(self._read_on, self.shown | set(attempts)))
        world.run()
        self.wrong += world.errors
        world.errors.clear()
        self._note_end(set(attempts), ended, {f.kind for f in failing if f.happened})

    def _faults(self, process: Process, faults: bool) -> list[Fault]:
        draw = self.world.draw
        kind = draw.choice((None, DEATH, DEATH, POWER, POWER, errno.ENOSPC, errno.EIO))
        if not faults or kind is None:
            return []
        return [Fault(process, draw.randrange(_CALLS), kind, draw.random() < 0.5)]

    def _write(self, generation: int, ended: set[int]) -> None:
        try:
            self.kind.write(self.files.root, generation)
        except ShardwrightError as error:
            text = str(error).replace(str(self.files.root), "")
            self.world.note(f"refused: {text}")
            self.events.append(f"writer {generation}: {text}")
            failed = any(isinstance(f.kind, int) and f.happened for f in self.files.faults)
            if not failed and _BUSY not in text:
                self.wrong.append(f"writer {generation} is refused: {text}")
            return
        except OSError as error:
            if not self.kind.removes:
                raise
            self.events.append(f"writer {generation}: {error}")
            return
        ended.add(generation)
        self.world.note(f"writer {generation} has ended")

    def _read_on(self, allowed: set[int]) -> None:
        for _ in range(self.world.draw.randrange(1, 4)):
            for _ in range(self.world.draw.randrange(30)):
                self.world.step()
            try:
                found = self.kind.read(self.files.root)
            except (ShardwrightError, FileNotFoundError) as error:
                # A checkpoint may be rotated away, and an export moved, while it is read.
                may_go = (
                    0 in allowed or self.kind.removes or self.kind.name.startswith("checkpoint")
                )
                if not may_go and _BUSY not in str(error):
                    self.wrong.append(f"the reader is refused: {error}")
                continue
            self.world.note(f"read {found}")
            if found not in allowed:
                self.wrong.append(f"the reader finds {found}, expected one of {sorted(allowed)}")

    def _note_end(self, attempts: set[int], ended: set[int], happened: set[str | int]) -> None:
        """Note what may be there now, and read it."""
        self.events.append(f"{attempts} ended {ended}, {happened}")
        if ended:
            others = attempts if len(attempts) > 1 else set()
            self.shown = ended | others
            self.durable = ended | others
        else:
            self.shown |= attempts
            self.durable |= attempts
        if POWER in happened:
            self.files.power_off()
            self.shown = set(self.durable)
        found = self._found()
        if found is not None and found not in self.shown:
            self.wrong.append(f"{found} is there, expected one of {sorted(self.shown)}")
        if found is not None:
            self.shown = {found}
            if POWER in happened:
                self.durable = {found}

    def _found(self) -> int | None:
        try:
            return self.kind.read(self.files.root)
        except (AssertionError, ShardwrightError, OSError) as error:
            self.wrong.append(f"what is there cannot be read: {error}")
            return None

    def end(self) -> None:
        """Write once more without a fault: nothing else may be there then."""
        self.turn(faults=False)
        if self.shown != {self.generation} and not self.wrong:
            self.wrong.append(f"after {self.generation} was written {self.shown} is there")
        names = {str(p.relative_to(self.files.root)) for p in self.files.root.rglob("*")}
        expected = self.kind.names(self.generation)
        if names != expected and not self.wrong:
            self.wrong.append(f"left: {sorted(names ^ expected)[:5]}")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Make a folder in memory, and remove it at the end."""
    made = Path(mkdtemp(prefix="shardwright-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        (made / "disk").mkdir()
        yield made / "disk"
    finally:
        shutil.rmtree(made)


@dataclass(frozen=True)
class Outcome:
    """What came of a seed: what is wrong, and a sum of all that happened."""

    what: str
    wrong: tuple[str, ...]
    digest: str
    events: tuple[str, ...] = ()


def storage(seed: int) -> Outcome:
    """Run a seed."""
    _sums()
    with folder_in_memory() as folder, entered(seed) as world:
        files = Files(world, folder)
        kind = world.draw.choice(KINDS)
        case = Case(world, files, kind)
        with intercepted(files), world.to_its_end(case.wrong):
            for _ in range(world.draw.randrange(1, 4)):
                case.turn(faults=True)
                if case.wrong:
                    break
            else:
                case.end()
        return Outcome(kind.name, tuple(case.wrong), world.digest, tuple(case.events))
