"""Workers of other executors: the processes of an MPI run, and those of a Dask cluster.

They get bytes and answer bytes: what runs the tasks, which a worker keeps until there is another,
and the task. They load the same sources and plugins, which is checked.
"""

import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Any

from shardwright.ir.errors import OptionError
from shardwright.ir.files.waiting import ANSWER
from shardwright.ir.optional import optional
from shardwright.planner.code import code_digest
from shardwright.planner.executor_names import DASK
from shardwright.planner.executors.workers import Run, answer_of

_OTHERWISE = "install the same version of shardwright there, and the plugins that are loaded here"


class Elsewhere:
    """Workers of an executor that gets bytes.

    Parameters
    ----------
    executor : Executor
        Runs functions of this package elsewhere.
    names : callable
        Returns the names of the workers.
    end : callable
        Ends what was begun for the executor.
    run : callable
        Runs a task.
    """

    def __init__(
        self, executor: Executor, names: Callable[[], set[str]], end: Callable[[], None], run: Run
    ) -> None:
        self._executor, self._names, self._end = executor, names, end
        self._content = pickle.dumps((code_digest(), pickle.dumps(run)))
        self._known = names()

    @property
    def count(self) -> int:
        """The number of workers, each of which runs one task at a time."""
        return len(self._known)

    def submit(self, number: int, task: object) -> "Future[Any]":
        """Begin a task on a worker."""
        return self._executor.submit(answered_bytes, self._content, number, pickle.dumps(task))

    def read(self, result: tuple[int, bytes]) -> tuple[int, Any]:
        """Return the number and the answer."""
        number, answer = result
        return number, pickle.loads(answer)

    def lost(self) -> Sequence[str]:
        """Return the names of the workers that have gone."""
        before, self._known = self._known, self._names()
        return sorted(before - self._known)

    def close(self) -> None:
        """Leave the executor, whatever its workers do."""
        self._known = set()
        self._executor.shutdown(wait=False)
        self._end()


_ONE_AT_A_TIME = threading.Lock()  # a runner keeps what it learns, for one thread alone


def answered_bytes(content: bytes, number: int, task: bytes) -> tuple[int, bytes]:
    """Return the number of a task and its answer, or error, as bytes."""
    with _ONE_AT_A_TIME:
        return number, pickle.dumps(answer_of(_run_of(content), pickle.loads(task)))


@lru_cache(maxsize=1)
def _run_of(content: bytes) -> Run:
    digest, run = pickle.loads(content)
    if digest != code_digest():
        raise OptionError("the worker has another version of shardwright, or other plugins")
    return pickle.loads(run)


def mpi_workers(run: Run) -> Elsewhere:
    """Return the other processes of this MPI run.

    Raises
    ------
    OptionError
        If it was not begun by the module `mpi4py.futures`, or has no other process.
    PackageError
        If mpi4py is not installed.
    """
    futures = optional("mpi4py.futures", extra="mpi", need="`executor` mpi")
    others = optional("mpi4py.MPI", extra="mpi", need="`executor` mpi").COMM_WORLD.size - 1
    if "mpi4py.futures" not in sys.orig_argv or others < 1:
        raise OptionError(
            "`executor` is mpi, and this is no MPI run with workers",
            hint="begin it with `mpiexec -n 4 python -m mpi4py.futures -m shardwright ...`",
        )
    executor = futures.MPIPoolExecutor(main=False)
    if executor.submit(code_digest).result() != code_digest():
        raise OptionError("the MPI processes have another shardwright", hint=_OTHERWISE)
    names = {f"process {rank}" for rank in range(1, others + 1)}
    return Elsewhere(executor, lambda: names, lambda: None, run)


def dask_workers(address: str, run: Run) -> Elsewhere:
    """Return the workers of a Dask cluster.

    Parameters
    ----------
    address : str
        ``dask://HOST:PORT`` of its scheduler.
    run : callable
        Runs a task.

    Raises
    ------
    OptionError
        If it does not answer, has no worker, or a worker has another version of shardwright.
    PackageError
        If Dask is not installed.
    """
    distributed = optional("distributed", extra="dask", need="`executor` dask")
    place = f"tcp://{address.removeprefix(DASK)}"
    try:
        client = distributed.Client(place, timeout=ANSWER, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise OptionError(
            f"`executor` is {address}, where no Dask scheduler answers",
            hint="start one with `dask scheduler`, and workers with `dask worker`",
        ) from error

    def names() -> set[str]:
        try:
            return set(client.nthreads())
        except (OSError, TimeoutError):  # the scheduler has gone, too
            return set()

    if problem := _problem_of(client, names()):
        client.close()
        raise OptionError(f"`executor` is {address}, {problem[0]}", hint=problem[1])
    return Elsewhere(client.get_executor(pure=False), names, client.close, run)


def _problem_of(client: Any, names: set[str]) -> tuple[str, str] | None:
    """Return why a Dask cluster cannot run tasks, and what mends it; None if it can."""
    if not names:
        return "which has no worker", f"start some with `dask worker {client.scheduler.address}`"
    own = code_digest()
    found = client.run(code_digest, on_error="return")
    others = sorted(name for name, digest in found.items() if digest != own)
    if not others:
        return None
    return f"whose worker {others[0]} has another shardwright, or none", _OTHERWISE
