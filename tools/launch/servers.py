"""Workers with parameter servers and a scheduler: processes that are told apart by ``MS_ROLE``."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PROCESS = "shardwright.tools.launch.role"
SCHEDULER, SERVER, WORKER = "scheduler", "server", "worker"
_ROLES = {SCHEDULER: "MS_SCHED", SERVER: "MS_PSERVER", WORKER: "MS_WORKER"}
_END = 60.0  # seconds for the scheduler and the servers to end after the workers


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
        self.processes[role, number] = subprocess.Popen(command, env=environment)

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

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.terminate()
