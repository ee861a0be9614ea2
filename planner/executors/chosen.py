"""The workers that the option `executor` names."""

from shardwright.planner.executor_names import DASK, MPI
from shardwright.planner.executors.elsewhere import dask_workers, mpi_workers
from shardwright.planner.executors.workers import Forked, Run, Workers, can_fork


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
