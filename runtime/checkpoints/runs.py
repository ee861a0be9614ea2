"""Training runs that write checkpoints: their name, which all processes share, and their begin."""

import os
from pathlib import Path
from secrets import token_bytes

import numpy as np

from shardwright.ir.errors import OutputError
from shardwright.ir.graph import Graph
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_flag
from shardwright.runtime.checkpoints.reading import Checkpoint, checkpoints_in
from shardwright.runtime.checkpoints.writing import CheckpointWriter, Writing, run_of
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.faults import RESTART_VARIABLE, RUN_VARIABLE

KEPT = 3  # checkpoints that stay unless another number is asked for


def begin_writing(
    directory: Path,
    graph: Graph,
    communicator: Communicator,
    *,
    keep: int = KEPT,
    asynchronous: bool = True,
    resumed: Checkpoint | None = None,
    run: str | None = None,
) -> CheckpointWriter:
    """Return the writer of a training run; all processes call it together.

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
    token = np.frombuffer(name + token_bytes(4), np.uint8)
    shared = communicator.collect(dict.fromkeys(communicator.ranks, token))[0].tobytes()
    if run is None:
        run = shared[:8].hex() if resumed is None else resumed.manifest.run
    launch, number = _launched()
    how = Writing(
        directory, run, shared[8:].hex(), keep, asynchronous, launch=launch, number=number
    )
    if 0 in communicator.ranks:
        check_own(directory, run)
    return CheckpointWriter(how, graph, communicator)


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


def _launched() -> tuple[str, int]:
    """Return the launcher that has started this process, and how often it did before."""
    number = os.environ.get(RESTART_VARIABLE, "")
    return os.environ.get(RUN_VARIABLE, ""), int(number) if number.isdecimal() else 0


def _is_name(text: str) -> bool:
    return len(text) == 16 and set(text) <= set("0123456789abcdef")
