"""Plans in the order of their weighted cost, where memory is short."""

import math
from itertools import product

import pytest

from shardwright.compiler.driver import compile_graph
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
from shardwright.planner.whole.in_order import plans_in_order
from shardwright.planner.whole.plan import Plan
from shardwright.planner.whole.problem import PlanProblem
from shardwright.search.options import SearchOptions
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget
from tests.random_graphs import random_graph

CPU = cluster("cpu")


def problem(graph: Graph, weights: ResourceWeights | None, limit: float = math.inf) -> PlanProblem:
    lowering = LowerRedistributions(CPU, "time", weights)
    planner = lowering.planner(mesh_for(CPU, 2))
    options = CompileOptions(recompute="none", gap=0.0)
    search = SearchRequest(graph, CPU, planner, options, weights)
    return PlanProblem(search, lowering, SearchOptions(limit, Budget(1e3)))


WEIGHTS = ResourceWeights(0.9, (0.1,))


def plans_of(graph: Graph, limit: float = math.inf, below: float = math.inf) -> list[Plan]:
    weighted, serial = problem(graph, WEIGHTS, limit), problem(graph, None, limit)
    return list(plans_in_order(weighted, serial, lambda: below))


def test_every_program_that_fits_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.planner.whole.in_order._PROGRAMS", math.inf)
    graph = Canonicalize().run(random_graph(3, nodes=2))
    serial = problem(graph, None)
    space, peaks = serial.request.recompute_space, dict[str, float]()
    for chosen in product(*map(range, space.problem.sizes)):
        if evaluate(space.problem, chosen).cost < FORBIDDEN:
            program = serial.programs.emit(
                graph, serial.request.options, space.decisions(chosen), serial.lowering
            )
            peaks[to_text(program.program)] = program.memory.peak_bytes
    limit = sorted(peaks.values())[len(peaks) // 2]
    found = plans_of(graph, limit)
    fitting = {text for text, peak in peaks.items() if peak <= limit}
    assert {to_text(plan.program) for plan in found} == fitting
    assert 1 < len(fitting) < len(peaks)


def test_the_plans_end_at_the_shortest_step() -> None:
    graph = Canonicalize().run(random_graph(3, nodes=2))
    least = problem(graph, WEIGHTS).plan(None).result.cost
    assert not plans_of(graph, below=least)
    assert 0 < len(plans_of(graph, below=1.2 * least)) < len(plans_of(graph))


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
