"""Writers of files that `kills.py` stops and from which `power_loss.py` takes the power."""

import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path

import numpy as np

from shardwright.api import compile, read_plan
from shardwright.compiler.page.page import page_text, write_text
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.exports.emission.exported import Exported
from shardwright.exports.table import EXPORTS, export, write_export
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.text import parse
from shardwright.ir.types import TensorType
from shardwright.runtime import LocalCommunicator, initialize
from shardwright.runtime.checkpoints import (
    Progress,
    begin_writing,
    load_slices,
    open_checkpoint,
    reshard,
)
from shardwright.server.checkpoints import Checkpoints
from shardwright.server.store import Push, Store, Task
from shardwright.server.tables import Table
from shardwright.tools.main import main as command

_GPT = "gpt:layers=2,hidden=64,heads=4,batch=16,sequence=16,vocabulary=128"


@dataclass(frozen=True)
class Writer:
    """What writes, and what is read of it.

    Parameters
    ----------
    name : str
        What is written.
    begin : callable
        Makes the old state in a folder.
    write : callable
        Writes the new one over it; returns an exit code.
    found : callable
        Return what the next command reads: a text for each state; raises what it raises.
    again : callable, optional
        Writes once more, whichever state is there; `write` if not given.
    """

    name: str
    begin: Callable[[Path], object]
    write: Callable[[Path], int]
    found: Callable[[Path], str]
    again: Callable[[Path], int] | None = None


def names_in(folder: Path) -> frozenset[str]:
    """Return the names in a folder, which only depend on what was written."""
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Plans and what is made of them


def plan_writer() -> Writer:
    """Return the writer of a plan over another one."""
    old = compile("mlp:batch=4,hidden=8", 2, cluster="cpu")
    new = compile("mlp:batch=8,hidden=16", 4, cluster="cpu")

    def write(folder: Path) -> int:
        new.write(folder / "plan")
        return 0

    return Writer(
        "plan",
        lambda folder: old.write(folder / "plan"),
        write,
        lambda folder: read_plan(folder / "plan").document.model,
    )


def page_writer() -> Writer:
    """Return the writer of the page of a plan over another one."""
    old, new = (page_text({"title": name * 10_000}) for name in ("old", "new"))

    def write(folder: Path, text: str = new) -> int:
        write_text(folder / "page.html", text)
        return 0

    def found(folder: Path) -> str:
        return sha256((folder / "page.html").read_bytes()).hexdigest()

    return Writer("page", lambda folder: write(folder, old), write, found)


def cluster_writer() -> Writer:
    """Return the writer of a cluster file, from measurements, over another one."""

    def write(folder: Path, first: str = "2e-3") -> int:
        table = folder / "operators.csv"
        if not table.exists():
            rows = [f"matmul,{10.0**n:g},{10.0 ** (n - 12)}" for n in range(7, 13)]
            table.write_text("\n".join(["operator,amount,seconds", *rows]))
        options = ["--cluster", "h100", "--csv", str(table), "--name", f"n{first[0]}"]
        with redirect_stdout(StringIO()):
            return command(["calibrate", *options, "--out", str(folder / "cluster.yaml")])

    def found(folder: Path) -> str:
        return cluster_named(str(folder / "cluster.yaml")).name

    return Writer("cluster file", lambda folder: write(folder, "1e-3"), write, found)


def export_writers() -> list[Writer]:
    """Return a writer of an export for each target that a plan of a small model has."""
    by_name = {"optimizer": "adam", "precision": "bfloat16", "cluster": "h100"}
    plans = [
        compile("mlp:batch=8,hidden=16", 4, cluster="cpu").plan,
        compile(_GPT, 4, plan="tensor=2,data=2,micro_batch=4", **by_name).plan,
        compile(_GPT, 4, plan="pipeline=2,data=2,micro_batch=4", **by_name).plan,
    ]
    writers = []
    for target in EXPORTS:
        for plan in plans:
            try:
                exported = export(plan, target)
            except ShardwrightError as error:
                print(f"not exported to {target}: {error}", flush=True)
                continue
            writers.append(_export_writer(target, dict(exported.files), exists=target == "jax"))
            break
    return writers


def _export_writer(target: str, files: dict[str, str | bytes], *, exists: bool) -> Writer:
    def write(folder: Path) -> int:
        write_export(folder / "exported", Exported(files))
        return 0

    def again(folder: Path) -> int:
        if (folder / "exported" / next(iter(files))).exists():
            shutil.rmtree(folder / "exported")  # as its refusal asks
        return write(folder)

    def found(folder: Path) -> str:
        paths = sorted(path for path in (folder / "exported").rglob("*") if path.is_file())
        sums = [
            f"{path.relative_to(folder)} {sha256(path.read_bytes()).hexdigest()}" for path in paths
        ]
        return "; ".join(sums) or "nothing"

    def begin(folder: Path) -> None:
        if exists:
            (folder / "exported").mkdir()

    place = "an empty folder" if exists else "a new folder"
    return Writer(f"export to {target}, {place}", begin, write, found, again)


# State of trainings


def snapshot_writer() -> Writer:
    """Return the writer of a snapshot of a parameter server over the one before."""
    kind, rate = TensorType("float32", (40, 3)), (("learning_rate", 0.5),)
    task = Task((Table("w", kind, "normal", "sgd_update", rate),), 1, True, 0)

    def push(store: Store) -> None:
        step = store.clock
        store.push(Push(0, step, {0: np.full((40, 3), step + 1, np.float32)}, {}))

    def where(folder: Path) -> Checkpoints:
        return Checkpoints(folder / "servers", 0, 1, run=5, interval=1)

    def write(folder: Path) -> int:
        push(where(folder).begin(task))
        return 0

    return Writer(
        "snapshot of a server",
        write,
        write,
        lambda folder: f"{where(folder).begin(task).clock}",
    )


_PROGRAM = parse(
    """graph g on x=2 {
      parameter w: f32[12@x, 7]
      parameter b: bf16[13]
      return
    }"""
)


def _saved(folder: Path, step: int, seed: int, keep: int) -> None:
    assert _PROGRAM.mesh is not None
    communicator = LocalCommunicator(_PROGRAM.mesh)
    resumed = open_checkpoint(folder) if folder.exists() else None
    how = {"keep": keep, "asynchronous": False, "resumed": resumed}
    writer = begin_writing(folder, _PROGRAM, communicator, **how)
    writer.save(initialize(_PROGRAM, seed, communicator), Progress(step=step))
    writer.settle()


def _checkpoint(folder: Path) -> str:
    assert _PROGRAM.mesh is not None
    checkpoint = open_checkpoint(folder)
    checkpoint.check()
    state = load_slices(checkpoint, _PROGRAM, LocalCommunicator(_PROGRAM.mesh))
    sums = [
        sha256(part.tobytes()).hexdigest()[:8]
        for parts in state.values()
        for part in parts.values()
    ]
    return f"step {checkpoint.manifest.progress.step}: {sums}"


def checkpoint_writers() -> list[Writer]:
    """Return the writers of a checkpoint: after another one, over one of its step, for a plan."""

    def next_step(folder: Path) -> int:
        _saved(folder / "kept", 2, 2, keep=1)
        return 0

    def same_step(folder: Path) -> int:
        _saved(folder / "kept", 1, 2, keep=2)
        return 0

    def resharded(folder: Path) -> int:
        reshard(open_checkpoint(folder / "kept"), None, folder / "merged")
        return 0

    def resharded_again(folder: Path) -> int:
        if (folder / "merged" / "step-1").exists():
            shutil.rmtree(folder / "merged" / "step-1")  # as its refusal asks
        return resharded(folder)

    def merged(folder: Path) -> str:
        if not any((folder / "merged").glob("step-*")):
            return "nothing"
        return _checkpoint(folder / "merged")

    def begin(folder: Path) -> None:
        _saved(folder / "kept", 1, 1, keep=1)

    def kept(folder: Path) -> str:
        return _checkpoint(folder / "kept")

    return [
        Writer("checkpoint of the next step", begin, next_step, kept),
        Writer("checkpoint of the same step", begin, same_step, kept),
        Writer("checkpoint for another plan", begin, resharded, merged, resharded_again),
    ]


def all_writers() -> list[Writer]:
    """Return every writer."""
    return [
        plan_writer(),
        page_writer(),
        cluster_writer(),
        snapshot_writer(),
        *checkpoint_writers(),
        *export_writers(),
    ]
