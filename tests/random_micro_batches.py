"""Training steps in micro-batches in which every operator and parameter has a random option."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost_model.cluster import cluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import PRECISIONS
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.search.heuristics.completion import complete
from shardwright.search.space.space import Choice, SearchSpace
from shardwright.solver.evaluate import evaluate
from tests.random_graphs import random_graph

CPU = cluster("cpu")
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2, 1)))
ADAM = Optimizer("adam")


@dataclass(frozen=True)
class RandomStep:
    """A random plan: what the search says of it, and the program."""

    decisions: Decisions
    cost: float
    counted_bytes: float
    program_cost: float
    program: Graph


def random_step(
    graph: Graph, passes: int, seed: int, precision: str = "float32", mesh: Mesh = MESH
) -> RandomStep:
    """Return the training step of a random plan, verified after every pass."""
    options = CompileOptions(
        micro_batches=passes, optimizer=ADAM, search="dynamic_programming"
    )  # a space of layouts, not of orbits
    graph = ApplyPrecision(PRECISIONS[precision]).run(graph)
    source, lowering = Canonicalize().run(graph), LowerRedistributions(CPU)
    request = SearchRequest(source, CPU, lowering.planner(mesh), options)
    assignment = random_assignment(request.space, np.random.default_rng(seed))
    found = evaluate(request.space.problem, assignment)
    decisions = request.space.decisions(assignment)
    if request.micro is not None:
        decisions = request.micro.lifted(decisions)
    manager = PassManager()
    program = manager.run_all(partitioned(options, decisions, lowering), source)
    return RandomStep(
        decisions,
        float(found.cost) + request.space.constant,
        float(found.peak_usage),
        request.profile.program_cost(manager.after("clean_up")),
        program,
    )


def random_steps(seeds: int, passes: int) -> Iterator[tuple[int, Graph, RandomStep]]:
    """Yield the seed, the random program and its random step, where it has one."""
    for seed in range(seeds):
        graph = random_graph(seed, nodes=7)
        try:
            yield seed, graph, random_step(graph, passes, seed)
        except OptionError:  # such as an odd batch
            continue


def random_assignment(
    space: SearchSpace, random: np.random.Generator, most: int = 6
) -> tuple[int, ...]:
    """Return random options; of what follows from others, one in `most` is offered."""
    strategies = {
        choice.name: choice.options[int(random.integers(len(choice.options)))]
        for choice in space.choices
        if choice.kind == "operator"
    }

    def some(choice: Choice) -> Sequence[bool]:
        count = len(choice.options)
        kept = set(random.permutation(count)[: max(1, count // most)].tolist())
        return [i in kept for i in range(count)]

    return complete(space, strategies, some)  # type: ignore[arg-type]
