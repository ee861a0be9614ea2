"""The workers that the option `executor` names."""

from shardwright.ir.errors import OptionError
from shardwright.planner.executors.elsewhere import DASK, MPI, dask_workers, mpi_workers
from shardwright.planner.executors.workers import Forked, Run, Workers, can_fork

PROCESSES = "processes"
"""The executor of processes of this machine."""


def check_executor(name: str, value: object) -> None:
    """Refuse what names no executor.

    Raises
    ------
    OptionError
        If it is none.
    """
    if value in (PROCESSES, MPI):
        return
    host, colon, port = str(value).removeprefix(DASK).rpartition(":")
    if str(value).startswith(DASK) and host and colon and port.isdecimal():
        return
    raise OptionError(
        f"`{name}` is {value!r}, expected `{PROCESSES}`, `{MPI}` or `{DASK}HOST:PORT`",
        hint="the last one is the address of a Dask scheduler",
    )


def check_workers(executor: str, workers: int) -> None:
    """Refuse a number of processes with an executor that has its own.

    Raises
    ------
    OptionError
        If there is one.
    """
    if workers and executor != PROCESSES:
        raise OptionError(
            f"`workers` has no effect with the executor `{executor}`, which has its own",
            hint="leave one of them out",
        )


def workers_of(executor: str, count: int, run: Run) -> Workers | None:
    """Return the workers of an executor; None for this process.

    Parameters
    ----------
    executor : str
        The option.
    count : int
        Number of processes of this machine.
    run : callable
        Runs a task.

    Raises
    ------
    OptionError
        If there is no such MPI run or Dask cluster.
    PackageError
        If its package is not installed.
    """
    if executor == MPI:
        return mpi_workers(run)
    if executor.startswith(DASK):
        return dask_workers(executor, run)
    return Forked(run, count) if count > 1 and can_fork() else None
