"""The board of a rank: a small file that is mapped into memory.

What a rank writes there is in the file at once, also if the rank is killed; and writing takes less
than a microsecond. A thread counts on, so that a stopped process can be told from a busy one.
"""

import enum
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from secrets import token_hex
from typing import Final

from shardwright.ir.files.waiting import WATCH

# What the launcher tells its ranks: the folder of the boards, the name that all starts of a run
# have, and the number of this start.
BOARD_VARIABLE: Final = "SHARDWRIGHT_BOARD"
RUN_VARIABLE: Final = "SHARDWRIGHT_RUN"
RESTART_VARIABLE: Final = "SHARDWRIGHT_RESTART"
_TEXT: Final = 1024  # bytes of a text
_PID, _PHASE, _STEPS, _IN_STEP, _WAITS, _SERIAL, _BEATS, _SIGNAL, _MOMENT = range(9)
_PLACE, _ERROR, _CHECKPOINT = range(3)  # texts, each after its length
_NUMBERS: Final = _MOMENT + 1
_SIZE: Final = 8 * _NUMBERS + (_CHECKPOINT + 1) * (8 + _TEXT)


class Phase(enum.IntEnum):
    """What a rank does."""

    STARTING = 0
    RUNNING = 1
    ENDED = 2
    FAILED = 3


def board_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank.{rank}.board"


def new_run() -> str:
    """Return the name of a new training run."""
    return token_hex(8)


def _make(path: Path, pid: int) -> None:
    """Make the board of a process, which others see with all its bytes or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(pid.to_bytes(8, sys.byteorder) + bytes(_SIZE - 8))
    part.rename(path)


def note_signal(path: Path, pid: int, number: int, moment: int) -> None:
    """Note on the board of a rank that has died, by which signal it did, and when.

    Parameters
    ----------
    path : Path
        The board, which is made where the rank has died before it had one.
    pid : int
        The process of the rank.
    number : int
        The signal.
    moment : int
        Nanoseconds of the system's monotonic clock.
    """
    if not path.exists():
        _make(path, pid)
    with path.open("r+b") as file:
        file.seek(8 * _SIGNAL)
        file.write(b"".join(value.to_bytes(8, sys.byteorder) for value in (number, moment)))


class Board:
    """The board of a rank, open for writing by the rank itself or for reading by others.

    Parameters
    ----------
    path : Path
        The file; one that is written is made new.
    writes : bool
        Whether the rank opens its own board.
    """

    def __init__(self, path: Path, *, writes: bool = False) -> None:
        if writes:
            _make(path, os.getpid())
        mode = os.O_RDWR if writes else os.O_RDONLY
        file = os.open(path, mode)
        try:
            access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
            self._map = mmap.mmap(file, _SIZE, access=access)
        finally:
            os.close(file)
        self._numbers = memoryview(self._map)[: 8 * _NUMBERS].cast("q")

    # Writing

    def beat(self) -> None:
        """Count on from a thread, until the process ends."""

        def count() -> None:
            while True:
                self._numbers[_BEATS] += 1
                time.sleep(WATCH)

        threading.Thread(target=count, daemon=True, name="board").start()

    def set_phase(self, phase: Phase) -> None:
        """Note what the rank does."""
        self._numbers[_PHASE] = phase
        self._numbers[_SERIAL] += 1

    def begin_step(self) -> None:
        """Note that a step begins."""
        self._numbers[_IN_STEP] = 1
        self._numbers[_SERIAL] += 1

    def end_step(self) -> None:
        """Note that a step has ended."""
        self._numbers[_STEPS] += 1
        self._numbers[_IN_STEP] = 0
        self._numbers[_SERIAL] += 1

    def count_steps(self, steps: int) -> None:
        """Set the number of steps that have ended: a run that is continued counts on."""
        self._numbers[_STEPS] = steps

    def wait(self, place: str) -> None:
        """Note that the rank waits for others, and where."""
        self._write(_PLACE, place.encode())
        self._numbers[_WAITS] = 1
        self._numbers[_SERIAL] += 1

    def go_on(self) -> None:
        """Note that the rank waits no longer."""
        self._numbers[_WAITS] = 0
        self._numbers[_SERIAL] += 1

    def fail(self, error: str) -> None:
        """Note the error with which the rank ends; the first one stays."""
        if self.phase is not Phase.FAILED:
            self._write(_ERROR, error.encode())
            self.set_phase(Phase.FAILED)

    def note_checkpoint(self, path: Path) -> None:
        """Note the newest checkpoint."""
        self._write(_CHECKPOINT, os.fsencode(path))

    def _write(self, text: int, content: bytes) -> None:
        content = content[:_TEXT]
        begin = 8 * _NUMBERS + text * (8 + _TEXT)
        self._map[begin : begin + 8] = len(content).to_bytes(8, "little")
        self._map[begin + 8 : begin + 8 + len(content)] = content

    # Reading

    def _text(self, text: int) -> str:
        begin = 8 * _NUMBERS + text * (8 + _TEXT)
        length = min(int.from_bytes(self._map[begin : begin + 8], "little"), _TEXT)
        return self._map[begin + 8 : begin + 8 + length].decode(errors="replace")

    @property
    def pid(self) -> int:
        """The process of the rank."""
        return self._numbers[_PID]

    @property
    def phase(self) -> Phase:
        """What the rank does."""
        return Phase(self._numbers[_PHASE])

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._numbers[_STEPS]

    @property
    def is_in_step(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self._numbers[_IN_STEP])

    @property
    def waits(self) -> bool:
        """Whether the rank waits for others."""
        return bool(self._numbers[_WAITS])

    @property
    def serial(self) -> int:
        """A number that changes with every note but the count of the thread."""
        return self._numbers[_SERIAL]

    @property
    def beats(self) -> int:
        """The count of the thread."""
        return self._numbers[_BEATS]

    @property
    def signal(self) -> int:
        """The signal by which the rank died, if its parent has noted it; 0 without."""
        return self._numbers[_SIGNAL]

    @property
    def moment(self) -> int:
        """When that was, in nanoseconds of the monotonic clock."""
        return self._numbers[_MOMENT]

    @property
    def place(self) -> str:
        """Where the rank waits, or has waited last; empty before."""
        return self._text(_PLACE)

    @property
    def error(self) -> str:
        """The error with which it ended; empty without."""
        return self._text(_ERROR)

    @property
    def checkpoint(self) -> str:
        """The newest checkpoint that it completed; empty without."""
        return self._text(_CHECKPOINT)
