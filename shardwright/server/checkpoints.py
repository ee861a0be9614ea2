"""Checkpoints of a server: its shards, with the clock and the pushes that are in them.

Of a table by rows only the rows that have been read are there: the others are drawn when they are.
A file appears complete or not at all. The server of a number that came last has the lease of its
file: an earlier one, which stood still and goes on later, is refused.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import numpy as np

from shardwright.ir.errors import ModelError, PlanError
from shardwright.ir.files.folders import make_folder
from shardwright.ir.files.writing import failing_as
from shardwright.operators.info import Array
from shardwright.runtime.checkpoint import check_checkpoint, read_arrays, write_arrays
from shardwright.runtime.checkpoints.lease import Start, holding, take
from shardwright.server.shards import Shard
from shardwright.server.store import Store, Task

_WHAT = "the checkpoint"


@dataclass(frozen=True)
class Checkpoints:
    """Where a server writes its checkpoint, and when.

    Parameters
    ----------
    folder : Path
        The folder.
    server, servers : int
        Number of the server, and of all.
    run : int
        The run that it belongs to.
    interval : int
        Updates from one to the next.
    resumes : bool
        Whether the checkpoint of another run is continued.
    start : Start
        This start of the server.
    """

    folder: Path
    server: int
    servers: int
    run: int
    interval: int = 100
    resumes: bool = False
    start: Start = field(default_factory=lambda: Start(token_hex(4)))

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"server_{self.server}.npz"

    @property
    def lease(self) -> Path:
        """The folder with the lease of the file."""
        return self.folder / f".server_{self.server}"

    @property
    def _written(self) -> tuple[int, int] | None:
        """What tells a file from the one before it; None if there is none."""
        if not self.path.exists():
            return None
        status = self.path.stat()
        return status.st_ino, status.st_mtime_ns

    def begin(self, task: Task) -> Store:
        """Return the store of a task: that of the checkpoint, if there is one.

        Raises
        ------
        ModelError
            If the checkpoint is of another run or another task.
        PlanError
            If it is corrupt.
        """
        with failing_as(_WHAT, self.lease):
            make_folder(self.lease)
        check_checkpoint(self.path)
        store = Store(task, self.server, self.servers, self.save)
        known = self._written
        if known is not None:
            self._load(store)  # a mistake takes the file from nobody
        take(self.lease, self.start)
        if self._written != known:  # an earlier server has written until now
            self._load(store)
        return store

    def save(self, store: Store, now: bool = False) -> None:
        """Write the checkpoint, if it is time."""
        if not now and store.clock % self.interval:
            return
        arrays: dict[str, Array] = {
            "run": np.array(self.run, np.uint64),
            "task": _digest(store.task),
            "clock": np.array(store.clock),
            "applied": np.array(store.applied),
        }
        for number, shard in enumerate(store.shards):
            arrays |= {f"{number}.{name}": array for name, array in _arrays_of(shard).items()}
        with failing_as(_WHAT, self.path), holding(self.lease, self.start):
            write_arrays(self.path, arrays)
        store.durable[:] = store.applied

    def _load(self, store: Store) -> None:
        arrays = read_arrays(self.path)
        try:
            if int(arrays["run"]) != self.run and not self.resumes:
                raise ModelError(
                    f"the checkpoint `{self.path}` is of another run",
                    hint="remove it, or continue it: `set_ps_context(resume=True)`",
                )
            if not np.array_equal(arrays["task"], _digest(store.task)):
                raise ModelError(
                    f"the checkpoint `{self.path}` is of another model, optimizer or number of "
                    f"workers",
                    hint="remove it, or name another folder",
                )
            for number, shard in enumerate(store.shards):
                _fill(shard, {n: arrays[f"{number}.{n}"] for n in _names(shard)})
                shard.clock = int(arrays["clock"])
            store.clock = int(arrays["clock"])
            store.applied[:] = [int(count) for count in arrays["applied"]]
        except (KeyError, ValueError, TypeError) as error:
            raise PlanError(f"the checkpoint is corrupt: {error}", str(self.path)) from None
        store.durable[:] = store.applied


def _digest(task: Task) -> Array:
    return np.frombuffer(sha256(repr(task).encode()).digest(), np.uint8)


def _names(shard: Shard) -> list[str]:
    rows = ["rows", "versions"] if shard.table.by_rows else []
    return ["values", *(f"state{i}" for i in range(len(shard.states))), *rows]


def _arrays_of(shard: Shard) -> dict[str, Array]:
    held = (shard.values, *shard.states)
    if not shard.table.by_rows:
        return dict(zip(_names(shard), held, strict=True))
    rows = np.flatnonzero(shard.versions)
    arrays = (*(array[rows] for array in held), rows, shard.versions[rows])
    return dict(zip(_names(shard), arrays, strict=True))


def _fill(shard: Shard, arrays: dict[str, Array]) -> None:
    at = arrays["rows"] if shard.table.by_rows else slice(None)
    for name, held in zip(_names(shard), (shard.values, *shard.states), strict=False):
        held[at] = arrays[name]
    if shard.table.by_rows:
        shard.versions[at] = arrays["versions"]
    shard.is_filled = True
