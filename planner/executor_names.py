"""The names of executors, which options are checked by; `chosen` makes their workers."""

from shardwright.ir.errors import OptionError

MPI = "mpi"
DASK = "dask://"
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
