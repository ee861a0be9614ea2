"""What the search counts is held by the program, also where it decides what is recomputed."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.profile import REGATHERED
from shardwright.ir.layout import SharedLayout
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
from shardwright.search.space.pins import restricted
from shardwright.search.space.space import Choice, Option, RecomputedStrategy, SearchSpace
from shardwright.solver import minimize_memory, solve
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN, Problem
from shardwright.solver.work import Budget
from shardwright.zoo.loading import load

CPU = cluster("cpu")
SMALL = {
    "llama": "llama:layers=2,hidden=8,heads=2,kv_heads=1,inner=16,batch=4,sequence=16,"
    "vocabulary=20",
    "mixtral": "mixtral:layers=1,hidden=8,heads=2,kv_heads=1,inner=8,batch=4,sequence=16,"
    "vocabulary=20",
    "mlp": "mlp:batch=64,inputs=12,hidden=16",
}
MESHES = {
    "x=4": Mesh((MeshAxis("x", 4),)),
    "x=2 x y=2": Mesh((MeshAxis("x", 2), MeshAxis("y", 2, 1))),
}


def random_assignment(space: SearchSpace, random: np.random.Generator, much: float) -> list[int]:
    """Return a random assignment in which more or less is recomputed."""
    variables = []
    for choice, variable in zip(space.choices, space.problem.variables, strict=True):
        cost = np.zeros(len(choice.options))
        if choice.kind != "copy":
            again = [isinstance(option, RecomputedStrategy) for option in choice.options]
            cost = random.uniform(0, 1, len(choice.options)) - much * np.array(again)
        variables.append(replace(variable, cost=cost, memory=()))
    pairs = tuple(
        replace(p, table=np.where(p.table < FORBIDDEN, 0.0, np.inf)) for p in space.problem.pairs
    )
    found = solve(Problem(tuple(variables), pairs), budget=Budget(3600)).assignment
    assert found is not None
    return list(found)


def decision(choice: Choice, option: Option) -> object:
    """Return what an option decides; nothing where it only says what is counted."""
    if choice.kind == "copy":
        return None
    if isinstance(option, RecomputedStrategy):
        return (option.assignment, "regathered" if option.when == REGATHERED else "recomputed")
    return (option.layout, option.gradient) if isinstance(option, SharedLayout) else option


def least_counted(space: SearchSpace, assignment: list[int]) -> float:
    """Return the least bytes that are counted for the decisions of an assignment."""
    kept = {}
    for index, (choice, chosen) in enumerate(zip(space.choices, assignment, strict=True)):
        decided = decision(choice, choice.options[chosen])
        same = [i for i, o in enumerate(choice.options) if decision(choice, o) == decided]
        kept[index] = np.array(same, dtype=np.int64)
    return minimize_memory(restricted(space, kept).problem).lower_bound


def least_saved(space: SearchSpace, decided: dict[tuple[str, str], object]) -> float:
    """Return the least bytes that are counted for decisions if nothing is recomputed."""
    kept = {}
    for index, choice in enumerate(space.choices):
        if choice.kind != "copy":
            wanted = decided[choice.kind, choice.name]
            same = [i for i, o in enumerate(choice.options) if decision(choice, o) == wanted]
            kept[index] = np.array(same, dtype=np.int64)
    return minimize_memory(restricted(space, kept).problem).lower_bound


@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_what_is_saved_counts_where_it_might_be_recomputed(model: str) -> None:
    options = CompileOptions(search="dynamic_programming")
    source, lowering = Canonicalize().run(load(SMALL[model]).graph), LowerRedistributions(CPU)
    request = SearchRequest(source, CPU, lowering.planner(MESHES["x=4"]), options)
    plain, space = request.space, request.recompute_space
    for seed in range(2):
        assignment = random_assignment(plain, np.random.default_rng(seed), 0.0)
        decided = {
            (choice.kind, choice.name): decision(choice, choice.options[chosen])
            for choice, chosen in zip(plain.choices, assignment, strict=True)
        }
        least = least_saved(plain, decided)
        assert least_saved(space, decided) >= least * (1 - 1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "mesh", "passes", "precision", "optimizer", "seeds"),
    [
        ("llama", "x=4", 1, "bfloat16", "sgd", range(5)),
        ("llama", "x=4", 2, "float32", "sgd", range(8, 11)),
        ("llama", "x=2 x y=2", 1, "float32", "adam", range(5, 7)),
        ("mixtral", "x=4", 1, "float32", "sgd", range(9, 11)),
        ("mlp", "x=2 x y=2", 2, "float32", "adam", range(4)),
    ],
)
def test_no_program_holds_less_than_is_counted(
    model: str, mesh: str, passes: int, precision: str, optimizer: str, seeds: range
) -> None:
    """Of a recomputed tensor the smaller of two buffers is there: the shared one, the reader's."""
    options = CompileOptions(
        micro_batches=passes,
        optimizer=Optimizer(optimizer),  # type: ignore[arg-type]
        search="dynamic_programming",  # a space of layouts, not of orbits
    )
    graph = ApplyPrecision(PRECISIONS[precision]).run(load(SMALL[model]).graph)
    source, lowering = Canonicalize().run(graph), LowerRedistributions(CPU)
    request = SearchRequest(source, CPU, lowering.planner(MESHES[mesh]), options)
    space = request.recompute_space
    for seed in seeds:
        much = (0.0, 0.7)[seed % 2]
        assignment = random_assignment(space, np.random.default_rng(seed), much)
        decisions = space.decisions(assignment)
        if request.micro is not None:
            decisions = request.micro.lifted(decisions)
        program = PassManager().run_all(partitioned(options, decisions, lowering), source)
        held = peak_memory(program).peak_bytes
        if evaluate(space.problem, assignment).peak_usage > held:
            assert least_counted(space, assignment) <= held, seed
