"""Checkpoints: the state in a ``.npz`` file of whole tensors.

The file is independent of layouts: any plan of the program can load it.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.errors import ExecutionError, PlanError
from shardwright.ir.files.reading import open_file
from shardwright.ir.files.reading import read_arrays as stored_arrays
from shardwright.ir.files.writing import check_file, replacing
from shardwright.ir.graph import Graph
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.state import State, assemble, scatter

_FORMAT = "shardwright.format"
_VERSION = 1
_WHAT = "the checkpoint"
# Keeps names of parameters apart from the format, and from the arguments of `numpy.savez`.
_PREFIX = "parameter:"


def is_checkpoint(path: Path) -> bool:
    """Return whether a file was written by `save_checkpoint`; an empty one counts too."""
    if not path.stat().st_size:
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{_FORMAT}.npy" in archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        return False


def check_checkpoint(path: Path) -> None:
    """Check that a checkpoint can be written, before training.

    Raises
    ------
    OutputError
        If there is no such folder, it may not be written to, or another file is there.
    """
    check_file(path, _WHAT, is_checkpoint)


def save_checkpoint(path: Path, graph: Graph, state: State, communicator: Communicator) -> None:
    """Write the state; the file appears complete or not at all.

    Every process takes part; the one that hosts rank 0 writes, and all wait for it.

    Raises
    ------
    OutputError
        If the file cannot be written, or would replace one that is no checkpoint.
    ExecutionError
        If copies of ranks that must be equal differ.
    """
    arrays: dict[str, Array] = {}
    for parameter in graph.parameters:
        parts = communicator.collect(state[parameter.name])
        whole = assemble(graph, parameter.name, parts, communicator.mesh)
        if 0 in communicator.ranks:
            arrays[parameter.name] = whole
    if 0 in communicator.ranks:
        write_arrays(path, arrays)
    communicator.collect({rank: np.zeros(0) for rank in communicator.ranks})  # the file is there


def _storable(array: Array) -> Array:
    """Return an array in an element type that numpy has; bfloat16 widens to float32.

    A type that came from another process is equal to numpy's own, and not the same object.
    """
    return array.astype(np.float32) if array.dtype.isbuiltin == 2 else array


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write whole tensors by name; the file appears complete or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written, or would replace one that is no checkpoint.
    """
    check_checkpoint(path)
    stored: dict[str, Any] = {_FORMAT: np.array(_VERSION)}
    stored |= {_PREFIX + name: _storable(array) for name, array in arrays.items()}
    with replacing(path, _WHAT) as file:
        np.savez(file, **stored)


def load_checkpoint(
    path: Path, graph: Graph, communicator: Communicator, float_dtype: str | None = None
) -> State:
    """Return the state in a checkpoint, sliced by the layouts of the graph.

    Raises
    ------
    PlanError
        If the file is missing, corrupt, or of another program; names the parameter.
    """
    wholes = read_arrays(path)
    expected = {parameter.name for parameter in graph.parameters}
    if set(wholes) != expected:
        absent, extra = sorted(expected - set(wholes)), sorted(set(wholes) - expected)
        raise PlanError(
            f"the checkpoint lacks the parameters {absent} and has {extra} besides",
            str(path),
            f"it must be of the program `{graph.name}`",
        )
    try:
        return {
            parameter.name: scatter(
                parameter.value, wholes[parameter.name], communicator, float_dtype
            )
            for parameter in graph.parameters
        }
    except ExecutionError as error:
        raise PlanError(error.what, str(path), "it is a checkpoint of another program") from None


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the whole tensors in a checkpoint, by name.

    Raises
    ------
    PlanError
        If the file is missing or corrupt.
    """
    try:
        with open_file(path) as file:
            arrays = stored_arrays(file)
    except FileNotFoundError:
        raise PlanError("there is no such checkpoint", str(path)) from None
    except (OSError, ValueError) as error:
        raise PlanError("the checkpoint is corrupt or is not a `.npz` file", str(path)) from error
    version = arrays.pop(_FORMAT, None)
    if version is None or version.shape != () or version != _VERSION:
        found = "no version" if version is None else f"version {version}"
        raise PlanError(f"the checkpoint has {found}, expected version {_VERSION}", str(path))
    return {name.removeprefix(_PREFIX): array for name, array in arrays.items()}
