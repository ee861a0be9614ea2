"""The compiler: from a whole program to the program of every rank."""

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from shardwright.compiler.fitting import bounded
from shardwright.compiler.given_stages import GivenStages, StagedPlan, given_stages
from shardwright.compiler.micro_batch_counts import (
    CompiledCounts,
    candidate_counts,
    compile_each,
)
from shardwright.compiler.names import check_tensor_names
from shardwright.compiler.options import SEARCHED, CompileOptions
from shardwright.compiler.partitioning import Emitted, Partitioning
from shardwright.compiler.pipelines import (
    as_asked,
    canonical_form,
    hybrid_parallel,
    marking,
    partitioned,
    stand_alone,
)
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.profiles import PROFILES
from shardwright.cost_model.roofline import program_seconds
from shardwright.dataflow.micro_batches import check_axes, micro_batches, samples_of, undivided
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.mirror_shared_values import mesh_of_world
from shardwright.passes.pipeline import Pipeline
from shardwright.search.method import SearchResult
from shardwright.search.options import Progress


@dataclass(frozen=True)
class Compiled:
    """A compiled program, with its plan, costs and graphs.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    program : Graph
        The training step that every rank runs.
    mesh : Mesh
        The ranks.
    decisions : Decisions or None
        The decisions of the search; None in modes without one.
    result : SearchResult or None
        Their cost and lower bound.
    pin_prices : mapping of str to float
        The price of each pin, in the unit of the profile.
    step_seconds : float
        The serial step: the sum of the predicted seconds of all nodes.
    memory : MemoryUseReport
        The peak memory of a rank.
    buckets : str
        How gradients are reduced together, in words.
    minimizes_step : bool
        Whether the cost of the result is the overlapped step.
    seconds : float
        Wall time of the compilation.
    passes : PassManager
        The graph after every pass.
    micro_batches_tried : tuple of int
        The numbers of micro-batches that the bound covers, where the compiler chose one.
    """

    source: Graph
    program: Graph
    mesh: Mesh
    decisions: Decisions | None
    result: SearchResult | None
    pin_prices: Mapping[str, float]
    step_seconds: float
    memory: MemoryUseReport
    buckets: str
    minimizes_step: bool
    seconds: float
    passes: PassManager
    micro_batches_tried: tuple[int, ...] = ()

    @property
    def cost(self) -> float:
        """What programs of one model are compared by: the cost of the plan, or the serial step."""
        return self.step_seconds if self.result is None else self.result.cost

    def __repr__(self) -> str:
        return (
            f"<Compiled {self.source.name} on {self.mesh}: {len(self.program)} nodes, "
            f"{seconds_text(self.step_seconds)}, {bytes_text(self.memory.peak_bytes)}>"
        )


def compile_graph(
    graph: Graph,
    cluster: Cluster,
    devices: int,
    options: CompileOptions | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile a program for a number of devices of a cluster.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster
        The devices and their links.
    devices : int
        Number of devices to use.
    options : CompileOptions, optional
        The options; the defaults if not given.
    mesh : Mesh, optional
        The mesh; by default as the cluster suggests.
    progress : callable, optional
        Follows the search.

    Raises
    ------
    ShardwrightError
        If an option is wrong, or there is no plan.
    """
    options = options or CompileOptions()
    check_tensor_names(graph, options.optimizer, options.loss_scale)
    if mesh is not None and options.micro_batches != 1:
        check_axes(mesh)
    with _earlier_objects_ignored():
        if options.micro_batches != SEARCHED:
            return _compile(graph, cluster, devices, options, mesh, progress)

        def compile_one(count: int) -> Compiled:
            chosen = replace(options, micro_batches=count)
            return _compile(graph, cluster, devices, chosen, mesh, progress)

        return _cheapest(compile_each(compile_one, candidate_counts(graph)))


def _cheapest(compiled: CompiledCounts[Compiled]) -> Compiled:
    """Return the cheapest program for some numbers of micro-batches, with a bound for all."""
    best = min(compiled.found.values(), key=lambda one: one.cost)
    seconds = sum(one.seconds for one in compiled.found.values())
    results = [one.result for one in compiled.found.values() if one.result is not None]
    result = best.result
    if result is not None:
        result = bounded(result, min(found.lower_bound for found in results))
        result = replace(result, seconds=sum(found.seconds for found in results))
    return replace(best, result=result, seconds=seconds, micro_batches_tried=compiled.tried)


@contextmanager
def _earlier_objects_ignored() -> Iterator[None]:
    """Let garbage collection skip the objects that exist already, such as imported modules.

    A compilation makes many objects, and full collections would visit the others again and again.
    """
    if gc.get_freeze_count():  # the user's own freeze is kept
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _compile(
    graph: Graph,
    cluster: Cluster,
    devices: int,
    options: CompileOptions,
    mesh: Mesh | None,
    progress: Progress | None,
) -> Compiled:
    begin = time.perf_counter()
    options = _with_passes_of_plan(options, graph, devices)
    passes = PassManager()
    canonicalize = canonical_form(options)
    graph = passes.run_all(as_asked(options, options.passes), graph)
    source = passes.run_all((canonicalize, *marking(options)), graph)
    if options.mode == "hybrid_parallel":
        program = passes.run_all(hybrid_parallel(options, devices), source)
        mesh = mesh_of_world(devices)
        emitted = _unpartitioned(replace(program, mesh=mesh), mesh, cluster, options)
    elif options.mode == "stand_alone":
        pipeline = stand_alone(options)
        if options.passes > 1:
            pipeline = _in_micro_batches(source, cluster, options)
        program = passes.run_all(pipeline, source)
        emitted = _unpartitioned(program, program.mesh or Mesh(()), cluster, options)
    else:
        if options.pins or options.result_pins:
            options = _with_moved_pins(options, canonicalize.merged_values(graph))
        emitted = _partitioned(source, cluster, devices, options, mesh, passes, progress)
    return Compiled(
        source,
        emitted.program,
        emitted.mesh,
        emitted.decisions,
        emitted.result,
        emitted.pin_prices,
        program_seconds(emitted.program, cluster),
        emitted.memory,
        emitted.buckets,
        emitted.minimizes_step,
        time.perf_counter() - begin,
        passes,
    )


def _partitioned(
    source: Graph,
    cluster: Cluster,
    devices: int,
    options: CompileOptions,
    mesh: Mesh | None,
    passes: PassManager,
    progress: Progress | None,
) -> Emitted:
    """Return the program that the compiler partitions, in stages where they are given."""
    stages = given_stages(source, cluster, devices, options)
    if stages is None:
        mesh = mesh or mesh_of_options(cluster, devices, options)
        return Partitioning(source, cluster, mesh, options, passes, progress).emit()
    mesh = _mesh_of_stage(cluster, devices, options, mesh, stages)
    return StagedPlan(source, cluster, mesh, options, passes, progress, stages).emit()


def _mesh_of_stage(
    cluster: Cluster, devices: int, options: CompileOptions, mesh: Mesh | None, stages: GivenStages
) -> Mesh:
    """Return the mesh of one stage.

    Raises
    ------
    OptionError
        If a mesh of all devices is given, other than the default.
    """
    if options.named_plan is not None:
        return mesh or mesh_of_options(cluster, devices, options)
    if mesh is None or mesh == default_mesh(cluster, devices, options.cost_model):
        return default_mesh(cluster, devices // stages.groups, options.cost_model)
    if mesh.size * stages.groups != devices:
        raise OptionError(
            f"the mesh {mesh} has {mesh.size} ranks, each of the {stages.groups} device groups of "
            f"the pipeline has {devices // stages.groups}",
            hint="leave the mesh out",
        )
    return mesh


def _with_passes_of_plan(options: CompileOptions, graph: Graph, devices: int) -> CompileOptions:
    """Return the options with the number of micro-batches that a named plan asks for.

    Raises
    ------
    OptionError
        If the batch cannot be divided so, or the user gives another number.
    """
    plan = options.named_plan
    batch = samples_of(graph)
    if plan is None or batch is None:
        return options
    count = plan.passes(batch, devices)
    if plan.micro_batch is None or options.micro_batches == count:
        return options
    if options.micro_batches != 1:
        raise OptionError(
            f"`micro_batches` is {options.micro_batches}, and `micro_batch={plan.micro_batch}` of "
            f"the plan makes {count} of the batch of {batch}",
            hint="leave one of them out",
        )
    return replace(options, micro_batches=count)


def mesh_of_options(cluster: Cluster, devices: int, options: CompileOptions) -> Mesh:
    """Return the mesh of a named plan, or the default one."""
    if options.named_plan is not None:
        return options.named_plan.mesh(cluster, devices)
    return default_mesh(cluster, devices, options.cost_model)


def default_mesh(cluster: Cluster, devices: int, cost_model: str) -> Mesh:
    """Return the mesh of a compilation whose user gives none."""
    return PROFILES[cost_model].default_mesh(cluster, devices)


def _with_moved_pins(options: CompileOptions, names: Mapping[str, str]) -> CompileOptions:
    """Return the options with the pins of merged operators on those that they were merged with."""
    pins, results = (
        {names.get(name, name): pin for name, pin in pinned.items()}
        for pinned in (options.pins, options.result_pins)
    )
    return replace(options, pins=pins, result_pins=results)


def _unpartitioned(
    program: Graph, mesh: Mesh, cluster: Cluster, options: CompileOptions
) -> Emitted:
    """Return a program for which there is no other, if a device has the memory for it.

    Raises
    ------
    InfeasibleError
        If it has not.
    """
    memory, limit = peak_memory(program), options.memory_on(cluster)
    if memory.peak_bytes > limit:
        raise InfeasibleError(
            f"the program needs {bytes_text(memory.peak_bytes)} on each device, the limit is "
            f"{bytes_text(limit)}, and the mode `{options.mode}` has no other program",
            hint="allow more memory, or use a mode in which the compiler splits the model",
        )
    return Emitted(program, mesh, memory)


def _in_micro_batches(source: Graph, cluster: Cluster, options: CompileOptions) -> Pipeline:
    """Return the pipeline of one device that runs the batch in several passes."""
    micro = micro_batches(source, options.passes)
    decisions = micro.lifted(undivided(source))
    return partitioned(options, decisions, LowerRedistributions(cluster, options.cost_model))
