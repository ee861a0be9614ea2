"""What compiling leaves on disk, and reading it back.

A plan is a directory::

    plan.json         for what, how, and how good; see `PlanDocument`
    model.ir          the whole program of one device, which the plan is verified against
    program.ir        the training step that every rank runs
    rank_00003.ir     the same bound to one rank, to be read by people
    strategies.json   the strategies, which can be given to another compilation as pins
    initial.npz       parameters that begin as given data, if there are any
"""

import hashlib
import io
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from shardwright.ir.errors import PlanError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.operators.info import Array
from shardwright.passes.binding import rank_text
from shardwright.passes.plan import Plan
from shardwright.passes.plan_document import PlanDocument
from shardwright.passes.strategies_file import strategies_text

DOCUMENT = "plan.json"
_PREFIX = "parameter:"  # keeps names of parameters apart from the arguments of `numpy.savez`
_RANKS = 16  # listings that are written unless others are asked for

# Writing


def write_plan(directory: Path, plan: Plan, ranks: Iterable[int] | None = None) -> None:
    """Write a plan; the directory appears complete or not at all.

    Parameters
    ----------
    directory : Path
        Where; a plan that is there already is replaced.
    plan : Plan
        What.
    ranks : iterable of int, optional
        Ranks whose listings are written; the first sixteen if not given.

    Raises
    ------
    PlanError
        If something else is there, or it cannot be written.
    """
    check_replaceable(directory)
    chosen = range(min(_RANKS, plan.mesh.size)) if ranks is None else sorted(set(ranks))
    files = _contents(plan, chosen)
    sums = {name: _digest(content) for name, content in sorted(files.items())}
    document = plan.document.model_copy(update={"files": sums})
    files[DOCUMENT] = document.to_text().encode()
    try:
        _write_files(directory, files)
    except OSError as error:
        raise PlanError(
            f"the plan cannot be written: {(error.strerror or 'unknown').lower()}", str(directory)
        ) from error


def check_replaceable(directory: Path) -> None:
    """Check that a plan may be written to a directory: it is new, empty, or a plan.

    Raises
    ------
    PlanError
        If something else is there.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise PlanError("the plan cannot be written: a file is there", str(directory))
    if any(directory.iterdir()) and not (directory / DOCUMENT).is_file():
        raise PlanError(
            "the directory holds something that is no plan, it is not overwritten",
            str(directory),
            "name another directory",
        )


def _contents(plan: Plan, ranks: Iterable[int]) -> dict[str, bytes]:
    counts = {name: item.split_counts for name, item in plan.document.strategies.items()}
    files = {
        "model.ir": to_text(plan.model),
        "program.ir": to_text(plan.program),
        "strategies.json": strategies_text(counts),
    }
    files |= {f"rank_{rank:05d}.ir": rank_text(plan.program, rank) for rank in ranks}
    encoded = {name: text.encode() for name, text in files.items()}
    if plan.initial:
        buffer = io.BytesIO()
        given = {_PREFIX + name: plan.initial[name] for name in sorted(plan.initial)}
        np.savez(buffer, allow_pickle=False, **given)
        encoded["initial.npz"] = buffer.getvalue()
    return encoded


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write into a directory beside, and put it in place when it is complete."""
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = directory.with_name(f".{directory.name}.{os.getpid()}.new")
    old = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    try:
        fresh.mkdir()
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
    finally:
        if old.exists() and not directory.exists():
            old.rename(directory)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


# Reading


def read_plan(directory: Path, allow_edited: bool = False) -> Plan:
    """Read a plan.

    Parameters
    ----------
    directory : Path
        Where it is.
    allow_edited : bool
        Whether ``program.ir`` may differ from what was compiled; to verify such a program.

    Raises
    ------
    PlanError
        If it is missing, corrupt, or of another version.
    """
    document = PlanDocument.from_text(_read(directory, DOCUMENT).decode(), str(directory))
    contents = {}
    for name, digest in document.files.items():
        contents[name] = _read(directory, name)
        if _digest(contents[name]) != digest and not (allow_edited and name == "program.ir"):
            raise PlanError(
                f"`{name}` is not what was written with the plan: its SHA-256 differs",
                str(directory),
                "compile the model again",
            )
    for name in ("model.ir", "program.ir"):
        if name not in contents:
            raise PlanError(f"the plan lists no `{name}`", str(directory))
    model, program = (_graph(contents, name, directory) for name in ("model.ir", "program.ir"))
    return Plan(document, model, program, _initial(contents))


def is_edited(directory: Path, plan: Plan) -> bool:
    """Return whether ``program.ir`` was changed since the plan was written."""
    return _digest(_read(directory, "program.ir")) != plan.document.files["program.ir"]


def _read(directory: Path, name: str) -> bytes:
    if not directory.is_dir():
        raise PlanError("there is no such plan", str(directory), "compile the model first")
    if Path(name).name != name:
        raise PlanError(f"the plan lists `{name}`, which is not in its directory", str(directory))
    try:
        content = (directory / name).read_bytes()
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


def _graph(contents: Mapping[str, bytes], name: str, directory: Path) -> Graph:
    try:
        return parse(contents[name].decode())
    except UnicodeDecodeError:
        raise PlanError(f"`{name}` is not text", str(directory)) from None
    except ShardwrightError as error:
        raise PlanError(f"`{name}`: {error.what}", error.where, error.hint) from error


def _initial(contents: Mapping[str, bytes]) -> dict[str, Array]:
    if "initial.npz" not in contents:
        return {}
    with np.load(io.BytesIO(contents["initial.npz"]), allow_pickle=False) as archive:
        return {name.removeprefix(_PREFIX): archive[name] for name in archive.files}
