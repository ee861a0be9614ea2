"""What a named plan takes: the numbers of its compiled program, without most of its equal layers.

A compilation partitions all layers, and writes them; here of equal layers few go through the passes
(`planner.evaluation.tiles`) and copies stand for the others, so that the step, the memory and the
communication are those of the compiled program. Everything that tells what a plan takes, and writes
none, asks here.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from shardwright.compiler.evaluation.factors import Factors
from shardwright.compiler.evaluation.measured_parts import parts_of, standing_for
from shardwright.compiler.evaluation.parts import Parts
from shardwright.compiler.evaluation.repeated import RepeatedModel
from shardwright.compiler.garbage import rare_collections
from shardwright.compiler.given_stages import given_stages
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.memory_as_run import memory_as_run
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import (
    seconds_by_software,
    serial_timeline,
    simulate,
    with_window,
)
from shardwright.dataflow.placement import in_stages, stages_of
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.update_rules import rules_within, with_rules
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.passes.base import Pass
from shardwright.passes.clean_up import CleanUp, DelayStatistics
from shardwright.passes.fuse_all_reduces import reduced_gradients
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.pipeline import Pipeline
from shardwright.planner.evaluation.few_layers import FewLayers
from shardwright.planner.evaluation.simulated_step import (
    SimulatedStep,
    in_least_memory,
    tolerance_of,
)
from shardwright.planner.evaluation.tiles import Shortened
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import as_asked, canonical_form, fused, marking, partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.buckets import fastest_fusion
from shardwright.planner.whole.plan import NO_BUCKETS
from shardwright.search.heuristics.named_plan import NamedStrategies
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
from shardwright.search.plan_axes import PlanAxes
from shardwright.search.plan_dimensions import Words
from shardwright.solver.work import Budget


@dataclass(frozen=True)
class Setting:
    """Where and how programs run.

    Parameters
    ----------
    cluster : Cluster
        The devices by which programs are made.
    options : CompileOptions
        How the model is trained.
    software : Software, optional
        The training software that runs the program.
    timed : Cluster
        The devices as the software runs programs on them.
    """

    cluster: Cluster
    options: CompileOptions
    software: Software | None
    timed: Cluster

    @property
    def limit_bytes(self) -> float:
        """The memory limit of a device."""
        return self.options.memory_on(self.cluster)

    @property
    def kept_bytes(self) -> float:
        """What a device has for what the software keeps: all, unless the user gives a limit."""
        given = self.options.memory_limit
        return self.cluster.device.memory_bytes if given is None else float(given)


@dataclass(frozen=True)
class Evaluation:
    """What a named plan takes; what is not asked for is not simulated.

    Parameters
    ----------
    emit : callable
        Returns its program before gradients are reduced in buckets, in which copies stand for most
        of the equal layers.
    setting : Setting
        Where and how it runs.
    """

    emit: Callable[[], Graph]
    setting: Setting
    _in_cases: dict[Factors, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def alone(self) -> Graph:
        """The program before gradients are reduced in buckets."""
        with rare_collections():
            return self.emit()

    def known(self) -> dict[str, object]:
        """Return the numbers that were found so far, by the names of the attributes."""
        names = ("step", "seconds", "in_order", "kept")
        return {name: vars(self)[name] for name in names if name in vars(self)}

    @property
    def program(self) -> Graph:
        """The program in its fastest buckets."""
        return self._bucketed[0]

    @cached_property
    def step(self) -> SimulatedStep:
        """The step and its memory, as a compilation states them.

        Of a plan that does not fit, the step is the fastest in any memory, and the memory that of
        the program in its order.
        """
        cluster, limit = self.setting.cluster, self.setting.limit_bytes
        with rare_collections():
            program, timeline = self._bucketed
            if not self.is_within_limit:
                timeline = simulate(program, cluster)
                return SimulatedStep(timeline.step_seconds, self.in_order)
            timeline = timeline or simulate(program, cluster, limit)
            tolerance = tolerance_of(self.setting.options.gap)
            return in_least_memory(program, cluster, timeline, tolerance)

    @cached_property
    def seconds(self) -> float:
        """The step, as the training software runs it if there is one."""
        if self.setting.software is None:
            return self.step.seconds
        with rare_collections():
            return seconds_by_software(self.program, self.setting.timed, self.setting.software)

    def seconds_in(self, case: Factors) -> float:
        """Return the step of the program where figures of the cluster are other than said.

        A share of the communication that is exposed is that share of the way from the overlapped
        step to the step in program order; of a training software, that of its parameters.
        """
        if case not in self._in_cases:
            self._in_cases[case] = self._seconds_in(case)
        return self._in_cases[case]

    def _seconds_in(self, case: Factors) -> float:
        # Where all figures have one factor, so has the step: links by that of operators.
        levels = range(len(self.setting.timed.levels))
        links = [case.of_level(level) / case.compute for level in levels]
        timed = self.setting.timed.with_links_slower_by(links)
        exposed, software = case.exposed, timed.software
        if software is not None and exposed is not None:
            rate = software.exposed_parameters.with_value(exposed)
            software = software.model_copy(update={"exposed_parameters": rate})
            timed, exposed = timed.model_copy(update={"software": software}), None
        window = self.step.memory.window_bytes or 0.0
        step = with_window(self.program, timed, window).step_seconds
        if exposed is not None:
            step += exposed * (serial_timeline(self.program, timed).step_seconds - step)
        return case.compute * step

    @property
    def memory(self) -> MemoryUseReport:
        """The memory of the program or as the software keeps tensors, whichever is more."""
        own, kept = self.step.memory, self.kept
        return own if kept is None or kept.peak_bytes < own.peak_bytes else kept

    @property
    def fits(self) -> bool:
        """Whether the program fits the memory limit, and what the software keeps the device."""
        if not self.is_within_limit:
            return False
        return self.kept is None or self.kept.peak_bytes <= self.setting.kept_bytes

    @property
    def fitted_bytes(self) -> float:
        """The bytes that decide whether the plan fits, as a part of the memory limit."""
        own, limit = self.in_order.peak_bytes, self.setting.limit_bytes
        if own > limit or self.kept is None:
            return own
        return max(own, self.kept.peak_bytes * limit / self.setting.kept_bytes)

    @property
    def is_within_limit(self) -> bool:
        """Whether the program in its order fits the memory limit."""
        return self.in_order.peak_bytes <= self.setting.limit_bytes

    @cached_property
    def in_order(self) -> MemoryUseReport:
        """The memory of the program in its order, which no window makes less."""
        with rare_collections():
            return peak_memory(self.alone)

    @cached_property
    def as_run(self) -> Timeline | None:
        """The step as the training software runs it; None without one."""
        if self.setting.software is None:
            return None
        window = self.step.memory.window_bytes or 0.0
        return with_window(self.program, self.setting.timed, window)

    @cached_property
    def kept(self) -> MemoryUseReport | None:
        """What the training software keeps of the program; None where that is not known."""
        software = self.setting.software
        if software is None or software.memory is None:
            return None
        return memory_as_run(self.program, software, self.setting.timed.device)

    @cached_property
    def _bucketed(self) -> tuple[Graph, Timeline | None]:
        """The program in its fastest buckets, and its timeline where that is known by them."""
        with rare_collections():
            return self._in_buckets()

    def _in_buckets(self) -> tuple[Graph, Timeline | None]:
        cluster, options = self.setting.cluster, self.setting.options
        limit, fusion, timeline = self.setting.limit_bytes, options.fusion, None
        chooses = fusion == NO_BUCKETS and not self.alone.stages and self.is_within_limit
        if chooses and len(reduced_gradients(self.alone)) > 1:
            fusion, timeline = fastest_fusion(self.alone, cluster, limit, options.gap)
        pipeline = fused(replace(options, fusion=fusion))
        program = PassManager(verify_later=True).run_all(pipeline, self.alone)
        return program, None if options.rewrites_programs else timeline


@dataclass
class Shared:
    """What evaluators of a model on other numbers of devices have in common.

    Parameters
    ----------
    budget : Budget
        What evaluations are charged to.
    ran : list of (Pass, Graph, Graph)
        The passes that ran over the whole model, with what they were given and what they left.
    models : list of (Graph, tuple of str, RepeatedModel)
        The forms of the model, by the cuts of its stages.
    first : dict of (bool, bool) to int
        Of these with few layers, which is tried first (`RepeatedModel`).
    """

    budget: Budget = field(default_factory=Budget)
    ran: list[tuple[Pass, Graph, Graph]] = field(default_factory=list)
    models: list[tuple[Graph, tuple[str, ...], RepeatedModel]] = field(default_factory=list)
    first: dict[tuple[bool, bool], int] = field(default_factory=dict)


@dataclass
class Evaluator:
    """Named plans of a model, on a number of devices.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster
        The devices.
    devices : int
        Number of devices.
    options : CompileOptions
        How it is trained.
    software : Software, optional
        The training software that runs the program.
    shared : Shared, optional
        What evaluators on other numbers of devices know.

    Raises
    ------
    OptionError
        If the options ask for another objective or another cost model than the overlapped step.
    """

    graph: Graph
    cluster: Cluster
    devices: int
    options: CompileOptions
    software: Software | None = None
    shared: Shared = field(default_factory=Shared)
    _asked: dict[Hashable, SearchRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.options
        if (options.cost_model, options.objective) != ("time", "overlapped"):
            raise OptionError(
                "plans are evaluated by the overlapped step of the cost model `time`, and "
                f"`cost_model` is `{options.cost_model}`, `objective` `{options.objective}`",
                hint="compile the plan instead",
            )
        self.options = replace(options, optimizer=with_rules(options.optimizer, self.graph))

    def evaluation(self, plan: NamedPlan) -> Evaluation:
        """Return what a plan takes.

        Raises
        ------
        ShardwrightError
            If the model has no such plan.
        """
        found = self.known(plan, {})
        assert found.alone.nodes  # it raises the error if there is none
        return found

    def known(self, plan: NamedPlan, numbers: Mapping[str, object]) -> Evaluation:
        """Return what a plan takes, of which some numbers are known (`Evaluation.known`).

        Its program is emitted where more is asked for.
        """
        options = self._options_of(plan)
        timed = self.cluster.without_host().run_by(self.software)
        setting = Setting(self._cluster, options, self.software, timed)
        found = Evaluation(partial(self._program, plan, options), setting)
        vars(found).update(numbers)
        return found

    def parts(self, plan: NamedPlan, words: Words = ()) -> Parts:
        """Return what the parts of the model take under a plan without stages.

        Words of plans say how others than this one, on more ranks, hold parameters.

        Raises
        ------
        ShardwrightError
            If the model has no such plan.
        """
        options = self._options_of(plan)
        model = self._in_one_stage(options)
        timed = self.cluster.without_host().run_by(self.software)

        def told_by(
            source: Graph,
            standing: Collection[tuple[str, ...]],
            check: Callable[[Graph], None] = lambda _: None,
        ) -> Parts:
            program = self._emitted_alone(source, plan, options)
            check(program)
            return parts_of(program, source, standing, timed, words)

        def of(few: FewLayers) -> Parts:
            return told_by(few.graph, few.standing.values(), few.check_alike)

        def of_repeated(few: Shortened) -> Parts:
            return told_by(few.graph, standing_for(model.whole, few), few.check_repeats)

        with rare_collections():
            found = model.of_few_layers(of) or model.repeated(plan, of_repeated)
            return found or told_by(model.whole, standing_for(model.whole))

    @cached_property
    def _cluster(self) -> Cluster:
        """The devices by which programs are made."""
        return self.cluster.without_host().for_programs_of(self.software)

    def _options_of(self, plan: NamedPlan) -> CompileOptions:
        passes = plan.passes(samples_of(self.graph) or 1, self.devices)
        options = replace(self.options, plan=plan, recompute=plan.recompute, micro_batches=passes)
        if any(parameter.attributes.get("fusion") for parameter in self.graph.parameters):
            return replace(options, gather_fusion=replace(options.gather_fusion, by_layer=True))
        return options

    # The program

    def _program(self, plan: NamedPlan, options: CompileOptions) -> Graph:
        """Return the program of a plan, before gradients are fused."""
        model, decisions = self._model(options), self._decided_in_one_stage(plan, options)
        whole = self._in_stages(decisions, model.whole, plan)

        def of(few: Shortened) -> Graph:
            own = self._in_stages(few.decided(decisions), few.graph, plan)
            return replace(few.lengthened(self._emitted(few.graph, own, options)), mesh=whole.mesh)

        program = model.repeated(plan, of) or self._emitted(model.whole, whole, options)
        program = PassManager(verify_later=True).run(DelayStatistics(), program)
        charge_simulation(self.shared.budget, program)
        return program

    def _emitted_alone(self, source: Graph, plan: NamedPlan, options: CompileOptions) -> Graph:
        """Return the program of a plan for a model in one stage, before gradients are fused."""
        return self._emitted(source, self._decided(source, plan, options), options)

    def _emitted(self, model: Graph, decisions: Decisions, options: CompileOptions) -> Graph:
        """Return the program that the passes make of a model, before gradients are fused."""
        model = replace(model, cuts=())
        options = replace(options, optimizer=rules_within(options.optimizer, model))
        pipeline = partitioned(options, decisions, self._lowering)
        until = pipeline.index(CleanUp()) + 1
        passes = PassManager(verify_later=True)
        program = passes.run_all(pipeline[:until], model)
        charge_emission(self.shared.budget, passes.records)
        return program

    @cached_property
    def _lowering(self) -> LowerRedistributions:
        """The pass that lowers redistributions, which knows the paths of all plans."""
        return LowerRedistributions(self._cluster, self.options.cost_model)

    # What a plan decides

    def _in_stages(self, decisions: Decisions, model: Graph, plan: NamedPlan) -> Decisions:
        """Return decisions of a plan in the stages of a model.

        Few stages that stand for equal ones are each of a device group.
        """
        stages = stages_of(model)
        if not stages:
            return decisions
        level, count = plan.stage_level(self._cluster, self.devices), len(model.cuts) + 1
        groups = count if count < plan.pipeline * plan.chunks else plan.pipeline
        return in_stages(decisions, groups, stages, plan.order, level)

    def _decided_in_one_stage(self, plan: NamedPlan, options: CompileOptions) -> Decisions:
        """Return the decisions of a plan about the whole model: those of few layers, if equal."""
        model = self._in_one_stage(options)

        def of(few: Shortened) -> Decisions:
            return few.extended(self._decided(few.graph, plan, options))

        return model.repeated(plan, of) or self._decided(model.whole, plan, options)

    def _decided(self, source: Graph, plan: NamedPlan, options: CompileOptions) -> Decisions:
        """Return the decisions of a plan about a model in one stage, of few layers or of all.

        The problem that they solve is that of all plans that divide operators so, with as many
        micro-batches.
        """
        planner = self._lowering.planner(plan.mesh(self._cluster, self.devices))
        options = replace(options, optimizer=rules_within(options.optimizer, source))
        request = SearchRequest(source, self._cluster, planner, options, budget=self.shared.budget)
        first = self._asked.setdefault((id(source), planner.mesh, options.passes), request)
        request = replace(request, known_micro=first.micro)
        if not (options.pins or options.result_pins):
            mesh = planner.mesh
            named = NamedStrategies.of(plan, request.micro_source, mesh, PlanAxes.of(mesh))
            request = replace(request, named=named)
            key = (
                id(source),
                mesh,
                options.passes,
                plan.sequence_parallel,
                *named.strategies.items(),
            )
            first = self._asked.setdefault(key, request)
        return request.decisions(request.solve(first.space, SearchOptions()))

    # The model

    def _model(self, options: CompileOptions) -> RepeatedModel:
        """Return the model in canonical form, in the stages of a plan."""
        source = self._source(options)
        given = given_stages(source, self._cluster, self.devices, options)
        return self._at_cuts(source, () if given is None else given.cuts, options)

    def _in_one_stage(self, options: CompileOptions) -> RepeatedModel:
        """Return the model in canonical form, in one stage."""
        return self._at_cuts(self._source(options), (), options)

    def _at_cuts(
        self, source: Graph, cuts: tuple[str, ...], options: CompileOptions
    ) -> RepeatedModel:
        for known, at, model in self.shared.models:
            if known is source and at == cuts:
                return model
        staged = replace(source, cuts=cuts)
        model = RepeatedModel(staged, options.optimizer.overrides, self.shared.first)
        self.shared.models.append((source, cuts, model))
        return model

    def _source(self, options: CompileOptions) -> Graph:
        source = self._left_by(as_asked(options, options.passes), self.graph)
        return self._left_by((canonical_form(options), *marking(options)), source)

    def _left_by(self, pipeline: Pipeline, graph: Graph) -> Graph:
        """Return the graph that passes leave; the same one for the same passes."""
        for work in pipeline:
            left = next((a for w, b, a in self.shared.ran if w == work and b is graph), None)
            if left is None:
                left = PassManager().run(work, graph)
                self.shared.ran.append((work, graph, left))
            graph = left
        return graph
