"""``shardwright launch``: run a script as several processes, one for each rank.

On one host MPI's own launcher starts them. On several, the command runs on each host, and the
workers meet at a scheduler on the first, as MindSpore's ``msrun`` has it.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardwright.communication.processes import FAST_VARIABLE
from shardwright.communication.rendezvous import Meeting, Scheduler
from shardwright.communication.secret import SECRET_VARIABLE
from shardwright.ir.errors import ModelError, PackageError
from shardwright.ir.files.waiting import ARRIVAL, END, LOOK, SAVING
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE, POSITIVE_INTEGER, Range
from shardwright.runtime.faults import BOARD_VARIABLE, RESTART_VARIABLE, RUN_VARIABLE, new_run
from shardwright.server.scheduler import WORKER
from shardwright.tools.console.arguments import UsageError, add_number
from shardwright.tools.console.endings import ExitCode, say, terminated_as_interrupted
from shardwright.tools.launch.owned import owned
from shardwright.tools.launch.servers import Run
from shardwright.tools.launch.supervision import MPI_LAUNCHER, Supervisor

_WORKER = "shardwright.tools.launch.worker"
_PORTS = Range(whole=True, least=1, below=2**16)


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
    add_number(parser, "--master_port", _PORTS, text, "PORT", 8118)
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
    parser.add_argument(
        "--fast",
        action="store_true",
        help="let reductions add in MPI's own order, where the script does not say it: faster, and "
        "the last digits depend on the number of processes",
    )
    text = "times to start again after a rank has died, failed or stood still (default 0)"
    add_number(parser, "--restarts", NOT_NEGATIVE_INTEGER, text, "N", 0)
    text = f"seconds that a rank may stand still while others wait (default {ARRIVAL:g})"
    add_number(parser, "--timeout", POSITIVE, text, "SECONDS", ARRIVAL)
    text = f"seconds in which ranks that are asked to end may save (default {SAVING:g})"
    add_number(parser, "--grace", POSITIVE, text, "SECONDS", SAVING)
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
    if arguments.restarts and arguments.join == "False":
        raise UsageError(
            "`--restarts` has no effect with `--join False`", hint="leave one of them out"
        )
    arguments.log_dir.mkdir(parents=True, exist_ok=True)
    first = arguments.node_rank * local
    for i in range(first, first + local):
        (arguments.log_dir / f"worker_{i}.log").unlink(missing_ok=True)
    boards = (arguments.log_dir / ".ranks").resolve()
    environment = _environment(local, boards)
    if arguments.fast:
        environment[FAST_VARIABLE] = "1"
    if arguments.server_num:
        return _with_servers(arguments, hosts, environment)
    if arguments.server_restarts:
        raise UsageError(
            "`--server_restarts` is given, and there are no parameter servers",
            hint="add `--server_num N`",
        )
    supervisor = Supervisor(boards, range(first, first + local), arguments.timeout)
    return _with_restarts(arguments, supervisor, environment)


def _with_restarts(
    arguments: argparse.Namespace, supervisor: Supervisor, environment: dict[str, str]
) -> int:
    """Run the processes, again where they fail; return the exit code of the last start."""
    several = len(supervisor.ranks) < arguments.worker_num
    for restart in range(arguments.restarts + 1):
        supervisor.begin()
        own = {**environment, RESTART_VARIABLE: str(restart)}
        code = (_by_scheduler if several else _by_mpi)(arguments, supervisor, own)
        if code == 0 or code == ExitCode.INTERRUPTED or restart == arguments.restarts:
            break
        say(f"start {restart + 2} of {arguments.restarts + 1}")
    return code


def _environment(local: int, boards: Path) -> dict[str, str]:
    """Return the environment of the processes, which share the processors of this host."""
    threads = str(max(1, (os.cpu_count() or 1) // local))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    ours = {BOARD_VARIABLE: str(boards), RUN_VARIABLE: new_run()}
    return {**dict.fromkeys(names, threads), **os.environ, **ours}


def _worker(arguments: argparse.Namespace) -> list[str]:
    """Return the command that one process runs."""
    script = [str(arguments.script), *arguments.arguments]
    return [sys.executable, "-m", _WORKER, str(arguments.log_dir.resolve()), *script]


def _owned(arguments: argparse.Namespace, command: list[str]) -> list[str]:
    """Return a command as one that ends with the launcher, unless that does not wait for it."""
    return command if arguments.join == "False" else owned(command)


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


def _by_mpi(
    arguments: argparse.Namespace, supervisor: Supervisor, environment: dict[str, str]
) -> int:
    command = [mpiexec(), "-n", str(arguments.worker_num), *_worker(arguments)]
    path = arguments.log_dir / "scheduler.log"
    with path.open("w") as log:
        log.write(f"scheduler: {' '.join(command)}\n")
        log.flush()
        # In a session of its own: the terminal's interrupt is for the launcher, which asks the
        # ranks to end their step.
        process = subprocess.Popen(
            _owned(arguments, command),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        return _ended(arguments, supervisor, {MPI_LAUNCHER: process}, path)


def _check_servers(arguments: argparse.Namespace, hosts: int) -> None:
    """Refuse what parameter servers cannot do.

    Raises
    ------
    UsageError
        If an option asks for it.
    """
    if hosts > 1 or arguments.join == "False":
        raise UsageError(
            "parameter servers are started on one host, and their launcher waits for them",
            hint="on several hosts start the script once for each role, by `MS_ROLE`",
        )
    if arguments.restarts:
        raise UsageError(
            "`--restarts` is given, and there are parameter servers",
            hint="use `--server_restarts`: a worker that ends early does not stop the others",
        )
    if arguments.fast:
        raise UsageError(
            "`--fast` has no effect with parameter servers, which add gradients themselves",
            hint="leave it out",
        )
    if arguments.timeout != ARRIVAL:
        raise UsageError(
            "`--timeout` is given, and there are parameter servers",
            hint="write `set_ps_context(heartbeat_timeout=...)` in the script",
        )


def _with_servers(arguments: argparse.Namespace, hosts: int, environment: dict[str, str]) -> int:
    """Start a scheduler, parameter servers and workers, which meet as the script says."""
    _check_servers(arguments, hosts)
    environment |= {
        "MS_SCHED_HOST": arguments.master_addr,
        "MS_SCHED_PORT": str(arguments.master_port),
        SECRET_VARIABLE: environment.get(SECRET_VARIABLE) or secrets.token_hex(16),
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
    printed, path = 0, run.log(WORKER, 0)
    with terminated_as_interrupted():
        try:
            run.start()
            while run.goes_on():
                printed = _print_from(path, printed)
                time.sleep(LOOK)
            if run.fault:
                run.stop(arguments.grace)
            _print_from(path, printed)
            code = run.end()
        except KeyboardInterrupt:
            run.stop(arguments.grace)
            _print_from(path, printed)
            raise
    if code:
        say(f"{run.first_death or 'a process has failed'}; the logs are in {arguments.log_dir}")
    return code if 0 <= code < 128 else 1


def _by_scheduler(
    arguments: argparse.Namespace, supervisor: Supervisor, environment: dict[str, str]
) -> int:
    """Start this host's workers, and on the first host the scheduler at which all meet."""
    meeting = Meeting(arguments.master_addr, arguments.master_port, arguments.worker_num)
    environment = {
        **environment,
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": str(meeting.size),
        "MS_SCHED_HOST": meeting.host,
        "MS_SCHED_PORT": str(meeting.port),
    }
    if arguments.node_rank == 0:
        _serve(meeting, arguments.log_dir / "scheduler.log", arguments.join == "True")
    processes = {
        rank: subprocess.Popen(
            _owned(arguments, _worker(arguments)),
            env={**environment, "MS_NODE_ID": str(rank)},
            start_new_session=True,
        )
        for rank in supervisor.ranks
    }
    return _ended(arguments, supervisor, processes, None)


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
    supervisor: Supervisor,
    processes: Mapping[int, "subprocess.Popen[bytes]"],
    log: Path | None,
) -> int:
    """Print what the first worker of this host prints until all have ended.

    Returns the exit code of the first process that failed, or 0. No process is left.
    """
    if arguments.join == "False":
        say(f"started {arguments.worker_num} processes, their logs are in {arguments.log_dir}")
        return 0
    path = arguments.log_dir / f"worker_{supervisor.ranks[0]}.log"
    printed = path.stat().st_size if path.exists() else 0
    stuck: str | None = None
    try:
        with terminated_as_interrupted():
            while stuck is None and any(p.poll() is None for p in processes.values()):
                if any(process.poll() for process in processes.values()):
                    break  # the others cannot go on without it
                printed = _print_from(path, printed)
                stuck = supervisor.look()
                time.sleep(LOOK)
    except KeyboardInterrupt:
        return _interrupted(arguments.grace, supervisor, processes, path, printed)
    supervisor.look()
    failed = stuck is not None or any(process.poll() for process in processes.values())
    codes = {rank: p.poll() or 0 for rank, p in processes.items()}
    what = stuck or (supervisor.fault(log, codes) if failed else "")
    places = supervisor.places()
    _end_all(supervisor, processes)
    _print_from(path, printed)
    if not failed:
        return 0
    code = next((code for code in codes.values() if code), 1)
    _tell(arguments, supervisor, what, places)
    return code if 0 <= code < 128 else 1


def _tell(
    arguments: argparse.Namespace, supervisor: Supervisor, what: str, places: Sequence[str]
) -> None:
    """Say in one sentence what has happened; where all ranks stood is in a log."""
    newest = supervisor.checkpoint
    checkpoint = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint"
    say(f"{what}; {checkpoint}; the logs are in {arguments.log_dir}")
    with (arguments.log_dir / "scheduler.log").open("a") as file:
        file.writelines(f"{line}\n" for line in (what, *places))


def _interrupted(
    grace: float,
    supervisor: Supervisor,
    processes: Mapping[int, "subprocess.Popen[bytes]"],
    path: Path,
    printed: int,
) -> int:
    """Let the ranks end their step and save; killed by a second interrupt, or after the grace."""
    deadline = time.monotonic() + grace
    try:
        with terminated_as_interrupted():
            while any(process.poll() is None for process in processes.values()):
                printed = _print_from(path, printed)
                supervisor.look()
                supervisor.ask_to_end()
                if time.monotonic() > deadline:
                    break
                time.sleep(LOOK)
    except KeyboardInterrupt:
        pass
    _end_all(supervisor, processes)
    _print_from(path, printed)
    newest = supervisor.checkpoint
    say("interrupted" + (f"; the newest checkpoint is {newest}" if newest else ""))
    return ExitCode.INTERRUPTED


def _end_all(supervisor: Supervisor, processes: Mapping[int, "subprocess.Popen[bytes]"]) -> None:
    """End what is left of the run: the ranks with all that they started, and MPI's launcher."""
    supervisor.kill()
    for process in processes.values():
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
