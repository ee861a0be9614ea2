"""The compiler: from a whole program to the program of every rank."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.compiler.fitting import Attempt, Fitting, LeastMemory, check_fits
from shardwright.compiler.names import check_tensor_names
from shardwright.compiler.options import UNPARTITIONED, CompileOptions, CostModel, Mode
from shardwright.cost_model.cluster import Cluster, mesh_for
from shardwright.cost_model.memory import MemoryUseReport, peak_memory
from shardwright.cost_model.mindspore.allreduce_fusion import (
    FusionSettings,
    fusion_graph,
    fusion_ids,
    fusion_ids_by_size,
)
from shardwright.cost_model.mindspore.costs import MindSporeCosts, mesh_of_binary_axes
from shardwright.cost_model.mindspore.profile import MindSporeProfile
from shardwright.cost_model.profile import CostProfile
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.time_profile import TimeProfile, UpdateRule
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.operators.info import SplitCounts
from shardwright.passes.allreduce_fusion import fuse_all_reduces, reduced_gradients
from shardwright.passes.canonicalize import canonicalize, merged_values
from shardwright.passes.cleanup import drop_mirrors
from shardwright.passes.gradient import differentiate
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.manual import mirror_shared_values
from shardwright.passes.optimizer import append_optimizer
from shardwright.passes.partition import annotate, insert_mirrors, partition
from shardwright.search.driver import SEARCHES, search
from shardwright.search.least_memory import search_least_memory
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.options import Progress, SearchOptions
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.memory_shares import largest_shares
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import relative_gap

_PRICED_PINS = 16  # each price is a search; a file that pins every operator gets none
_FINE = 3_000  # options up to which every limit below is searched, where a program does not fit
_SHARE = 3 / 4  # of the time left that one search may take


@dataclass(frozen=True)
class Compiled:
    """A compiled program and what is known of it.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    program : Graph
        The training step that every rank runs.
    mesh : Mesh
        The ranks.
    decisions : Decisions or None
        What was decided; None where nothing was to decide.
    result : SearchResult or None
        How good that is.
    pin_prices : mapping of str to float
        What each pin costs, in the unit of the profile.
    step_seconds : float
        Sum of the predicted seconds of all nodes.
    memory : MemoryUseReport
        What a rank holds at most.
    seconds : float
        Time that compiling took.
    passes : PassManager
        What every pass left.
    """

    source: Graph
    program: Graph
    mesh: Mesh
    decisions: Decisions | None
    result: SearchResult | None
    pin_prices: Mapping[str, float]
    step_seconds: float
    memory: MemoryUseReport
    seconds: float
    passes: PassManager

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
        How many of them to use.
    options : CompileOptions, optional
        How to compile.
    mesh : Mesh, optional
        The mesh; by default as the cluster suggests.
    progress : callable, optional
        Follows the search.

    Raises
    ------
    ShardwrightError
        If something asked for cannot be.
    """
    options = options or CompileOptions()
    check_tensor_names(graph, options.optimizer)
    begin = time.perf_counter()
    passes = PassManager()
    pins = (_as_tuples(options.pins), _as_tuples(options.result_pins))
    source = passes.run("canonicalize", lambda g: canonicalize(g, pins), graph)
    options = _with_moved_pins(options, merged_values(graph, pins))
    if options.mode == "hybrid_parallel":
        emitted = _compile_manual(source, devices, options, passes)
    elif options.mode == "stand_alone":
        emitted = _compile_alone(source, options, passes)
    else:
        mesh = mesh or default_mesh(cluster, devices, options.cost_model)
        planner = RedistributionPlanner(mesh, cluster)
        emitted = _Automatic(source, cluster, mesh, planner, options, passes, progress).compile()
    memory = peak_memory(emitted.program)
    if options.mode in UNPARTITIONED:
        _check_fits(memory, options.memory_on(cluster), options.mode)
    return Compiled(
        source,
        emitted.program,
        emitted.mesh,
        emitted.decisions,
        emitted.result,
        emitted.pin_prices,
        program_seconds(emitted.program, cluster),
        memory,
        time.perf_counter() - begin,
        passes,
    )


def default_mesh(cluster: Cluster, devices: int, cost_model: CostModel) -> Mesh:
    """Return the mesh of a compilation that is not given one."""
    if cost_model == "mindspore":
        return mesh_of_binary_axes(devices)
    return mesh_for(cluster, devices)


def _check_fits(memory: MemoryUseReport, limit: float, mode: Mode) -> None:
    """Refuse a program that needs more than a device has, where there is no other.

    Raises
    ------
    InfeasibleError
        If it does.
    """
    if memory.peak_bytes > limit:
        raise InfeasibleError(
            f"the program needs {bytes_text(memory.peak_bytes)} on each device, the limit is "
            f"{bytes_text(limit)}, and the mode `{mode}` has no other program",
            hint="allow more memory, or use a mode in which the compiler splits the model",
        )


def _as_tuples(pins: Mapping[str, SplitCounts]) -> Mapping[str, SplitCounts]:
    return {name: tuple(map(tuple, counts)) for name, counts in pins.items()}


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
    decisions: Decisions | None = None
    result: SearchResult | None = None
    pin_prices: Mapping[str, float] = field(default_factory=dict)


def _finish(program: Graph, options: CompileOptions, passes: PassManager) -> Graph:
    def optimize(graph: Graph) -> Graph:
        return append_optimizer(graph, options.optimizer, options.loss_scale)

    program = passes.run("optimizer", optimize, program)
    return passes.run("cleanup", drop_mirrors, program)


def _compile_alone(source: Graph, options: CompileOptions, passes: PassManager) -> _Emitted:
    program = passes.run("gradient", lambda g: differentiate(g, options.loss_scale), source)
    return _Emitted(_finish(program, options, passes), Mesh(()))


def _compile_manual(
    source: Graph, devices: int, options: CompileOptions, passes: PassManager
) -> _Emitted:
    """Compile a program that calls the communication operators itself."""
    mesh = Mesh((MeshAxis("world", devices),))
    program = passes.run(
        "mirror", lambda g: mirror_shared_values(g, mesh, options.gradients_mean), source
    )
    program = passes.run("gradient", lambda g: differentiate(g, options.loss_scale), program)
    return _Emitted(replace(_finish(program, options, passes), mesh=mesh), mesh)


@dataclass(frozen=True)
class _Automatic:
    """The modes in which the compiler partitions."""

    source: Graph
    cluster: Cluster
    mesh: Mesh
    planner: RedistributionPlanner
    options: CompileOptions
    passes: PassManager
    progress: Progress | None

    def compile(self) -> _Emitted:
        """Search, and emit the plan that fits the memory limit."""
        options = self._search_options()
        begin = time.perf_counter()
        profile = self._profile()
        space = self._space(profile, self.options.pins)
        built = time.perf_counter() - begin
        deadline = time.perf_counter() + options.time_limit
        found = self._fitting(space, options, deadline)
        self._check_cost(profile, found.result)
        result = replace(found.result, seconds=found.result.seconds + built)
        options = replace(options, memory_limit=found.memory_limit)
        prices = self._prices(profile, result, options, deadline)
        return _Emitted(found.program, self.mesh, result.decisions, result, prices)

    def _search_options(self) -> SearchOptions:
        memory_limit = self.options.memory_on(self.cluster)
        return SearchOptions(memory_limit, self.options.time_limit, self.options.gap, self.progress)

    @property
    def _search(self) -> str:
        """The name of the search that the mode stands for."""
        by_mode: dict[Mode, str] = {
            "data_parallel": "data_parallel",
            "semi_auto_parallel": "sharding_propagation",
        }
        return by_mode.get(self.options.mode, self.options.search)

    @property
    def _method(self) -> type[SearchMethod]:
        return SEARCHES[self._search]

    def _fitting(self, space: SearchSpace, options: SearchOptions, deadline: float) -> Attempt:
        """Return the best plan whose program fits the limit."""
        kept = len(self.passes.records)

        def emit(memory_limit: float, result: SearchResult) -> Attempt:
            del self.passes.records[kept:]
            program = self._emit(result.decisions)
            records = tuple(self.passes.records[kept:])
            return Attempt(memory_limit, result, program, peak_memory(program), records)

        def attempt(memory_limit: float) -> Attempt:
            seconds = _SHARE * max(deadline - time.perf_counter(), 0.0)
            limits = replace(options, memory_limit=memory_limit, time_limit=seconds)
            result = search(space, self._search, limits)
            if result.seconds >= seconds:  # another machine may find another plan
                result = replace(result, how=f"{result.how}; the time limit ended the search")
            return emit(memory_limit, result)

        def least_memory() -> LeastMemory:
            left = max(deadline - time.perf_counter(), 0.0)
            result = search_least_memory(space, replace(options, time_limit=left))
            shares = largest_shares(space, result.assignment)
            return LeastMemory(emit(result.memory_bytes, result), result.lower_bound, shares)

        memory_limit = self.options.memory_on(self.cluster)
        fine = sum(space.problem.sizes) <= _FINE
        fitting = Fitting(attempt, least_memory, fine, options.gap, f"mesh {self.mesh}")
        if self._method.keeps_memory_limit:
            found = fitting.fit(memory_limit)
        else:
            found = check_fits(attempt(memory_limit), memory_limit, self._search)
        self.passes.records[kept:] = found.records
        return found

    def _space(self, profile: CostProfile, pins: Mapping[str, SplitCounts]) -> SearchSpace:
        return build_search_space(
            self.source,
            profile,
            states=len(self.options.optimizer.states),
            pins=pins,
            result_pins=self.options.result_pins,
            input_layouts=self._input_layouts(),
            scattered=self.options.optimizer_parallel,
            time_limit=self.options.time_limit,
        )

    def _input_layouts(self) -> Mapping[str, Layout]:
        """Return the layouts of the inputs; MindSpore's data set gives every rank all of it."""
        if self.options.cost_model == "time":
            return self.options.input_layouts
        whole = {value.name: Layout.replicated(value.type.rank) for value in self.source.inputs}
        return {**whole, **self.options.input_layouts}

    def _emit(self, decisions: Decisions) -> Graph:
        scale, run = self.options.loss_scale, self.passes.run
        program = run("strategy_search", lambda g: annotate(g, decisions), self.source)
        program = run("partition", lambda g: partition(g, decisions), program)
        program = run("mirror", lambda g: insert_mirrors(g, decisions), program)
        program = run("gradient", lambda g: differentiate(g, scale), program)
        program = run("lowering", lambda g: lower_redistributions(g, self.planner), program)
        program = _finish(program, self.options, self.passes)
        return run("allreduce_fusion", self._fuse, program)

    def _fuse(self, program: Graph) -> Graph:
        fusion = self.options.fusion
        if isinstance(fusion, FusionSettings):
            return fuse_all_reduces(program, fusion_ids(fusion_graph(program), fusion))
        return fuse_all_reduces(program, fusion_ids_by_size(reduced_gradients(program), fusion))

    def _profile(self) -> CostProfile:
        if self.options.cost_model == "mindspore":
            agree = self._method.minimizes_cost and not self.options.optimizer_parallel
            return MindSporeProfile(MindSporeCosts(readers_agree=agree), self.mesh)
        return TimeProfile(self.planner, update_rule(self.options), self._method.by_orbit)

    def _check_cost(self, profile: CostProfile, result: SearchResult) -> None:
        """Refuse a program that does not cost what the search said, before gradients are fused."""
        if isinstance(profile, MindSporeProfile):
            emitted = profile.program_cost(self.passes.after("partition"))
        else:
            emitted = program_seconds(self.passes.after("cleanup"), self.cluster)
        if abs(emitted - result.cost) > 1e-6 * max(emitted, result.cost):
            raise PassError(
                f"the emitted program costs {emitted:.9g}, the search said {result.cost:.9g}"
            )

    def _prices(
        self, profile: CostProfile, result: SearchResult, options: SearchOptions, deadline: float
    ) -> Mapping[str, float]:
        """Return what each pin costs: how much cheaper the best plan without it is.

        Where the time limit ends the searches, the later pins get no price.
        """
        pins = self.options.pins
        proven = relative_gap(result.cost, result.lower_bound) <= options.gap
        if self.options.mode != "auto_parallel" or not (proven or result.status == "optimal"):
            return {}
        if len(pins) > _PRICED_PINS:
            return {}
        prices = {}
        for name in sorted(pins):
            others = {other: pin for other, pin in pins.items() if other != name}
            space = self._space(profile, others)
            left = deadline - time.perf_counter()
            if left <= 0:
                break
            without = search(space, self._search, replace(options, time_limit=left))
            prices[name] = max(result.cost - without.cost, 0.0)
        return prices


def update_rule(options: CompileOptions) -> UpdateRule:
    """Return the optimizer as far as its cost matters."""
    optimizer = options.optimizer
    return UpdateRule(
        f"{optimizer.kind}_update",
        len(optimizer.states),
        optimizer.kind == "adam",
        tuple(sorted(optimizer.settings.items())),
        options.loss_scale != 1.0,
    )
