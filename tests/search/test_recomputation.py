"""What is recomputed is decided within the memory limit: plans beside all plans there are."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NoPlanError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Strategy
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.annotate import Annotate, decisions_of
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import update_rule
from shardwright.search.heuristics.completion import complete
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import RecomputedStrategy, SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.extent import long_after
from tests.random_graphs import random_graph
from tests.random_plans import emitted
from tests.zoo_sizes import SMALL

CPU = cluster("cpu")
SGD = Optimizer()
PROFILE = TimeProfile(
    mesh_for(CPU, 2), CPU, update_rule(CompileOptions(optimizer=SGD), random_graph(0))
)
MOST = 600  # plans of a graph


def all_plans(space: SearchSpace) -> Iterator[tuple[float, Decisions]]:
    """Yield the cost of every assignment and its decisions, once each; copies are not decisions."""
    problem, count = space.problem, len(space.choices)
    before: list[list] = [[] for _ in range(count)]
    for pair in problem.pairs:
        first, table = pair.first, pair.table
        if pair.role == "edge":
            low, high = sorted((first, pair.second))
            before[high].append((low, table if low == first else table.T))

    def extended(chosen: list[int], cost: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        index = len(chosen)
        if index == count:
            yield cost, tuple(chosen)
            return
        options = 1 if space.choices[index].kind == "copy" else len(space.choices[index].options)
        for option in range(options):
            more = problem.variables[index].cost[option]
            more += sum(table[chosen[other], option] for other, table in before[index])
            if more < FORBIDDEN:
                yield from extended([*chosen, option], cost + more)

    seen = set()
    for cost, chosen in extended([], space.constant):
        decisions = space.decisions(chosen)
        shared = tuple((n, s.layout, s.gradient) for n, s in decisions.shared_layouts.items())
        key = (
            tuple(decisions.strategies.items()),
            tuple(decisions.stored.items()),
            shared,
            decisions.regathered,
            decisions.recomputed,
        )
        if key not in seen:
            seen.add(key)
            yield cost, decisions


def plans_by_cost(graph: Graph) -> list[tuple[float, float]]:
    """Return cost and memory of all plans of a small graph, cheapest first; none if too many."""
    space = build_search_space(graph, PROFILE, recompute=True, regather=True)
    found = []
    for cost, decisions in all_plans(space):
        found.append((cost, decisions))
        if len(found) > MOST:
            return []
    found.sort(key=lambda plan: plan[0])
    best, front = np.inf, []
    for cost, decisions in found:
        program = emitted(graph, decisions, PROFILE, SGD)
        assert PROFILE.program_cost(program) == pytest.approx(cost, rel=1e-6)
        peak = peak_memory(program).peak_bytes
        if peak < best:
            front.append((cost, peak))
            best = peak
    return front


def compared(seed: int) -> Iterator[tuple[float, float, float]]:
    """Yield the best cost, the bound and the cost found, at several limits of a random graph."""
    graph = Canonicalize().run(random_graph(seed, nodes=2 + seed % 4))
    front = plans_by_cost(graph)
    for _, limit in front:
        best = min(cost for cost, peak in front if peak <= limit)
        options = CompileOptions(memory_limit=limit, gap=0.0, optimizer=SGD)
        try:
            found = compile_graph(graph, CPU, 2, options)
        except InfeasibleError:
            raise AssertionError(f"a plan takes {limit} bytes") from None
        except NoPlanError:
            yield best, 0.0, np.inf
            continue
        assert found.memory.peak_bytes <= limit
        assert found.result is not None
        yield best, found.result.lower_bound, found.result.cost


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_answers_beside_all_plans(seed: int) -> None:
    for best, bound, cost in compared(seed):
        assert bound <= best * (1 + 1e-9)
        assert cost == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", long_after(1, ["mlp", "gpt"]))
def test_marks_leave_every_strategy_to_be_computed_once(name: str) -> None:
    graph = Canonicalize().run(load(SMALL[name]).graph)
    for seed in range(6):
        random = np.random.default_rng(seed)
        marked = tuple(n.name for n in graph.nodes if n.operands and random.random() < 0.4)
        marks = replace(graph, recomputed=marked)
        space = build_search_space(marks, PROFILE, recompute=True)
        strategies = {}
        for choice in space.choices:
            if choice.kind == "operator":
                once = [o for o in choice.options if not isinstance(o, RecomputedStrategy)]
                strategies[choice.name] = once[int(random.integers(len(once)))]
        decisions = space.decisions(complete(space, strategies))
        assert decisions.recomputed == frozenset(marked)
        emitted(marks, decisions, PROFILE, SGD)


@pytest.mark.parametrize("seed", long_after(1, range(3)))
def test_regathered_tensors_are_priced_held_and_computed_as_the_search_says(seed: int) -> None:
    """Results that are saved as they are made: random plans with every one that there may be."""
    definition, random = load(SMALL["mlp"]), np.random.default_rng(seed)
    graph, found = Canonicalize().run(definition.graph), 0
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    whole = trained(
        compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program,
        1,
        highs,
        definition.initial,
    )
    profile = TimeProfile(mesh_for(CPU, 4), CPU, update_rule(CompileOptions(optimizer=SGD), graph))
    space = build_search_space(graph, profile, regather=True)
    for _ in range(6):
        strategies, again = {}, {}
        for choice in space.choices:
            if choice.kind == "operator":
                options = [o for o in choice.options if isinstance(o, Strategy)]
                option = options[int(random.integers(len(options)))]
                strategies[choice.name] = Strategy(option.assignment)
                if isinstance(option, RecomputedStrategy):
                    again[choice.name] = option
        for name, option in again.items():
            with contextlib.suppress(PassError):  # no reader takes it in more bytes
                complete(space, {**strategies, name: option})
                strategies[name] = option
        assignment = complete(space, strategies)
        decisions = space.decisions(assignment)
        program = emitted(graph, decisions, profile, SGD)
        count = sum(name in decisions.regathered for name in again)
        evaluated = evaluate(space.problem, assignment)
        assert profile.program_cost(program) == pytest.approx(evaluated.cost + space.constant)
        assert evaluated.peak_usage <= peak_memory(program).peak_bytes
        annotated = Annotate(decisions).run(graph)
        assert parse(to_text(annotated)) == annotated
        assert decisions_of(parse(to_text(annotated))).regathered == decisions.regathered
        if count:
            assert_equal(trained(program, 1, highs, definition.initial), whole)
        found += count
    assert found
