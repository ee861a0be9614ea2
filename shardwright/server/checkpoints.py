"""Checkpoints of a server: its shards, with the clock and the pushes that are in them.

Of a table by rows only the rows that have been read are there: the others are drawn when they are.
A file appears complete or not at all.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from shardwright.ir.errors import ModelError, PlanError
from shardwright.ir.files.folders import make_folder
from shardwright.operators.info import Array
from shardwright.runtime.checkpoint import check_checkpoint, read_arrays, write_arrays
from shardwright.server.shards import Shard
from shardwright.server.store import Store, Task


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
    """

    folder: Path
    server: int
    servers: int
    run: int
    interval: int = 100
    resumes: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"server_{self.server}.npz"

    def begin(self, task: Task) -> Store:
        """Return the store of a task: that of the checkpoint, if there is one.

        Raises
        ------
        ModelError
            If the checkpoint is of another run or another task.
        PlanError
            If it is corrupt.
        """
        make_folder(self.folder)
        check_checkpoint(self.path)
        store = Store(task, self.server, self.servers, self.save)
        if self.path.exists():
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
