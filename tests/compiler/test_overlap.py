"""The least overlapped step: what is claimed of it holds for every plan."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.timeline import simulate
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.cost_model.weighted_profile import WeightedProfile, weighted_planner
from shardwright.ir.errors import NotFoundError, OptionError
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.buckets import fastest_fusion
from shardwright.planner.whole.problem import PlanProblem
from shardwright.planner.whole.search import WholeSearch
from shardwright.search.method import SearchResult
from shardwright.search.space.builder import build_search_space
from shardwright.solver.solution import OPTIMALITY_GAP
from tests.extent import ANY_PLAN, first, long_after
from tests.random_graphs import random_graph
from tests.random_micro_batches import MESH, random_step
from tests.random_plans import profile_for, random_plan
from tests.zoo_sizes import SMALL

CPU, POD = cluster("cpu"), cluster("h100-pod:figures=datasheet")
ROUNDING = 1 + 1e-9


def compiled(graph: Graph, devices: int = 8, on=CPU, **options: object) -> Compiled:
    return compile_graph(graph, on, devices, CompileOptions(**options))  # type: ignore[arg-type]


def test_where_the_gap_is_met_no_further_weights_are_tried() -> None:
    found = compiled(zoo.load(SMALL["gpt"]).graph, 8, POD, **ANY_PLAN).result
    assert found is not None
    assert found.cost * (1 - ANY_PLAN["gap"]) <= found.lower_bound
    assert "one search by weights" in found.how


@pytest.mark.parametrize("seed", long_after(3, first(6, range(12))))
def test_the_objective_is_the_simulated_step_and_no_random_plan_is_below_the_bound(
    seed: int,
) -> None:
    graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 5))
    profile, random, sgd = profile_for(4), np.random.default_rng(seed), Optimizer()
    found = compiled(graph, 4)
    assert found.result is not None
    assert found.result.cost == simulate(found.program, CPU, CPU.device.usable_bytes).step_seconds
    space = build_search_space(graph, profile)
    for _ in range(20):
        program, _ = random_plan(space, profile, random, sgd)
        _, timeline = fastest_fusion(program, CPU)
        assert found.result.lower_bound <= timeline.step_seconds * ROUNDING


@pytest.mark.long
@pytest.mark.parametrize("passes", first(1, [2, 4]))
def test_no_random_plan_in_micro_batches_is_below_the_bound(passes: int) -> None:
    count = 0
    for seed in first(6, range(12)):
        graph = random_graph(seed, nodes=2 + seed % 4)
        try:
            programs = [random_step(graph, passes, 20 * seed + i).program for i in range(6)]
        except OptionError:  # such as an odd batch
            continue
        count += 1
        options = CompileOptions(micro_batches=passes, optimizer=Optimizer("adam"))
        found = compile_graph(graph, CPU, 4, options, MESH)
        assert found.result is not None
        assert found.result.cost == simulate(found.program, CPU).step_seconds
        assert found.result.lower_bound <= found.result.cost * ROUNDING
        for program in programs:
            _, timeline = fastest_fusion(program, CPU)
            assert found.result.lower_bound <= timeline.step_seconds * ROUNDING
    assert count > 2


def test_a_named_plan_has_its_overlapped_step_and_no_bound() -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    found = compiled(graph, on=POD, plan="data=8,zero=3", optimizer=Optimizer("adam"))
    assert found.result is not None
    assert found.minimizes_step
    assert found.result.cost == simulate(found.program, POD).step_seconds < found.step_seconds
    assert (found.result.lower_bound, found.result.status) == (0.0, "feasible")
    serial = compiled(graph, on=POD, plan="data=8,zero=3", objective="serial")
    assert serial.result is not None
    assert serial.result.cost == pytest.approx(serial.step_seconds)


@pytest.mark.long
@pytest.mark.parametrize("model", first(2, ["gpt", "lenet5", "dlrm", "mlp", "llama"]))
def test_the_plan_is_at_least_as_fast_as_the_one_of_the_least_serial_step(model: str) -> None:
    graph = zoo.load(SMALL[model]).graph
    found = compiled(graph, on=POD, optimizer=Optimizer("adam"))
    serial = compiled(graph, on=POD, optimizer=Optimizer("adam"), search="dynamic_programming")
    assert found.result is not None
    gap = CompileOptions().gap  # where the search stops
    assert found.result.cost <= simulate(serial.program, POD).step_seconds * (1 + gap) * ROUNDING
    assert found.result.cost <= found.step_seconds
    assert found.step_seconds == pytest.approx(program_seconds(found.program, POD))


@pytest.mark.long
def test_optimal_is_said_where_the_bound_is_met() -> None:
    statuses = set()
    graphs = [random_graph(seed, nodes=2 + seed % 4) for seed in range(12)]
    for graph in (*graphs, zoo.load(SMALL["gpt"]).graph):
        result = compiled(graph, 4, gap=0.0).result
        assert result is not None
        met = result.cost - result.lower_bound <= OPTIMALITY_GAP * result.cost
        assert (result.status == "optimal") == met
        statuses.add(result.status)
    assert statuses == {"optimal", "feasible"}


def test_other_profiles_and_methods_keep_their_cost() -> None:
    graph = zoo.load(SMALL["mlp"]).graph
    for options in ({"cost_model": "mindspore"}, {"search": "tensor_parallel"}):
        found = compiled(graph, **options)
        assert found.result is not None
        assert "weights" not in found.result.how
    assert found.result.cost == pytest.approx(found.step_seconds, rel=0.2)


@pytest.mark.parametrize("seed", range(6))
def test_weighted_costs_are_weighted_loads(seed: int) -> None:
    """All-reduces of gradients count with their bytes alone, everything else as it takes."""
    mesh = mesh_for(POD, 16, (2, 8))
    random = np.random.default_rng(seed)
    shares = random.dirichlet([1.0, 1.0, 1.0])
    weights = ResourceWeights(float(shares[0]), tuple(shares[1:].tolist()))
    profile = WeightedProfile(weights, weighted_planner(mesh, POD, weights), POD)
    program = compile_graph(
        random_graph(seed, nodes=6), POD, 16, CompileOptions(search="fully_sharded"), mesh
    ).passes.after("clean_up")
    loads = least_loads(program, POD).total
    assert not loads[3:].any()  # nothing is moved to the host
    loads = loads[:3]
    assert profile.program_cost(program) == pytest.approx(float(shares @ loads))
    assert float(shares @ loads) <= simulate(program, POD).step_seconds * ROUNDING


@pytest.mark.long
@pytest.mark.parametrize("model", first(1, ["mlp", "dlrm", "lenet5"]))
def test_a_memory_limit_lowers_no_bound_whatever_time_is_left(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = PlanProblem.solve

    def no_time(problem: PlanProblem, limit: float | None, *others: object) -> SearchResult:
        if limit is not None and problem.request.weights is not None:
            raise NotFoundError("no time is left")
        return solve(problem, limit, *others)  # type: ignore[arg-type]

    graph = zoo.load(SMALL[model]).graph
    free = compiled(graph, 4, on=POD)
    assert free.result is not None
    monkeypatch.setattr(PlanProblem, "solve", no_time)
    limited = compiled(graph, 4, on=POD, memory_limit=0.8 * free.memory.peak_bytes)
    assert limited.result is not None
    assert limited.memory.peak_bytes <= 0.8 * free.memory.peak_bytes
    assert limited.result.lower_bound >= free.result.lower_bound * (1 - 2e-3)
    assert limited.result.lower_bound <= limited.result.cost * ROUNDING


@pytest.mark.parametrize("seed", first(1, range(6)))
@pytest.mark.parametrize("is_large", long_after(1, [False, True]))
def test_no_random_plan_that_fits_is_below_the_bound_where_memory_is_short(
    seed: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr("shardwright.planner.whole.search.LARGE", 0)
    graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 4))
    profile, random, sgd = profile_for(4), np.random.default_rng(seed), Optimizer()
    space = build_search_space(graph, profile)
    programs = [random_plan(space, profile, random, sgd)[0] for _ in range(30)]
    peaks = [peak_memory(program).peak_bytes for program in programs]
    limit = float(np.quantile(peaks, 0.2))
    found = compiled(graph, 4, memory_limit=limit)
    assert found.result is not None
    timeline = simulate(found.program, CPU, limit)
    assert found.memory.peak_bytes == timeline.peak_bytes <= limit
    assert sum(found.memory.by_kind.values()) == found.memory.peak_bytes
    for program, peak in zip(programs, peaks, strict=True):
        if peak <= limit:
            _, timeline = fastest_fusion(program, CPU)
            assert found.result.lower_bound <= timeline.step_seconds * ROUNDING


def test_a_plan_says_where_the_budget_ended_the_search_for_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = Canonicalize().run(random_graph(3, nodes=5))
    free = compiled(graph, 4, gap=0.0).result
    assert free is not None
    assert "budget" not in free.how
    search = WholeSearch._search

    def only_first(self: WholeSearch, *arguments: object) -> None:
        search(self, *arguments)  # type: ignore[arg-type]
        self.searching = self.searching.within(0.0)

    monkeypatch.setattr(WholeSearch, "_search", only_first)
    ended = compiled(graph, 4, gap=0.0).result
    assert ended is not None
    assert "; a share of the budget ended the search by weights after " in ended.how
    assert ended.how.endswith(" of 60 s of work were spent")
    assert ended.lower_bound <= free.cost * ROUNDING


SERIAL = CompileOptions(objective="serial")
LEVELS = len(CPU.levels)
LOWERINGS = (
    LowerRedistributions(CPU),
    *(
        LowerRedistributions(CPU, weights=ResourceWeights(1 - link, (link / LEVELS,) * LEVELS))
        for link in (0.05, 0.9)
    ),
)


def test_shared_programs_are_what_each_search_would_emit() -> None:
    shared = 0
    for seed in range(6):
        graph = Canonicalize().run(random_graph(seed, nodes=6))
        programs = Programs()
        for search in ("exact", "data_parallel", "exact"):
            options = replace(SERIAL, search=search)
            plan = compile_graph(graph, CPU, 8, options).decisions
            assert plan is not None
            for lowering in LOWERINGS:
                before = [known.program for known in programs.known]
                found = programs.emit(graph, options, plan, lowering)
                alone = Programs().emit(graph, options, plan, lowering)
                assert (found.program, found.memory) == (alone.program, alone.memory)
                assert [r.graph for r in found.records] == [r.graph for r in alone.records]
                shared += any(found.program is program for program in before)
    assert shared > 12
