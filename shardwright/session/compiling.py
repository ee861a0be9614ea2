"""A model of a session is compiled: by this process, or by the first of several for all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from shardwright.communication import (
    get_group_size,
    is_deterministic,
    processes,
)
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.outer.meshes import meshes_of, with_search_of_large
from shardwright.compiler.outer.pinned_meshes import mesh_of_pins
from shardwright.compiler.plans.accounting import split_counts
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import DEFAULT_CLUSTER
from shardwright.cost_model.pipelines.mixed import any_cluster
from shardwright.dataflow.cotangents import check_trained
from shardwright.eager import get_seed
from shardwright.input_layouts import input_layouts
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse, to_text
from shardwright.ir.values import POSITIVE_INTEGER, wrong_value
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import SplitCounts, info_of
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.operators.models.precision import one_precision
from shardwright.passes.manager import check_graphs, graphs_asked_for
from shardwright.planner.option_checks import (
    decided_by_plan,
    no_effect,
    warn_of_idle_devices,
)
from shardwright.planner.options import (
    DEFAULTS,
    UNPARTITIONED,
    CompileOptions,
    Mode,
)
from shardwright.runtime.agreement import (
    check_equal,
    check_processes,
    differing_process,
    end_together,
    from_first,
)
from shardwright.tracing import Definition


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
    obeys_strategies : bool
        Whether operators are split by the strategies that the model has.
    in_turn : bool
        Whether ranks have the parts of an input in turn, where there are fewer parts than ranks;
        else ranks that follow each other have the same part.
    """

    how: CompileOptions = field(default_factory=lambda: CompileOptions(mode="stand_alone"))
    devices: int = 1
    cluster: str = DEFAULT_CLUSTER
    dataset_strategy: str | SplitCounts | None = None
    mesh: str | Mesh | None = None
    deterministic: bool = True
    given: frozenset[str] = frozenset()
    obeys_strategies: bool = True
    in_turn: bool = True

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
    peak_bytes : float
        The most memory that a rank needs.
    compiled : Compiled, optional
        The compilation, where this process did it.
    """

    program: Graph
    mesh: Mesh
    strategies: Mapping[str, SplitCounts]
    peak_bytes: float
    compiled: Compiled | None = None

    @staticmethod
    def of(made: Compiled) -> "Agreed":
        """Return what a compilation has decided."""
        return Agreed(made.program, made.mesh, split_counts(made), made.memory.peak_bytes, made)


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

    def told() -> tuple[str, dict[str, SplitCounts], float]:
        own.append(Agreed.of(compiled(definition, options)))
        return to_text(own[0].program), dict(own[0].strategies), own[0].peak_bytes

    text, strategies, peak = from_first(told)
    if own:
        return own[0]
    program = parse(text)
    return Agreed(program, program.mesh or Mesh(()), strategies, peak)


def _digest(definition: Definition) -> bytes:
    """Return what tells definitions of different programs apart."""
    d = definition
    facts = (d.optimizer, d.loss_scale, d.world, d.precision, d.micro_batches)
    pins = (sorted(d.pins.items()), sorted(d.result_pins.items()))
    return sha256(f"{to_text(d.graph)}{facts}{pins}".encode()).digest()


def _communicates(graph: Graph) -> bool:
    infos = (info_of(graph, node) for node in graph.nodes)
    return any(isinstance(info, Communication) and info.is_collective for info in infos)


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
    if how.mode not in UNPARTITIONED and options.obeys_strategies:
        how = replace(
            how,
            pins={**definition.pins, **how.pins},
            result_pins={**definition.result_pins, **how.result_pins},
        )

    layouts_on = partial(
        input_layouts, definition.inputs, options.dataset_strategy, in_turn=options.in_turn
    )
    graph, devices, mesh = definition.graph, options.devices, options.mesh
    if mesh is None:
        told = options.dataset_strategy
        slices = () if told is None or isinstance(told, str) else told
        mesh = mesh_of_pins(graph, described, devices, how, slices)
    mesh, how = with_search_of_large(graph, described, devices, mesh, how, options.given)
    meshes = meshes_of(described, devices, mesh, how)
    graphs, detail = graphs_asked_for()
    if graphs is not None:
        check_graphs(graphs)
    program = compile_graph(graph, described, devices, how, meshes, layouts_on=layouts_on)
    check_trained(program.source)
    if graphs is not None:
        program.passes.write(graphs, detail)
    return program
