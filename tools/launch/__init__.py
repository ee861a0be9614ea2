"""``shardwright launch``: run a script as several processes, one for each rank.

On one host MPI's own launcher starts them. On several, the command runs on each host, and the
workers meet at a scheduler on the first, as MindSpore's ``msrun`` has it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shardwright.communication.rendezvous import Meeting, Scheduler
from shardwright.ir.errors import ModelError, PackageError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER
from shardwright.tools.launch.servers import WORKER, Run
from shardwright.tools.main import UsageError, say
from shardwright.tools.options import add_number

_WORKER = "shardwright.tools.launch.worker"
_PAUSE = 0.1  # seconds between two looks at a log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, under the names that ``msrun`` has."""
    text = "processes on all hosts (default 8)"
    parser.add_argument("-n", "--worker_num", type=int, default=8, metavar="N", help=text)
    text = "processes on this host (default all)"
    add_number(parser, "--local_worker_num", POSITIVE_INTEGER, text, "N")
    parser.add_argument(
        "--master_addr",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of the first host (default 127.0.0.1)",
    )
    text = "port of the scheduler there (default 8118)"
    add_number(parser, "--master_port", POSITIVE_INTEGER, text, "PORT", 8118)
    text = "number of this host, from 0 (default 0)"
    add_number(parser, "--node_rank", NOT_NEGATIVE_INTEGER, text, "N", 0)
    text = "parameter servers, on the one host of all processes (default none)"
    add_number(parser, "--server_num", NOT_NEGATIVE_INTEGER, text, "N", 0)
    text = "how often a parameter server that fails is started again (default 0)"
    add_number(parser, "--server_restarts", NOT_NEGATIVE_INTEGER, text, "N", 0)
    parser.add_argument(
        "--log_dir",
        type=Path,
        default=Path("log_output"),
        metavar="DIR",
        help="folder of the logs `worker_N.log`, `scheduler.log` and `1/rank.N/stdout` "
        "(default log_output)",
    )
    parser.add_argument(
        "--join",
        choices=("True", "False"),
        default="True",
        help="wait for the end of the processes, and print what the first one prints (default)",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")


def run(arguments: argparse.Namespace) -> int:
    """Start the processes, and wait for their end if asked to."""
    POSITIVE_INTEGER.check("worker_num", arguments.worker_num)
    local = arguments.local_worker_num or arguments.worker_num
    hosts, rest = divmod(arguments.worker_num, local)
    if rest or arguments.node_rank >= hosts:
        raise UsageError(
            f"{arguments.worker_num} processes of which {local} are on each host, and this is the "
            f"host {arguments.node_rank}: the numbers do not fit",
            hint="--local_worker_num divides --worker_num, and --node_rank counts from 0",
        )
    if not arguments.script.is_file():
        raise UsageError(f"there is no script `{arguments.script}`")
    arguments.log_dir.mkdir(parents=True, exist_ok=True)
    for i in range(arguments.node_rank * local, (arguments.node_rank + 1) * local):
        (arguments.log_dir / f"worker_{i}.log").unlink(missing_ok=True)
    environment = _environment(local)
    if arguments.server_num:
        return _with_servers(arguments, hosts, environment)
    if arguments.server_restarts:
        raise UsageError(
            "`--server_restarts` is given, and there are no parameter servers",
            hint="add `--server_num N`",
        )
    if hosts == 1:
        return _by_mpi(arguments, environment)
    return _by_scheduler(arguments, local, environment)


def _environment(local: int) -> dict[str, str]:
    """Return the environment of the processes, which share the processors of this host."""
    threads = str(max(1, (os.cpu_count() or 1) // local))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(names, threads), **os.environ}


def _worker(arguments: argparse.Namespace) -> list[str]:
    """Return the command that one process runs."""
    script = [str(arguments.script), *arguments.arguments]
    return [sys.executable, "-m", _WORKER, str(arguments.log_dir.resolve()), *script]


def mpiexec() -> str:
    """Return MPI's launcher: that of this Python's environment, or on the path.

    Raises
    ------
    PackageError
        If there is none.
    """
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("mpiexec", path=places)
    if found is None:
        raise PackageError(
            "`launch` needs the launcher of MPI, which is not installed",
            hint="run `pip install 'shardwright[mpi]'`",
        )
    return found


def _by_mpi(arguments: argparse.Namespace, environment: dict[str, str]) -> int:
    command = [mpiexec(), "-n", str(arguments.worker_num), *_worker(arguments)]
    with (arguments.log_dir / "scheduler.log").open("w") as log:
        log.write(f"scheduler: {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return _ended(arguments, [process], 0, log.fileno())


def _with_servers(arguments: argparse.Namespace, hosts: int, environment: dict[str, str]) -> int:
    """Start a scheduler, parameter servers and workers, which meet as the script says."""
    if hosts > 1 or arguments.join == "False":
        raise UsageError(
            "parameter servers are started on one host, and their launcher waits for them",
            hint="on several hosts start the script once for each role, by `MS_ROLE`",
        )
    environment |= {
        "MS_SCHED_HOST": arguments.master_addr,
        "MS_SCHED_PORT": str(arguments.master_port),
    }
    script = [str(arguments.script), *arguments.arguments]
    run = Run(
        script,
        arguments.log_dir,
        environment,
        arguments.server_num,
        arguments.worker_num,
        arguments.server_restarts,
    )
    run.start()
    printed, path = 0, run.log(WORKER, 0)
    try:
        while run.goes_on():
            printed = _print_from(path, printed)
            time.sleep(_PAUSE)
        _print_from(path, printed)
        code = run.end()
    except KeyboardInterrupt:
        run.stop()
        raise
    return _exit_code(code, arguments.log_dir)


def _by_scheduler(arguments: argparse.Namespace, local: int, environment: dict[str, str]) -> int:
    """Start this host's workers, and on the first host the scheduler at which all meet."""
    meeting = Meeting(arguments.master_addr, arguments.master_port, arguments.worker_num)
    first = arguments.node_rank * local
    environment |= {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": str(meeting.size),
        "MS_SCHED_HOST": meeting.host,
        "MS_SCHED_PORT": str(meeting.port),
    }
    if arguments.node_rank == 0:
        _serve(meeting, arguments.log_dir / "scheduler.log", arguments.join == "True")
    processes = [
        subprocess.Popen(_worker(arguments), env={**environment, "MS_NODE_ID": str(first + i)})
        for i in range(local)
    ]
    return _ended(arguments, processes, first, None)


def _serve(meeting: Meeting, path: Path, joins: bool) -> None:
    """Serve the workers, from a thread of this process.

    Raises
    ------
    UsageError
        If this process is not to wait for them.
    """
    if not joins:
        raise UsageError(
            "`--join False` on the host of the scheduler, which ends with this process",
            hint="run the command in the background instead",
        )
    path.write_text("")

    def log(line: str) -> None:
        with path.open("a") as file:
            file.write(f"{line}\n")

    def serve() -> None:
        try:
            Scheduler(meeting, log).serve()
        except ModelError as error:
            log(str(error))
            say(str(error))

    threading.Thread(target=serve, daemon=True).start()


def _ended(
    arguments: argparse.Namespace,
    processes: Sequence["subprocess.Popen[bytes]"],
    first: int,
    log: int | None,
) -> int:
    """Print what the first worker of this host prints until all have ended.

    Returns the exit code of the first process that failed, or 0.
    """
    if arguments.join == "False":
        say(f"started {arguments.worker_num} processes, their logs are in {arguments.log_dir}")
        return 0
    path, printed = arguments.log_dir / f"worker_{first}.log", 0
    try:
        while any(process.poll() is None for process in processes):
            printed = _print_from(path, printed)
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise
    _print_from(path, printed)
    code = next((process.returncode for process in processes if process.returncode), 0)
    return _exit_code(code, arguments.log_dir)


def _exit_code(code: int, logs: Path) -> int:
    """Say that a process failed, if one did, and return the exit code of the command."""
    if code:
        say(f"a process ended with the code {code}; its log is in {logs}")
    return code if 0 <= code < 128 else 1


def _print_from(path: Path, begin: int) -> int:
    """Print a log from a position on, and return the position of its end."""
    if not path.exists():
        return begin
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read()
    sys.stdout.write(text.decode(errors="replace"))
    sys.stdout.flush()
    return begin + len(text)
