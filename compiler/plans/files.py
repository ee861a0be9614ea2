"""The directory of a plan: written and read.

A plan is a directory::

    plan.json         devices, options and certificate; see `PlanDocument`
    model.ir          the program of one device as traced, which the plan is verified against
    program.ir        the training step that every rank runs
    rank_00003.ir     the same bound to one rank, to be read by people
    strategies.json   the strategies, which can be given to another compilation as pins
    initial.npz       parameters that begin as given data, if there are any
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.compiler.plans.binding import rank_texts
from shardwright.compiler.plans.document import PlanDocument, check_format
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.strategies_file import strategies_text
from shardwright.ir.errors import OutputError, PlanError, ShardwrightError
from shardwright.ir.files.folders import is_name, locked, member
from shardwright.ir.files.reading import (
    MOST_BYTES,
    from_json,
    open_file,
    read_arrays,
    read_bytes,
    read_member,
)
from shardwright.ir.files.writing import check_folder, failing_as, write_files
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse, to_text
from shardwright.ir.verify import verify_structure
from shardwright.operators.info import Array

DOCUMENT = "plan.json"
_ARRAYS = "initial.npz"
_PART = 2**24  # bytes of a file that are in memory at a time
_PREFIX = "parameter:"  # keeps names of parameters apart from the arguments of `numpy.savez`
_RANKS = 16  # listings that are written unless others are asked for
_WHAT = "the plan"
_FILE = re.compile(r"plan\.json|(model|program)\.ir|strategies\.json|initial\.npz|rank_\d+\.ir")

# Writing


def write_plan(directory: Path, plan: Plan, ranks: Iterable[int] | None = None) -> None:
    """Write a plan: all of it, or nothing.

    A plan that is there already is replaced: the files that were written with it. All other files
    in the directory stay.

    Parameters
    ----------
    directory : Path
        Where.
    plan : Plan
        What.
    ranks : iterable of int, optional
        Ranks whose listings are written; the first sixteen if not given.

    Raises
    ------
    OutputError
        If a file would be lost that was not written with a plan or was changed since, or the plan
        cannot be written.
    """
    files = _contents(plan, listed_ranks(plan.mesh.size, ranks))
    sums = {name: _digest(content) for name, content in sorted(files.items())}
    document = plan.document.model_copy(update={"files": sums})
    sums[DOCUMENT] = document_digest(json.loads(document.to_text()))
    document = document.model_copy(update={"files": sums})
    files[DOCUMENT] = document.to_text().encode()
    with failing_as(_WHAT, directory):
        obsolete = check_replaceable(directory, files)
    write_files(directory, files, _WHAT, obsolete)


def listed_ranks(devices: int, ranks: Iterable[int] | None) -> list[int]:
    """Return the ranks whose listings are written: by default the first sixteen."""
    return list(range(min(_RANKS, devices))) if ranks is None else sorted(set(ranks))


def file_names(ranks: Iterable[int]) -> list[str]:
    """Return the names of the files that every plan with these listings has."""
    return [DOCUMENT, "model.ir", "program.ir", "strategies.json", *map(_listing, ranks)]


def check_replaceable(directory: Path, names: Iterable[str] = ()) -> list[str]:
    """Check that a plan may be written to a directory without losing a file of the user.

    Parameters
    ----------
    directory : Path
        The directory: it is new or empty, or has a plan.
    names : iterable of str
        Names of the files that will be written.

    Returns
    -------
    list of str
        Files of the plan that is there which the new one does not have.

    Raises
    ------
    OutputError
        If something else is there, or the directory cannot be written to.
    PlanError
        If the plan that is there does not tell which files belong to it.
    """
    check_folder(directory, _WHAT)
    if not directory.exists() or not any(directory.iterdir()):
        return []
    if not (directory / DOCUMENT).is_file():
        raise OutputError(
            "the directory holds something that is no plan, it is not overwritten",
            str(directory),
            "name another directory",
        )
    written = _written(directory)
    for name in dict.fromkeys([*written, *names]):
        if os.path.lexists(directory / name):
            _check_unchanged(directory, name, written)
    return sorted(written.keys() - set(names))


def planned_model(directory: Path) -> str | None:
    """Return the model whose plan is in a directory; None if there is no plan."""
    if not member(directory, DOCUMENT).is_file():
        return None
    try:
        content = from_json(_read(directory, DOCUMENT))
    except ValueError:
        return None
    model = content.get("model") if isinstance(content, dict) else None
    return model if isinstance(model, str) else None


def written_files(directory: Path) -> list[str]:
    """Return the names of the files of the plan in a directory.

    Raises
    ------
    PlanError
        If there is no plan, or it does not tell.
    """
    return sorted(_written(directory))


def _check_unchanged(directory: Path, name: str, written: Mapping[str, str]) -> None:
    """Refuse to replace a file that was not written with the plan, or was changed since."""
    if name not in written:
        reason = "is not of the plan that is there"
    elif not _is_unchanged(directory / name, written[name]):
        reason = "was changed after the plan was written"
    else:
        return
    raise OutputError(
        f"`{name}` {reason}, it is not overwritten",
        str(directory),
        "move the file away, or name another directory",
    )


def _is_unchanged(path: Path, digest: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if path.name == _ARRAYS:  # as long as the weights
        found = hashlib.sha256()
        with open_file(path) as file:
            for part in iter(lambda: file.read(_PART), b""):
                found.update(part)
        return found.hexdigest() == digest
    content = read_bytes(path)
    if path.name != DOCUMENT:
        return _digest(content) == digest
    return digest in ("", document_digest(from_json(content)))


def _written(directory: Path) -> dict[str, str]:
    """Return the files that were written with the plan in a directory, and their digests."""
    foreign = PlanError(
        f"`{DOCUMENT}` is not of a plan, it is not overwritten",
        str(directory),
        "name another directory",
    )
    try:
        content = from_json(_read(directory, DOCUMENT))
    except ValueError:
        raise foreign from None
    check_format(content, str(directory / DOCUMENT))
    files = content.get("files")
    if not isinstance(files, dict) or not all(_FILE.fullmatch(name) for name in files):
        raise foreign
    return {DOCUMENT: "", **files}  # plans of before do not list the document itself


def _contents(plan: Plan, ranks: Sequence[int]) -> dict[str, bytes]:
    counts = {name: item.split_counts for name, item in plan.document.strategies.items()}
    files = {
        "model.ir": to_text(plan.model),
        "program.ir": to_text(plan.program),
        "strategies.json": strategies_text(counts),
    }
    files |= dict(zip(map(_listing, ranks), rank_texts(plan.program, ranks), strict=True))
    encoded = {name: text.encode() for name, text in files.items()}
    if plan.initial:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {
            _PREFIX + name: plan.initial[name] for name in sorted(plan.initial)
        }
        np.savez(buffer, **arrays)
        encoded[_ARRAYS] = buffer.getvalue()
    return encoded


def _listing(rank: int) -> str:
    return f"rank_{rank:05d}.ir"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def document_digest(content: Mapping[str, Any]) -> str:
    """Return the digest of a document without this digest; spaces do not matter."""
    files = {name: item for name, item in content["files"].items() if name != DOCUMENT}
    text = json.dumps({**content, "files": files}, sort_keys=True)
    return _digest(text.encode())


# Reading


def read_plan(directory: Path, allow_edited: bool = False) -> Plan:
    """Read a plan.

    Parameters
    ----------
    directory : Path
        Where it is.
    allow_edited : bool
        Whether ``program.ir`` may have been edited, to verify such a program.

    Raises
    ------
    PlanError
        If it is missing, corrupt, or of another version.
    """
    with _among_readers(directory):
        text = _read(directory, DOCUMENT).decode()
        document = PlanDocument.from_text(text, str(directory / DOCUMENT))
        names = document.files.keys() - {DOCUMENT}
        contents = {name: _read(directory, name) for name in sorted(names - {_ARRAYS})}
        if _ARRAYS in names:
            contents[_ARRAYS] = _read(directory, _ARRAYS, _most_of_arrays(contents))
    is_whole = document.files.get(DOCUMENT) in (None, document_digest(from_json(text)))
    for name, content in contents.items():
        is_changed = _digest(content) != document.files[name]
        if is_changed and not (allow_edited and name == "program.ir"):
            raise _changed(name if is_whole else DOCUMENT, directory)
    for name in ("model.ir", "program.ir"):
        if name not in contents:
            raise PlanError(f"the plan lists no `{name}`", str(directory / DOCUMENT))
    model = _graph(contents, "model.ir", directory)
    program = _graph(contents, "program.ir", directory, well_formed=not allow_edited)
    _check_consistent(document, program, directory)
    if not is_whole:
        raise _changed(DOCUMENT, directory)
    return Plan(document, model, program, _initial(contents, directory))


@contextmanager
def _among_readers(directory: Path) -> Iterator[None]:
    """Keep writers away while the files of a plan are read."""
    if not directory.is_dir():
        yield
        return
    try:
        with locked(directory, alone=False):
            yield
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"the plan cannot be read: {reason}", str(directory)) from error


def _changed(name: str, directory: Path) -> PlanError:
    return PlanError(
        f"`{name}` was changed after the plan was written: its SHA-256 differs",
        str(directory),
        "compile the model again",
    )


def _check_consistent(document: PlanDocument, program: Graph, directory: Path) -> None:
    """Refuse a document whose devices or inputs differ from the program's."""
    mesh = program.mesh or Mesh(())
    devices = document.device_mesh.size
    if document.devices != devices:
        what = f"the plan is for {document.devices} devices, but its mesh has {devices} ranks"
    elif document.device_mesh != mesh:
        what = f"the mesh of the plan is {document.device_mesh}, that of its program is {mesh}"
    elif {i.name: i.tensor for i in document.inputs} != {v.name: v.type for v in program.inputs}:
        inputs = ", ".join(f"{value.name}: {value.type}" for value in program.inputs)
        what = f"the inputs of the plan are not those of its program: {inputs}"
    else:
        return
    raise PlanError(what, str(directory / DOCUMENT), "compile the model again")


def is_edited(directory: Path, plan: Plan) -> bool:
    """Return whether ``program.ir`` was changed since the plan was written."""
    return _digest(_read(directory, "program.ir")) != plan.document.files["program.ir"]


def _most_of_arrays(contents: Mapping[str, bytes]) -> int:
    """Return the most bytes of a file of arrays: those of the model's parameters, and their heads.

    A model that cannot be read is told later.
    """
    try:
        graph = parse(contents["model.ir"].decode())
    except (KeyError, UnicodeDecodeError, ShardwrightError):
        return MOST_BYTES
    return MOST_BYTES + sum(parameter.value.type.nbytes for parameter in graph.parameters)


def _read(directory: Path, name: str, most: int = MOST_BYTES) -> bytes:
    if not directory.is_dir():
        raise PlanError("there is no such plan", str(directory), "compile the model first")
    if not is_name(name):
        what = f"the plan lists `{name}`, which is not in its directory"
        raise PlanError(what, str(directory / DOCUMENT))
    try:
        content = read_member(directory, name, most)
        if name == DOCUMENT:
            content.decode()
    except FileNotFoundError:
        raise PlanError(f"a plan has a file `{name}`, this has none", str(directory)) from None
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"`{name}` cannot be read: {reason}", str(directory)) from error
    except UnicodeDecodeError:
        raise PlanError(f"`{name}` is not text", str(directory)) from None
    return content


def _graph(
    contents: Mapping[str, bytes], name: str, directory: Path, well_formed: bool = True
) -> Graph:
    try:
        graph = parse(contents[name].decode())
        if well_formed:
            verify_structure(graph)
        return graph
    except UnicodeDecodeError:
        raise PlanError(f"`{name}` is not text", str(directory)) from None
    except ShardwrightError as error:
        raise PlanError(f"`{name}`: {error.what}", error.where, error.hint) from error


def _initial(contents: Mapping[str, bytes], directory: Path) -> dict[str, Array]:
    if _ARRAYS not in contents:
        return {}
    try:
        arrays = read_arrays(io.BytesIO(contents[_ARRAYS]))
    except (OSError, ValueError) as error:
        raise PlanError(f"`initial.npz` cannot be read: {error}", str(directory)) from None
    return {name.removeprefix(_PREFIX): array for name, array in arrays.items()}
