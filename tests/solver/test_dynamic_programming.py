"""MindSpore's eliminations: exact on chains, a bound and an answer elsewhere."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwright.solver import (
    MemoryUse,
    Pair,
    Problem,
    Variable,
    brute_force,
    dynamic_programming,
    evaluate,
    solve,
)

ProblemMaker = Callable[[int], Problem]
LayerMaker = Callable[[int, int], Problem]


def random_graph(edges: list[tuple[int, int]], seed: int) -> Problem:
    random = np.random.default_rng(seed)
    count = 1 + max(max(edge) for edge in edges)
    variables = tuple(Variable(f"v{index}", random.random(4)) for index in range(count))
    pairs = tuple(Pair(first, second, random.random((4, 4))) for first, second in edges)
    return Problem(variables, pairs)


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 4)], {"operator": 3, "contract": 1}),
        ([(0, 1), (1, 2)], {"operator": 1, "contract": 1}),
        ([(0, 2), (1, 2), (2, 3)], {"merge": 1, "operator": 1, "contract": 1}),
        ([(0, 1), (0, 2)], {"contract": 2}),
        (
            [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)],
            {"operator": 3, "edge": 2, "contract": 1},
        ),
    ],
)
def test_exact_on_series_parallel_graphs(edges: list[tuple[int, int]], counts: dict[str, int]):
    for seed in range(20):
        problem = random_graph(edges, seed)
        found, truth = dynamic_programming(problem), brute_force(problem)
        assert found.status == "optimal"
        assert found.assignment == truth.assignment
        assert {name: count for name, count in found.statistics.items() if count} == counts


@pytest.mark.parametrize(
    ("edges", "rule"),
    [
        ([(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 4), (1, 4)], "triangle"),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], "star"),
    ],
)
def test_approximate_where_a_variable_has_several_masters(edges: list[tuple[int, int]], rule: str):
    worse = 0
    for seed in range(40):
        problem = random_graph(edges, seed)
        found, truth = dynamic_programming(problem), brute_force(problem)
        assert found.statistics[rule] >= 1
        assert found.lower_bound <= truth.cost <= found.cost + 1e-12
        worse += found.cost > truth.cost * (1 + 1e-9)
    assert worse > 0


def test_never_claims_too_much(random_problem: ProblemMaker):
    for seed in range(300):
        problem = random_problem(seed)
        found, truth = dynamic_programming(problem), brute_force(problem)
        assert found.lower_bound <= truth.cost, seed
        if found.status in ("optimal", "infeasible"):
            assert found.status == truth.status, seed
            assert found.cost == pytest.approx(truth.cost, rel=1e-9), seed
        if found.assignment is not None:
            assert evaluate(problem, found.assignment).feasible


def test_repeated_layers(repeated_layers: LayerMaker):
    problem = repeated_layers(10, 6)
    assert dynamic_programming(problem).cost == pytest.approx(solve(problem).cost, rel=1e-12)


def test_memory_is_filtered_only_at_the_end():
    """The cheap strategy of the inner variable does not fit; only the exact search looks on."""
    light = (MemoryUse(np.array([8.0, 1.0]), 0, 1),)
    inner = Variable("inner", np.array([1.0, 2.0]), light)
    outer = Variable("outer", np.array([0.0]))
    problem = Problem((outer, inner, outer), (), 4.0)
    chained = replace(problem, pairs=tuple(Pair(i, i + 1, np.zeros(shape)) for i, shape in CHAIN))
    assert dynamic_programming(chained).status == "unknown"
    assert solve(chained).assignment == (0, 1, 0)


CHAIN = ((0, (1, 2)), (1, (2, 1)))


def with_forbidden_pairs() -> Problem:
    """Return a problem whose first variable must not choose for one neighbour alone."""
    random = np.random.default_rng(5)
    variables = tuple(Variable(f"v{index}", random.random(2)) for index in range(4))
    edges = [(0, 2), (0, 3), (1, 2), (1, 3)]
    tables = [np.where(random.random((2, 2)) < 0.45, np.inf, random.random((2, 2))) for _ in edges]
    pairs = (Pair(*edge, table) for edge, table in zip(edges, tables, strict=True))
    return Problem(variables, tuple(pairs))


def test_what_is_missed_is_told_from_what_does_not_fit():
    problem = with_forbidden_pairs()
    assert brute_force(problem).assignment is not None
    found = dynamic_programming(problem)
    assert (found.status, found.assignment) == ("unknown", None)
    assert found.statistics["too large"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_of_lone_variables_the_cheapest_choice_that_fits_is_taken(seed: int) -> None:
    """Combinations of what is not connected come in the order of their cost."""
    random = np.random.default_rng(seed)
    variables = tuple(
        Variable(f"v{i}", random.random(4), (MemoryUse(random.integers(0, 9, 4), 0, 1),))
        for i in range(4)
    )
    problem = Problem(variables, (), 12.0)
    assert dynamic_programming(problem).cost == pytest.approx(brute_force(problem).cost)
