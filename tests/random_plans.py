"""Training steps in which every operator has a random strategy."""

from functools import cache

import numpy as np

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.partition import Partition
from shardwright.search.heuristics.completion import complete
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace


@cache  # equal operators and redistributions are priced once for all tests
def profile_for(devices: int) -> TimeProfile:
    """Return the costs on so many devices of the cluster `cpu`."""
    described = cluster("cpu")
    return TimeProfile(mesh_for(described, devices), described)


def random_plan(
    space: SearchSpace, profile: TimeProfile, random: np.random.Generator, optimizer: Optimizer
) -> tuple[Graph, tuple[int, ...]]:
    """Return the training step of a random legal plan, verified after every pass, and the plan."""
    strategies = {
        choice.name: choice.options[int(random.integers(len(choice.options)))]
        for choice in space.choices
        if choice.kind == "operator"
    }
    assignment = complete(space, strategies)  # type: ignore[arg-type]
    program = emitted(space.graph, space.decisions(assignment), profile, optimizer)
    return program, assignment


def emitted(
    graph: Graph, decisions: Decisions, profile: TimeProfile, optimizer: Optimizer
) -> Graph:
    """Return the training step of decisions, verified after every pass."""
    pipeline = (
        Annotate(decisions),
        Partition(),
        InsertMirrors(),
        Differentiate(),
        LowerRedistributions(profile.cluster),
        AppendOptimizer.of(optimizer),
        CleanUp(),
    )
    return PassManager().run_all(pipeline, graph)


def random_program(
    graph: Graph, profile: TimeProfile, random: np.random.Generator, optimizer: Optimizer
) -> Graph:
    """Return the training step of a random legal plan, verified after every pass."""
    return random_plan(build_search_space(graph, profile), profile, random, optimizer)[0]
