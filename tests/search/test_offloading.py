"""What is saved in host memory, beside other choices, at random: cost, memory, proof, numbers."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Host, cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.proof import UpdateRule, prove_program
from shardwright.solver.evaluate import evaluate
from shardwright.zoo.loading import load
from tests.cost_model.test_weighted_profile import random_weights
from tests.equivalence import assert_equal, trained
from tests.extent import first
from tests.search.test_recomputed_memory import least_counted, random_assignment
from tests.search.test_saved_for_backward import SMALL

HOST = Host(memory_bytes=2**32, to_host=2.0e9, from_host=3.0e9)
CPU = cluster("cpu").model_copy(update={"host": HOST})
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2, 1)))
SGD = Optimizer()


def request_for(graph: Graph, passes: int, weights: ResourceWeights | None) -> SearchRequest:
    """Return a search in a space of layouts, which may offload."""
    options = CompileOptions(
        micro_batches=passes,
        optimizer=SGD,
        search="dynamic_programming",
        fusion=0.0,
        offload="search",
    )
    lowering = LowerRedistributions(CPU, "time", weights)
    return SearchRequest(graph, CPU, lowering.planner(MESH), options, weights)


def random_plan(request: SearchRequest, seed: int) -> tuple[Graph, frozenset[str]]:
    """Return a random program, checked against its problem, and what it offloads."""
    space = request.recompute_space
    assignment = random_assignment(space, np.random.default_rng(seed), 0.7)
    decisions, found = space.decisions(assignment), evaluate(space.problem, assignment)
    if request.micro is not None:
        decisions = request.micro.lifted(decisions)
    manager, lowering = PassManager(), LowerRedistributions(CPU, "time", request.weights)
    program = manager.run_all(partitioned(request.options, decisions, lowering), request.source)
    cost = request.profile.program_cost(manager.after("clean_up"))
    assert cost == pytest.approx(float(found.cost) + space.constant, rel=1e-9)
    held = peak_memory(program).peak_bytes
    if found.peak_usage > held:
        assert least_counted(space, assignment) <= held
    return program, decisions.offloaded


def marked_at_random(graph: Graph, random: np.random.Generator) -> Graph:
    """Return a program with some marks of what is offloaded."""
    names = [node.name for node in graph.nodes if node.operands and random.random() < 0.1]
    return replace(graph, offloaded=tuple(names))


@pytest.mark.parametrize(
    ("model", "passes", "weighted", "seed"),
    first(
        4,
        [
            ("mlp", 1, True, 0),
            ("gpt", 2, False, 3),
            ("mixtral", 2, True, 6),
            ("llama", 2, True, 5),
            ("resnet", 2, False, 9),
            ("gpt", 1, True, 2),
        ],
    ),
)
def test_every_choice_is_priced_held_proven_and_computed(
    model: str, passes: int, weighted: bool, seed: int
) -> None:
    definition, random = load(SMALL[model]), np.random.default_rng(seed)
    graph = definition.graph
    graph = Canonicalize().run(GroupStatistics(passes).run(graph) if passes > 1 else graph)
    whole = compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone", optimizer=SGD)).program
    weights = random_weights(random, CPU, passes) if weighted else None
    request = request_for(marked_at_random(graph, random), passes, weights)
    assert weights is None or can_divide(graph, request.micro)
    program, moved = random_plan(request, seed)
    copies = {n.provenance.operator for n in program.nodes if n.operator == "to_host"}
    assert copies == moved
    assert parse(to_text(program)) == program
    assert prove_program(graph, program, UpdateRule(SGD.kind, SGD.settings)).proven
    timeline = simulate(program, CPU)
    loads = least_loads(program, CPU, 1 if weights is None else len(weights.intervals))
    assert timeline.step_seconds >= loads.total.max() * (1 - 1e-9)
    if weights is not None:
        bound = loads.weighted(np.array(weights.intervals))
        assert timeline.step_seconds >= bound * (1 - 1e-9)
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    runs = [trained(each, 1, highs, definition.initial) for each in (program, whole)]
    assert_equal(*({k: v for k, v in run.items() if k in runs[1]} for run in runs))
