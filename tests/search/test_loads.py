"""The loads of a plan by the account of the search are those of its program."""

import math
from dataclasses import replace

import numpy as np
import pytest

from shardwright import zoo
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.cost_model.weighted.loads import Loads, least_loads
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.search.heuristics.completion import complete
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import RecomputedStrategy, SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import Problem
from tests.random_graphs import random_graph
from tests.zoo_sizes import SMALL

POD = cluster("h100-pod")
MESH = mesh_for(POD, 16, (2, 8))
ADAM = CompileOptions(optimizer=Optimizer("adam"))
LINKS = len(POD.levels)


def random_weights(graph: Graph, random: np.random.Generator) -> ResourceWeights:
    """Return weights of one interval, or of two where a step may be divided."""
    count = 1 + can_divide(graph)
    first, *later = (
        ResourceWeights(float(compute), tuple(links))
        for compute, *links in random.dirichlet([1.0] * (1 + LINKS), size=count).tolist()
    )
    return replace(first, later=tuple(later))


def request_for(graph: Graph, weights: ResourceWeights, **options: object) -> SearchRequest:
    """Return the search for the plan of the least weighted loads."""
    planner = LowerRedistributions(POD, weights=weights).planner(MESH)
    chosen = replace(ADAM, **options)  # type: ignore[arg-type]
    return SearchRequest(graph, POD, planner, chosen, weights)


def emitted_loads(request: SearchRequest, space: SearchSpace, assignment: tuple[int, ...]) -> Loads:
    """Return the loads of the program of a plan."""
    lowering = LowerRedistributions(POD, weights=request.weights)
    decisions = space.decisions(assignment)
    program = Programs().emit(request.source, request.options, decisions, lowering).program
    assert request.weights is not None
    return least_loads(program, POD, len(request.weights.intervals))


def check_equal(found: Loads | None, expected: Loads) -> None:
    """Check that all seconds are in the same place."""
    assert found is not None
    assert (found.resources, found.intervals) == (expected.resources, expected.intervals)
    places = {place for place, seconds in expected.seconds.items() if seconds}
    assert places == {place for place, seconds in found.seconds.items() if seconds}
    for place in places:
        assert found.seconds[place] == pytest.approx(expected.seconds[place], rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_loads_of_random_plans_are_those_of_their_programs(seed: int) -> None:
    random, graph = np.random.default_rng(seed), random_graph(seed, nodes=3 + seed % 5)
    request = request_for(Canonicalize().run(graph), random_weights(graph, random))
    space = request.space
    for _ in range(4):
        strategies = {
            choice.name: choice.options[int(random.integers(len(choice.options)))]
            for choice in space.choices
            if choice.kind == "operator"
        }
        plan = complete(space, strategies)  # type: ignore[arg-type]
        check_equal(request.loads(space, plan), emitted_loads(request, space, plan))


@pytest.mark.parametrize("model", ["gpt", "lenet5"])
def test_the_loads_of_plans_that_recompute_are_those_of_their_programs(model: str) -> None:
    graph = ApplyPrecision("bfloat16").run(zoo.load(SMALL[model]).graph)
    graph = Canonicalize().run(graph)
    request = request_for(graph, random_weights(graph, np.random.default_rng(0)))
    space, recomputed = request.recompute_space, 0
    free = request.solve(space, SearchOptions())
    for share in (1.0, 0.8):
        limits = SearchOptions(memory_limit=share * free.memory_bytes, gap=0.01)
        plan = request.solve(space, limits).assignment
        check_equal(request.loads(space, plan), emitted_loads(request, space, plan))
        options = (c.options[chosen] for c, chosen in zip(space.choices, plan, strict=True))
        recomputed += any(isinstance(option, RecomputedStrategy) for option in options)
    assert recomputed


def test_loads_are_unknown_where_a_piece_costs_something_else() -> None:
    graph = Canonicalize().run(random_graph(1, nodes=5))
    request = request_for(graph, random_weights(graph, np.random.default_rng(0)))
    space = request.space
    plan = request.solve(space, SearchOptions()).assignment
    assert request.loads(space, plan) is not None
    position, pair, _ = space.priced[0]
    pairs = list(space.problem.pairs)
    pairs[position] = replace(pair, table=pair.table + 1e-6)
    other = replace(space, problem=Problem(space.problem.variables, tuple(pairs)))
    assert math.isfinite(evaluate(other.problem, plan).cost)
    assert request.loads(other, plan) is None


def test_loads_are_unknown_in_micro_batches_and_by_the_serial_step() -> None:
    graph = zoo.load(SMALL["gpt"]).graph
    weights = random_weights(graph, np.random.default_rng(0))
    request = request_for(graph, weights, micro_batches=2)
    plan = request.solve(request.space, SearchOptions()).assignment
    assert request.loads(request.space, plan) is None
    serial = replace(request_for(graph, weights), weights=None)
    assert serial.loads(request.space, plan) is None
