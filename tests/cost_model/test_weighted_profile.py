"""The loads of intervals bound every schedule, and the search prices them as the program does."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.cluster import Cluster, cluster, mesh_for
from shardwright.cost_model.schedule import schedule
from shardwright.cost_model.tasks import TaskMaker, Tasks
from shardwright.cost_model.weighted.intervals import (
    Kind,
    ResourceWeights,
    parts_of,
    weights_of_literal,
)
from shardwright.cost_model.weighted.kinds import can_divide, kinds_of
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.dataflow.micro_batches import micro_batches
from shardwright.ir.errors import OptionError
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
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.linear_program import highest_grouped_weights, highest_weights
from shardwright.solver.problem import FORBIDDEN, Problem, Variable
from shardwright.solver.solve import solve
from tests.random_graphs import random_graph

CPU, POD = cluster("cpu"), cluster("h100-pod:figures=datasheet")
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


def random_weights(random: np.random.Generator, on: Cluster, passes: int) -> ResourceWeights:
    count, intervals = 1 + len(on.links), 3 if passes > 1 else 2
    shares = [random.dirichlet([0.5] * count) * (1 - 1e-6) + 1e-6 / count for _ in range(intervals)]
    first, *later = (ResourceWeights(float(part[0]), tuple(part[1:].tolist())) for part in shares)
    return replace(first, later=tuple(later), passes=passes)


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


def random_programs(
    graph: Graph, on: Cluster, mesh: Mesh, seed: int, passes: int = 1
) -> list[Graph]:
    """Return the program of a random plan, and with buckets; it must cost what the search says."""
    random = np.random.default_rng(seed)
    weights = random_weights(random, on, passes)
    assert weights_of_literal(weights.literal) == weights
    options = CompileOptions(
        search="dynamic_programming",
        recompute="search",
        optimizer=Optimizer("adam"),
        fusion=0.0,
        micro_batches=passes,
    )
    lowering = LowerRedistributions(on, "time", weights)
    request = SearchRequest(graph, on, lowering.planner(mesh), options, weights)
    space = request.recompute_space
    assignment = random_assignment(space, random)
    assert evaluate(space.problem, assignment).cost < FORBIDDEN
    decisions = space.decisions(assignment)
    if request.micro is not None:
        decisions = request.micro.lifted(decisions)
    manager = PassManager()
    manager.run_all(partitioned(options, decisions, lowering), graph)
    program = manager.after("clean_up")
    cost = float(evaluate(space.problem, assignment).cost) + space.constant
    assert request.profile.program_cost(program) == pytest.approx(cost, rel=1e-9)
    least = least_loads(program, on, len(weights.intervals))
    assert cost == pytest.approx(least.weighted(np.array(weights.intervals)), rel=1e-9)
    return [program, FuseAllReduces(1e9).run(program)]


def tasks_of(program: Graph, on: Cluster) -> Tasks:
    order, maker = tuple(execution_order(program, None)), TaskMaker(program, on)
    return Tasks(maker.tasks(order), maker.buffers, order)


def ends_of_intervals(program: Graph, made: Tasks, passes: int) -> list[int]:
    """Return the tasks in line at whose ends the intervals end: the last forward ones."""
    kinds = kinds_of(program)
    ends = dict.fromkeys((0, passes - 1), -1)
    for i, (task, (position, number)) in enumerate(zip(made.tasks, made.order, strict=True)):
        forward = kinds[position].when in ("before", "forward")
        if task.in_line and forward and number in ends:
            ends[number] = i
    return [ends[number] for number in sorted(ends)]


def check_intervals(program: Graph, on: Cluster, passes: int) -> None:
    """Check that every node runs in an interval that it counts for, whatever the schedule."""
    kinds, made = kinds_of(program), tasks_of(program, on)
    tasks, ends = made.tasks, ends_of_intervals(program, made, passes)
    line = [i for i, task in enumerate(tasks) if task.in_line]
    # The first and the last interval that each task can run in.
    first, last = [0] * len(tasks), [len(ends)] * len(tasks)
    for i in line:
        first[i] = last[i] = sum(i > end for end in ends)
    for i in reversed(range(len(tasks))):
        for before in tasks[i].after:
            last[before] = min(last[before], last[i])
    for i, task in enumerate(tasks):
        waits = [ends.index(j) + 1 if j in ends else first[j] for j in task.after]
        first[i] = max([first[i], *waits])
    for i, (position, number) in enumerate(made.order):
        among = _intervals_of(kinds[position], number, passes)
        possible = set(range(first[i], last[i] + 1))
        assert tasks[i].seconds == 0 or possible <= among, (program.nodes[position], number)


def _intervals_of(kind: Kind, number: int, passes: int) -> set[int]:
    """Return the intervals that a node of one pass counts for."""
    parts = parts_of(kind, 3 if passes > 1 else 2, passes)
    if len(parts) == 1:
        return set(parts[0][1])
    at_end = {"forward": 0, "backward": passes - 1, "either": passes - 1}[kind.when]
    return set(parts[0 if number == at_end else 1][1])


def check_bound(program: Graph, on: Cluster, passes: int) -> None:
    """Check that no window makes the step shorter than its bound by the best weights."""
    intervals, size = 3 if passes > 1 else 2, 1 + len(on.levels)
    loads = least_loads(program, on, intervals)
    bound, weights = highest_grouped_weights([loads.seconds], intervals, size)
    assert loads.weighted(weights) == pytest.approx(bound, rel=1e-6)
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
            check_intervals(program, on, 1)
            check_bound(program, on, 1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("passes", [2, 3, 4])
def test_random_programs_in_micro_batches(seed: int, passes: int) -> None:
    graph = Canonicalize().run(random_graph(seed, nodes=2 + seed % 4))
    on = with_links(POD if seed % 3 else CPU, LINKS[seed // 3 % 3])
    mesh = mesh_for(POD, 16, (2, 8)) if seed % 3 == 2 else mesh_for(on, 4, (2, 2))
    try:
        micro = micro_batches(graph, passes)
    except OptionError:  # such as an odd batch
        return
    if not can_divide(graph, micro):
        return
    for program in random_programs(graph, on, mesh, seed, passes):
        check_intervals(program, on, passes)
        check_bound(program, on, passes)
