"""The manifest of a checkpoint: what it has, and the sums by which damage is found."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from shardwright.ir.errors import PlanError
from shardwright.ir.files.folders import is_name
from shardwright.ir.files.reading import from_json, read_member
from shardwright.ir.types import DTYPES

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "shardwright checkpoint"
_VERSION: Final = 1
_OTHER = "name another checkpoint, such as the one before"
_Count = Annotated[StrictInt, Field(ge=0)]
# Steps, epochs and batches, which a resumed run goes through again. The longest published trainings
# take some millions of steps; half or twice as many would change nothing for them.
_Steps = Annotated[StrictInt, Field(ge=0, le=10**8)]
_Run = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]  # part of names of folders


class _Part(BaseModel):
    """Base class of the parts: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Progress(_Part):
    """How far the training is.

    Parameters
    ----------
    step : int
        Steps since the beginning.
    epoch : int
        Number of the epoch; the first is 1.
    batch : int
        Batches of the epoch that were trained on.
    seed : int
        Seed of the order of the samples.
    data : str
        What is trained on; empty if it is not told.
    """

    step: _Steps
    epoch: _Steps = 1
    batch: _Steps = 0
    seed: _Count = 0
    data: str = ""


class SavedSlice(_Part):
    """A region of a tensor in a file, under the name of the tensor.

    Parameters
    ----------
    file : str
        The file.
    begin, shape : tuple of int
        The first index of the region, and its sizes.
    rank : int
        The rank that wrote it.
    """

    file: str
    begin: tuple[_Count, ...]
    shape: tuple[_Count, ...]
    rank: _Count


class SavedTensor(_Part):
    """A tensor: its type, its layout in words, and its slices.

    Parameters
    ----------
    dtype : str
        Element type.
    shape : tuple of int
        Sizes of the whole tensor.
    layout : str
        Layout on the mesh of the checkpoint, for people.
    by_rank : bool
        Whether every rank has a tensor of its own, as in programs that are written by hand.
    slices : tuple of SavedSlice
        The slices; they cover the tensor once, or once for each rank.
    """

    dtype: str
    shape: tuple[_Count, ...]
    layout: str
    by_rank: bool
    slices: tuple[SavedSlice, ...]


class SavedFile(_Part):
    """Size in bytes and SHA-256 of a file."""

    bytes: _Count
    sha256: str


class Manifest(_Part):
    """What a checkpoint has.

    Parameters
    ----------
    run : str
        The training run that wrote it, over all its restarts.
    program : str
        Name of the program.
    ranks : int
        Number of ranks.
    mesh : str
        The mesh in words, for people.
    progress : Progress
        How far the training was.
    tensors : mapping of str to SavedTensor
        Parameters, buffers and states of the optimizer.
    files : mapping of str to SavedFile
        The other files.
    """

    run: _Run
    program: str
    ranks: _Count
    mesh: str
    progress: Progress
    tensors: dict[str, SavedTensor]
    files: dict[str, SavedFile]

    def to_text(self) -> str:
        """Return the JSON of the manifest, which ends with a sum of the rest."""
        content = {"format": _FORMAT, "version": _VERSION, **self.model_dump(mode="json")}
        return json.dumps({**content, "sha256": _sum(content)}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a checkpoint.

        Raises
        ------
        PlanError
            If it is missing, damaged, or of another version; names the file.
        """
        path = folder / MANIFEST
        content = _content(path)
        written = content.pop("sha256", None)
        if content.get("format") != _FORMAT:
            raise PlanError("the file is not the manifest of a checkpoint", str(path))
        if content.get("version") != _VERSION:
            found = content.get("version")
            raise PlanError(f"the checkpoint has version {found}, expected {_VERSION}", str(path))
        if written != _sum(content):
            raise damaged("its SHA-256 differs from the one that was written", path)
        del content["format"], content["version"]
        try:
            manifest = cls.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise damaged(f"`{place}`: {first['msg'].lower()}", path) from None
        manifest.check(path)
        return manifest

    def check(self, path: Path) -> None:
        """Refuse a manifest whose parts contradict each other.

        Raises
        ------
        PlanError
            If a file is outside of the folder, or a slice outside of its tensor.
        """
        for name in self.files:
            if not is_name(name) or name == MANIFEST:
                raise damaged(f"it lists the file `{name}`", path)
        for name, tensor in self.tensors.items():
            if tensor.dtype not in DTYPES:
                raise damaged(f"`{name}` has the element type `{tensor.dtype}`", path)
            for part in tensor.slices:
                if part.file not in self.files or not _is_inside(part, tensor.shape):
                    raise damaged(f"a slice of `{name}` does not fit", path)


def damaged(what: str, path: Path) -> PlanError:
    """Return the error of a damaged file."""
    return PlanError(f"the file is damaged: {what}", str(path), _OTHER)


def _is_inside(part: SavedSlice, shape: tuple[int, ...]) -> bool:
    if not len(part.begin) == len(part.shape) == len(shape):
        return False
    triples = zip(part.begin, part.shape, shape, strict=True)
    return all(begin + size <= whole for begin, size, whole in triples)


def _sum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _content(path: Path) -> dict[str, Any]:
    try:
        content = from_json(read_member(path.parent, path.name))
    except (FileNotFoundError, NotADirectoryError):
        raise PlanError(
            f"there is no checkpoint: `{MANIFEST}` is missing",
            str(path.parent),
            "it is written last; name a checkpoint that has one",
        ) from None
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"the file cannot be read: {reason}", str(path)) from error
    except ValueError:
        raise damaged("it is not JSON", path) from None
    if not isinstance(content, dict):
        raise damaged("it is not an object", path)
    return content
