"""Training steps in which every operator has a random strategy."""

import numpy as np

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.graph import Graph
from shardwright.passes.cleanup import drop_mirrors
from shardwright.passes.gradient import differentiate
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.optimizer import Optimizer, append_optimizer
from shardwright.passes.partition import insert_mirrors, partition
from shardwright.search.heuristics.baselines import complete
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace


def profile_for(devices: int) -> TimeProfile:
    """Return the costs on so many devices of the cluster `cpu`."""
    described = cluster("cpu")
    return TimeProfile(RedistributionPlanner(mesh_for(described, devices), described))


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
    decisions = space.decisions(assignment)
    run = PassManager().run
    program = run("partition", lambda g: partition(g, decisions), space.graph)
    program = run("mirror", lambda g: insert_mirrors(g, decisions), program)
    program = run("gradient", differentiate, program)
    program = run("lowering", lambda g: lower_redistributions(g, profile.planner), program)
    program = run("optimizer", lambda g: append_optimizer(g, optimizer), program)
    return run("cleanup", drop_mirrors, program), assignment


def random_program(
    graph: Graph, profile: TimeProfile, random: np.random.Generator, optimizer: Optimizer
) -> Graph:
    """Return the training step of a random legal plan, verified after every pass."""
    return random_plan(build_search_space(graph, profile), profile, random, optimizer)[0]
