"""What is saved for backward, recomputed or regathered at random: cost, memory, proof, numbers."""

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.dataflow.placement import in_stages
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
from tests.random_pipelines import random_stages
from tests.search.test_recomputed_memory import least_counted, random_assignment

CPU = cluster("cpu")
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2, 1)))
SGD = Optimizer()
SMALL = {
    "mlp": "mlp:batch=8,inputs=6,hidden=8,classes=4",
    "gpt": "gpt:layers=1,hidden=8,heads=2,batch=4,sequence=4,vocabulary=12",
    "llama": "llama:layers=1,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,vocabulary=8",
    "mixtral": "mixtral:layers=1,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,"
    "vocabulary=8",
    "resnet": "resnet18-cifar:batch=4,side=8,width=2",
}


def request_for(graph: Graph, passes: int, weights: ResourceWeights | None) -> SearchRequest:
    """Return a search in a space of layouts, not of orbits."""
    options = CompileOptions(
        micro_batches=passes, optimizer=SGD, search="dynamic_programming", fusion=0.0
    )
    lowering = LowerRedistributions(CPU, "time", weights)
    return SearchRequest(graph, CPU, lowering.planner(MESH), options, weights)


def random_plan(
    request: SearchRequest, stages: int, weights: ResourceWeights | None, seed: int
) -> tuple[Graph, int]:
    """Return a random program, checked against its problem, and what it makes again."""
    space, lowering = request.recompute_space, LowerRedistributions(CPU, "time", weights)
    assignment = random_assignment(space, np.random.default_rng(seed), 0.7)
    decisions, found = space.decisions(assignment), evaluate(space.problem, assignment)
    if request.micro is not None:
        decisions = request.micro.lifted(decisions)
    again = len(decisions.recomputed | decisions.regathered)
    if stages > 1:
        placed = random_stages(request.source, stages, seed)
        decisions = in_stages(decisions, stages, placed, "1f1b")
    manager = PassManager()
    program = manager.run_all(partitioned(request.options, decisions, lowering), request.source)
    if stages == 1:
        cost = request.profile.program_cost(manager.after("clean_up"))
        assert cost == pytest.approx(float(found.cost) + space.constant, rel=1e-9)
        held = peak_memory(program).peak_bytes
        if found.peak_usage > held:
            assert least_counted(space, assignment) <= held
    return program, again


@pytest.mark.parametrize(
    ("model", "passes", "stages", "weighted", "seed"),
    first(
        4,
        [
            ("mlp", 1, 1, True, 0),
            ("gpt", 2, 2, False, 3),
            ("llama", 2, 1, True, 5),
            ("mixtral", 2, 2, False, 8),
            ("resnet", 2, 1, False, 9),
            ("mlp", 2, 2, False, 1),
            ("gpt", 1, 1, True, 2),
            ("llama", 1, 1, True, 4),
            ("mixtral", 2, 1, True, 6),
            ("mixtral", 2, 1, False, 7),
        ],
    ),
)
def test_every_choice_is_priced_held_proven_and_computed(
    model: str, passes: int, stages: int, weighted: bool, seed: int
) -> None:
    definition = load(SMALL[model])
    graph = definition.graph
    graph = Canonicalize().run(GroupStatistics(passes).run(graph) if passes > 1 else graph)
    weights = random_weights(np.random.default_rng(seed), CPU, passes) if weighted else None
    request = request_for(graph, passes, weights)
    assert weights is None or can_divide(graph, request.micro)
    program, again = random_plan(request, stages, weights, seed)
    assert again
    assert parse(to_text(program)) == program
    assert prove_program(graph, program, UpdateRule(SGD.kind, SGD.settings)).proven
    options = CompileOptions(mode="stand_alone", optimizer=SGD)
    whole = compile_graph(graph, CPU, 1, options).program
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    runs = [trained(each, 1, highs, definition.initial) for each in (program, whole)]
    assert_equal(*({k: v for k, v in run.items() if k in runs[1]} for run in runs))
