"""Workers with parameter servers and a scheduler: processes that are told apart by ``MS_ROLE``."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.tools.launch.owned import owned

_PROCESS = "shardwright.tools.launch.role"
SCHEDULER, SERVER, WORKER = "scheduler", "server", "worker"
_ROLES = {SCHEDULER: "MS_SCHED", SERVER: "MS_PSERVER", WORKER: "MS_WORKER"}
_END = 60.0  # seconds for the scheduler and the servers to end after the workers
_STOP = 5.0  # seconds for them where the run is stopped, and there is nothing to wait for
_PAUSE = 0.05  # seconds between two looks at processes that are to end


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
    """

    script: Sequence[str]
    logs: Path
    environment: Mapping[str, str]
    servers: int
    workers: int
    restarts: int = 0
    processes: dict[tuple[str, int], "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self) -> None:
        """Start the scheduler, the servers and the workers."""
        for role, count in ((SCHEDULER, 1), (SERVER, self.servers), (WORKER, self.workers)):
            for number in range(count):
                self.log(role, number).unlink(missing_ok=True)
                self._start(role, number)

    def log(self, role: str, number: int) -> Path:
        """Return the log of a process."""
        return self.logs / ("scheduler.log" if role == SCHEDULER else f"{role}_{number}.log")

    def _start(self, role: str, number: int) -> None:
        log = str(self.log(role, number).resolve())
        variables = {
            "MS_ROLE": _ROLES[role],
            "MS_NODE_ID": str(number),
            "MS_SERVER_NUM": str(self.servers),
            "MS_WORKER_NUM": str(self.workers),
        }
        command = [sys.executable, "-m", _PROCESS, log, *self.script]
        environment = {**self.environment, **variables}
        self.processes[role, number] = subprocess.Popen(
            owned(command), env=environment, start_new_session=True
        )

    def goes_on(self) -> bool:
        """Return whether a worker runs; start servers again that have failed, if there are any."""
        for (role, number), process in tuple(self.processes.items()):
            if role == SERVER and process.poll() and self.restarts:
                self.restarts -= 1
                self._start(role, number)
        return any(p.poll() is None for (role, _), p in self.processes.items() if role == WORKER)

    def end(self) -> int:
        """Wait for the scheduler and the servers; return the exit code of the first that failed.

        A server that was started again counts by its last end.
        """
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
            _end(others, _STOP)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


def _end(processes: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Ask processes to end, and wait so long for it."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
