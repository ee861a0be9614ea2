"""One process of ``shardwright launch``: its log, and the script.

python -m shardwright.tools.launch.worker LOGS SCRIPT ARGUMENTS...
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwright.communication import init, processes
from shardwright.runtime.faults import BOARD_VARIABLE, RESTART_VARIABLE, STANDING, Phase, board_path
from shardwright.tools.console.endings import own_rank
from shardwright.tools.launch.watcher import run_under_parent


def main(arguments: Sequence[str]) -> None:
    """Meet the other processes, write what the script prints to a log, and run the script."""
    logs, script = Path(arguments[0]), arguments[1]
    rank, boards = own_rank(), os.environ.get(BOARD_VARIABLE)
    run_under_parent(board_path(Path(boards), rank) if boards else None)
    STANDING.open(rank)
    init()
    started = processes()
    _redirect(logs, 0 if started is None else started.rank)
    sys.argv = list(arguments[1:])
    sys.path[0] = str(Path(script).resolve().parent)
    STANDING.set_phase(Phase.RUNNING)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            STANDING.fail(f"the script ended with {end.code!r}")
            raise
    except BaseException as error:
        STANDING.fail(error)
        raise
    STANDING.set_phase(Phase.ENDED)


def _redirect(logs: Path, rank: int) -> None:
    """Write standard output and errors to ``worker_N.log``, which is ``1/rank.N/stdout`` too."""
    path, other = logs / f"worker_{rank}.log", logs / "1" / f"rank.{rank}" / "stdout"
    other.parent.mkdir(parents=True, exist_ok=True)
    restarted = os.environ.get(RESTART_VARIABLE, "0") != "0"
    for old in () if restarted else (path, other):
        old.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if not other.exists():
        os.link(path, other)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    main(sys.argv[1:])
