"""The functions of the package: compile a model; run, prove, verify and print its plan."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from shardwright.compilation import Compilation, Request
from shardwright.compiler.outer.meshes import meshes_of, with_search_of_large
from shardwright.compiler.plans.binding import rank_text
from shardwright.compiler.plans.files import read_plan as read_plan_files
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import DEFAULT_CLUSTER
from shardwright.cost_model.pipelines.mixed import AnyCluster, any_cluster
from shardwright.dataflow.cotangents import check_trained
from shardwright.dataflow.update_rules import with_rules
from shardwright.ir.errors import OptionError, PlanError
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import to_text
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SEED,
    check_flag,
    checked,
    wrong_value,
)
from shardwright.ir.versions import warn_if_untested
from shardwright.models import (
    batch_on,
    check_batch,
    imported_definition,
    reference_graph,
    training_definition,
)
from shardwright.operators.info import SplitCounts
from shardwright.proof import Proof
from shardwright.proof import prove as prove_plan
from shardwright.runtime import (
    Communicator,
    Executor,
    LocalCommunicator,
    State,
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
from shardwright.runtime.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    Progress,
    Writing,
    begin_writing,
    check_keeping,
    check_program,
    checked_newest,
    is_sliced,
    load_slices,
    open_agreed,
    open_checkpoint,
)
from shardwright.runtime.flat.rank_timeline import RunTimeline, check_timeline_file, write_timeline
from shardwright.search.options import Progress as SearchProgress
from shardwright.verification.verdict import Verdict, judge


def compile(
    model: Any,
    devices: int,
    *,
    example_inputs: Any = None,
    loss: str | None = None,
    as_example: bool = False,
    cluster: str | AnyCluster = DEFAULT_CLUSTER,
    mesh: str | Mesh | None = None,
    batch: int | None = None,
    strategies: str | Path | Mapping[str, SplitCounts] | None = None,
    dataset_strategy: DatasetStrategy | None = None,
    seed: int = 0,
    progress: SearchProgress | None = None,
    **options: Any,
) -> Compilation:
    """Compile a model for a number of devices.

    Parameters
    ----------
    model : str, Definition, torch.nn.Module or callable
        A model of the zoo with its sizes, ``file.py:function``, what `trace` returns, or a module
        of PyTorch or a function of JAX with its `example_inputs`.
    devices : int
        Number of ranks.
    example_inputs : tuple or dict, optional
        Inputs of a module of PyTorch, positional or by name; the arguments of a function of JAX,
        the parameters first.
    loss : str, optional
        The loss that is appended to a module of PyTorch or a function of JAX: ``cross_entropy``,
        ``mse`` or ``mean`` of its first output. By default its first output is the loss.
    as_example : bool
        Whether branches and sizes of a module that depend on the elements of its inputs are those
        of the example. The program checks it: the loss of a batch that differs is infinite.
    cluster : str, Cluster or MixedCluster
        The devices: a name, a file, a line like ``h100:nodes=8,network=400Gb/s``, or a description.
    mesh : str or Mesh, optional
        Shape of the mesh: ``2x4`` or ``data=2,model=4``; ``search`` for the best of the finest
        shapes; ``default`` for the cluster's. If it is not given, the cluster's; for a large model
        mesh, stages and micro-batches are searched together where none of them is given.
    batch : int, optional
        Batch size, for models that have it as a size. Without one it is the model's own, and of a
        language model the least multiple of the devices that is not less.
    strategies : path or mapping, optional
        Strategies to pin, in addition to the pins of the model.
    dataset_strategy : str, optional
        Layout of the inputs: ``data_parallel`` (split over all devices) or ``full_batch`` (whole);
        chosen by the search if not given.
    seed : int
        Seed of the initial values.
    progress : callable, optional
        Called by the search with (seconds, cost, bound).
    **options
        Options of `CompileOptions`: ``mode``, ``search``, ``memory_limit``, ... Optimizer and loss
        scale are the model's own if not given.

    Raises
    ------
    ShardwrightError
        If an argument is wrong, or there is no plan.
    """
    warn_if_untested("numpy")
    model = imported_definition(model, example_inputs, loss, as_example)
    check_arguments(model, devices, cluster, batch, dataset_strategy, seed, progress)
    asked = asked_options(options, strategies, _ARGUMENTS)
    check_mode(asked, devices, mesh, dataset_strategy)
    batch = batch_on(model, batch, devices)
    world = devices if asked.mode == "hybrid_parallel" else 1
    definition, name = training_definition(model, batch, world)
    described = any_cluster(cluster) if isinstance(cluster, str) else cluster
    described = described.used_by(devices)
    chosen = with_own_options(asked, definition, options)
    chosen = replace(chosen, optimizer=with_rules(chosen.optimizer, definition.graph))
    if "data_parallel" in (chosen.mode, dataset_strategy):
        check_batch(definition, devices)
    where = definition.graph, described, devices, mesh
    mesh, chosen = with_search_of_large(*where, chosen, options)
    traced = reference_graph(model, batch) if world > 1 else definition.graph
    request = Request(
        definition, name, described, devices, chosen, dataset_strategy, traced, seed, progress
    )
    compilation = request.compile_on(meshes_of(described, devices, mesh, chosen))
    check_trained(compilation.compiled.source)
    return compilation


_ARGUMENTS = [name for name in inspect.signature(compile).parameters if name != "options"]


# Plans


@checked
def read_plan(directory: str | Path) -> Plan:
    """Return the plan in a directory.

    Raises
    ------
    PlanError
        If there is none, or its files were edited.
    """
    return read_plan_files(Path(directory))


def as_plan(plan: str | Path | Plan | Compilation) -> Plan:
    """Return a plan, reading it where a directory is given."""
    if isinstance(plan, Compilation):
        return plan.plan
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str | Path):
        raise wrong_value("plan", plan, "the folder of a plan, or what `compile` returns")
    return read_plan(plan)


def _path(name: str, path: object) -> Path | None:
    """Return a path that may be given as text."""
    if path is not None and not isinstance(path, str | Path):
        raise wrong_value(name, path, "the path of a file")
    return None if path is None else Path(path)


def prove(plan: str | Path | Plan | Compilation) -> Proof:
    """Prove that a plan computes the training step of its model; see `shardwright.proof`."""
    return prove_plan(as_plan(plan))


def verify(
    plan: str | Path | Plan | Compilation,
    steps: int = 3,
    *,
    full: bool = False,
    communicator: Communicator | None = None,
) -> Verdict:
    """Prove a plan, and compare it with the program of one device by numbers; see `judge`."""
    POSITIVE_INTEGER.check("steps", steps)
    check_flag("full", full)
    found = as_plan(plan)
    _check_communicator(found, communicator)
    return judge(found, steps, full=full, communicator=communicator)


def run(
    plan: str | Path | Plan | Compilation,
    steps: int = 20,
    *,
    data: Samples | str | Path | None = None,
    communicator: Communicator | None = None,
    log_directory: str | Path | None = None,
    seed: int | None = None,
    resume: str | Path | None = None,
    save: str | Path | None = None,
    save_every: int | None = None,
    checkpoints: str | Path | None = None,
    keep: int = Writing.keep,
    stop: Callable[[], bool] | None = None,
    timeline: str | Path | RunTimeline | None = None,
) -> Iterator[StepRecord]:
    """Train on a plan, and yield a record of each step.

    Parameters
    ----------
    plan : path, Plan or Compilation
        The plan.
    steps : int
        Number of steps.
    data : Samples or path, optional
        The training data; see `samples_for`.
    communicator : Communicator, optional
        Hosts ranks of the plan; by default all of them in this process.
    log_directory : path, optional
        Folder for the log of each rank.
    seed : int, optional
        Seed of initial values and of the order of samples; by default the plan's, or that of the
        checkpoint.
    resume : Path, optional
        Checkpoint to start from: a file of `save`, whose parameters begin a new training; or a
        checkpoint of `checkpoints`, or the folder of several, whose newest is continued where it
        stopped, with the bits that the unbroken training has.
    save : Path, optional
        File of whole tensors to write at the end.
    save_every : int, optional
        Number of steps after which `save` and `checkpoints` are written, too.
    checkpoints : Path, optional
        Folder in which every rank writes its slices, at the end too.
    keep : int
        How many checkpoints stay in the folder; 0: all.
    stop : callable, optional
        Called after every step; training ends with the checkpoint written if it returns True.
    timeline : Path or RunTimeline, optional
        File for what the ranks did in the last steps, in the format of ``chrome://tracing``; or
        what records it.

    Raises
    ------
    ShardwrightError
        If the plan, the data or the checkpoint cannot be read, or a step fails.
    """
    POSITIVE_INTEGER.check("steps", steps)
    plan = as_plan(plan)
    resume, save = _path("resume", resume), _path("save", save)
    _check_communicator(plan, communicator, stop)
    folder = _path("checkpoints", checkpoints)
    communicator = communicator or LocalCommunicator(plan.mesh)
    check_capacity(plan.program, communicator.ranks)
    _check_saving(save, folder, save_every, keep, communicator)
    opened = checked_newest(folder, resume, _opened(resume))
    seed, samples = _drawn(plan, data, seed, opened)  # a mistake takes the folder from nobody
    writer = _writer(folder, plan, communicator, keep, opened)
    opened = _opened(resume, communicator)  # an earlier start may have written until now
    before = 0 if opened is None else opened.manifest.progress.step
    state = _begun(plan, seed, communicator, resume if opened is None else opened)
    executor = Executor(plan.program, communicator, in_place=True)
    file, watch = _watched(executor, timeline)
    records = train(
        executor,
        state,
        samples.batches(steps, seed, before),
        log_directory=_path("log_directory", log_directory),
        steps_per_epoch=samples.per_epoch,
        steps_before=before,
    )
    saver = _Saver(plan, state, communicator, save, writer, samples, seed)

    def stopped() -> bool:
        saver.raise_error()
        return stop is not None and any_process(stop(), communicator)

    yield from saving(records, saver.save, save_every, stopped)
    saver.settle()
    if file is not None and watch is not None:
        write_timeline(file, watch, communicator)


def _writer(
    folder: Path | None,
    plan: Plan,
    communicator: Communicator,
    keep: int,
    resumed: Checkpoint | None,
) -> CheckpointWriter | None:
    """Return what writes the slices of a run, if a folder is given."""
    if folder is None:
        return None
    return begin_writing(folder, plan.program, communicator, keep=keep, resumed=resumed)


def _watched(
    executor: Executor, timeline: str | Path | RunTimeline | None
) -> tuple[Path | None, RunTimeline | None]:
    """Return the file for a timeline, if one is asked for, and what records the steps."""
    if timeline is None:
        return None, None
    file = None if isinstance(timeline, RunTimeline) else _path("timeline", timeline)
    if file is not None:
        check_timeline_file(file)
    watch = timeline if isinstance(timeline, RunTimeline) else RunTimeline()
    executor.watch(watch)
    return file, watch


@dataclass(frozen=True)
class _Saver:
    """Saves the state of a run: in a file of whole tensors, as slices, or both, or not at all."""

    plan: Plan
    state: State
    communicator: Communicator
    file: Path | None
    writer: CheckpointWriter | None
    samples: Samples
    seed: int

    def save(self, record: StepRecord) -> None:
        if self.file is not None:
            save_checkpoint(self.file, self.plan.program, self.state, self.communicator)
        if self.writer is not None:
            epoch, batch = divmod(record.step, self.samples.per_epoch)
            digest = self.samples.digest
            place = Progress(
                step=record.step, epoch=epoch + 1, batch=batch, seed=self.seed, data=digest
            )
            self.writer.save(self.state, place)

    def raise_error(self) -> None:
        if self.writer is not None:
            self.writer.raise_error()

    def settle(self) -> None:
        if self.writer is not None:
            self.writer.settle()


def _drawn(
    plan: Plan, data: Samples | str | Path | None, seed: int | None, opened: Checkpoint | None
) -> tuple[int, Samples]:
    """Return the seed and the samples of a run; refuse another program or data than before."""
    seed = _seed(plan, seed, opened)
    if not isinstance(data, Samples):
        data = samples_for(plan.document.inputs, _path("data", data), seed)
    if opened is not None:
        check_program(opened, plan.program)
        before = opened.manifest.progress.data
        if before != data.digest:
            raise PlanError(
                f"the run was trained on other data ({before or 'not told'}) than is given now "
                f"({data.digest})",
                str(opened.path),
                "name the same data",
            )
    return seed, data


def seed_of_run(plan: Plan, seed: int | None, resume: Path | None) -> int:
    """Return the seed with which `run` trains; see there."""
    return _seed(plan, seed, _opened(resume))


def _opened(resume: Path | None, communicator: Communicator | None = None) -> Checkpoint | None:
    """Return the checkpoint that a run continues; None if it starts from a file, or from anew."""
    if resume is None or not is_sliced(resume):
        return None
    return open_agreed(resume, communicator) if communicator else open_checkpoint(resume)


def _seed(plan: Plan, seed: int | None, opened: Checkpoint | None) -> int:
    """Return the seed of the run, which a resumed one has from its checkpoint.

    Raises
    ------
    PlanError
        If another one is asked for.
    """
    if seed is not None:
        SEED.check("seed", seed)
    if opened is None:
        return plan.document.seed if seed is None else seed
    before = opened.manifest.progress.seed
    if seed not in (None, before):
        raise PlanError(
            f"the run had the seed {before}, and is to be resumed with the seed {seed}",
            str(opened.path),
            "leave the seed out",
        )
    return before


def _begun(
    plan: Plan, seed: int, communicator: Communicator, resume: Path | Checkpoint | None
) -> State:
    if isinstance(resume, Checkpoint):
        return load_slices(resume, plan.program, communicator)
    if resume is not None:
        return load_checkpoint(resume, plan.program, communicator)
    return initialize(plan.program, seed, communicator, plan.initial)


def _check_communicator(plan: Plan, communicator: object, stop: object = None) -> None:
    """Refuse what does not host the ranks of a plan, or does not say when to stop."""
    mesh, ranks = getattr(communicator, "mesh", None), plan.mesh.size
    if communicator is not None and not isinstance(mesh, Mesh):
        raise wrong_value("communicator", communicator, "a communicator")
    if mesh is not None and mesh.size != ranks:
        raise OptionError(f"`communicator` is of {mesh.size} ranks, the plan has {ranks}")
    if stop is not None and not callable(stop):
        raise wrong_value("stop", stop, "a function that says whether training ends")


def _check_saving(
    save: Path | None,
    folder: Path | None,
    every: int | None,
    keep: int,
    communicator: Communicator,
) -> None:
    """Refuse a checkpoint that cannot be written, before training for it."""
    check_keeping(keep)
    if keep != Writing.keep and folder is None:
        raise OptionError("`keep` has no effect without `checkpoints`")
    if every is not None:
        POSITIVE_INTEGER.check("save_every", every)
        if save is None and folder is None:
            raise OptionError("`save_every` has no effect without `save` or `checkpoints`")
    if save is not None and 0 in communicator.ranks:
        check_checkpoint(save)


def dump(
    target: str | Path | Plan | Compilation, *, after: str | None = None, rank: int | None = None
) -> str:
    """Return the text of a plan's program, of one rank's, or of the graph after a pass.

    Parameters
    ----------
    target : path, Plan or Compilation
        The plan, or the compilation.
    after : str, optional
        A pass; only of a compilation.
    rank : int, optional
        Bind the program to this rank.

    Raises
    ------
    ShardwrightError
        If a pass is named, but there is only a plan, or a rank is given beside it.
    """
    if rank is not None:
        NOT_NEGATIVE_INTEGER.check("rank", rank)
    if after is not None:
        if rank is not None:
            raise OptionError("a rank is bound after the last pass", hint="leave `after` out")
        if not isinstance(target, Compilation):
            raise PlanError(
                "a plan has the graph after the last pass only", hint="pass the compilation"
            )
        return to_text(target.compiled.passes.after(after))
    program = as_plan(target).program
    return to_text(program) if rank is None else rank_text(program, rank)
