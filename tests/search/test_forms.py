"""Forms of attention in the search: what a plan costs and holds is what the search counts."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Strategy
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import update_rule
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace
from shardwright.solver import solve
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import Problem
from shardwright.zoo.loading import load
from tests.extent import first
from tests.random_plans import emitted

CPU, SGD = cluster("cpu"), Optimizer()
MODELS = {
    "llama": "llama:layers=2,hidden=16,heads=2,kv_heads=1,inner=16,batch=2,sequence=16,"
    "vocabulary=20",
    "gpt": "gpt:layers=2,hidden=16,heads=2,batch=2,sequence=16,vocabulary=20",
}


def marked(option: object, mark: str) -> bool:
    return isinstance(option, Strategy) and mark in option.axes


def random_assignment(
    space: SearchSpace, random: np.random.Generator, mark: str
) -> tuple[int, ...]:
    """Return a random assignment in which all attention has a form."""
    variables = []
    for choice, variable in zip(space.choices, space.problem.variables, strict=True):
        cost = random.uniform(0, 1, len(choice.options))
        if choice.kind == "copy":  # what may be shared is
            cost = sum((use.usage for use in variable.memory), 0.0 * cost)
        forms = np.array([marked(option, mark) for option in choice.options])
        variables.append(replace(variable, cost=cost + 1e6 * (forms.any() & ~forms), memory=()))
    pairs = tuple(
        replace(p, table=np.where(np.isfinite(p.table), 0.0, np.inf)) for p in space.problem.pairs
    )
    found = solve(Problem(tuple(variables), pairs)).assignment
    assert found is not None
    return tuple(found)


# Each model with either mark, once with recomputation, then the other way round.
FORMS = first(
    2 * len(MODELS),
    [
        (model, (turn + row + column) % 2 == 1, mark)
        for turn in range(2)
        for row, model in enumerate(MODELS)
        for column, mark in enumerate(("t", "halves"))
    ],
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "recompute", "mark"), FORMS)
def test_plans_with_forms_cost_and_hold_what_is_counted(
    model: str, recompute: bool, mark: str
) -> None:
    graph: Graph = Canonicalize().run(load(MODELS[model]).graph)
    options = CompileOptions(optimizer=SGD)
    profile = TimeProfile(mesh_for(CPU, 4), CPU, update_rule(options, graph))
    space = build_search_space(graph, profile, recompute=recompute)
    for seed in first(3, range(5)):
        assignment = random_assignment(space, np.random.default_rng(seed), mark)
        found, decisions = evaluate(space.problem, assignment), space.decisions(assignment)
        program = emitted(graph, decisions, profile, SGD)
        name = "ring_attention" if mark == "t" else "balanced_attention"
        assert sum(node.operator == name for node in program.nodes) >= 2
        assert profile.program_cost(program) == pytest.approx(found.cost + space.constant, rel=1e-6)
        if not recompute:  # what is recomputed without need is counted, and not emitted
            assert found.peak_usage <= peak_memory(program).peak_bytes
