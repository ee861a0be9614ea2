"""Plans within a memory limit: what is claimed of them holds for the limit that was asked for."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shardwright import zoo
from shardwright.compiler.driver import CompileOptions, compile_graph
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.plan import Plan
from shardwright.planner.whole.problem import PlanProblem
from shardwright.planner.whole.search import WholeSearch
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.work import Budget
from tests.extent import first
from tests.random_graphs import random_graph
from tests.random_plans import profile_for, random_plan
from tests.zoo_sizes import SMALL

CPU = cluster("cpu")
SHALLOW = {name: text.replace("layers=2", "layers=1") for name, text in SMALL.items()}


def answers(
    graph: Graph,
    devices: int,
    optimizer: Optimizer,
    gap: float,
    limits: int,
    recompute: str = "none",
):
    """Yield (limit, cost, bound) from no memory to more than enough; infinite where none fits."""

    def compiled(limit: float):
        options = CompileOptions(
            objective="serial",
            memory_limit=limit,
            optimizer=optimizer,
            gap=gap,
            recompute=recompute,
        )
        return compile_graph(graph, CPU, devices, options)

    most = compiled(float("inf")).memory.peak_bytes
    with pytest.raises(NoPlanError) as caught:
        compiled(1.0)
    least = caught.value.least_memory_bound
    assert least is not None
    for limit in sorted([*np.linspace(0.9 * least, 1.02 * most, limits - 1), most]):
        try:
            found = compiled(float(limit))
        except InfeasibleError:
            yield limit, np.inf, np.inf
        except NotFoundError:
            yield limit, np.inf, 0.0
        else:
            assert found.memory.peak_bytes <= limit
            assert found.result is not None
            yield limit, found.result.cost, found.result.lower_bound


def assert_monotone(
    graph: Graph,
    devices: int,
    optimizer: Optimizer,
    gap: float,
    limits: int,
    recompute: str = "none",
):
    """Check that more memory never costs more, and that bounds hold for what fits less memory."""
    check_monotone(answers(graph, devices, optimizer, gap, limits, recompute), gap)


def check_monotone(found: Iterable[tuple[float, float, float]], gap: float):
    """Check it for answers within ever higher limits."""
    best = np.inf
    for limit, cost, bound in found:
        assert cost <= best * (1 + gap + 1e-9), limit
        assert bound <= min(best, cost) * (1 + 1e-9) or np.isinf(best), limit
        best = min(best, cost)
    assert np.isfinite(best)


@pytest.mark.long
@pytest.mark.parametrize("block", first(1, range(35)))
def test_more_memory_is_never_worse(block: int) -> None:
    for seed in first(2, range(4 * block, 4 * block + 4)):
        random = np.random.default_rng(seed)
        optimizer = Optimizer(str(random.choice(["sgd", "adam"])))  # type: ignore[arg-type]
        graph = random_graph(seed, nodes=2 + seed % 5)
        assert_monotone(graph, int(random.choice([2, 4, 8])), optimizer, gap=0.0, limits=8)


@pytest.mark.long
@pytest.mark.parametrize("seed", first(1, [7, 1, 13]))
def test_more_memory_is_never_worse_with_recomputation(seed: int) -> None:
    graph = random_graph(seed, nodes=2 + seed % 5)
    assert_monotone(graph, 4, Optimizer(), gap=0.0, limits=8, recompute="search")


QUICK = ("dlrm", "llama", "lenet5", "mlp", "two_matmul", "wide_deep", "feature_hash")


@pytest.mark.long
@pytest.mark.parametrize("model", first(1, QUICK))
def test_more_memory_is_never_worse_for_the_zoo(model: str) -> None:
    assert_monotone(zoo.load(SMALL[model]).graph, 4, Optimizer("adam"), gap=1e-3, limits=4)


@pytest.mark.long
@pytest.mark.parametrize("seed", first(1, range(12)))
def test_random_plans_neither_cost_less_than_bounds_nor_fit_where_nothing_does(seed: int) -> None:
    profile, random, sgd = profile_for(4), np.random.default_rng(seed), Optimizer()
    graph = Canonicalize().run(random_graph(seed, nodes=2 + seed % 5))
    space = build_search_space(graph, profile)
    found = []
    for _ in range(60):
        program, assignment = random_plan(space, profile, random, sgd)
        cost = float(evaluate(space.problem, assignment).cost)
        found.append((peak_memory(program).peak_bytes, cost))
    of_limits = list(answers(graph, 4, sgd, gap=0.0, limits=8))
    check_monotone(of_limits, gap=0.0)
    for limit, _, bound in of_limits:
        fitting = [cost for peak, cost in found if peak <= limit]
        assert bound <= min(fitting, default=np.inf)


def test_a_program_that_exceeds_what_the_search_counts_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where only emitted programs are too large, nothing is proven."""
    graph = random_graph(3, nodes=4)
    with pytest.raises(InfeasibleError) as caught:
        compile_graph(graph, CPU, 4, CompileOptions(objective="serial", memory_limit=1.0))
    bound = caught.value.least_memory_bound
    assert bound is not None
    monkeypatch.setattr("shardwright.planner.evaluation.programs.peak_memory", doubled)
    with pytest.raises(NotFoundError, match="no plan was found that fits") as missed:
        compile_graph(graph, CPU, 4, CompileOptions(objective="serial", memory_limit=1.5 * bound))
    assert missed.value.least_memory_bound == bound
    assert missed.value.least_memory_bytes is not None
    assert missed.value.least_memory_bytes >= 2 * bound


def doubled(program: Graph) -> MemoryUseReport:
    """Return twice the memory of a program."""
    report = peak_memory(program)
    return replace(report, peak_bytes=2 * report.peak_bytes)


RULES = ("data_parallel", "fully_sharded", "tensor_parallel", "sharding_propagation")


def by_rules(graph: Graph, devices: int, recompute: str):
    """Yield the programs that the rules build."""
    for search in RULES:
        options = CompileOptions(objective="serial", search=search, recompute=recompute)
        yield compile_graph(graph, CPU, devices, options)


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama"])
def test_no_plan_of_a_rule_that_fits_is_cheaper_than_the_answer(model: str) -> None:
    graph = zoo.load(SHALLOW[model]).graph
    plans = list(by_rules(graph, 4, "full"))
    limit = min(plan.memory.peak_bytes for plan in plans)
    found = compile_graph(
        graph, CPU, 4, CompileOptions(objective="serial", memory_limit=limit, effort=0.02)
    )
    assert found.result is not None
    assert found.memory.peak_bytes <= limit
    fitting = [plan for plan in plans if plan.memory.peak_bytes <= limit]
    assert fitting
    for plan in fitting:
        assert plan.result is not None
        assert found.result.cost <= plan.result.cost * (1 + 1e-3 + 1e-9)
        assert found.result.lower_bound <= plan.result.cost * (1 + 1e-9)


@pytest.mark.parametrize("model", first(1, ["mlp", "gpt"]))
def test_where_the_search_finds_nothing_a_plan_of_a_rule_is_taken_if_it_fits(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: PlanProblem) -> Plan:
        raise NotFoundError("no plan was found that fits")

    graph = zoo.load(SHALLOW[model]).graph
    recompute = "full" if model == "gpt" else "none"
    best = min(by_rules(graph, 4, recompute), key=lambda plan: plan.memory.peak_bytes)
    limit = best.memory.peak_bytes
    monkeypatch.setattr(PlanProblem, "fit", nothing)
    found = compile_graph(graph, CPU, 4, CompileOptions(objective="serial", memory_limit=limit))
    assert found.result is not None
    assert best.result is not None
    assert found.memory.peak_bytes <= limit
    assert (found.result.lower_bound, found.result.status) == (0.0, "feasible")
    assert found.result.cost <= best.result.cost * (1 + 1e-9)
    with pytest.raises(NotFoundError, match="no plan was found that fits"):
        compile_graph(graph, CPU, 4, CompileOptions(objective="serial", memory_limit=0.1 * limit))


@pytest.mark.long
def test_where_nothing_is_left_no_tighter_limit_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float | None] = []
    solved = SearchRequest.solve

    def solve(request: SearchRequest, space: SearchSpace, options: SearchOptions) -> SearchResult:
        limits.append(options.memory_limit)
        if len(limits) > 1:
            options.budget.charge(1e3)
        return solved(request, space, options)

    graph = zoo.load(SHALLOW["gpt"]).graph
    best = min(by_rules(graph, 4, "none"), key=lambda plan: plan.memory.peak_bytes)
    limit = best.memory.peak_bytes
    monkeypatch.setattr(SearchRequest, "solve", solve)
    monkeypatch.setattr(Plan, "fits", lambda *_: False)
    with pytest.raises(NoPlanError):
        compile_graph(
            graph,
            CPU,
            4,
            CompileOptions(objective="serial", recompute="none", memory_limit=limit),
        )
    assert set(limits) <= {limit, None}


@pytest.mark.parametrize("objective", ["serial", "overlapped"])
def test_building_the_problem_takes_nothing_from_solving_it(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, build, built = 3.0, SearchRequest.space_with, []

    def slow(self: SearchRequest, *arguments: object, **options: object) -> SearchSpace:
        if not built:
            self.budget.charge(0.8 * limit)
        built.append(self.weights)
        return build(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchRequest, "space_with", slow)
    source = Canonicalize().run(zoo.load(SMALL["mlp"]).graph)
    options = CompileOptions(objective=objective)
    found = WholeSearch(source, CPU, mesh_for(CPU, 4, (2, 2)), options, Budget(limit))
    plan = found.run()
    assert found.searching.left > 0.5 * limit
    assert built[0] == found._first_weights
    assert (built[0] is None) == (objective == "serial")
    assert "budget" not in plan.result.how
    assert plan.result.seconds > 0.8 * limit


def test_a_problem_that_is_not_built_within_the_budget_has_no_plan() -> None:
    lowering = LowerRedistributions(CPU, "time", None)
    where = Canonicalize().run(random_graph(1)), CPU, lowering.planner(mesh_for(CPU, 2))
    request = SearchRequest(*where, CompileOptions(), budget=Budget(0), is_needed=False)
    late = PlanProblem(request, lowering, SearchOptions(None, request.budget))
    for search in (late.space, late.fit, lambda: late.space(recomputes=True)):
        with pytest.raises(NotFoundError, match="nothing is left to build the problem") as caught:
            search()
        assert str(caught.value.__cause__) == (
            "nothing is left of effort 1 to build the search on mesh x=2; allow more effort"
        )
