"""Workers with parameter servers and a scheduler: processes that are told apart by ``MS_ROLE``."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.ir.files.waiting import END, LOOK, SAVING
from shardwright.server.context import SCHEDULER
from shardwright.server.deaths import DEATHS_VARIABLE, death
from shardwright.server.scheduler import SERVER, WORKER
from shardwright.tools.launch.owned import owned
from shardwright.tools.launch.supervision import signal_name

_PROCESS = "shardwright.tools.launch.role"
_NAMES = {SCHEDULER: "scheduler", SERVER: "server", WORKER: "worker"}
# Seconds for the servers to end after the workers, and for the scheduler, which waits for them.
_END = 2 * SAVING


@dataclass
class Run:
    """The processes of a run with parameter servers, on one host.

    Parameters
    ----------
    script : sequence of str
        The script and its arguments.
    logs : Path
        Folder of the logs.
    environment : mapping of str to str
        The environment of all.
    servers, workers : int
        How many there are.
    restarts : int
        How often a server that fails is started again.
    processes : dict
        The processes that were started, by role and number.
    """

    script: Sequence[str]
    logs: Path
    environment: Mapping[str, str]
    servers: int
    workers: int
    restarts: int = 0
    processes: dict[tuple[str, int], "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._hears, self._deaths = os.pipe()
        self._told: dict[int, str] = {}  # how processes died of which the scheduler was told

    def start(self) -> None:
        """Start the scheduler, the servers and the workers."""
        for role, count in ((SCHEDULER, 1), (SERVER, self.servers), (WORKER, self.workers)):
            for number in range(count):
                self.log(role, number).unlink(missing_ok=True)
                self._start(role, number)

    def log(self, role: str, number: int) -> Path:
        """Return the log of a process."""
        name = _NAMES[role]
        return self.logs / (f"{name}.log" if role == SCHEDULER else f"{name}_{number}.log")

    def _start(self, role: str, number: int) -> None:
        log = str(self.log(role, number).resolve())
        variables = {
            "MS_ROLE": role,
            "MS_NODE_ID": str(number),
            "MS_SERVER_NUM": str(self.servers),
            "MS_WORKER_NUM": str(self.workers),
        }
        command = [sys.executable, "-m", _PROCESS, log, *self.script]
        hears = (self._hears,) if role == SCHEDULER else ()
        if hears:
            variables[DEATHS_VARIABLE] = str(self._hears)
        self.processes[role, number] = subprocess.Popen(
            owned(command),
            env={**self.environment, **variables},
            start_new_session=True,
            pass_fds=hears,
        )

    def goes_on(self) -> bool:
        """Return whether a worker runs, and the scheduler; start servers again that have failed.

        The scheduler is told at once who has died: it would miss them only after some time.
        """
        for (role, number), process in tuple(self.processes.items()):
            code = process.poll()
            if code and role != SCHEDULER and process.pid not in self._told:
                self._told[process.pid] = f"the {_NAMES[role]} {number}: {_end_by(code)}"
                os.write(self._deaths, death(role, number, _end_by(code)))
            if code and role == SERVER and self.restarts:
                self.restarts -= 1
                self._start(role, number)
        workers = [p for (role, _), p in self.processes.items() if role == WORKER]
        return not self.fault and any(process.poll() is None for process in workers)

    @property
    def fault(self) -> str:
        """How the scheduler has died, without which the others wait; empty if it has not."""
        code = self.processes[SCHEDULER, 0].poll()
        return f"the scheduler: {_end_by(code)}" if code and code < 0 else ""

    @property
    def first_death(self) -> str:
        """Which process has died first, and how; empty if none has.

        The scheduler has seen it: what joined after a death was refused, and may be gone before.
        """
        log = self.log(SCHEDULER, 0)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        early = (line.partition(" has ended early")[0] for line in lines if " ended early" in line)
        first = f"{next(early, '').removeprefix('scheduler: ')}: "
        told = sorted(self._told.values(), key=lambda death: not death.startswith(first))
        return self.fault or next(iter(told), "")

    def end(self) -> int:
        """Wait for the scheduler and the servers; return the exit code of the first that failed.

        A server that was started again counts by its last end.
        """
        for pipe in (self._hears, self._deaths):
            os.close(pipe)
        for process in self.processes.values():
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return next((p.returncode for p in self.processes.values() if p.returncode), 0)

    def stop(self, grace: float) -> None:
        """Let the workers end their step and save, then the others; kill what is left.

        Parameters
        ----------
        grace : float
            Seconds for the workers.
        """
        workers = [p for (role, _), p in self.processes.items() if role == WORKER]
        others = [p for (role, _), p in self.processes.items() if role != WORKER]
        try:
            _end(workers, grace)
            _end(others, END)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


def _end_by(code: int) -> str:
    """Return how a process ended that failed."""
    return f"it died by {signal_name(code)}" if code < 0 else f"it ended with the code {code}"


def _end(processes: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Ask processes to end, and wait so long for it."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(LOOK)
