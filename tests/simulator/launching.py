"""Launchers in a world: their ranks die, fail, stop and stand still, and they are interrupted.

`shardwright launch` starts ranks, watches them by their boards, says what has happened, ends what
is left and starts again. Its code is that of the product, as are the parents of ranks and their
boards. The operating system, MPI's own launcher and the steps of the ranks are models.
"""

import signal
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shardwright.runtime.faults import BOARD_VARIABLE, RESTART_VARIABLE, Board, Phase, board_path
from shardwright.runtime.faults.standing import Standing
from shardwright.tools import launch
from shardwright.tools.console.endings import ExitCode
from shardwright.tools.launch import segments, supervision, watcher
from tests.simulator.files import Files, intercepted
from tests.simulator.replacing import replaced
from tests.simulator.storage import Outcome, folder_in_memory
from tests.simulator.system import Program, System, Work
from tests.simulator.threads import Condition, entered
from tests.simulator.world import World

_STEPS = 4
_TIMEOUT, _GRACE = 6.0, 4.0  # seconds, as the options of the launcher
_LOOKS = 0.2  # seconds in which the launcher looks at what all ranks have mapped
_LIMIT = 10.0  # seconds after which nothing of a run is left
_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
DIES, FAILS, HALTS, STANDS, SLOW, WELL = "dies", "fails", "halts", "stands still", "is slow", ""
_BAD = (DIES, FAILS, HALTS, STANDS)


@dataclass
class Start:
    """A start of the ranks: what happens to one of them, and how the others meet."""

    launcher: int
    restart: int
    fault: str
    rank: int
    at: float  # seconds after the start, or the part of a step
    signal: int
    programs: dict[int, Program] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    running: int = 0
    ran: float = float("inf")  # since when all ranks run
    struck: bool = False
    early: bool = False  # the fault was before all ranks ran

    def __post_init__(self) -> None:
        self._changed, self._met = Condition(), 0

    def strike(self) -> None:
        self.struck, self.early = True, self.running < len(self.programs)

    def meet(self, turn: int, ranks: int) -> None:
        """Wait for all ranks."""
        with self._changed:
            self._met += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._met >= turn * ranks)


@dataclass
class Launch:
    """A run and its launchers."""

    world: World
    logs: Path
    by_mpi: bool
    ranks: tuple[int, ...]
    restarts: int
    system: System = field(init=False)
    starts: list[Start] = field(default_factory=list)
    launchers: int = 0
    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    interrupts: int = 0
    interrupted: float = float("inf")
    killed: dict[int, float] = field(default_factory=dict)  # launchers, and when
    is_calm: bool = False

    # The processes

    def launcher(self, program: Program) -> int:
        """Run the launcher as the command does."""
        program.handlers[signal.SIGINT] = _interrupt
        arguments = Namespace(
            worker_num=len(self.ranks) * (1 if self.by_mpi else 2),
            restarts=self.restarts,
            join="True",
            log_dir=self.logs,
            timeout=_TIMEOUT,
            grace=_GRACE,
            master_addr="127.0.0.1",
            master_port=8118,
            node_rank=0 if self.by_mpi else 1,
            script=Path("train.py"),
            arguments=[],
        )
        boards = self.logs / ".ranks"
        supervisor = supervision.Supervisor(boards, self.ranks, _TIMEOUT)
        environment = launch._environment(len(self.ranks), boards)
        return launch._with_restarts(arguments, supervisor, environment)

    def started(self, command: list[str], env: Mapping[str, str], log: Any) -> tuple[str, Work]:
        """Return what the launcher starts: MPI's own, or a rank."""
        restart = int(env[RESTART_VARIABLE])
        last = self.starts[-1] if self.starts else None
        if last is None or (last.launcher, last.restart) != (self.launchers, restart):
            self._begin(restart)
        start, boards = self.starts[-1], Path(env[BOARD_VARIABLE])
        if command[0] == "mpiexec":
            return "mpiexec", partial(self.mpi, start, boards, log)
        rank = int(env["MS_NODE_ID"])
        return f"parent of {rank}", partial(self.parent, start, rank, boards)

    def _begin(self, restart: int) -> None:
        draw, world = self.world.draw, self.world
        fault = WELL if self.is_calm else draw.choice((*_BAD, SLOW, WELL))
        of = (self.launchers, restart, fault, draw.choice(self.ranks), draw.uniform(0, 3))
        start = Start(*of, signal=draw.choice(_SIGNALS))
        self.starts.append(start)
        world.note(f"start {restart}: rank {start.rank} {fault or 'is well'}")
        if fault in (DIES, HALTS):
            world.process("fate", partial(self._strike, start))

    def _strike(self, start: Start) -> None:
        self.world.sleep(start.at)
        program = start.programs.get(start.rank)
        if program is None or not program.is_alive:
            return
        start.strike()
        self.system.send(program, start.signal if start.fault == DIES else signal.SIGSTOP)
        draw = self.world.draw
        if start.fault == DIES and draw.random() < 0.5:  # another one misses it, and gives up
            self.world.sleep(draw.uniform(0.05, 0.3))
            for other in start.programs.values():
                if other.is_alive:
                    self.system.send(other, signal.SIGABRT)
                    break

    def mpi(self, start: Start, boards: Path, log: Any, program: Program) -> int:
        """Start the parents of ranks, and end all when one has ended badly; as MPICH does."""
        world, system = self.world, self.system
        works = {rank: partial(self.parent, start, rank, boards) for rank in self.ranks}
        proxy = system.start("proxy", partial(self._proxy, program), program)
        children = [system.start(f"parent of {r}", works[r], proxy) for r in self.ranks]
        while True:
            codes = [child.returncode for child in children]
            bad = [child for child in children if child.returncode]
            if bad or None not in codes:
                break
            world.sleep(0.05)
        if not bad:
            return 0
        code = abs(bad[0].returncode or 0)
        told = world.draw.choice(bad)
        log.write(f"=   PID {told.pid} RUNNING AT host\n=   EXIT CODE: {code}\n")
        log.flush()
        world.sleep(world.draw.uniform(0, 1))
        for child in children:
            system.send(child, signal.SIGKILL)
        return code

    def _proxy(self, owner: Program, program: Program) -> int:
        """End what MPI's launcher has started here, when that one is gone."""
        while owner.is_alive:
            self.world.sleep(0.3)
        for child in list(self.system.programs.values()):
            if child.parent is program:
                self.system.send(child, signal.SIGKILL)
        return 0

    def parent(self, start: Start, rank: int, boards: Path, program: Program) -> int:
        """Be the parent of a rank, as `run_under_parent` is."""
        board, work = board_path(boards, rank), partial(self.rank, start, rank, boards)
        child = self.system.start(f"rank {rank}", work, program, leads=True, owned=True)
        start.programs[rank] = child
        self._check_alone(start)
        watcher._wait(child.pid, board)

    def _check_alone(self, start: Start) -> None:
        for other in self.starts:
            if other is not start and other.launcher == start.launcher:
                left = [rank for rank, program in other.programs.items() if program.is_alive]
                if left:
                    self.wrong.append(f"ranks {left} of an earlier start are alive at the next one")

    def rank(self, start: Start, rank: int, boards: Path, program: Program) -> int:
        """Meet the others and train, as the process of a rank does."""
        world, draw = self.world, self.world.draw

        def ask(number: int, frame: object) -> None:
            start.asked.add(rank)

        world.sleep(draw.uniform(0, 0.5))
        standing = Standing()
        standing._board = Board(board_path(boards, rank), writes=True)
        standing._board.beat()
        with standing.waiting("init"):
            self._turn(start, 1)
            if self.by_mpi:
                self.system.map(program, f"mpich_shm_{len(self.starts)}")
            self._turn(start, 2)
        program.handlers[signal.SIGTERM] = ask
        start.running += 1
        start.ran = world.now if start.running == len(self.ranks) else start.ran
        standing.set_phase(Phase.RUNNING)
        for step in range(_STEPS):
            self._check_asked(start, rank)
            with standing.step():
                world.sleep(draw.uniform(0, 0.5))
                if rank == start.rank and step == int(start.at):
                    self._suffer(start, standing)
                with standing.waiting("all_reduce"):
                    self._turn(start, 3 + step)
            if start.asked:
                world.sleep(0.5)
                standing.note_checkpoint(Path("step-1"))
                break
        if self.by_mpi:
            with suppress(OSError):
                (self.system.memory / f"mpich_shm_{len(self.starts)}").unlink()
        standing.set_phase(Phase.ENDED)
        return 0

    def _turn(self, start: Start, turn: int) -> None:
        start.meet(turn, len(self.ranks))

    def _suffer(self, start: Start, standing: Standing) -> None:
        if start.fault == FAILS:
            start.strike()
            standing.fail("ValueError: no")
            raise SystemExit(1)
        if start.fault == STANDS:
            start.strike()
            self.world.sleep(1000.0)
        if start.fault == SLOW:
            self.world.sleep(_TIMEOUT * self.world.draw.uniform(0.3, 0.8))

    # What must hold

    def supervise(self) -> None:
        """Run a launcher, which something may happen to, and another one after it."""
        draw = self.world.draw
        for is_last in (False, True):
            self.is_calm = is_last
            self.said.clear()
            self.interrupted = float("inf")
            self.interrupts, first, self.launchers = 0, len(self.starts), self.launchers + 1
            program = self.system.start("launcher", self.launcher, None, leads=True)
            kind = "" if is_last else draw.choice(("", "", "interrupt", "interrupt", "kill"))
            if kind:
                self.world.process("user", partial(self._disturb, program, kind))
            while program.is_alive:
                self.world.sleep(0.5)
                if self.world.now > 300:
                    self.wrong.append("the launcher does not end")
                    return
            self.world.sleep(_LIMIT)
            self._check(program, self.starts[first:])

    def _is_known(self, name: str) -> bool:
        """Return whether the launcher had the time to see that ranks have mapped a segment."""
        begin, end = self.system.mapped[name]
        launcher = self.starts[int(name.rpartition("_")[2]) - 1].launcher
        return min(end, self.killed.get(launcher, end)) - begin > _LOOKS

    def _disturb(self, program: Program, kind: str) -> None:
        draw, world = self.world.draw, self.world
        world.sleep(draw.uniform(0, 8))
        if kind == "kill":
            self.killed[self.launchers] = world.now
            self.system.send(program, signal.SIGKILL)
            return
        self.interrupted = world.now
        for number in draw.choice(([signal.SIGINT], [signal.SIGTERM], [signal.SIGINT] * 2)):
            if program.is_alive:
                self.interrupts += 1
                self.system.send(program, number)
            world.sleep(draw.uniform(0.5, 1))

    def _check(self, program: Program, starts: list[Start]) -> None:
        """Check what a launcher has done, some time after its end."""
        alive = [p.name for p in self.system.programs.values() if p.is_alive]
        if alive:
            self.wrong.append(f"alive {_LIMIT:.0f} s after the launcher: {sorted(alive)}")
        code = program.returncode
        if code == -signal.SIGKILL:
            return  # the next one removes what is left
        left = [name for name in self.system.memory_left() if self._is_known(name)]
        if left:
            self.wrong.append(f"shared memory is left: {left}")
        if not starts:
            return
        struck = sum(start.struck for start in starts)
        if self.interrupts and code == ExitCode.INTERRUPTED:
            self._check_interrupted(starts[-1])
            starts = starts[:-1]
        elif self.interrupts and code not in (0, 1):
            if code not in (-signal.SIGTERM, -signal.SIGINT):
                self.wrong.append(f"an interrupted launcher ends with {code}")
        else:
            expected = self.restarts + 1 if starts[-1].struck else len(starts)
            if (code == 0) == starts[-1].struck or len(starts) != expected:
                self.wrong.append(f"{len(starts)} starts, {struck} of them bad, end with {code}")
        for start, text in zip(
            starts, (t for t in self.said if "; the logs are" in t), strict=False
        ):
            self._check_sentence(start, text)

    def _check_asked(self, start: Start, rank: int) -> None:
        """Check that a rank which goes on after the launcher was interrupted was asked to end."""
        since = self.world.now - self.interrupted
        if start.ran < self.interrupted and since > _LOOKS and rank not in start.asked:
            self.wrong.append(f"rank {rank} was not asked to end")

    def _check_interrupted(self, start: Start) -> None:
        ended = {rank: program.returncode for rank, program in start.programs.items()}
        well = start.fault == WELL and start.running == len(self.ranks)
        if self.interrupts == 1 and well and any(ended.values()) and start.asked:
            self.wrong.append(f"ranks that were saving were ended: {ended}")

    def _check_sentence(self, start: Start, text: str) -> None:
        """Check that what is said of a start is what has happened."""
        rank = start.rank
        right = {
            DIES: f"rank {rank} died by signal {start.signal} ",
            FAILS: f"rank {rank} failed in step {int(start.at) + 1}: ValueError: no",
            HALTS: f"rank {rank} did not answer",
            STANDS: "no rank went on",
        }
        early = ("a process died before it told its rank", "one of the ranks")
        stopped = start.fault == HALTS and "(its process is stopped)" in text
        ok = start.struck and (
            text.startswith(right[start.fault])
            or stopped
            or (start.early and text.startswith((*early, f"rank {rank} ", "no rank went on")))
        )
        if not ok:
            self.wrong.append(f"rank {rank} {start.fault or 'is well'}, and it is said: {text}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _watched(run: Launch) -> Iterator[None]:
    """Let the product use the system of a run."""
    own: dict[tuple[Any, str], Any] = {
        (launch, "say"): run.said.append,
        (launch, "mpiexec"): lambda: "mpiexec",
        (launch, "_print_from"): lambda path, begin: begin,
        (segments, "_MEMORY"): run.system.memory,
        (segments, "_PROCESSES"): run.system.told,
        (supervision, "_PROCESSES"): run.system.told,
    }
    with replaced(own), run.system.entered():
        yield


def launching(seed: int) -> Outcome:
    """Run a seed."""
    with folder_in_memory() as folder, entered(seed) as world:
        draw = world.draw
        logs = folder / "logs"
        logs.mkdir()
        by_mpi, count = draw.random() < 0.6, draw.choice((2, 2, 3))
        ranks = tuple(range(count)) if by_mpi else tuple(range(count, 2 * count))
        run = Launch(world, logs, by_mpi, ranks, draw.randrange(3))
        run.system = System(world, folder.parent, run.started)
        files = Files(world, folder)
        with _watched(run), intercepted(files), world.to_its_end(run.wrong):
            world.process("supervisor", run.supervise)
            world.run()
        run.wrong += world.errors
        kind = "by MPI" if by_mpi else "on one of two hosts"
        return Outcome(kind, tuple(run.wrong), world.digest, ())
