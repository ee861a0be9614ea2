"""Reading checkpoints of slices: by any plan of the program, whatever wrote them."""

import random
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.errors import ExecutionError, PlanError
from shardwright.ir.files.aside import ATTEMPTS
from shardwright.ir.files.reading import from_json
from shardwright.ir.graph import Graph, Parameter
from shardwright.ir.types import is_real, numpy_dtype
from shardwright.operators.info import Array
from shardwright.runtime.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    SavedSlice,
    SavedTensor,
    damaged,
)
from shardwright.runtime.checkpoints.slices import is_by_rank
from shardwright.runtime.checkpoints.tensor_file import Region, TensorFile, check_sum
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.state import State, fill_regions, hosted_ranks

_NAME = re.compile(r"step-(\d+)")
RANDOM = "random"  # key of the states of Python's and numpy's generators, in a rank's file
NOW, EPOCH = "now", "epoch"  # when they had them: after the step, at the begin of the epoch


def is_sliced(path: Path) -> bool:
    """Return whether a path is a checkpoint of slices, or a folder of them; else it is a file."""
    return path.is_dir() or path.name == MANIFEST


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path is a checkpoint in a folder, or this folder."""
    path = (path.parent if path.name == MANIFEST else path).resolve()
    return folder.resolve() in (path, path.parent)


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in a folder that are whole, by their step.

    Raises
    ------
    PlanError
        If the folder cannot be read.
    """
    for _ in range(ATTEMPTS):
        try:
            paths = list(folder.iterdir()) if folder.is_dir() else []
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PlanError(
                f"the folder of checkpoints cannot be read: {reason}", str(folder)
            ) from None
        named = [(int(match[1]), p) for p in paths if (match := _NAME.fullmatch(p.name))]
        found = [(step, path) for step, path in named if (path / MANIFEST).is_file()]
        if all(path.exists() for _, path in named):
            break  # else one was removed meanwhile, as newer ones came that were not listed
    return sorted(found)


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder; None if there is none."""
    found = checkpoints_in(folder)
    return found[-1][1] if found else None


def open_checkpoint(path: Path) -> "Checkpoint":
    """Return a checkpoint, or the newest one in a folder of them.

    Raises
    ------
    PlanError
        If there is none, or its manifest is damaged.
    """
    path = path.parent if path.name == MANIFEST else path
    if not path.is_dir():
        raise PlanError("there is no such checkpoint", str(path))
    if not (path / MANIFEST).is_file():
        path = newest(path) or path
    return Checkpoint(path, Manifest.read(path))


class Checkpoint:
    """A checkpoint that is open for reading.

    Each file is checked whole, in blocks, before it is first read.

    Parameters
    ----------
    path : Path
        Its folder.
    manifest : Manifest
        What it has.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._files: dict[str, TensorFile] = {}

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}, step {self.manifest.progress.step}>"

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[SavedSlice]]:
        return {name: tensor.slices for name, tensor in self.manifest.tensors.items()}

    def check(self) -> None:
        """Check all files.

        Raises
        ------
        PlanError
            If one is missing or damaged; names it.
        """
        for name, file in self.manifest.files.items():
            check_sum(self.path / name, file)

    def tensor(self, name: str) -> SavedTensor:
        """Return what the manifest says of a tensor."""
        return self.manifest.tensors[name]

    def region(self, name: str, part: Region, rank: int | None = None) -> Array:
        """Return a region of a tensor, assembled from the slices that it meets.

        Parameters
        ----------
        name : str
            The tensor.
        part : tuple of slice
            The region.
        rank : int, optional
            Whose tensor, where every rank has its own.

        Raises
        ------
        PlanError
            If a file is damaged, or the slices do not cover the region.
        """
        saved = self.tensor(name)
        whole = np.empty(tuple(p.stop - p.start for p in part), numpy_dtype(saved.dtype))
        filled = 0
        for piece in self._by_name[name]:
            if saved.by_rank and piece.rank != rank:
                continue
            inner = _common(part, piece)
            if inner is None:
                continue
            own = tuple(
                slice(i.start - b, i.stop - b) for i, b in zip(inner, piece.begin, strict=True)
            )
            target = tuple(
                slice(i.start - p.start, i.stop - p.start) for i, p in zip(inner, part, strict=True)
            )
            block = self._file(piece.file).read(name, own, saved.dtype, piece.shape)
            whole[target] = block
            filled += block.size
        if filled != whole.size:
            what = f"the slices of `{name}` do not cover it"
            raise damaged(what, self.path / MANIFEST)
        return whole

    def shared(self, name: str, part: Region) -> Array:
        """Return a region of a tensor that ranks have of their own, if all have the same.

        Raises
        ------
        PlanError
            If two ranks differ.
        """
        first, *others = sorted({piece.rank for piece in self._by_name[name]})
        found = self.region(name, part, first)
        for rank in others:
            if self.region(name, part, rank).tobytes() != found.tobytes():
                raise PlanError(
                    f"`{name}` differs between the ranks {first} and {rank}: the program was "
                    f"written by hand, and each rank has its own",
                    str(self.path),
                    f"load it with the same program on {self.manifest.ranks} ranks",
                )
        return found

    def random_state(self, rank: int) -> dict[str, Any] | None:
        """Return the states of the generators of a rank by `NOW` and `EPOCH`; None without."""
        name = f"rank.{rank}.safetensors"
        if name not in self.manifest.files:
            return None
        text = self._file(name).metadata.get(RANDOM)
        return None if text is None else from_json(text)

    def _file(self, name: str) -> TensorFile:
        if name not in self._files:
            check_sum(self.path / name, self.manifest.files[name])
            self._files[name] = TensorFile(self.path / name)
        return self._files[name]


def _common(part: Region, piece: SavedSlice) -> Region | None:
    """Return the intersection of a region and a slice, in indices of the tensor."""
    found = []
    for axis, begin, size in zip(part, piece.begin, piece.shape, strict=True):
        start, stop = max(axis.start, begin), min(axis.stop, begin + size)
        if start >= stop:
            return None
        found.append(slice(start, stop))
    return tuple(found)


def check_program(checkpoint: Checkpoint, graph: Graph) -> None:
    """Refuse a checkpoint of another program.

    Raises
    ------
    PlanError
        If parameters are missing, or have other shapes or kinds of numbers.
    """
    found = checkpoint.manifest.tensors
    expected = {parameter.name: parameter.value.type for parameter in graph.parameters}
    hint = f"it must be of the program `{graph.name}`, it is of `{checkpoint.manifest.program}`"
    if set(found) != set(expected):
        absent, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        raise PlanError(
            f"the checkpoint lacks the parameters {absent[:5]} and has {extra[:5]} besides",
            str(checkpoint.path),
            hint,
        )
    for name, tensor in expected.items():
        saved = found[name]
        if saved.shape != tensor.shape:
            what = f"`{name}` has the shape {saved.shape}, expected {tensor.shape}"
            raise PlanError(what, str(checkpoint.path), hint)
        if is_real(numpy_dtype(saved.dtype)) != is_real(numpy_dtype(tensor.dtype)):
            what = f"`{name}` has elements of type {saved.dtype}, expected {tensor.dtype}"
            raise PlanError(what, str(checkpoint.path), hint)


def load_slices(
    checkpoint: Checkpoint, graph: Graph, communicator: Communicator, float_dtype: str | None = None
) -> State:
    """Return the state of the ranks of this process; reads what they hold, and no more.

    Raises
    ------
    PlanError
        If the checkpoint is damaged, or of another program.
    """
    check_program(checkpoint, graph)
    return {
        parameter.name: _loaded(checkpoint, parameter, communicator, float_dtype)
        for parameter in graph.parameters
    }


def _loaded(
    checkpoint: Checkpoint,
    parameter: Parameter,
    communicator: Communicator,
    float_dtype: str | None,
) -> dict[int, Array]:
    name, value = parameter.name, parameter.value
    saved, dtype = checkpoint.tensor(name), numpy_dtype(value.type.dtype, float_dtype)
    alone = saved.by_rank and is_by_rank(value, communicator.mesh)
    if alone and checkpoint.manifest.ranks == communicator.mesh.size:
        part = tuple(slice(0, size) for size in value.type.shape)
        ranks = hosted_ranks(value, communicator)
        return {rank: checkpoint.region(name, part, rank).astype(dtype) for rank in ranks}

    def make(part: Region) -> Array:
        read = checkpoint.shared if saved.by_rank else checkpoint.region
        return read(name, part).astype(dtype, copy=False)

    try:
        return fill_regions(value, communicator, make)
    except ExecutionError as error:
        raise PlanError(error.what, str(checkpoint.path)) from None


# The generators of Python and numpy, which a script may draw from


def random_state() -> dict[str, Any]:
    """Return the state of Python's and numpy's global generators, as JSON has it."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "numpy": [kind, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "python": [version, list(words), gauss],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Give the generators the state that `random_state` returned."""
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
