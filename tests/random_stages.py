"""Training steps in pipeline stages in which every operator and parameter has a random option."""

from dataclasses import replace

import numpy as np

from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.placement import in_stages, stages_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from tests.random_micro_batches import random_assignment

CPU = cluster("cpu")
STAGE_MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2, 1)))
ADAM = Optimizer("adam")


def random_stages(
    graph: Graph,
    stages: int,
    groups: int,
    *,
    passes: int = 1,
    seed: int = 0,
    mesh: Mesh = STAGE_MESH,
    recompute: float = 0.0,
    schedule: str | None = None,
    **options: object,
) -> Graph:
    """Return the training step of a random plan in stages, verified after every pass.

    Parameters
    ----------
    graph : Graph
        The model.
    stages, groups : int
        Number of stages, and of device groups.
    passes : int
        Number of micro-batches.
    seed : int
        What strategies, cuts and marks are drawn by.
    mesh : Mesh
        The mesh of a stage.
    recompute : float
        Share of the operators that are recomputed.
    schedule : str, optional
        Name of the schedule; by default one that there is for these numbers.
    **options
        Further options of the compilation.
    """
    chosen = CompileOptions(
        micro_batches=passes,
        optimizer=ADAM,
        search="dynamic_programming",
        **options,  # type: ignore[arg-type]
    )
    source, lowering = Canonicalize().run(graph), LowerRedistributions(CPU)
    request = SearchRequest(source, CPU, lowering.planner(mesh), chosen)
    random = np.random.default_rng(seed)
    assignment = random_assignment(request.space, random)
    decisions = request.space.decisions(assignment)
    outside = frozenset[str]()
    if request.micro is not None:
        decisions, outside = request.micro.lifted(decisions), request.micro.outside
    again = [n.name for n in source.nodes if n.operands and random.random() < recompute]
    decisions = replace(decisions, recomputed=frozenset(again) - outside)
    if schedule is None:
        interleaved = "" if passes % groups else "interleaved"
        schedule = "1f1b" if stages == groups else interleaved
    decisions = cut(decisions, source, stages, groups, random, schedule)
    return PassManager().run_all(partitioned(chosen, decisions, lowering), source)


def cut(
    decisions: Decisions,
    source: Graph,
    stages: int,
    groups: int,
    random: np.random.Generator,
    schedule: str = "",
) -> Decisions:
    """Return decisions with random cuts."""
    count = len(source.nodes)
    places = sorted(random.choice(np.arange(1, count), stages - 1, replace=False).tolist())
    cuts = tuple(source.nodes[place].name for place in places)
    return in_stages(decisions, groups, stages_of(replace(source, cuts=cuts)), schedule)
