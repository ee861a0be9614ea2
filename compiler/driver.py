"""The compiler: from a whole program to the program of every rank."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from shardwright.compiler.attempts import Attempts, Bucketed
from shardwright.compiler.buckets import NO_BUCKETS, fusion_text
from shardwright.compiler.fitting import Attempt, bounded
from shardwright.compiler.micro_batch_counts import (
    CompiledCounts,
    candidate_counts,
    compile_each,
)
from shardwright.compiler.names import check_tensor_names
from shardwright.compiler.options import SEARCHED, CompileOptions
from shardwright.compiler.overlap import Overlapped, OverlapSearch, nearly_fastest
from shardwright.compiler.pin_prices import pin_prices
from shardwright.compiler.pipelines import (
    canonical_form,
    hybrid_parallel,
    in_precision,
    marking,
    partitioned,
    stand_alone,
)
from shardwright.compiler.rule_plans import RulePlans
from shardwright.compiler.search_request import SearchRequest
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import MemoryUseReport, peak_memory
from shardwright.cost_model.profile import CostProfile
from shardwright.cost_model.profiles import PROFILES
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.weighted_profile import ResourceWeights
from shardwright.dataflow.micro_batches import check_axes, micro_batches, samples_of, undivided
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NoPlanError, OptionError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.mirror_shared_values import mesh_of_world
from shardwright.passes.pipeline import Pipeline
from shardwright.search.method import SearchResult
from shardwright.search.options import Progress, SearchOptions

_ROUGH = 2e-3  # gap of searches by weights
_RELAXED = 1 / 4  # of the time limit that is kept for searches without the memory limit
_BY_RULE = 8  # plans built by rule whose overlapped step is simulated


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
    graph = passes.run_all(in_precision(options), graph)
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
        mesh = mesh or mesh_of_options(cluster, devices, options)
        emitted = _Partitioning(source, cluster, mesh, options, passes, progress).emit()
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


@dataclass(frozen=True)
class _Emitted:
    program: Graph
    mesh: Mesh
    memory: MemoryUseReport
    decisions: Decisions | None = None
    result: SearchResult | None = None
    pin_prices: Mapping[str, float] = field(default_factory=dict)
    buckets: str = fusion_text(NO_BUCKETS)
    minimizes_step: bool = False


def _unpartitioned(
    program: Graph, mesh: Mesh, cluster: Cluster, options: CompileOptions
) -> _Emitted:
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
    return _Emitted(program, mesh, memory)


def _in_micro_batches(source: Graph, cluster: Cluster, options: CompileOptions) -> Pipeline:
    """Return the pipeline of one device that runs the batch in several passes."""
    micro = micro_batches(source, options.passes)
    decisions = micro.lifted(undivided(source))
    return partitioned(options, decisions, LowerRedistributions(cluster, options.cost_model))


@dataclass(frozen=True)
class _Partitioning:
    """The search for the plan of one program."""

    source: Graph
    cluster: Cluster
    mesh: Mesh
    options: CompileOptions
    passes: PassManager
    progress: Progress | None
    emissions: Emissions = field(default_factory=dict)

    @cached_property
    def limits(self) -> SearchOptions:
        """The limits of the user."""
        return self.options.limits_on(self.cluster, self.progress)

    @cached_property
    def deadline(self) -> float:
        """The end of all searches, from the first look at it."""
        return time.perf_counter() + self.options.time_limit

    def emit(self) -> _Emitted:
        """Search for the best plan that fits, and emit it."""
        attempts = self._serial
        if attempts.request.minimizes_step:
            return self._fastest(attempts)
        found = _priced(attempts, attempts.fit)
        prices = pin_prices(attempts.request, found.result, found, self.deadline)
        return self._emitted(attempts.with_buckets(found), prices)

    def _fastest(self, attempts: Attempts) -> _Emitted:
        """Return the plan with the least overlapped step."""
        found = OverlapSearch(
            self._fit,
            self._probe,
            *(self.mesh, self.cluster, self.limits, self.deadline),
            *(self._relaxed, self._by_rule),
        ).run()
        tried = nearly_fastest(found.candidates)
        best = attempts.with_buckets(tried[0].attempt)
        for candidate in tried[1:]:
            if found.gap(best.step_seconds) > self.options.gap:
                other = attempts.with_buckets(candidate.attempt)
                best = min(best, other, key=lambda one: one.step_seconds)
        if self.options.extra_passes:  # what they do to the step is not bounded
            found = replace(found, lower_bound=0.0)
        result = found.result(best.attempt, best.step_seconds)
        best = replace(best, attempt=replace(best.attempt, result=result))
        serial = found.serial.attempt
        prices = pin_prices(attempts.request, serial.result, serial, self.deadline)
        return self._emitted(best, prices, minimizes_step=True)

    def _attempts(self, weights: ResourceWeights | None) -> Attempts:
        options = self.options
        lowering = LowerRedistributions(self.cluster, options.cost_model, weights)
        planner = lowering.planner(self.mesh)
        request = SearchRequest(
            self.source, self.cluster, planner, options, weights, self.emissions
        )
        rules = RulePlans(request) if weights is None else None
        return Attempts(request, lowering, self.limits, self.deadline, rules=rules)

    def _relaxed(self) -> Overlapped | None:
        """Search without the memory limit, for a bound on every plan, in time kept for it.

        Recomputation adds cost, so the bound covers it.
        """
        deadline = max(self.deadline, time.perf_counter() + _RELAXED * self.options.time_limit)
        limits = replace(self.limits, memory_limit=None)

        def freed(attempts: Attempts) -> Attempt:
            attempts = replace(attempts, deadline=deadline)
            gap = limits.gap and max(limits.gap, _ROUGH)
            found = _priced(attempts, lambda: attempts.attempt(replace(limits, gap=gap)))
            return replace(found, result=replace(found.result, unlimited=True))

        def probe(weights: ResourceWeights) -> list[Attempt]:
            return [freed(self._attempts(weights))]

        def fit(_: float) -> Attempt:
            return freed(self._serial)

        try:
            return OverlapSearch(fit, probe, self.mesh, self.cluster, limits, deadline).run()
        except NoPlanError:
            return None

    def _by_rule(self) -> Iterator[Attempt]:
        """Yield plans built by rule that fit."""
        for attempt in islice(self._serial.by_rule(), _BY_RULE):
            _check_cost(attempt, self._serial.request.profile)
            yield attempt

    def _fit(self, share: float) -> Attempt:
        """Return the plan of the least serial step within a share of the memory limit."""
        limit = self.limits.memory_limit
        limits = self.limits if limit is None else replace(self.limits, memory_limit=share * limit)
        attempts = replace(self._serial, limits=limits)
        return _priced(attempts, attempts.fit)

    @cached_property
    def _serial(self) -> Attempts:
        return self._attempts(None)

    def _probe(self, weights: ResourceWeights) -> list[Attempt]:
        """Return the plan of one search by weights, and where it does not fit, one that does."""
        attempts = self._attempts(weights)
        if self.limits.gap:  # a rough bound is a bound, and memory makes good ones take long
            rough = replace(self.limits, gap=max(self.limits.gap, _ROUGH))
            attempts = replace(attempts, limits=rough)
        first = _priced(attempts, attempts.probe)
        limit = self.limits.limit_bytes
        if first.fits(limit) or not attempts.is_fine:
            return [first]
        try:
            return [first, _priced(attempts, attempts.fit)]
        except NoPlanError:
            return [first]

    def _emitted(
        self, bucketed: Bucketed, prices: Mapping[str, float], *, minimizes_step: bool = False
    ) -> _Emitted:
        attempt = bucketed.attempt
        emitting = PassManager(records=list(attempt.records))
        if not self.options.extra_passes:
            emitting.verify()
        self.passes.records += emitting.records
        return _Emitted(
            attempt.program,
            attempt.program.mesh or self.mesh,
            attempt.memory,
            self._serial.request.decisions(attempt.result),
            attempt.result,
            prices,
            fusion_text(bucketed.fusion),
            minimizes_step,
        )


def _priced(attempts: Attempts, search: Callable[[], Attempt]) -> Attempt:
    """Return the plan of a search, with the time of building the problem, if it costs as said."""
    begin = time.perf_counter()
    _ = attempts.request.space
    built = time.perf_counter() - begin
    found = search()
    _check_cost(found, attempts.request.profile)
    return replace(found, result=replace(found.result, seconds=found.result.seconds + built))


def _check_cost(attempt: Attempt, profile: CostProfile) -> None:
    """Refuse a program that does not cost what the search said, before gradients are fused."""
    priced = [record for record in attempt.records if record.name == profile.priced_after]
    emitted, result = profile.program_cost(priced[-1].graph), attempt.result
    if abs(emitted - result.cost) > 1e-6 * max(emitted, result.cost):
        raise PassError(
            f"the emitted program costs {emitted:.9g}, the search said {result.cost:.9g}"
        )
