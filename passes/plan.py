"""Plans: what compiling leaves on disk, and reading it back.

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
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from shardwright.cost_model.cluster import Cluster
from shardwright.ir.errors import PlanError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse, to_text
from shardwright.operators.info import Array, SplitCounts
from shardwright.passes.accounting import split_counts, traffic
from shardwright.passes.binding import rank_text
from shardwright.passes.compile import Compiled, CompileOptions
from shardwright.passes.gradient import differentiate
from shardwright.passes.optimizer import append_optimizer
from shardwright.passes.plan_document import (
    AxisDocument,
    InputDocument,
    MemoryDocument,
    OptimizerDocument,
    ParameterDocument,
    PlanDocument,
    StrategyDocument,
    VolumeDocument,
)
from shardwright.solver.solution import relative_gap

DOCUMENT = "plan.json"
_PREFIX = "parameter:"  # keeps names of parameters apart from the arguments of `numpy.savez`
_RANKS = 16  # listings that are written unless others are asked for
# The search of the modes that have one of their own, or none.
_SEARCHES = {
    "data_parallel": "data_parallel",
    "semi_auto_parallel": "sharding_propagation",
    "hybrid_parallel": "none",
    "stand_alone": "none",
}
_NOTHING_TO_DECIDE = {
    "stand_alone": ("optimal", "there is nothing to decide"),
    "hybrid_parallel": ("feasible", "the model itself says how it is split"),
}


@dataclass(frozen=True)
class Plan:
    """A compiled training step.

    Parameters
    ----------
    document : PlanDocument
        What is known of it.
    model : Graph
        The whole program of one device.
    program : Graph
        The training step that every rank runs.
    initial : mapping of str to array
        Parameters that begin as given data.
    """

    document: PlanDocument
    model: Graph
    program: Graph
    initial: Mapping[str, Array] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self.program.mesh or Mesh(())

    @cached_property
    def reference(self) -> Graph:
        """The training step of one device, made from the model by the same passes."""
        scale = self.document.loss_scale
        step = differentiate(self.model, scale)
        return append_optimizer(step, self.document.optimizer.optimizer, scale)


def make_plan(
    compiled: Compiled,
    cluster: Cluster,
    options: CompileOptions,
    *,
    model: str,
    inputs: Sequence[InputDocument],
    initial: Mapping[str, Array] | None = None,
    reference: Graph | None = None,
    seed: int = 0,
) -> Plan:
    """Return the plan of a compiled program.

    Parameters
    ----------
    compiled, cluster, options
        What was compiled, for what, and how.
    model : str
        What it is called.
    inputs : sequence of InputDocument
        What the model takes.
    initial : mapping of str to array, optional
        Parameters that begin as given data.
    reference : Graph, optional
        The program of one device, where it is not what was compiled (``hybrid_parallel``).
    seed : int
        Seed of the initial values.
    """
    status, how = _NOTHING_TO_DECIDE.get(options.mode, ("feasible", ""))
    cost = compiled.step_seconds
    bound = cost if status == "optimal" else 0.0
    if compiled.result is not None:
        status, how = compiled.result.status, compiled.result.how
        cost, bound = compiled.result.cost, compiled.result.lower_bound
    document = PlanDocument(
        model=model,
        devices=compiled.mesh.size,
        mesh=tuple(
            AxisDocument(name=axis.name, size=axis.size, level=axis.level)
            for axis in compiled.mesh.axes
        ),
        cluster=cluster,
        mode=options.mode,
        search=_SEARCHES.get(options.mode, options.search),
        cost_model=options.cost_model,
        loss_scale=options.loss_scale,
        gradients_mean=options.gradients_mean,
        seed=seed,
        inputs=tuple(inputs),
        optimizer=OptimizerDocument.model_validate(
            {"kind": options.optimizer.kind, "settings": dict(options.optimizer.settings)}
        ),
        status=status,
        how=how,
        objective=cost,
        lower_bound=bound,
        gap=relative_gap(cost, bound),
        predicted_step_seconds=compiled.step_seconds,
        memory=MemoryDocument(
            peak_bytes=compiled.memory.peak_bytes,
            by_kind=dict(compiled.memory.by_kind),
            at=compiled.memory.at,
        ),
        communication={
            kind: VolumeDocument(count=volume.count, bytes=volume.bytes)
            for kind, volume in traffic(compiled.program).items()
        },
        strategies=_strategies(compiled),
        parameters=_parameters(compiled.program),
        pins=dict(options.pins),
        pin_prices=dict(compiled.pin_prices),
    )
    return Plan(document, reference or compiled.source, compiled.program, dict(initial or {}))


def _strategies(compiled: Compiled) -> dict[str, StrategyDocument]:
    if compiled.decisions is None:
        return {}
    decided = compiled.decisions.strategies
    return {
        name: StrategyDocument(split_counts=counts, factors=decided[name].axes)
        for name, counts in split_counts(compiled).items()
    }


def _parameters(program: Graph) -> dict[str, ParameterDocument]:
    mesh, found = program.mesh or Mesh(()), {}
    for parameter in program.parameters:
        kind = parameter.value.type
        layout = parameter.value.layout or Layout.replicated(kind.rank)
        found[parameter.name] = ParameterDocument(
            type=str(kind), layout=str(layout), slice_shape=layout.slice_shape(kind.shape, mesh)
        )
    return found


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


# Strategies


def strategies_text(strategies: Mapping[str, SplitCounts]) -> str:
    """Return strategies as JSON, an operator a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(strategies[name])}" for name in sorted(strategies)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_strategies(path: Path) -> dict[str, SplitCounts]:
    """Read strategies: a JSON object of operator and split counts, as a plan has them.

    Raises
    ------
    PlanError
        If the file cannot be read so.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"the strategies cannot be read: {reason}", str(path)) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PlanError("a file of strategies must be JSON, this is not", str(path)) from error
    if not isinstance(content, dict):
        raise PlanError("a file of strategies holds an object, this does not", str(path))
    return {name: _counts(name, counts, path) for name, counts in content.items()}


def _counts(name: str, counts: object, path: Path) -> SplitCounts:
    """Return split counts from nested lists."""
    if isinstance(counts, list) and all(isinstance(operand, list) for operand in counts):
        found = tuple(tuple(operand) for operand in counts)
        if all(type(count) is int for operand in found for count in operand):
            return found
    raise PlanError(
        f"the strategy of `{name}` is `{json.dumps(counts)}`, it must be a list of split counts "
        f"for each operand",
        str(path),
        f'write `"{name}": [[2, 4], [4, 1]]`',
    )
