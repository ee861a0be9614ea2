"""The loads of both passes bound every schedule, and the search prices them as the program does."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.compiler.options import CompileOptions
from shardwright.compiler.pipelines import partitioned
from shardwright.compiler.search_request import SearchRequest
from shardwright.cost_model.cluster import Cluster, cluster, mesh_for
from shardwright.cost_model.schedule import TaskMaker, Tasks, schedule
from shardwright.cost_model.streams import parameter_tensors
from shardwright.cost_model.weighted_profile import (
    ResourceWeights,
    can_divide,
    least_loads,
    when_of,
)
from shardwright.ir.graph import Graph, Value
from shardwright.ir.liveness import execution_order
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.linear_program import highest_weights
from shardwright.solver.problem import FORBIDDEN, Problem, Variable
from shardwright.solver.solve import solve
from tests.random_graphs import random_graph

CPU, POD = cluster("cpu"), cluster("h100-pod")
ROUNDING = 1 + 1e-9
LINKS = (0.01, 1.0, 100.0)


def with_links(on: Cluster, factor: float) -> Cluster:
    """Return a cluster with faster or slower links."""
    levels = tuple(
        level.model_copy(
            update={"bandwidth": level.bandwidth * factor, "latency": level.latency / factor}
        )
        for level in on.levels
    )
    return on.model_copy(update={"levels": levels})


def with_terms(seed: int, nodes: int) -> Graph:
    """Return a random program whose loss has terms of parameters alone."""
    graph, random = random_graph(seed, nodes), np.random.default_rng(seed)
    build = Builder(None, graph)
    loss = graph.values[graph.outputs[0]]
    for parameter in graph.parameters:
        if random.random() < 0.6:
            twice = build.emit("add", parameter.value, parameter.value)
            squared = build.emit("mul", twice, twice if random.random() < 0.5 else parameter.value)
            loss = build.emit("add", loss, build.emit("reduce_sum", squared))
    rows = build.parameter(Value("rows", TensorType("float64", (8, 8))), {"initializer": "ones"})
    mixed = build.emit("mul", rows, build.emit("relu", rows))
    product = build.emit("matmul", mixed, mixed)
    loss = build.emit("add", loss, build.emit("reduce_sum", product))
    made = Canonicalize().run(build.graph(f"with_terms_{seed}", (loss.name,)))
    if seed % 2:
        return made
    return replace(made, recomputed=tuple(n.name for n in made.nodes if n.operator == "relu"))


def random_weights(random: np.random.Generator, on: Cluster) -> ResourceWeights:
    count = 1 + len(on.levels)
    shares = [random.dirichlet([0.5] * count) * (1 - 1e-6) + 1e-6 / count for _ in range(2)]
    forward, backward = ((float(part[0]), tuple(part[1:].tolist())) for part in shares)
    return ResourceWeights(*forward, ResourceWeights(*backward))


def random_assignment(space: SearchSpace, random: np.random.Generator) -> tuple[int, ...]:
    """Return the best assignment by random costs of all options."""
    problem = space.problem
    pairs = tuple(
        replace(pair, table=np.where(pair.table < FORBIDDEN, 0.0, np.inf)) for pair in problem.pairs
    )
    variables = tuple(Variable(v.name, random.random(len(v.cost))) for v in problem.variables)
    found = solve(Problem(variables, pairs)).assignment
    assert found is not None
    return tuple(found)


def random_programs(graph: Graph, on: Cluster, mesh: Mesh, seed: int) -> list[Graph]:
    """Return the program of a random plan, and with buckets; it must cost what the search says."""
    random = np.random.default_rng(seed)
    weights = random_weights(random, on)
    options = CompileOptions(
        search="dynamic_programming", recompute="search", optimizer=Optimizer("adam"), fusion=0.0
    )
    lowering = LowerRedistributions(on, "time", weights)
    request = SearchRequest(graph, on, lowering.planner(mesh), options, weights)
    space = request.recompute_space
    assignment = random_assignment(space, random)
    assert evaluate(space.problem, assignment).cost < FORBIDDEN
    manager = PassManager()
    manager.run_all(partitioned(options, space.decisions(assignment), lowering), graph)
    program = manager.after("clean_up")
    cost = float(evaluate(space.problem, assignment).cost) + space.constant
    assert request.profile.program_cost(program) == pytest.approx(cost, rel=1e-9)
    assert weights.backward is not None
    one, two = (np.array([w.compute, *w.levels]) for w in (weights, weights.backward))
    least = min(one @ f + two @ b for f, b in least_loads(program, on).divisions())
    assert cost == pytest.approx(least, rel=1e-9)
    return [program, FuseAllReduces(1e9).run(program)]


def tasks_of(program: Graph, on: Cluster) -> Tasks:
    order, maker = tuple(execution_order(program, None)), TaskMaker(program, on)
    return Tasks(maker.tasks(order), maker.buffers, order)


def check_passes(program: Graph, on: Cluster) -> None:
    """Check that every node runs in the pass that it counts for, whatever the schedule."""
    made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
    when = [when_of(node, made) for node in program.nodes]
    tasks = tasks_of(program, on).tasks
    line = [i for i, task in enumerate(tasks) if task.in_line]
    begin = next((i for i in line if when[i] != "forward"), len(tasks))
    assert all(when[i] != "forward" for i in line if i >= begin)
    early = {i for i in line if i < begin}
    for i in reversed(range(len(tasks))):
        if i in early:
            early.update(tasks[i].after)
    late = {i for i in line if i >= begin}
    last = max((i for i in line if i < begin), default=-1)
    for i, task in enumerate(tasks):
        if program.nodes[i].provenance.role == "update" and last in task.after:
            late.add(i)
        if not late.isdisjoint(task.after):
            late.add(i)
    for i, node in enumerate(program.nodes):
        assert (
            tasks[i].seconds == 0
            or when[i] == "either"
            or i in (early if when[i] == "forward" else late)
        ), node


def check_bound(program: Graph, on: Cluster) -> None:
    """Check that no window makes the step shorter than its bound by the best weights."""
    loads = least_loads(program, on)
    cuts = np.array([np.concatenate(pair) for pair in loads.divisions()])
    bound, _ = highest_weights(cuts, groups=2)
    assert bound >= max(highest_weights(loads.total[None])[0], 0.0) / ROUNDING
    made = tasks_of(program, on)
    for window in (np.inf, *(made.deferrable_bytes / 2**i for i in range(4)), 0.0):
        starts = schedule(made.tasks, window)
        pairs = zip(starts, made.tasks, strict=True)
        assert bound <= max(start + task.seconds for start, task in pairs) * ROUNDING


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    graph = with_terms(seed, nodes=2 + seed % 4)
    if seed % 4 == 3:
        graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 4))
    on = with_links(POD if seed % 3 else CPU, LINKS[seed // 3 % 3])
    mesh = mesh_for(POD, 16, (2, 8)) if seed % 3 == 2 else mesh_for(on, 4, (2, 2))
    assert can_divide(graph)
    for again in range(2):
        for program in random_programs(graph, on, mesh, 10 * seed + again):
            check_passes(program, on)
            check_bound(program, on)
