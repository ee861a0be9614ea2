"""Processes of an operating system in a world: parents, groups, signals, exit codes, shared memory.

What the product asks of the system for them goes here while a system is entered: functions of `os`,
`signal` and `subprocess`, and the folders in which Linux tells of processes and of their memory.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.simulator.replacing import replaced
from tests.simulator.world import Died, Process, World

Work = Callable[["Program"], int]
# What the system itself does to its files, without a step at which another process may go on.
_mkdir, _rmdir, _unlink = os.mkdir, os.rmdir, os.unlink
_INIT = 1  # the parent of processes whose own one has ended


class _Exit(BaseException):
    """The process ends with a code, at once."""


class Program:
    """A process of the system, as its parent has it: what `subprocess.Popen` returns.

    Parameters
    ----------
    system : System
        The system.
    name : str
        What it is.
    parent : Program, optional
        Who started it.
    leads : bool
        Whether it leads a group of its own; else it is in that of its parent.
    owned : bool
        Whether it is killed when its parent ends.
    """

    def __init__(
        self, system: "System", name: str, parent: "Program | None", *, leads: bool, owned: bool
    ) -> None:
        self.system, self.name, self.parent, self.owned = system, name, parent, owned
        self.pid = next(system.numbers)
        self.group = self.pid if leads or parent is None else parent.group
        self.handlers: dict[int, Any] = {}
        self.returncode: int | None = None
        self.mapped: set[str] = set()
        self.process: Process

    @property
    def is_alive(self) -> bool:
        return self.returncode is None

    def poll(self) -> int | None:
        self.system.world.step()
        if not self.is_alive:
            self.system.forget(self)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        world = self.system.world
        end = None if timeout is None else world.now + timeout
        while self.poll() is None:
            if end is not None and world.now >= end:
                raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
            world.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            self.system.send(self, number)


class System:
    """The processes in a world.

    Parameters
    ----------
    world : World
        The world.
    folder : Path
        Where the system's own folders are made.
    started : callable
        Returns what a process does that the product starts, by its command and environment.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        started: Callable[[list[str], Mapping[str, str], Any], tuple[str, Work]],
    ) -> None:
        self.world, self._started = world, started
        self.numbers = count(1000)
        self.told, self.memory = folder / "proc", folder / "shm"
        self.told.mkdir()
        self.memory.mkdir()
        self.programs: dict[int, Program] = {}
        self.mapped: dict[str, tuple[float, float]] = {}  # from when, and until when

    # Processes

    def start(
        self,
        name: str,
        work: Work,
        parent: Program | None,
        *,
        leads: bool = False,
        owned: bool = False,
    ) -> Program:
        """Start a process."""
        made = Program(self, name, parent, leads=leads, owned=owned)
        self.programs[made.pid] = made
        made.process = self.world.process(name, partial(self._run, made, work))
        _mkdir(self.told / str(made.pid))
        self._tell(made)
        return made

    def _run(self, program: Program, work: Work) -> None:
        try:
            code = work(program)
        except _Exit as error:
            code = error.args[0]
        except KeyboardInterrupt:
            code = 130
        self._end(program, code)

    def _end(self, program: Program, code: int) -> None:
        """End a process, which stays known until its parent has asked for its code."""
        if not program.is_alive:
            return
        program.returncode = code
        self.world.note(f"{program.name} ends with {code}")
        self.world.kill(program.process)
        self._unmap(program)
        for child in list(self.programs.values()):
            if child.parent is program:
                child.parent = None
                if child.owned and child.is_alive:
                    self._end(child, -signal.SIGKILL)
                elif not child.is_alive:
                    self.forget(child)
        if program.parent is None:
            self.forget(program)
        else:
            self._tell(program)

    def forget(self, program: Program) -> None:
        """Forget a process that has ended, once nobody will ask for it any more."""
        if self.programs.pop(program.pid, None) is not None:
            folder = self.told / str(program.pid)
            for name in ("stat", "maps"):
                _unlink(folder / name)
            _rmdir(folder)

    def _tell(self, program: Program) -> None:
        halted, alive = program.process.is_halted, program.is_alive
        state = "Z" if not alive else "T" if halted else "S"
        parent = _INIT if program.parent is None else program.parent.pid
        folder = self.told / str(program.pid)
        (folder / "stat").write_text(f"{program.pid} ({program.name}) {state} {parent} 0")
        lines = [f"7f00-7f01 rw-s 0 {self.memory}/{name}" for name in sorted(program.mapped)]
        (folder / "maps").write_text("\n".join(lines if alive else []))

    def current(self) -> Program | None:
        """Return the process that runs."""
        task = self.world.current
        found = (p for p in self.programs.values() if task and p.process is task.process)
        return next(found, None)

    def map(self, program: Program, name: str) -> None:
        """Let a process map a segment of shared memory, which is made if it is not there."""
        (self.memory / name).touch()
        program.mapped.add(name)
        self.mapped[name] = self.mapped.get(name, (self.world.now, float("inf")))
        self._tell(program)

    def _unmap(self, program: Program) -> None:
        for name in program.mapped:
            if not any(name in p.mapped for p in self.programs.values() if p.is_alive):
                self.mapped[name] = (self.mapped[name][0], self.world.now)

    def memory_left(self) -> list[str]:
        """Return the segments that nobody has removed."""
        return sorted(path.name for path in self.memory.iterdir())

    # Signals

    def send(self, program: Program, number: int) -> None:
        """Send a signal to a process."""
        world = self.world
        world.note(f"signal {number} for {program.name}")
        if not program.is_alive:
            return
        if number == signal.SIGSTOP:
            world.halt(program.process)
            self._tell(program)
            return
        handler = program.handlers.get(number, signal.SIG_DFL)
        if handler == signal.SIG_DFL and (
            number == signal.SIGKILL or not program.process.is_halted
        ):
            self._end(program, -number)
            world.check()
        elif callable(handler):
            world.interrupt(program.process, partial(handler, number, None))

    def _kill(self, pid: int, number: int) -> None:
        self.world.step()
        if pid not in self.programs:
            raise ProcessLookupError
        if number:
            self.send(self.programs[pid], number)

    def _kill_group(self, group: int, number: int) -> None:
        self.world.step()
        members = [p for p in self.programs.values() if p.group == group]
        if not members:
            raise ProcessLookupError
        for program in members:
            self.send(program, number)

    def _group(self, pid: int) -> int:
        if pid not in self.programs:
            raise ProcessLookupError
        return self.programs[pid].group

    def _handle(self, number: int, handler: Any) -> Any:
        program = self.current()
        before = signal.SIG_DFL if program is None else self._handler(number)
        if program is not None:
            program.handlers[number] = handler
        return before

    def _handler(self, number: int) -> Any:
        program = self.current()
        return signal.SIG_DFL if program is None else program.handlers.get(number, signal.SIG_DFL)

    # What the product calls

    def _popen(self, command: list[str], **how: Any) -> Program:
        self.world.step()
        owner = self.current()
        owned = Path(command[3]).name == "owned.py"
        name, work = self._started(command[5 if owned else 0 :], how["env"], how.get("stdout"))
        return self.start(name, work, owner, leads=bool(how["start_new_session"]), owned=owned)

    def _wait(self, pid: int, options: int) -> tuple[int, int]:
        code = self.programs[pid].wait()
        return pid, -code if code < 0 else code << 8

    def _pid(self) -> int:
        program = self.current()
        return _INIT if program is None else program.pid

    def _exit(self, code: int) -> None:
        if self.world.current is None or not self.world.current.process.is_alive:
            raise Died
        raise _Exit(code)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the calls of the block go to this system."""
        own: dict[tuple[Any, str], Any] = {
            (os, "kill"): self._kill,
            (os, "killpg"): self._kill_group,
            (os, "getpgid"): self._group,
            (os, "getpid"): self._pid,
            (os, "waitpid"): self._wait,
            (os, "_exit"): self._exit,
            (signal, "signal"): self._handle,
            (signal, "getsignal"): self._handler,
            (subprocess, "Popen"): self._popen,
        }
        with replaced(own):
            yield
