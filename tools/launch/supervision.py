"""Supervision of the processes of a run: which rank has died or stands still, and where.

Each rank notes where it stands on a board (`runtime.faults`), a file in the folder of the logs. The
launcher reads the boards of its host. A rank that stands still is told from ranks that wait for it.
"""

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.ir.files.waiting import END
from shardwright.ir.units import MOST_NAMES
from shardwright.runtime.faults import Board, Phase, board_path
from shardwright.tools.launch.segments import Segments

MPI_LAUNCHER = -1  # in place of a rank: it has started them all
_PROCESSES = Path("/proc")
_KILLED = re.compile(r"PID (\d+) RUNNING AT .*\n=\s+EXIT CODE: (\d+)")


@dataclass
class _Seen:
    """A rank as it was last seen, and when that changed."""

    board: Board
    serial: int = -1
    beats: int = -1
    moved: float = 0.0
    answered: float = 0.0
    lost: float | None = None
    shares: bool = False  # its shared memory is known
    asked: bool = False  # to end

    def __post_init__(self) -> None:
        self.processes = {self.board.pid, _parent(self.board.pid)}  # one of both is MPI's child

    @property
    def is_lost(self) -> bool:
        """Whether the rank has failed, or its process is gone before the end of its script."""
        phase = self.board.phase
        return phase is Phase.FAILED or (phase is not Phase.ENDED and not _is_alive(self.board.pid))

    @property
    def answers(self) -> bool:
        """Whether its thread counts: it does not while MPI starts."""
        return not (self.board.phase is Phase.STARTING and self.board.waits)

    def look(self, now: float) -> None:
        if self.board.serial != self.serial:
            self.serial, self.moved = self.board.serial, now
        if self.board.beats != self.beats or not self.beats:
            self.beats, self.answered = self.board.beats, now
        if self.lost is None and self.is_lost:
            self.lost = now


@dataclass
class Supervisor:
    """Watches the ranks of this host.

    Parameters
    ----------
    folder : Path
        The folder of the boards.
    ranks : sequence of int
        The ranks of this host.
    timeout : float
        Seconds that a rank may stand still while others wait for it.
    """

    folder: Path
    ranks: Sequence[int]
    timeout: float
    checkpoint: str = ""
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._segments = Segments(self.folder / f"rank.{self.ranks[0]}.segments")

    def begin(self) -> None:
        """Make the folder, without the boards of an earlier start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            board_path(self.folder, rank).unlink(missing_ok=True)
        self._seen.clear()
        self._segments.remove()

    def look(self) -> str | None:
        """Look at all ranks; return in words what ends the run, None if nothing does.

        A rank that has died or failed does not: MPI ends the others, which gets some seconds.
        """
        now = time.monotonic()
        for rank in self.ranks:
            path = board_path(self.folder, rank)
            if rank not in self._seen and path.exists():
                self._seen[rank] = _Seen(Board(path), moved=now, answered=now)
        for seen in self._seen.values():
            seen.look(now)
            seen.shares = seen.shares or self._segments.look(seen.board.pid)
            self.checkpoint = seen.board.checkpoint or self.checkpoint
        if any(s.lost is not None and now - s.lost > END for s in self._seen.values()):
            return self.fault(None, {})
        running = {r: s for r, s in self._seen.items() if _is_running(s.board)}
        silent = [r for r, s in running.items() if now - s.answered > self.timeout and s.answers]
        if silent:
            return self._silent(silent)
        still = all(now - seen.moved > self.timeout for seen in running.values())
        if still and any(seen.board.waits for seen in running.values()):
            return self._stuck()
        return None

    def _silent(self, ranks: Sequence[int]) -> str:
        places = "; ".join(f"rank {rank} stands {self.place(rank)}" for rank in ranks[:MOST_NAMES])
        return (
            f"{_ranks(ranks)} did not answer for {self.timeout:g} s, as if the process were "
            f"stopped: {places}"
        )

    def _stuck(self) -> str:
        boards = {rank: seen.board for rank, seen in self._seen.items()}
        order = sorted(boards, key=lambda r: (_state(boards[r].pid) != "T", boards[r].waits))
        places = "; ".join(f"rank {rank} stands {self.place(rank)}" for rank in order[:MOST_NAMES])
        more = f"; and {len(order) - MOST_NAMES} more ranks" if len(order) > MOST_NAMES else ""
        return f"no rank went on for {self.timeout:g} s: {places}{more}"

    def place(self, rank: int) -> str:
        """Return where a rank stands, or has stood last: ``in step 3, where it waits in ...``."""
        if rank not in self._seen:
            return "before its start"
        board = self._seen[rank].board
        if board.phase is Phase.ENDED:
            return f"after the end of its script, after step {board.steps}"
        place = self._when(rank)
        if board.waits:
            place += f", where it waits in {board.place}"
        elif board.place:
            place += f", where it runs after {board.place}"
        return place + (" (its process is stopped)" if _state(board.pid) == "T" else "")

    def fault(self, log: Path | None, codes: Mapping[int, int]) -> str:
        """Return in words which rank has died or failed first.

        Parameters
        ----------
        log : Path, optional
            What MPI's launcher has written.
        codes : mapping of int to int
            Exit codes of what this process has started: ranks, or `MPI_LAUNCHER`.
        """
        failed = [r for r, seen in self._seen.items() if seen.board.phase is Phase.FAILED]
        dead = self._noted() or self._told(log)
        if not dead:
            dead = {rank: code for rank, code in codes.items() if code and rank != MPI_LAUNCHER}
            if not failed and codes.get(MPI_LAUNCHER, 0) < 0:
                return f"the launcher of MPI died by {signal_name(codes[MPI_LAUNCHER])}"
        own = [rank for rank in dead if rank not in failed]
        if failed and not (own and all(dead[rank] < 0 for rank in own)):
            rank = failed[0]
            board = self._seen[rank].board
            return f"rank {rank} failed {self._when(rank)}: {board.error}"
        gone = own or [r for r, seen in self._seen.items() if not _is_alive(seen.board.pid)]
        gone = [r for r in gone if r not in self._seen or not self._has_ended(r)] or gone
        if not gone or (not own and len(self._seen) < len(self.ranks)):
            return "a process died before it told its rank"
        shown = _ranks(gone[:MOST_NAMES]) if own else _ranks(gone[:1])
        starting = [r for r, seen in self._seen.items() if seen.board.phase is Phase.STARTING]
        lost = [r for r, seen in self._seen.items() if not _is_alive(seen.board.pid)]
        if starting and len(lost) > 1 and not self._noted():  # MPI's launcher names any of them
            return f"one of the {_ranks(lost[:MOST_NAMES])} died while MPI started on all ranks"
        signals = {signal_name(dead[rank]) for rank in own if dead[rank] < 0}
        how = f" by {signals.pop()}" if len(signals) == 1 else ""
        return f"{shown} died{how} {self.place(gone[0])}"

    def _when(self, rank: int) -> str:
        board = self._seen[rank].board
        if board.is_in_step:
            return f"in step {board.steps + 1}"
        return f"after step {board.steps}" if board.steps else "before its first step"

    def _has_ended(self, rank: int) -> bool:
        return self._seen[rank].board.phase is Phase.ENDED

    def _noted(self) -> dict[int, int]:
        """Return the rank whose parent has noted its death first, and its signal, negative."""
        noted = [(s.board.moment, rank) for rank, s in self._seen.items() if s.board.signal]
        return {rank: -self._seen[rank].board.signal for _, rank in sorted(noted)[:1]}

    def _told(self, log: Path | None) -> dict[int, int]:
        """Return the rank that MPI's launcher says has died first, and its signal, negative."""
        found = None if log is None else _KILLED.search(log.read_text(errors="replace"))
        if found is None:
            return {}
        pid, code = int(found[1]), int(found[2])
        ranks = [rank for rank, seen in self._seen.items() if pid in seen.processes]
        return {rank: -code if code < 65 else code for rank in ranks}

    def places(self) -> list[str]:
        """Return where every rank stands, a line each."""
        return [f"rank {rank} stands {self.place(rank)}" for rank in self.ranks]

    def ask_to_end(self) -> None:
        """Send every rank that was seen the signal to end its step, save and stop; once."""
        for seen in self._seen.values():
            if not seen.asked and _is_running(seen.board) and _is_alive(seen.board.pid):
                seen.asked = True
                with suppress(ProcessLookupError):
                    os.kill(seen.board.pid, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> None:
        """Kill what is left of the ranks, with the processes that they started; wait for it.

        Their shared memory is removed, which MPI leaves where ranks are killed.
        """
        deadline = time.monotonic() + seconds
        left = [seen.board.pid for seen in self._seen.values()]
        for pid in left:
            self._segments.look(pid)
        while left and time.monotonic() < deadline:
            for pid in left:
                _kill_all(pid)
            left = [pid for pid in left if _is_alive(pid)]
            time.sleep(0.02 if left else 0)
        self._segments.remove()


def _kill_all(pid: int) -> None:
    """Kill a process; with its group, where it leads one."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _is_running(board: Board) -> bool:
    return board.phase in (Phase.STARTING, Phase.RUNNING)


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and is not asked for its code does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or the number is somebody else's now
        return False
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """Return the state of a process as Linux tells it: ``T`` is stopped; ``?`` elsewhere."""
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 where it has ended, and on other systems than Linux."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> Sequence[str]:
    """Return what Linux tells of a process: its state, its parent, and more."""
    try:
        return (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "?", "0"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def signal_name(code: int) -> str:
    """Return by which signal a process ended, by its exit code, which is negative."""
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
