"""Training steps with random plans, in random pipeline stages."""

import numpy as np

from shardwright.dataflow.placement import in_stages
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from tests.random_micro_batches import ADAM, CPU, MESH, random_step


def random_stages(graph: Graph, count: int, seed: int) -> dict[str, int]:
    """Return random stages of all operators, none of them empty."""
    operators = [node.name for node in Canonicalize().run(graph).nodes]
    drawn = np.random.default_rng(seed).permutation(range(1, len(operators)))
    cuts = sorted(drawn[: count - 1].tolist())
    return {name: sum(cut <= i for cut in cuts) for i, name in enumerate(operators)}


def pipelined(
    graph: Graph, decisions: Decisions, groups: int, stages: dict[str, int], schedule: str
) -> Graph:
    """Return the program of decisions for one stage, in stages; verified after every pass."""
    passes = decisions.mesh.passes
    options = CompileOptions(micro_batches=passes, optimizer=ADAM)
    placed = in_stages(decisions, groups, stages, schedule)
    source = Canonicalize().run(graph)
    return PassManager().run_all(partitioned(options, placed, LowerRedistributions(CPU)), source)


def random_pipeline(
    graph: Graph,
    passes: int,
    seed: int,
    groups: int,
    chunks: int,
    schedule: str,
    mesh: Mesh = MESH,
) -> Graph:
    """Return the program of a random plan in random stages."""
    decisions = random_step(graph, passes, seed, mesh=mesh).decisions
    stages = random_stages(graph, groups * chunks, seed)
    return pipelined(graph, decisions, groups, stages, schedule)
