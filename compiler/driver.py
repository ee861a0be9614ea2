"""The compiler: from a whole program to the program of every rank."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from shardwright.compiler.blockwise import BlockwisePlan
from shardwright.compiler.forms import Forms, Prepared, prepared
from shardwright.compiler.garbage import rare_collections
from shardwright.compiler.given_stages import (
    GivenStages,
    StagedPlan,
    given_stages,
    is_searched,
)
from shardwright.compiler.names import check_input_layouts, check_tensor_names
from shardwright.compiler.outer.judge import LayoutsOn, ProgramJudge
from shardwright.compiler.outer.meshes import mesh_of_options
from shardwright.compiler.outer.run import OuterRun
from shardwright.compiler.partitioning import Partitioning
from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.saved.offloaded import check_host, for_offloading
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.compiler.stages.places import check_parts, level_of_stages, memory_limit_of
from shardwright.compiler.stages.shared import SharedParts
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.pipelines.mixed import (
    AnyCluster,
    MixedCluster,
    check_products,
    of_one_kind,
)
from shardwright.cost_model.pipelines.step import least_limit
from shardwright.cost_model.timeline import serial_seconds
from shardwright.dataflow.micro_batches import check_axes, micro_batches, undivided
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.update_rules import with_rules
from shardwright.ir.errors import InfeasibleError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.mirror_shared_values import mesh_of_world
from shardwright.passes.pipeline import Pipeline
from shardwright.planner.choice.configuration import (
    Form,
    candidate_counts,
    configurations,
    searched_forms,
)
from shardwright.planner.choice.questions import Found
from shardwright.planner.effort import budget_of
from shardwright.planner.evaluation.simulated_step import simulated_step, tolerance_of
from shardwright.planner.option_checks import SEARCHED, check_values, warn_of_idle_executor
from shardwright.planner.options import UNPARTITIONED, CompileOptions
from shardwright.planner.pipelines import (
    hybrid_parallel,
    partitioned,
    stand_alone,
)
from shardwright.planner.plan.blocks import most_stages
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.partitioned import Emitted
from shardwright.search.budget_note import says_so
from shardwright.search.options import Progress
from shardwright.solver.work import SECONDS_OF, Budget


def _layouts_of_options(mesh: Mesh | None) -> Mapping[str, Layout]:
    """Return no layouts of inputs beside those of the options."""
    return {}


def compile_graph(
    graph: Graph,
    cluster: AnyCluster,
    devices: int,
    options: CompileOptions | None = None,
    mesh: Mesh | Sequence[Mesh | None] | None = None,
    progress: Progress | None = None,
    layouts_on: LayoutsOn = _layouts_of_options,
) -> Compiled:
    """Compile a program for a number of devices of a cluster.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster or MixedCluster
        The devices and their links.
    devices : int
        Number of devices to use.
    options : CompileOptions, optional
        The options; the defaults if not given.
    mesh : Mesh or sequence of Mesh, optional
        The mesh, or several for the best of them; by default as the cluster suggests.
    progress : callable, optional
        Follows the search.
    layouts_on : callable, optional
        Returns the layouts of the inputs on a mesh, beside those of the options.

    Raises
    ------
    ShardwrightError
        If an option is wrong, or there is no plan.
    """
    options = options or CompileOptions()
    options = replace(options, optimizer=with_rules(options.optimizer, graph))
    check_parts(cluster, graph, options)
    check_products(cluster, options.precision)
    cluster = for_offloading(graph, cluster, options)
    check_tensor_names(graph, options.optimizer, options.loss_scale)
    check_input_layouts(graph, options.input_layouts)
    meshes = (mesh,) if mesh is None or isinstance(mesh, Mesh) else tuple(mesh)
    for one in meshes:
        if one is not None and options.micro_batches != 1:
            check_axes(one)
    if options.stages == SEARCHED:
        _check_search_of_stages(options)
    options = _with_passes_of_plan(options, graph, devices)
    given = SEARCHED not in (options.micro_batches, options.stages)
    single = len(meshes) == 1 and given and not options.explain_search
    preparing = options if single else options.in_one_stage()
    forms = Forms(graph, preparing)
    begin, budget = time.perf_counter(), budget_of(options)
    with rare_collections():
        if single:
            warn_of_idle_executor(options.executor)
            prepared = forms.prepared(options.passes)
            layouts = {**layouts_on(meshes[0]), **prepared.options.input_layouts}
            alone = replace(prepared.options, input_layouts=layouts)
            found = _compile(prepared, cluster, devices, alone, meshes[0], budget, progress)
            return _with_stop(found, budget, options)
        alike = of_one_kind(cluster, "several configurations are not searched for several kinds")
        where = forms, alike, devices, options, meshes, budget, progress, layouts_on
        found = _with_stop(_searched(*where), budget, options)
        return replace(found, seconds=time.perf_counter() - begin)


def _with_stop(found: Compiled, budget: Budget, options: CompileOptions) -> Compiled:
    """Return a program that says where the safety stop ended its search."""
    result = found.result
    if result is None or not (budget.work.is_stopped and says_so(result)):
        return found
    limit = f"the time limit of {options.time_limit:g} s stopped it"
    how = f"{result.how}; {limit}: for the same plan in each run, use less effort instead"
    return replace(found, result=replace(result, how=how))


def _searched(
    forms: Forms,
    cluster: Cluster,
    devices: int,
    options: CompileOptions,
    meshes: Sequence[Mesh | None],
    budget: Budget,
    progress: Progress | None,
    layouts_on: LayoutsOn,
) -> Compiled:
    """Return the best program of several configurations, with a bound on all."""
    if options.mode not in UNPARTITIONED:
        meshes = [mesh or mesh_of_options(cluster, devices, options) for mesh in meshes]

    searched, staged = (x == SEARCHED for x in (options.micro_batches, options.stages))
    counts = candidate_counts(forms.source_of, staged=staged) if searched else (options.passes,)
    _check_not_staged(forms.source_of(counts[0]), options)
    # The same operators are merged for any number of micro-batches.
    moved = forms.prepared(counts[0]).options
    options = replace(options, pins=moved.pins, result_pins=moved.result_pins)
    options = replace(options, gather_fusion=moved.gather_fusion)
    one = _OneOfSeveral(forms, cluster, devices, counts)
    what = forms.graph, one.program_of, cluster, devices, options, layouts_on
    judge = ProgramJudge(*what, one.compile, one.build_named, one.pipeline_of)
    most = most_stages(forms.source_of(counts[0]))
    tried = configurations(meshes, counts, devices, _forms(options), most, 1 + judge.is_large)
    return OuterRun(judge, tried, budget, progress).run()


@dataclass(eq=False)
class _OneOfSeveral:
    """Compiles single configurations of a program, here or where its bytes are sent to.

    Parameters
    ----------
    forms : Forms
        The program.
    cluster, devices : AnyCluster, int
        Where it runs.
    counts : sequence of int
        The numbers of micro-batches that are tried: of several, the program is the same.
    """

    forms: Forms
    cluster: Cluster
    devices: int
    counts: Sequence[int]
    _shared: SharedParts = field(default_factory=SharedParts)

    def program_of(self, count: int) -> Graph:
        """Return the program in a number of micro-batches."""
        return self.forms.source_of(self.counts[0] if len(self.counts) > 1 else count)

    def compile(
        self,
        options: CompileOptions,
        mesh: Mesh | None,
        budget: Budget,
        known: SearchRequest | None,
        *,
        below: float | None = None,
    ) -> Found[Compiled]:
        """Return the best plan of a configuration, or a draft."""
        prepared = self.forms.prepared(options.passes)
        where = prepared, self.cluster, self.devices, options, mesh, budget, None, known
        return _found(_compile(*where, below=below))

    def build_named(self, options: CompileOptions, budget: Budget) -> Found[Compiled]:
        """Return the plan that the options name."""
        form = prepared(self.forms.graph, options)
        return _found(_compile(form, self.cluster, self.devices, options, None, budget, None))

    def pipeline_of(
        self, options: CompileOptions, mesh: Mesh, budget: Budget
    ) -> PipelinePartitioning:
        """Return the search of a pipeline on the mesh of a device group."""
        level = level_of_stages(self.cluster, self.devices, options.groups)
        source = self.program_of(options.passes)
        budget.charge(SECONDS_OF.block_node * len(source))
        where = source, self.cluster, mesh, options, PassManager(), None, budget, level
        return PipelinePartitioning(*where, shared=self._shared)


def _found(found: Compiled) -> Found[Compiled]:
    """Return a program with its cost, bound and memory, as another process would send it."""
    for graph in (found.program, *(record.graph for record in found.passes.records)):
        if graph is not found.source:  # that of the next configurations, too
            graph.forget()
    bound = 0.0 if found.result is None else found.result.lower_bound
    late = found.result is not None and says_so(found.result)
    return Found(found.cost, bound, found.memory.peak_bytes, found, late)


def _forms(options: CompileOptions) -> Sequence[Form]:
    """Return the chunks and schedules of pipelines that are tried."""
    given = options.chunks > 1 or options.schedule is not None
    if options.stages == SEARCHED and not given:
        return searched_forms()
    return ((options.chunks, options.order),)


def _check_search_of_stages(options: CompileOptions) -> None:
    """Refuse what no search for the stages of a pipeline covers."""
    needed = {"mode": "auto_parallel", "search": "exact", "cost_model": "time"}
    check_values(f"`stages` is {options.stages}", needed, vars(options))


def _check_not_staged(source: Graph, options: CompileOptions) -> None:
    """Refuse a search of configurations for a program whose stages are given.

    Raises
    ------
    OptionError
        If its cells or the named plan have some: the bounds are those of programs of one stage.
    """
    plan = options.named_plan
    if not source.cuts and (plan is None or plan.pipeline == 1):
        return
    raise OptionError(
        "meshes and numbers of stages and micro-batches are not searched for a model whose stages "
        "are given",
        hint="give the micro-batches, and leave `stages`, `mesh` and `explain_search` out",
    )


def _compile(
    prepared: Prepared,
    cluster: AnyCluster,
    devices: int,
    options: CompileOptions,
    mesh: Mesh | None,
    budget: Budget,
    progress: Progress | None,
    known: SearchRequest | None = None,
    *,
    below: float | None = None,
) -> Compiled:
    """Compile for one configuration, whose problem may be known; or draft a plan below a step."""
    begin, source = time.perf_counter(), prepared.source
    passes = PassManager(records=list(prepared.records))
    if options.mode in UNPARTITIONED:
        alone = of_one_kind(cluster, f"the mode `{options.mode}` runs on one kind of device")
        emitted = _of_user(source, alone, devices, options, passes)
    else:
        where = (source, cluster, devices, options, mesh, budget)
        emitted = _partitioned(*where, passes, progress, known, below=below)
    memory = emitted.memory if below is not None else _memory_of_step(emitted, cluster, options)
    check_host(memory, cluster)
    return Compiled(
        source,
        emitted.program,
        emitted.mesh,
        emitted.decisions,
        emitted.result,
        emitted.pin_prices,
        serial_seconds(emitted.program, cluster),
        memory,
        emitted.buckets,
        emitted.minimizes_step,
        prepared.seconds + time.perf_counter() - begin,
        passes,
    )


def _of_user(
    source: Graph, cluster: Cluster, devices: int, options: CompileOptions, passes: PassManager
) -> Emitted:
    """Return the program of a mode in which the compiler does not split the model."""
    if options.mode == "hybrid_parallel":
        program = passes.run_all(hybrid_parallel(options, devices), source)
        mesh = mesh_of_world(devices)
        return _unpartitioned(replace(program, mesh=mesh), mesh, cluster, options)
    pipeline = stand_alone(options)
    if options.passes > 1:
        pipeline = _in_micro_batches(source, cluster, options)
    program = passes.run_all(pipeline, source)
    return _unpartitioned(program, program.mesh or Mesh(()), cluster, options)


def _memory_of_step(
    emitted: Emitted, cluster: AnyCluster, options: CompileOptions
) -> MemoryUseReport:
    """Return the memory of the overlapped step, also where something else was minimised.

    Without a limit it is that of the program in its order.
    """
    mesh = emitted.program.mesh or emitted.mesh
    limit = memory_limit_of(cluster, mesh, options)
    if emitted.memory.window_bytes is not None or not isfinite(least_limit(limit)):
        return emitted.memory
    tolerance = tolerance_of(options.gap)
    step = simulated_step(emitted.program, cluster, limit, overlaps=True, tolerance=tolerance)
    return step.memory


def _partitioned(
    source: Graph,
    cluster: AnyCluster,
    devices: int,
    options: CompileOptions,
    mesh: Mesh | None,
    budget: Budget,
    passes: PassManager,
    progress: Progress | None,
    known: SearchRequest | None,
    *,
    below: float | None,
) -> Emitted:
    """Return the program that the compiler partitions, in stages where they are given."""
    stages = given_stages(source, cluster, devices, options)
    if stages is None:
        mesh = mesh or mesh_of_options(cluster, devices, options)
        if options.groups > 1:
            _check_search_of_stages(options)
            level = level_of_stages(cluster, devices, options.groups)
            where = (source, cluster, mesh, options, passes, progress, budget, level)
            search = PipelinePartitioning(*where)
            return search.emit() if below is None else search.draft(below)
        emissions = {} if known is None else known.emissions
        alone = of_one_kind(cluster, "a program in one stage runs on one kind of device")
        one = (source, alone, mesh, options, passes, progress, budget)
        if below is not None:
            return BlockwisePlan(*one, below).emit()
        return Partitioning(*one, emissions, known).emit()
    mesh = _mesh_of_stage(cluster, devices, options, mesh, stages)
    if is_searched(options):
        options = stages.in_options(options)
        source, cuts = replace(source, cuts=()), stages.cuts
        where = (source, cluster, mesh, options, passes, progress, budget, stages.level)
        return PipelinePartitioning(*where, cuts=cuts).emit()
    return StagedPlan(source, cluster, mesh, options, passes, progress, budget, stages).emit()


def _mesh_of_stage(
    cluster: AnyCluster,
    devices: int,
    options: CompileOptions,
    mesh: Mesh | None,
    stages: GivenStages,
) -> Mesh:
    """Return the mesh of one stage.

    Raises
    ------
    OptionError
        If a mesh of all devices is given, other than the default.
    """
    if options.named_plan is not None or options.groups > 1:
        return mesh or mesh_of_options(cluster, devices, options)
    if isinstance(cluster, MixedCluster):
        return mesh or mesh_of_options(cluster, devices, stages.in_options(options))
    if mesh is None or mesh == mesh_of_options(cluster, devices, options):
        return mesh_of_options(cluster, devices // stages.groups, options)
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
