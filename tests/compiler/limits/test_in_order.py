"""Plans in the order of their weighted cost, where memory is short."""

import math
from itertools import product

import pytest

from shardwright.compiler.attempts import Attempts
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.limits.in_order import PlansInOrder
from shardwright.cost_model.cluster import Host, cluster, mesh_for
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.ir.graph import Graph, Value
from shardwright.ir.text import to_text
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.search.options import SearchOptions
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget
from tests.random_graphs import random_graph

CPU = cluster("cpu")


def searches(graph: Graph, weights: ResourceWeights | None, limit: float) -> Attempts:
    lowering = LowerRedistributions(CPU, "time", weights)
    planner = lowering.planner(mesh_for(CPU, 2))
    options = CompileOptions(recompute="none", gap=0.0)
    search = SearchRequest(graph, CPU, planner, options, weights)
    search.space  # noqa: B018 - it is built
    return Attempts(search, lowering, SearchOptions(limit), Budget(1e3))


def plans_of(graph: Graph, limit: float = math.inf) -> tuple[PlansInOrder, Attempts]:
    serial = searches(graph, None, limit)
    return PlansInOrder(searches(graph, ResourceWeights(0.9, (0.1,)), limit), serial), serial


def test_every_program_that_fits_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.compiler.limits.in_order._PROGRAMS", math.inf)
    graph = Canonicalize().run(random_graph(3, nodes=2))
    serial = plans_of(graph)[1]
    space, peaks = serial.request.recompute_space, dict[str, float]()
    for chosen in product(*map(range, space.problem.sizes)):
        if evaluate(space.problem, chosen).cost < FORBIDDEN:
            program = serial.programs.emit(
                graph, serial.request.options, space.decisions(chosen), serial.lowering
            )
            peaks[to_text(program.program)] = program.memory.peak_bytes
    limit = sorted(peaks.values())[len(peaks) // 2]
    found = list(plans_of(graph, limit)[0].plans(lambda: math.inf))
    fitting = {text for text, peak in peaks.items() if peak <= limit}
    assert {to_text(plan.program) for plan in found} == fitting
    assert 1 < len(fitting) < len(peaks)


def test_the_plans_end_at_the_shortest_step() -> None:
    graph = Canonicalize().run(random_graph(3, nodes=2))
    plans, _ = plans_of(graph)
    count = len(list(plans.plans(lambda: math.inf)))
    costs = [plans.searches.attempt(SearchOptions()).result.cost]
    assert not list(plans.plans(lambda: costs[0]))
    assert 0 < len(list(plans.plans(lambda: 1.2 * costs[0]))) < count


def test_a_large_problem_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.compiler.limits.tighter._OPTIONS", 1)
    plans, _ = plans_of(Canonicalize().run(random_graph(3, nodes=2)))
    assert not list(plans.plans(lambda: math.inf))


def test_a_plan_is_found_that_the_account_hides() -> None:
    """The best of all 468 plans offloads the product, and gathers its square.

    A plan hides it that takes as much by the account, costs less and does not fit: without the
    plans in order, the answer takes 2.57 microseconds.
    """
    build = Builder()
    x = build.input(Value("x", TensorType("float64", (8, 3))))
    w = build.parameter(Value("w", TensorType("float64", (3, 3))), {"initializer": "ones"})
    loss = build.emit("reduce_sum", build.emit("square", build.emit("matmul", x, w)))
    rates = {kind: peak / 100 for kind, peak in CPU.device.peak_flops.items()}
    device = CPU.device.model_copy(update={"launch_seconds": 0.0, "peak_flops": rates})
    host = Host(memory_bytes=2**32, to_host=1e12, from_host=1e12)
    slow = CPU.model_copy(update={"device": device, "host": host})
    options = CompileOptions(optimizer=Optimizer(), gap=0.0, memory_limit=657.0, offload="search")
    graph = Canonicalize().run(build.graph("hidden", (loss.name,)))
    found = compile_graph(graph, slow, 2, options)
    assert found.result is not None
    assert found.result.cost == pytest.approx(1.63678933e-6)
    assert any(node.operator == "to_host" for node in found.program.nodes)
