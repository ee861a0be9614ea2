"""The world of a script: the number of ranks, and the rank.

A script that runs all ranks in one process is traced once for all of them, so the rank is a symbol
there: a program may slice by it, and may not branch on it. In a world of one rank it is the number
0, and the same script is the program of one device. In one of several processes that a launcher
started, the rank is the number of the process, which a program may print and branch on too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shardwright.communication.processes import awaited_role, met_otherwise, processes, workers
from shardwright.communication.ranks import NumberedRank, Rank
from shardwright.communication.rendezvous import take_part
from shardwright.ir.errors import ModelError
from shardwright.ir.optional import is_installed
from shardwright.ir.values import POSITIVE_INTEGER, check_choice
from shardwright.runtime.agreement import end_together
from shardwright.runtime.faults import STANDING

WORLD_AXIS = "world"
_BACKENDS = ("hccl", "nccl", "mccl")
_ENVIRONMENT = "SHARDWRIGHT_WORLD"
_PARTS: ContextVar[int] = ContextVar("batch_parts", default=1)
_WORLD: ContextVar[tuple[int, bool] | None] = ContextVar("world", default=None)


@contextmanager
def world(size: int, *, numbered: bool = False) -> Iterator[None]:
    """Make `size` the number of ranks while a model is loaded and traced.

    Parameters
    ----------
    size : int
        Number of ranks.
    numbered : bool
        Whether the rank is the number of this process, where there are `size` processes; else it
        is a symbol.

    Raises
    ------
    OptionError
        If `size` is no positive integer.
    """
    POSITIVE_INTEGER.check("size", size)
    token = _WORLD.set((size, numbered))
    try:
        yield
    finally:
        _WORLD.reset(token)


@contextmanager
def batch_parts(count: int) -> Iterator[None]:
    """Make `count` the number of ranks that share a batch while a model is traced."""
    token = _PARTS.set(count)
    try:
        yield
    finally:
        _PARTS.reset(token)


def get_batch_parts() -> int:
    """Return the number of ranks that share the batch, each with a part; 1 if it is not known."""
    return _PARTS.get()


def init(backend_name: str | None = None) -> None:
    """Let this process meet those that were started with it.

    A script that runs alone meets none. Workers by MindSpore's variables meet at their scheduler; a
    process that is the scheduler serves them, and ends here when they have ended, and so does a
    parameter server. MPI starts, where there is one: from now on an error in one process ends all.

    Parameters
    ----------
    backend_name : str, optional
        ``hccl``, ``nccl`` or ``mccl``, so that scripts written for MindSpore run; the communicator
        is chosen when a plan runs.

    Raises
    ------
    OptionError
        If there is no such backend.
    ModelError
        If the workers cannot meet.
    """
    if backend_name is not None:
        check_choice("backend_name", backend_name, _BACKENDS)
    if met_otherwise():
        return
    role = awaited_role()
    if role is not None and "PMI_RANK" not in os.environ:
        take_part(role)
    if processes() is not None and is_installed("mpi4py"):
        with STANDING.waiting("MPI_Init"):
            end_together()


def get_group_size() -> int:
    """Return the number of ranks.

    That of `world`; else of the processes that were started together; else of
    ``SHARDWRIGHT_WORLD``; else 1.

    Raises
    ------
    ModelError
        If the environment variable is not a whole number of at least 1.
    """
    inside = _WORLD.get()
    if inside is not None:
        return inside[0]
    started = processes() or workers()
    if started is not None:
        return started.size
    text = os.environ.get(_ENVIRONMENT, "1")
    if not text.isdecimal() or int(text) < 1:
        expected = POSITIVE_INTEGER.expected
        raise ModelError(f"the variable `{_ENVIRONMENT}` is `{text}`, expected {expected}")
    return int(text)


def get_rank() -> Rank | NumberedRank:
    """Return the rank of this process, or the symbol of all ranks where one process has all."""
    size, inside = get_group_size(), _WORLD.get()
    started = (processes() or workers()) if inside is None or inside[1] else None
    symbol = Rank(size)
    return symbol if started is None or started.size != size else NumberedRank(started.rank, symbol)
