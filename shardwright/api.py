"""What the command line and scripts call: compile a model, and run, verify and read its plan."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from shardwright.arguments import (
    DatasetStrategy,
    asked_options,
    check_arguments,
    check_mode,
    with_own_options,
)
from shardwright.batches import Samples, samples_for
from shardwright.compiler.driver import Compiled, compile_graph, default_mesh
from shardwright.compiler.options import (
    UNPARTITIONED,
    CompileOptions,
)
from shardwright.compiler.plans.binding import rank_text
from shardwright.compiler.plans.document import InputDocument
from shardwright.compiler.plans.files import read_plan, write_plan
from shardwright.compiler.plans.plan import Plan, make_plan
from shardwright.cost_model.cluster import Cluster, mesh_for, mesh_shapes
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.input_layouts import input_layouts
from shardwright.ir.errors import (
    ModelError,
    NoPlanError,
    NotFoundError,
    OptionError,
    PlanError,
    ShardwrightError,
    StrategyError,
)
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import to_text
from shardwright.ir.values import (
    POSITIVE_INTEGER,
    SEED,
    wrong_value,
)
from shardwright.operators.info import SplitCounts
from shardwright.passes.optimizer import check_trained
from shardwright.proof import Proof
from shardwright.proof import prove as prove_plan
from shardwright.runtime import (
    Communicator,
    Executor,
    LocalCommunicator,
    StepRecord,
    any_process,
    check_capacity,
    check_checkpoint,
    initialize,
    load_checkpoint,
    save_checkpoint,
    saving,
    train,
)
from shardwright.search.options import Progress
from shardwright.tracing import Definition
from shardwright.verdict import Verdict, judge
from shardwright.zoo import load

DEFAULT_CLUSTER = "h100-pod"


@dataclass(frozen=True)
class Compilation:
    """A compiled model: its plan, and what else is known of how it came to be.

    Parameters
    ----------
    plan : Plan
        What is written, run and verified.
    compiled : Compiled
        The graphs after every pass, times and decisions.
    cluster : Cluster
        For what it was compiled.
    objectives : mapping of str to float
        Cost of the best plan found on each shape of mesh, where a search went over them.
    lower_bounds : mapping of str to float
        What any plan costs at least on each of these shapes.
    """

    plan: Plan
    compiled: Compiled
    cluster: Cluster
    objectives: Mapping[str, float] = field(default_factory=dict)
    lower_bounds: Mapping[str, float] = field(default_factory=dict)

    def write(self, directory: str | Path, ranks: list[int] | None = None) -> Path:
        """Write the plan; see `write_plan`."""
        write_plan(Path(directory), self.plan, ranks)
        return Path(directory)


def compile(
    model: str | Definition,
    devices: int,
    *,
    cluster: str | Cluster = DEFAULT_CLUSTER,
    mesh: str | Mesh | None = None,
    batch: int | None = None,
    strategies: str | Path | Mapping[str, SplitCounts] | None = None,
    dataset_strategy: DatasetStrategy | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Compilation:
    """Compile a model for a number of devices.

    Parameters
    ----------
    model : str or Definition
        A model of the zoo with its sizes, ``file.py:function``, or what `trace` returns.
    devices : int
        Number of ranks.
    cluster : str or Cluster
        The devices: a name, a file, or a description.
    mesh : str or Mesh, optional
        Shape of the mesh: ``2x4`` or ``data=2,model=4``; ``search`` compiles for the finest shapes
        and takes the cheapest plan; as the cluster suggests if not given.
    batch : int, optional
        Size of the batch, for models that have it as a size.
    strategies : path or mapping, optional
        Strategies to pin, besides those that the model asks for.
    dataset_strategy : str, optional
        How batches arrive: split over all devices, or whole; as it suits if not given.
    seed : int
        Seed of the initial values.
    progress : callable, optional
        Follows the search.
    **options
        Everything else that `CompileOptions` has: ``mode``, ``search``, ``memory_limit``, ...
        Optimizer and loss scale are the model's own unless they are given.

    Raises
    ------
    ShardwrightError
        If something asked for cannot be.
    """
    check_arguments(model, devices, cluster, batch, dataset_strategy, seed)
    asked = asked_options(options, strategies, _ARGUMENTS)
    check_mode(asked, devices, mesh, dataset_strategy)
    world = devices if asked.mode == "hybrid_parallel" else 1
    definition, name = _definition(model, batch, world)
    described = cluster_named(cluster) if isinstance(cluster, str) else cluster
    chosen = with_own_options(asked, definition, options)
    if "data_parallel" in (chosen.mode, dataset_strategy):
        _check_batch(definition, devices)
    traced = _reference(model, batch) if world > 1 else definition.graph
    request = _Request(
        definition, name, described, devices, chosen, dataset_strategy, traced, seed, progress
    )
    if mesh == "search":
        shapes = mesh_shapes(described, devices)
        meshes = [mesh_for(described, devices, shape) for shape in shapes]
        compilation = _cheapest(request.compile_on, meshes)
    else:
        compilation = request.compile_on(_mesh(described, devices, mesh, chosen))
    check_trained(compilation.compiled.source)
    return compilation


@dataclass(frozen=True)
class _Request:
    """A compilation, but for the mesh."""

    definition: Definition
    name: str
    cluster: Cluster
    devices: int
    options: CompileOptions
    dataset_strategy: DatasetStrategy | None
    traced: Graph
    seed: int
    progress: Progress | None

    def compile_on(self, mesh: Mesh | None) -> Compilation:
        """Compile on one mesh; None where the mode has its own."""
        definition, options = self.definition, self.options
        arriving = _arriving(definition, self.dataset_strategy, mesh)
        options = replace(options, input_layouts={**arriving, **options.input_layouts})
        compiled = compile_graph(
            definition.graph, self.cluster, self.devices, options, mesh, self.progress
        )
        plan = make_plan(
            compiled,
            self.cluster,
            options,
            model=self.name,
            traced=self.traced,
            inputs=_inputs(definition),
            initial=definition.initial,
            seed=self.seed,
        )
        return Compilation(plan, compiled, self.cluster)


def _cheapest(compile_on: Callable[[Mesh], Compilation], meshes: Sequence[Mesh]) -> Compilation:
    """Return the cheapest of the compilations for several meshes.

    Raises
    ------
    ShardwrightError
        If there is no plan on any of them.
    """
    found: dict[str, Compilation] = {}
    errors: list[NoPlanError | StrategyError] = []
    for mesh in meshes:
        try:
            found["x".join(map(str, mesh.shape))] = compile_on(mesh)
        except (NoPlanError, StrategyError) as error:
            errors.append(error)
    if not found:
        raise _on_no_mesh(errors)
    objectives = {shape: each.plan.document.objective for shape, each in found.items()}
    bounds = {shape: each.plan.document.lower_bound for shape, each in found.items()}
    best = found[min(objectives, key=objectives.__getitem__)]
    tried = [each.compiled for each in found.values()]
    searched = sum(each.result.seconds for each in tried if each.result)
    result = best.compiled.result and replace(best.compiled.result, seconds=searched)
    seconds = sum(each.seconds for each in tried)
    compiled = replace(best.compiled, seconds=seconds, result=result)
    return replace(best, compiled=compiled, objectives=objectives, lower_bounds=bounds)


def _on_no_mesh(errors: Sequence[NoPlanError | StrategyError]) -> ShardwrightError:
    """Return what the errors on all meshes say together: proven only if all of them are."""
    failed = [error for error in errors if isinstance(error, NoPlanError)]
    if not failed:
        return errors[-1]
    unproven = [error for error in failed if isinstance(error, NotFoundError)]
    told = min(unproven or failed, key=lambda error: error.least_memory_bytes or inf)
    leanest = [e.least_memory_bytes for e in failed if e.least_memory_bytes is not None]
    bounds = [e.least_memory_bound for e in failed if e.least_memory_bound is not None]
    return type(told)(
        told.what,
        told.where,
        told.hint,
        least_memory_bytes=min(leanest, default=None),
        least_memory_bound=min(bounds) if len(bounds) == len(failed) else None,
    )


def _mesh(
    cluster: Cluster, devices: int, mesh: str | Mesh | None, options: CompileOptions
) -> Mesh | None:
    """Return the mesh; None where the mode or the cost model has its own."""
    if isinstance(mesh, Mesh):
        if mesh.size != devices:
            raise wrong_value("mesh", str(mesh), f"{devices} ranks, it has {mesh.size}")
        return mesh
    if options.mode in UNPARTITIONED:
        return None
    if mesh is None:
        return default_mesh(cluster, devices, options.cost_model)
    if not isinstance(mesh, str):
        raise wrong_value("mesh", mesh, "a text such as `2x4`, or a `Mesh`")
    return mesh_for(cluster, devices, mesh)


def _arriving(
    definition: Definition, strategy: DatasetStrategy | None, mesh: Mesh | None
) -> dict[str, Layout]:
    return {} if mesh is None else input_layouts(definition.inputs, strategy, mesh)


def _definition(model: str | Definition, batch: int | None, world: int) -> tuple[Definition, str]:
    if isinstance(model, Definition):
        if model.world != world:
            raise ModelError(
                f"the model is traced for {model.world} ranks, expected {world}",
                hint="trace it inside `shardwright.communication.world`",
            )
        return model, model.graph.name
    definition = load_model(model, batch, world)
    if definition.loss is None:
        first = definition.graph.values[definition.graph.outputs[0]]
        raise ModelError(
            f"the first output `{first.name}` of the model is {first.type}, expected a real scalar",
            hint="a model that is trained returns its loss first",
        )
    return definition, with_batch(model, batch)


def with_batch(model: str, batch: int | None) -> str:
    """Return the model with its size ``batch`` set, where one is given.

    Raises
    ------
    ModelError
        If the model has that size already.
    """
    if batch is None:
        return model
    base, dot, rest = model.rpartition(".py:")
    name, colon, sizes = rest.partition(":")
    if any(item.partition("=")[0].strip() == "batch" for item in sizes.split(",")):
        raise ModelError(f"the size `batch` of `{model}` is given twice", hint="give it once")
    return f"{base}{dot}{name}:{sizes}{',' if colon else ''}batch={batch}"


def load_model(model: str, batch: int | None = None, ranks: int = 1) -> Definition:
    """Return the definition that a text names; see `shardwright.zoo.load`."""
    return load(with_batch(model, batch), ranks)


def _reference(model: str | Definition, batch: int | None) -> Graph:
    """Return the program of one device that a hand-written parallel program stands for."""
    if isinstance(model, Definition):
        raise ModelError(
            "a hand-written parallel program is compiled by its name, so that it can be traced "
            "for one device too",
            hint="write `file.py:function`",
        )
    return load_model(model, batch).graph


def _inputs(definition: Definition) -> tuple[InputDocument, ...]:
    return tuple(
        InputDocument(name=spec.name, type=str(spec.type), high=spec.high)
        for spec in definition.inputs
    )


def _check_batch(definition: Definition, ranks: int) -> None:
    """Refuse a batch that cannot be split over all ranks."""
    for value in definition.graph.inputs:
        if value.type.rank and value.type.shape[0] % ranks:
            raise ModelError(
                f"`{value.name}` has a batch of {value.type.shape[0]}, it cannot be split over "
                f"{ranks} devices",
                hint=f"use a batch that {ranks} divides",
            )


_ARGUMENTS = [name for name in inspect.signature(compile).parameters if name != "options"]


# Plans


def as_plan(plan: str | Path | Plan | Compilation) -> Plan:
    """Return a plan, reading it where a directory is given."""
    if isinstance(plan, Compilation):
        return plan.plan
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str | Path):
        raise wrong_value("plan", plan, "the folder of a plan, or what `compile` returns")
    return read_plan(Path(plan))


def _path(name: str, path: object) -> Path | None:
    """Return a path that may be given as text."""
    if path is not None and not isinstance(path, str | Path):
        raise wrong_value(name, path, "the path of a file")
    return None if path is None else Path(path)


def prove(plan: str | Path | Plan | Compilation) -> Proof:
    """Prove that a plan computes the training step of its model; see `shardwright.proof`."""
    return prove_plan(as_plan(plan))


def verify(plan: str | Path | Plan | Compilation, steps: int = 3, *, full: bool = False) -> Verdict:
    """Prove a plan, and compare it with the program of one device by numbers; see `judge`."""
    POSITIVE_INTEGER.check("steps", steps)
    return judge(as_plan(plan), steps, full=full)


def run(
    plan: str | Path | Plan | Compilation,
    steps: int = 20,
    *,
    data: Samples | str | Path | None = None,
    communicator: Communicator | None = None,
    log_directory: Path | None = None,
    seed: int | None = None,
    resume: str | Path | None = None,
    save: str | Path | None = None,
    save_every: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[StepRecord]:
    """Train on a plan, and yield a record of each step.

    Parameters
    ----------
    plan : path, Plan or Compilation
        What to run.
    steps : int
        Steps of training.
    data : Samples or path, optional
        What to train on; see `samples_for`.
    communicator : Communicator, optional
        Hosts ranks of the plan; all of them in this process if not given.
    log_directory : Path, optional
        Folder for the log of each rank.
    seed : int, optional
        Seed of initial values and of the order of samples; the plan's if not given.
    resume, save : Path, optional
        Checkpoint to begin from, and to write at the end.
    save_every : int, optional
        Steps after which the checkpoint is written, too.
    stop : callable, optional
        Asked after every step whether to end early, with the checkpoint written.

    Raises
    ------
    ShardwrightError
        If the plan, the data or the checkpoint cannot be read, or a step fails.
    """
    POSITIVE_INTEGER.check("steps", steps)
    plan = as_plan(plan)
    seed = plan.document.seed if seed is None else seed
    SEED.check("seed", seed)
    resume, save = _path("resume", resume), _path("save", save)
    communicator = communicator or LocalCommunicator(plan.mesh)
    check_capacity(plan.program, communicator.ranks)
    _check_saving(save, save_every, communicator)
    samples = data
    if not isinstance(samples, Samples):
        samples = samples_for(plan.document.inputs, _path("data", samples), seed)
    executor = Executor(plan.program, communicator)
    if resume is not None:
        state = load_checkpoint(resume, plan.program, communicator)
    else:
        state = initialize(plan.program, seed, communicator, plan.initial)
    records = train(
        executor,
        state,
        samples.batches(steps, seed),
        log_directory=log_directory,
        steps_per_epoch=samples.per_epoch,
    )

    def write() -> None:
        if save is not None:
            save_checkpoint(save, plan.program, state, communicator)

    def stopped() -> bool:
        return stop is not None and any_process(stop(), communicator)

    yield from saving(records, write, save_every, stopped)


def _check_saving(save: Path | None, every: int | None, communicator: Communicator) -> None:
    """Refuse a checkpoint that cannot be written, before training for it."""
    if every is not None:
        POSITIVE_INTEGER.check("save_every", every)
        if save is None:
            raise OptionError("`save_every` has no effect without `save`")
    if save is not None and 0 in communicator.ranks:
        check_checkpoint(save)


def dump(
    target: str | Path | Plan | Compilation, *, after: str | None = None, rank: int | None = None
) -> str:
    """Return the text of a plan's program, of one rank's, or of what a pass left.

    Parameters
    ----------
    target : path, Plan or Compilation
        What to print.
    after : str, optional
        A pass; only of a compilation.
    rank : int, optional
        Bind the program to this rank.

    Raises
    ------
    PlanError
        If a pass is named, but there is only a plan.
    """
    if after is not None:
        if not isinstance(target, Compilation):
            raise PlanError("a plan holds what the last pass left", hint="give the compilation")
        return to_text(target.compiled.passes.after(after))
    program = as_plan(target).program
    return to_text(program) if rank is None else rank_text(program, rank)
