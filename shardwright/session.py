"""Sessions: a definition compiled for some devices, and trained step by step.

All ranks are in this process; or, where a launcher started one for each, this process is one rank.
`AutoParallel` and `Model` train so; `shardwright.compile` makes plans instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from shardwright.communication import (
    batch_parts,
    get_group_size,
    is_deterministic,
    processes,
    world,
)
from shardwright.compiler.accounting import split_counts
from shardwright.compiler.compiled import Compiled
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.outer.meshes import meshes_of, with_search_of_large
from shardwright.compiler.plans.binding import rank_texts
from shardwright.cost_model.cluster import DEFAULT_CLUSTER
from shardwright.cost_model.pipelines.mixed import any_cluster
from shardwright.dataflow.trained import check_trained
from shardwright.eager import get_seed
from shardwright.feeding import Feed, Kind
from shardwright.input_layouts import input_layouts, parts_of_ranks, specify, whole_type
from shardwright.ir.errors import ExecutionError, ModelError, OptionError
from shardwright.ir.files.writing import begins, failing_as, write_file
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse, to_text
from shardwright.ir.values import POSITIVE_INTEGER, wrong_value
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, SplitCounts, info_of
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.operators.models.precision import one_precision
from shardwright.passes.manager import check_graphs, graphs_asked_for
from shardwright.planner.option_checks import (
    decided_by_plan,
    no_effect,
    warn_of_idle_devices,
    warn_of_repeated_work,
)
from shardwright.planner.options import (
    DEFAULTS,
    UNPARTITIONED,
    CompileOptions,
    Mode,
)
from shardwright.runtime import (
    Communicator,
    Executor,
    LocalCommunicator,
    MpiCommunicator,
    assemble,
    check_capacity,
    initialize,
    losses_of,
    scatter,
)
from shardwright.runtime.agreement import (
    all_equal,
    check_equal,
    check_processes,
    differing_process,
    end_together,
    from_first,
)
from shardwright.runtime.communicator import Parts
from shardwright.runtime.faults import STANDING
from shardwright.tracing import Definition, Network, trace


@dataclass(frozen=True)
class ParallelOptions:
    """The devices of a session, and the options of its compilation.

    Parameters
    ----------
    how : CompileOptions
        The options of the compilation; optimizer and loss scale are the model's own.
    devices : int
        Number of ranks.
    cluster : str
        Name or file of the cluster.
    dataset_strategy : str or tuple of tuple of int, optional
        Layout of the inputs: ``data_parallel``, ``full_batch``, or the slices of each dimension of
        each input; chosen by the search if not given.
    mesh : str or Mesh, optional
        Shape of the mesh, or ``search`` for the best of several; by default the cluster's.
    deterministic : bool
        Whether reductions over processes add in the order of the ranks, else by MPI's algorithms.
    given : frozenset of str
        Names of options of `how` that the user gives, be it their defaults.
    """

    how: CompileOptions = field(default_factory=lambda: CompileOptions(mode="stand_alone"))
    devices: int = 1
    cluster: str = DEFAULT_CLUSTER
    dataset_strategy: str | SplitCounts | None = None
    mesh: str | Mesh | None = None
    deterministic: bool = True
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        POSITIVE_INTEGER.check("devices", self.devices)
        if not isinstance(self.cluster, str):
            raise wrong_value("cluster", self.cluster, "the name of a cluster, or a file")
        warn_of_idle_devices(self.how.mode, self.devices)
        if self.mesh is not None and not isinstance(self.mesh, str | Mesh):
            raise wrong_value("mesh", self.mesh, "a text such as `2x4`, or a `Mesh`")
        for name in ("dataset_strategy", "mesh"):
            if getattr(self, name) is None:
                continue
            if self.how.mode in UNPARTITIONED:
                raise no_effect(name, self.how.mode)
            if self.how.plan is not None:
                raise decided_by_plan(name)

    @staticmethod
    def of_this_world(deterministic: bool | None = None) -> "ParallelOptions":
        """Return the options of a script that asks for none: a hand-written parallel program."""
        size = get_group_size()
        mode: Mode = "hybrid_parallel" if size > 1 else "stand_alone"
        if deterministic is None:
            deterministic = is_deterministic()
        return ParallelOptions(CompileOptions(mode=mode), size, deterministic=deterministic)


@dataclass(frozen=True)
class Agreed:
    """What all processes know of a compilation.

    Parameters
    ----------
    program : Graph
        The training step that every rank runs.
    mesh : Mesh
        The ranks.
    strategies : mapping of str to tuple
        The strategies that were decided, in MindSpore's form.
    compiled : Compiled, optional
        The compilation, where this process did it.
    """

    program: Graph
    mesh: Mesh
    strategies: Mapping[str, SplitCounts]
    compiled: Compiled | None = None

    @staticmethod
    def of(made: Compiled) -> "Agreed":
        """Return what a compilation has decided."""
        return Agreed(made.program, made.mesh, split_counts(made), made)


class Session:
    """A training step that is compiled and run: on all ranks here, or on that of this process.

    Parameters
    ----------
    definition : Definition
        The model.
    options : ParallelOptions
        Devices and options.
    seed : int
        Seed of the initial values.
    kind, counts
        What a batch is; see `Feed`.

    Raises
    ------
    ModelError
        If the model returns no loss, or the processes that were started together trace different
        programs, or each would train alone.
    """

    def __init__(
        self,
        definition: Definition,
        options: ParallelOptions,
        seed: int = 0,
        kind: Kind = "whole",
        counts: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        if definition.loss is None:
            raise ModelError(
                f"`{definition.graph.name}` returns no real scalar first, a training step returns "
                f"its loss"
            )
        self.definition = definition
        self.agreed = compiled_together(definition, options)
        program = self.agreed.program
        communicator = communicator_of(self.agreed.mesh, options)
        check_capacity(program, communicator.ranks)
        if 0 in communicator.ranks and options.dataset_strategy is None:  # one says it for all
            warn_of_repeated_work(options.how.mode, program)
        write_programs(program, communicator.ranks)
        self.executor = Executor(program, communicator, in_place=True)
        self.feed = Feed(program, communicator, kind, counts)
        initial = same_everywhere(definition)
        self.state = initialize(program, seed, communicator, initial)
        self._keep()

    def _keep(self) -> None:
        for name, parameter in self.definition.holders.items():
            parameter.keep_in(self, name)

    def continue_from(self, other: "Session") -> None:
        """Begin with the state of a session for batches of another shape."""
        for name, whole in other.values().items():
            if name in self.state:
                self.write(name, whole)
        self._keep()

    def __repr__(self) -> str:
        return f"<Session of {self.agreed.program.name} on {self.agreed.mesh}>"

    @property
    def compiled(self) -> Compiled:
        """The compilation, in the process that did it.

        Raises
        ------
        ExecutionError
            In the others of several processes.
        """
        if self.agreed.compiled is None:
            raise ExecutionError(
                "the first process has compiled the program, this one has its result alone",
                hint="ask process 0, or compile the model with `shardwright.compile`",
            )
        return self.agreed.compiled

    def step(self, batch: Sequence[Array]) -> float:
        """Train one step and return the loss before it, of the first rank in this process.

        Parameters
        ----------
        batch : sequence of array
            The inputs, in order.
        """
        with STANDING.step():
            result = self.executor.step(self.feed.inputs(batch), self.state)
            loss = result.outputs[self.executor.graph.outputs[0]]
            return losses_of(self.executor, loss)[self.executor.communicator.ranks[0]]

    def outputs(self, batch: Sequence[Array]) -> list[Array]:
        """Run a step, and return its whole outputs; of a program written by hand, the own ones.

        Parameters
        ----------
        batch : sequence of array
            The inputs, in order.
        """
        graph = self.executor.graph
        with STANDING.step():
            found = self.executor.step(self.feed.inputs(batch), self.state).outputs
            return [self._whole(name, found.get(name, {})) for name in graph.outputs]

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter; where it is split, every process takes part."""
        return self._whole(name, self.state[name])

    def _whole(self, name: str, held: Parts) -> Array:
        program, communicator = self.executor.graph, self.executor.communicator
        layout = program.value(name).layout
        alone = layout is None and len(communicator.ranks) == 1  # a program written by hand
        if alone or (layout is not None and not layout.split_axes and layout.stage is None):
            return next(iter(held.values())).copy()
        parts = communicator.collect(held)
        return assemble(program, name, parts, communicator.mesh)

    def values(self) -> dict[str, Array]:
        """Return the whole state: parameters, buffers, and states of the optimizer."""
        return {name: self.read(name) for name in self.state}

    def parts(self) -> dict[str, Array]:
        """Return the part of the state that the rank of this process has.

        Raises
        ------
        ModelError
            If this process has several ranks.
        """
        ranks = self.executor.communicator.ranks
        if len(ranks) > 1:
            raise ModelError(
                f"the part of one rank is wanted, this process has {len(ranks)} ranks",
                hint="save whole tensors: `integrated_save=True`",
            )
        held = {name: parts.get(ranks[0]) for name, parts in self.state.items()}
        return {name: part.copy() for name, part in held.items() if part is not None}

    def write_part(self, name: str, part: Array) -> bool:
        """Give the rank of this process another part of a parameter, if it is one of its shape."""
        held, ranks = self.state[name], self.executor.communicator.ranks
        if len(ranks) > 1 or ranks[0] not in held or held[ranks[0]].shape != part.shape:
            return False
        held[ranks[0]] = part.astype(held[ranks[0]].dtype)
        return True

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value."""
        value = self.executor.graph.value(name)
        self.state[name] = scatter(value, whole, self.executor.communicator)


def write_programs(program: Graph, ranks: Iterable[int]) -> None:
    """Write the program of each rank, ``rank_N/program.ir``, where the environment asks for graphs.

    Raises
    ------
    OutputError
        If a file cannot be written, or would replace something else.
    """
    folder, _ = graphs_asked_for()
    if folder is None:
        return
    ranks = list(ranks)
    for rank, text in zip(ranks, rank_texts(program, ranks), strict=True):
        path = folder.parent / f"rank_{rank}" / "program.ir"
        what = f"the program of rank {rank}"
        with failing_as(what, path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode(), what, begins(b"# rank "))


# Processes that were started together


def check_together(options: ParallelOptions) -> None:
    """Refuse options by which processes that were started together would not work together.

    Raises
    ------
    ModelError
        If each would train alone, or the options have another number of devices.
    """
    started = processes()
    if started is None:
        return
    end_together()
    if options.how.mode == "stand_alone":
        raise ModelError(
            f"{started.size} processes were started together, and each would train alone",
            hint="start one process, or give the network to `AutoParallel`",
        )
    if options.devices != started.size:
        raise ModelError(
            f"the options say {options.devices} devices, {started.size} processes were started",
            hint="leave `devices` out",
        )
    check_processes(started.size)


def check_same_options(options: ParallelOptions, seed: int) -> None:
    """Refuse options or seeds that differ between processes: the first one compiles for all.

    The seed of `set_seed` may differ in a program written by hand, whose ranks draw their own.

    Raises
    ------
    ModelError
        If they differ, or the processes would train alone.
    """
    if processes() is None:
        return
    check_together(options)
    given = tuple(sorted(options.given))  # a set has another order in each process
    facts = {**vars(options.how), **vars(options), "given": given, "seed": seed}
    del facts["how"]
    if options.how.mode != "hybrid_parallel":
        facts["set_seed"] = get_seed()
    check_equal("options", facts, ModelError)


def compiled_together(definition: Definition, options: ParallelOptions) -> Agreed:
    """Return the compiled program of a definition; the first of several processes compiles it.

    Raises
    ------
    ModelError
        If the processes have different definitions, or would train alone.
    """
    if processes() is None:
        return Agreed.of(compiled(definition, options))
    check_together(options)
    other = differing_process(_digest(definition))
    if other is not None:
        raise ModelError(
            f"the processes 0 and {other} trace different programs",
            hint="a network may slice by its rank, it may not branch or compute with it",
        )
    if options.how.mode == "hybrid_parallel" and not _communicates(definition.graph):
        raise ModelError(
            f"{options.devices} processes were started together, and the network has no "
            f"communication operator: each would train alone",
            hint="start one process, or set a parallel mode",
        )
    own: list[Agreed] = []

    def told() -> tuple[str, dict[str, SplitCounts]]:
        own.append(Agreed.of(compiled(definition, options)))
        return to_text(own[0].program), dict(own[0].strategies)

    text, strategies = from_first(told)
    if own:
        return own[0]
    program = parse(text)
    return Agreed(program, program.mesh or Mesh(()), strategies)


def _digest(definition: Definition) -> bytes:
    """Return what tells definitions of different programs apart."""
    d = definition
    facts = (d.optimizer, d.loss_scale, d.world, d.precision, d.micro_batches)
    pins = (sorted(d.pins.items()), sorted(d.result_pins.items()))
    return sha256(f"{to_text(d.graph)}{facts}{pins}".encode()).digest()


def _communicates(graph: Graph) -> bool:
    infos = (info_of(graph, node) for node in graph.nodes)
    return any(isinstance(info, Communication) and info.is_collective for info in infos)


def communicator_of(mesh: Mesh, options: ParallelOptions) -> Communicator:
    """Return the communicator: of the rank of this process, or of all ranks if it is alone."""
    if processes() is None:
        return LocalCommunicator(mesh)
    return MpiCommunicator(mesh, deterministic=options.deterministic)


def same_everywhere(definition: Definition) -> Mapping[str, Array]:
    """Return the initial data of parameters: that of the first process, but of own parameters."""
    if processes() is None:
        return definition.initial
    parameters = {parameter.name: parameter for parameter in definition.graph.parameters}
    own = {
        name: array
        for name, array in definition.initial.items()
        if parameters[name].attributes.get("layerwise_parallel")
    }
    return {**from_first(lambda: dict(definition.initial)), **own}


def compiled(definition: Definition, options: ParallelOptions) -> Compiled:
    """Return the compiled program of a definition."""
    described, how = any_cluster(options.cluster).used_by(options.devices), options.how
    how = replace(how, optimizer=definition.optimizer or Rule(), loss_scale=definition.loss_scale)
    if definition.precision is not None:
        how = replace(how, precision=one_precision(definition.precision, how.precision))
    if definition.micro_batches != 1:
        if how.micro_batches not in (definition.micro_batches, DEFAULTS["micro_batches"]):
            raise OptionError(
                f"the network has {definition.micro_batches} micro-batches, and the options say "
                f"`{how.micro_batches}`",
                hint="leave out one of them",
            )
        how = replace(how, micro_batches=definition.micro_batches)
    if how.mode == "hybrid_parallel" and definition.gradients_mean:
        how = replace(how, gradients_mean=True)
    if how.mode not in UNPARTITIONED:
        how = replace(
            how,
            pins={**definition.pins, **how.pins},
            result_pins={**definition.result_pins, **how.result_pins},
        )

    layouts_on = partial(input_layouts, definition.inputs, options.dataset_strategy)
    graph, devices = definition.graph, options.devices
    mesh, how = with_search_of_large(graph, described, devices, options.mesh, how, options.given)
    meshes = meshes_of(described, devices, mesh, how)
    graphs, detail = graphs_asked_for()
    if graphs is not None:
        check_graphs(graphs)
    program = compile_graph(graph, described, devices, how, meshes, layouts_on=layouts_on)
    check_trained(program.source)
    if graphs is not None:
        program.passes.write(graphs, detail)
    return program


def begin(
    network: Network,
    batch: Mapping[str, Array],
    options: ParallelOptions,
    *,
    loss_fn: Network | None = None,
    optimizer: Optimizer | None = None,
    loss_scale: LossScale = 1.0,
    seed: int = 0,
    ranks: int = 1,
    apart: bool = False,
    change: Callable[[Definition], Definition] = lambda definition: definition,
) -> Session:
    """Trace a network for the inputs of its first batch, and compile it.

    Parameters
    ----------
    network, loss_fn, optimizer, loss_scale
        As for `trace`.
    batch : mapping of str to array
        The inputs by name; with a loss the last one are the labels.
    options : ParallelOptions
        Devices and options.
    seed : int
        Seed of the initial values.
    ranks : int
        Number of ranks whose batches are one behind the other in a batch.
    apart : bool
        Whether the batch is that of this process's rank; where it is not said, it is if the
        processes have different batches.
    change : callable
        Returns the definition that is compiled, of the one that was traced.

    Raises
    ------
    ModelError
        If processes have different options.
    """
    manual = options.how.mode == "hybrid_parallel"
    check_same_options(options, seed)
    kind = _kind(batch, options, ranks, apart)
    size = options.devices
    before, after = (size, 1) if kind == "stacked" else (1, size if kind == "own" else 1)
    if manual and kind == "own":
        after = 1
    specs = [specify(name, array, before, after) for name, array in batch.items()]
    counts = parts_of_ranks(options.dataset_strategy, batch) if kind == "own" and not manual else {}
    specs = [
        replace(spec, type=whole_type(batch[spec.name], counts[spec.name])) if counts else spec
        for spec in specs
    ]
    parts = size if options.how.mode == "data_parallel" else 1
    with world(size if manual else 1, numbered=True), batch_parts(parts):
        definition = trace(
            network, specs, loss_fn=loss_fn, optimizer=optimizer, loss_scale=loss_scale
        )
    return Session(change(definition), options, seed, kind, counts)


def _kind(batch: Mapping[str, Array], options: ParallelOptions, ranks: int, apart: bool) -> Kind:
    manual = options.how.mode == "hybrid_parallel"
    if processes() is None:
        return "stacked" if manual and ranks == options.devices > 1 else "whole"
    check_together(options)
    return "own" if manual or apart or not all_equal(list(batch.values())) else "whole"
