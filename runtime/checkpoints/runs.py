"""Training runs that write checkpoints: their name, which all processes share, and their begin."""

import os
from pathlib import Path
from secrets import token_bytes, token_hex

import numpy as np

from shardwright.ir.errors import OutputError
from shardwright.ir.graph import Graph
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_flag
from shardwright.runtime.checkpoints.lease import Start, take
from shardwright.runtime.checkpoints.reading import (
    Checkpoint,
    checkpoints_in,
    open_checkpoint,
)
from shardwright.runtime.checkpoints.writing import (
    CheckpointWriter,
    Writing,
    make_writable,
    run_of,
    sweep,
)
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.faults import RESTART_VARIABLE, RUN_VARIABLE


def begin_writing(
    directory: Path,
    graph: Graph,
    communicator: Communicator,
    *,
    keep: int = Writing.keep,
    asynchronous: bool = True,
    resumed: Checkpoint | None = None,
    run: str | None = None,
    start: Start | None = None,
) -> CheckpointWriter:
    """Return the writer of a training run; all processes call it together.

    When it returns, the folder is taken: what an earlier start has completed there until then is
    all that it ever will.

    Parameters
    ----------
    directory : Path
        The folder of the checkpoints.
    graph : Graph
        The program.
    communicator : Communicator
        The communicator.
    keep : int
        How many checkpoints stay; 0: all.
    asynchronous : bool
        Whether the training goes on while they are written.
    resumed : Checkpoint, optional
        The checkpoint from which the run goes on.
    run : str, optional
        The run, if it has a name already.
    start : Start, optional
        This start, if it has the lease already.

    Raises
    ------
    OutputError
        If the folder cannot be written to, or has checkpoints of another run.
    OptionError
        If an argument has a value that is not allowed.
    """
    check_keeping(keep, asynchronous)
    own = os.environ.get(RUN_VARIABLE, "")
    name = bytes.fromhex(own) if _is_name(own) else token_bytes(8)
    shared = _of_first(name + token_bytes(4), communicator)
    if run is None:
        run = shared[:8].hex() if resumed is None else resumed.manifest.run
    how = Writing(directory, run, start or _new_start(shared[8:].hex()), keep, asynchronous)
    writer = CheckpointWriter(how, graph, communicator)
    if 0 in communicator.ranks:
        check_own(directory, run)
        if start is None:
            take(directory, how.start)
        sweep(how)
    _of_first(shared, communicator)  # nobody goes on before the folder is taken
    return writer


def _new_start(attempt: str) -> Start:
    """Return a start, of the launcher that has started this process."""
    number = os.environ.get(RESTART_VARIABLE, "")
    launch = os.environ.get(RUN_VARIABLE, "")
    return Start(attempt, launch, int(number) if number.isdecimal() else 0)


def take_folder(folder: Path) -> Start:
    """Make a folder of checkpoints, and return a new start, which alone may write there.

    The process of rank 0 calls it before it looks which checkpoint is the newest: until then an
    earlier start may write another, and rotate this one away.

    Raises
    ------
    OutputError
        If a later start of the launcher has it, or it cannot be written to.
    """
    make_writable(folder)
    start = _new_start(token_hex(4))
    take(folder, start)
    return start


def open_agreed(path: Path, communicator: Communicator) -> Checkpoint:
    """Return a checkpoint, or of a folder the newest one that the process of rank 0 finds.

    Raises
    ------
    PlanError
        If there is none, or its manifest is damaged.
    """
    found = open_checkpoint(path)
    step = found.manifest.progress.step
    first = int.from_bytes(_of_first(step.to_bytes(8), communicator))
    return found if first == step else open_checkpoint(found.path.with_name(f"step-{first}"))


def _of_first(content: bytes, communicator: Communicator) -> bytes:
    """Return what the process of rank 0 has, in all processes, which call this together."""
    own = np.frombuffer(content, np.uint8)
    return communicator.collect(dict.fromkeys(communicator.ranks, own))[0].tobytes()


def check_keeping(keep: object, asynchronous: object = True) -> None:
    """Check how checkpoints are asked for.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """
    NOT_NEGATIVE_INTEGER.check("keep", keep)
    check_flag("asynchronous", asynchronous)


def check_own(directory: Path, run: str | None) -> None:
    """Refuse a folder with checkpoints of another run.

    Raises
    ------
    OutputError
        If there is one.
    """
    for _, path in checkpoints_in(directory):
        if run is None or run_of(path) != run:
            raise OutputError(
                "the checkpoints cannot be written: those of another training run are there",
                str(path),
                "resume from it, or name another folder",
            )


def checked_newest(
    directory: Path | None, resume: Path | None, found: Checkpoint | None
) -> Checkpoint | None:
    """Return the checkpoint that a run goes on from; refuse to write older ones than are there.

    The next start would go on from the later ones, which stay.

    Parameters
    ----------
    directory : Path or None
        The folder to which the run writes.
    resume : Path or None
        From where it goes on: the newest one of that folder is never older.
    found : Checkpoint or None
        The checkpoint that is there.

    Raises
    ------
    OutputError
        If one is of a later step than that from which the run goes on.
    """
    if directory is None or found is None or resume == directory:
        return found
    for step, path in checkpoints_in(directory):
        if step > found.manifest.progress.step:
            raise OutputError(
                f"the checkpoints cannot be written: the training goes on from "
                f"`{found.path.name}`, and a later one is there",
                str(path),
                "move it, or name another folder",
            )
    return found


def _is_name(text: str) -> bool:
    return len(text) == 16 and set(text) <= set("0123456789abcdef")
