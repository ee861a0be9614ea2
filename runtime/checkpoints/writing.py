"""Writing checkpoints of slices: aside, and renamed when all is on the disk; the last ones stay.

Ranks in several processes meet in the folder, which all must see: each leaves a note when its file
is there, and the process of rank 0 waits for all notes, writes the manifest and renames the folder.
"""

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from shardwright.ir.errors import ExecutionError, OutputError, PlanError
from shardwright.ir.files.aside import commit, discard
from shardwright.ir.files.folders import make_folder, synced, write_synced
from shardwright.ir.files.waiting import LOOK
from shardwright.ir.files.writing import check_folder, failing_as
from shardwright.ir.graph import Graph
from shardwright.operators.info import Array
from shardwright.runtime.checkpoints.lease import Start, holding
from shardwright.runtime.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    Progress,
    SavedFile,
    SavedSlice,
    SavedTensor,
)
from shardwright.runtime.checkpoints.reading import (
    EPOCH,
    NOW,
    RANDOM,
    checkpoints_in,
    random_state,
)
from shardwright.runtime.checkpoints.slices import Piece, is_by_rank, pieces_of
from shardwright.runtime.checkpoints.strategy_file import strategy_files
from shardwright.runtime.checkpoints.tensor_file import library, write_tensors
from shardwright.runtime.communicator import ONE_DEVICE, Communicator
from shardwright.runtime.faults import STANDING, new_run
from shardwright.runtime.state import State

_WHAT = "the checkpoint"
_NOTE = "rank.{}.json"
_HIDDEN = re.compile(r"\.step-\d+\.([0-9a-f]+)-[0-9a-f]+")


@dataclass(frozen=True)
class Writing:
    """How checkpoints are written.

    Parameters
    ----------
    directory : Path
        The folder of the checkpoints; all processes see it.
    run : str
        The training run; that of the checkpoint from which it resumed.
    start : Start
        This start of the run; equal in all its processes.
    keep : int
        How many stay, the newest; 0: all. Only checkpoints of the same run are removed.
    asynchronous : bool
        Whether the state is copied, and written while the training goes on.
    timeout : float
        Seconds in which all processes must have written their slices.
    """

    directory: Path
    run: str = field(default_factory=new_run)
    start: Start = field(default_factory=lambda: Start(token_hex(4)))
    keep: int = 3
    asynchronous: bool = True
    timeout: float = 600.0

    @property
    def aside(self) -> str:
        """What hidden names of this start end with."""
        return f"{self.run}-{self.start.attempt}"


class CheckpointWriter:
    """Writes the slices of this process's ranks; with rank 0 among them, completes the checkpoint.

    Parameters
    ----------
    how : Writing
        Where and how.
    graph : Graph
        The program.
    communicator : Communicator
        The communicator, which has the ranks of this process.

    Raises
    ------
    PackageError
        If the package that reads the files is not installed.
    OutputError
        If the folder cannot be written to.
    """

    def __init__(self, how: Writing, graph: Graph, communicator: Communicator) -> None:
        library()
        self.how = how
        self._graph = graph
        self._mesh = graph.mesh or ONE_DEVICE
        self._ranks = communicator.ranks
        self._pieces = pieces_of(graph)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.latest: Path | None = None
        make_writable(how.directory)

    def save(
        self, state: State, progress: Progress, at_epoch: Mapping[str, Any] | None = None
    ) -> None:
        """Write the state.

        Parameters
        ----------
        state : State
            Parameters, buffers and states of the optimizer.
        progress : Progress
            How far the training is.
        at_epoch : mapping, optional
            The state of the generators at the begin of the epoch, from `random_state`.

        Raises
        ------
        OutputError
            If it, or asynchronously the checkpoint before, cannot be written.
        """
        self.settle()
        slices = self._own_slices(state)
        generators = {NOW: random_state(), EPOCH: dict(at_epoch or {})}
        notes = {RANDOM: json.dumps(generators)}
        if not self.how.asynchronous:
            self._write(slices, notes, progress)
            return

        def write() -> None:
            try:
                self._write(slices, notes, progress)
            except BaseException as error:  # it is raised by the thread that trains
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoint")
        self._thread.start()

    def raise_error(self) -> None:
        """Raise the error of a checkpoint that is written asynchronously, without waiting."""
        if self._thread is not None and not self._thread.is_alive():
            self.settle()

    def settle(self) -> None:
        """Wait until the checkpoint is written.

        Raises
        ------
        OutputError
            If it cannot be.
        """
        self.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the checkpoint is written, or cannot be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _own_slices(self, state: State) -> dict[int, list[tuple[Piece, Array]]]:
        """Return what each rank of this process writes; copied, if the training goes on."""
        found: dict[int, list[tuple[Piece, Array]]] = {rank: [] for rank in self._ranks}
        for name, pieces in self._pieces.items():
            for piece in pieces:
                if piece.rank in found:
                    part = state[name][piece.rank]
                    own = np.array(part) if self.how.asynchronous else part
                    found[piece.rank].append((piece, own))
        return found

    def _write(
        self,
        slices: Mapping[int, list[tuple[Piece, Array]]],
        notes: Mapping[str, str],
        progress: Progress,
    ) -> None:
        how, name = self.how, f"step-{progress.step}"
        aside = how.directory / f".{name}.{how.aside}"
        with failing_as(_WHAT, how.directory / name):
            aside.mkdir(exist_ok=True)
            for rank, pieces in slices.items():
                file = f"rank.{rank}.safetensors"
                tensors = [(p.name, array.dtype, array.shape, (array,)) for p, array in pieces]
                saved = write_tensors(aside / file, tensors, notes)
                types = {p.name: array.dtype.name for p, array in pieces}
                _leave_note(aside, rank, {"file": saved.model_dump(), "types": types})
            if 0 in self._ranks:
                found = self._all_notes(aside)
                tensors_of = _tensors(self._graph, self._pieces, found)
                try:
                    with holding(how.directory, how.start):
                        complete(aside, how, self._graph, progress, tensors_of, _files(found))
                        self.latest = how.directory / name
                        STANDING.note_checkpoint(self.latest)
                        forget(how, progress.step)
                finally:
                    discard(aside)  # of a start that is refused

    def _all_notes(self, aside: Path) -> dict[int, dict[str, dict[str, str]]]:
        """Wait for the notes of all ranks, and return them."""
        begin, found = time.monotonic(), dict[int, dict[str, dict[str, str]]]()
        while len(found) < self._mesh.size:
            for rank in range(self._mesh.size):
                note = aside / _NOTE.format(rank)
                if rank not in found and note.is_file():
                    found[rank] = json.loads(note.read_text())
                    note.unlink()
            if len(found) < self._mesh.size:
                if time.monotonic() - begin > self.how.timeout:
                    missing = min(set(range(self._mesh.size)) - set(found))
                    raise OutputError(
                        f"the checkpoint cannot be completed: rank {missing} has not written its "
                        f"slices within {self.how.timeout:g} s",
                        str(aside.parent),
                        "all processes must see one folder",
                    )
                time.sleep(LOOK)
        return found


def make_writable(folder: Path) -> None:
    """Make a folder for checkpoints, or check that they can be written there.

    Raises
    ------
    OutputError
        If they cannot.
    """
    check_folder(folder, _WHAT)
    with failing_as(_WHAT, folder):
        make_folder(folder)


def sweep(how: Writing) -> None:
    """Remove what earlier starts of the run left unfinished; the start has the lease.

    Raises
    ------
    OutputError
        If a later start of the run writes there.
    """
    with failing_as(_WHAT, how.directory), holding(how.directory, how.start):
        for path in how.directory.iterdir():
            match = _HIDDEN.fullmatch(path.name)
            if match and match[1] == how.run and not path.name.endswith(how.aside):
                shutil.rmtree(path, ignore_errors=True)


def complete(
    aside: Path,
    how: Writing,
    graph: Graph,
    progress: Progress,
    tensors: Mapping[str, SavedTensor],
    files: Mapping[str, SavedFile],
) -> None:
    """Write the manifest of a checkpoint whose other files are there, and give it its name.

    Raises
    ------
    OutputError
        If another checkpoint has the name.
    """
    mesh = graph.mesh or ONE_DEVICE
    more = {}
    for name, content in strategy_files(graph).items():
        more[name] = _written(aside / name, content)
    manifest = Manifest(
        run=how.run,
        program=graph.name,
        ranks=mesh.size,
        mesh=str(mesh),
        progress=progress,
        tensors=dict(tensors),
        files={**files, **more},
    )
    _written(aside / MANIFEST, manifest.to_text().encode())
    synced(aside)
    target = how.directory / f"step-{progress.step}"
    if target.exists():
        _check_replaceable(target, how.run)
    commit(aside, target)
    discard(aside)  # the old one


def _check_replaceable(target: Path, run: str) -> None:
    """Check that a checkpoint is of the same run, which wrote it before it was resumed."""
    hint = "resume from it, or name another folder"
    try:
        manifest = Manifest.read(target)
    except PlanError:
        what = "a folder with no manifest that can be read is there"
        if not (target / MANIFEST).exists():
            what = "a folder without a manifest is there"
        hint = "remove it, or name another folder"
    else:
        others = sorted(set(os.listdir(target)) - {MANIFEST, *manifest.files})
        if manifest.run != run:
            what = "one of another training run is there"
        elif others:
            what = f"`{others[0]}`, which is no file of a checkpoint, is there"
            hint = "move it, or name another folder"
        else:
            return
    raise OutputError(f"the checkpoint cannot be written: {what}", str(target), hint)


def forget(how: Writing, step: int) -> None:
    """Remove the oldest checkpoints of the run up to a step, beyond those that are kept."""
    if not how.keep:
        return
    known = checkpoints_in(how.directory)
    own = [path for at, path in known if at <= step and run_of(path) == how.run]
    for path in own[: -how.keep]:
        _remove(path, how.run)


def run_of(path: Path) -> str | None:
    """Return the run that wrote a checkpoint; None if it cannot be read."""
    try:
        return Manifest.read(path).run
    except PlanError:
        return None


def _remove(path: Path, run: str) -> None:
    """Remove the files that the run wrote, and the folder if it has no others.

    The folder is hidden first, as what is not complete: the next start removes what is left of it.
    """
    try:
        manifest = Manifest.read(path)
    except PlanError:
        return
    if manifest.run != run:
        return
    if set(os.listdir(path)) - {MANIFEST, *manifest.files}:
        for name in (MANIFEST, *manifest.files):
            (path / name).unlink(missing_ok=True)
        return
    hidden = path.with_name(f".{path.name}.{run}-{token_hex(4)}")
    path.rename(hidden)
    synced(path.parent)  # else a loss of power could leave the old name, and half of the files
    shutil.rmtree(hidden)


def _leave_note(aside: Path, rank: int, note: Mapping[str, object]) -> None:
    path = aside / _NOTE.format(rank)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(note))
    part.rename(path)


def _files(notes: Mapping[int, Mapping[str, Mapping[str, str]]]) -> dict[str, SavedFile]:
    return {
        f"rank.{rank}.safetensors": SavedFile.model_validate(notes[rank]["file"])
        for rank in sorted(notes)
    }


def _tensors(
    graph: Graph,
    pieces: Mapping[str, list[Piece]],
    notes: Mapping[int, Mapping[str, Mapping[str, str]]],
) -> dict[str, SavedTensor]:
    types = {name: {notes[p.rank]["types"][name] for p in own} for name, own in pieces.items()}
    for name, found in types.items():
        if len(found) > 1:
            raise ExecutionError(f"the slices of `{name}` have the types {sorted(found)}")
    dtypes = {name: next(iter(found)) for name, found in types.items()}
    return described(graph, pieces, dtypes)


def described(
    graph: Graph, pieces: Mapping[str, list[Piece]], dtypes: Mapping[str, str]
) -> dict[str, SavedTensor]:
    """Return what the manifest says of every tensor."""
    mesh = graph.mesh or ONE_DEVICE
    found = {}
    for parameter in graph.parameters:
        value = parameter.value
        found[parameter.name] = SavedTensor(
            dtype=dtypes[parameter.name],
            shape=value.type.shape,
            layout="" if value.layout is None else str(value.layout),
            by_rank=is_by_rank(value, mesh),
            slices=tuple(
                SavedSlice(
                    file=f"rank.{piece.rank}.safetensors",
                    begin=piece.begin,
                    shape=piece.shape,
                    rank=piece.rank,
                )
                for piece in pieces[parameter.name]
            ),
        )
    return found


def _written(path: Path, content: bytes) -> SavedFile:
    """Write a small file, and return its size and sum."""
    write_synced(path, content)
    return SavedFile(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
