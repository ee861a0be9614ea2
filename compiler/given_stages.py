"""Plans whose pipeline stages are given: by a named plan, by options, or by the cells of a model.

The exact search plans each stage within the memory of its device group (`stages`). Other modes and
a named plan decide about the whole program on the mesh of one stage, so nothing is said of how good
their decisions are; what the emitted program takes on each device group is compared with the limit.
"""

from dataclasses import dataclass, replace

from shardwright.compiler.stages.places import (
    clusters_of_groups,
    level_of_stages,
    limits_text,
    memory_limit_of,
)
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.cost_model.pipelines.step import MemoryLimit, limits_of_groups
from shardwright.dataflow.placement import even_cuts, in_stages, stages_of
from shardwright.dataflow.schedules import check_options
from shardwright.ir.errors import InfeasibleError, NotFoundError, OptionError
from shardwright.ir.graph import Graph
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.effort import limits_on
from shardwright.planner.evaluation.simulated_step import simulated_step, tolerance_of
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.partitioned import Emitted, Partitioned
from shardwright.planner.whole.plan import fusion_text, memory_text
from shardwright.search.named_plan import NamedPlan


@dataclass(frozen=True)
class GivenStages:
    """The stages of a pipeline, as they are given.

    Parameters
    ----------
    cuts : tuple of str
        The first operators of the stages 1, 2, ...
    groups : int
        Number of device groups.
    schedule : str
        Name of the schedule.
    level : int
        Level of the cluster whose links the stages use.
    """

    cuts: tuple[str, ...]
    groups: int
    schedule: str
    level: int

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.cuts) + 1

    def in_options(self, options: CompileOptions) -> CompileOptions:
        """Return the options with these stages, as if they had asked for so many."""
        chunks = self.count // self.groups
        return replace(options, stages=self.groups, chunks=chunks, schedule=self.schedule)


def given_stages(
    source: Graph, cluster: AnyCluster, devices: int, options: CompileOptions
) -> GivenStages | None:
    """Return the stages that a compilation is given; None without any.

    Raises
    ------
    OptionError
        If the stages of cells are not those of a named plan, or stages fit neither the model, the
        devices nor the schedule.
    """
    plan = options.named_plan
    if not source.cuts and (plan is None or plan.pipeline == 1):
        return None
    if plan is None:
        given = _of_cells(source, cluster, devices, options)
    else:
        level = plan.stage_level(cluster, devices)
        given = GivenStages(_cuts_of_plan(source, plan), plan.pipeline, plan.order, level)
    check_options(given.schedule, given.groups, given.count // given.groups, options.passes)
    return given


def _cuts_of_plan(source: Graph, plan: NamedPlan) -> tuple[str, ...]:
    """Return the cuts that the cells of a model name for a plan, or even ones."""
    asked = plan.pipeline * plan.chunks
    if source.cuts and source.stages != asked:
        raise OptionError(
            f"the cells of the model have {source.stages} pipeline stages, and the plan has "
            f"`pipeline={plan.pipeline}` with {plan.chunks} chunk{'s' * (plan.chunks > 1)}",
            hint=f"write `pipeline={source.stages}`, or leave `pipeline_stage` out",
        )
    return source.cuts or even_cuts(source, asked)


def _of_cells(
    source: Graph, cluster: AnyCluster, devices: int, options: CompileOptions
) -> GivenStages:
    """Return the stages that the cells of a model name.

    By default each is on a device group of its own; fewer groups have several chunks each.
    """
    count = source.stages
    groups = options.groups if options.groups > 1 else count
    chunks = options.chunks if options.chunks > 1 else max(count // groups, 1)
    if groups * chunks != count:
        raise OptionError(
            f"the cells of the model have {count} pipeline stages, and `stages` is {groups} with "
            f"{chunks} chunk{'s' * (chunks > 1)}",
            hint="leave `stages` and `chunks` out, or `pipeline_stage`",
        )
    if devices % groups:
        raise OptionError(
            f"the {groups} pipeline stages of the model do not divide the {devices} devices",
            hint="use a multiple of the stages",
        )
    if not isinstance(cluster, MixedCluster):
        cluster.check_groups(devices, groups)
    schedule = options.schedule or ("1f1b" if chunks == 1 else "interleaved")
    return GivenStages(source.cuts, groups, schedule, level_of_stages(cluster, devices, groups))


def is_searched(options: CompileOptions) -> bool:
    """Return whether the exact search decides about given stages, each within its memory."""
    kind = options.mode, options.search, options.cost_model
    return options.named_plan is None and kind == ("auto_parallel", "exact", "time")


@dataclass(frozen=True)
class StagedPlan(Partitioned):
    """The plan of a program whose stages are given.

    Parameters
    ----------
    stages : GivenStages
        The stages.
    """

    stages: GivenStages

    def emit(self) -> Emitted:
        """Return the program, if each device group has the memory for it.

        Raises
        ------
        NoPlanError
            If one has not: `InfeasibleError` for a named plan, else `NotFoundError`.
        """
        lowering = LowerRedistributions(self.cluster, self.options.cost_model)
        given, source = self.stages, replace(self.source, cuts=self.stages.cuts)
        groups = clusters_of_groups(self.cluster, self.mesh, given.groups, given.level)
        first = groups.of(0)  # prices what names leave open; every stage takes its own time
        planner = lowering.planner(self.mesh, first)
        request = SearchRequest(self.source, first, planner, self.options, budget=self.budget)
        limits = limits_on(first, self.options, self.budget, self.progress)
        result = request.solve(request.space, replace(limits, memory_limit=None))
        decisions = in_stages(
            request.decisions(result), given.groups, stages_of(source), given.schedule, given.level
        )
        program = self.passes.run_all(
            partitioned(self.options, decisions, lowering), replace(source, cuts=())
        )
        overlapped, limit = request.simulates_step, self._memory_limit(program)
        step = simulated_step(
            *(program, self.cluster, limit),
            overlaps=overlapped,
            tolerance=tolerance_of(self.options.gap),
        )
        self._check_fits(step.memory, limit)
        result = replace(
            result,
            decisions=decisions,
            cost=step.seconds,
            lower_bound=0.0,
            status="feasible",
            memory_bytes=step.memory.peak_bytes,
            unlimited=False,
            how=result.how if self.options.named_plan else f"{request.search}, in given stages",
        )
        assert program.mesh is not None
        return Emitted(
            program,
            program.mesh,
            step.memory,
            decisions,
            result,
            buckets=fusion_text(self.options.fusion),
            minimizes_step=overlapped,
        )

    def _memory_limit(self, program: Graph) -> MemoryLimit:
        return memory_limit_of(self.cluster, program.mesh or self.mesh, self.options)

    def _check_fits(self, memory: MemoryUseReport, limit: MemoryLimit) -> None:
        limits = limits_of_groups(limit, self.stages.groups)
        pairs = zip(memory.by_group or (memory.peak_bytes,), limits, strict=False)
        if all(taken <= most for taken, most in pairs):
            return
        plan = self.options.named_plan
        hint = "use more stages, or more devices"
        kind = NotFoundError if plan is None else InfeasibleError
        raise kind(
            f"the program in {self.stages.count} stages takes {memory_text(memory)} on a device, "
            f"the limit is {limits_text(limit)}",
            hint=hint if plan is None else plan.hint,
            least_memory_bytes=memory.peak_bytes,
        )
