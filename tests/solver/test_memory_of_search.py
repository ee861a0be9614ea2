"""The memory of a search is bounded; with less of it, bounds are weaker and never wrong."""

from collections.abc import Callable

import numpy as np
import pytest

import shardwright.solver.elimination as elimination_module
import shardwright.solver.exact.search as search_module
from shardwright.solver import Problem, brute_force, evaluate, minimize_memory, solve
from shardwright.solver.elimination import Elimination, OutOfSpaceError
from shardwright.solver.exact.search import ExactSearch
from shardwright.solver.memory_rows import round_prices
from shardwright.solver.network import build_network

ProblemMaker = Callable[[int], Problem]
LayerMaker = Callable[[int, int], Problem]


@pytest.fixture
def little_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all messages together have 8 entries, and only messages of 2 ignore that."""
    monkeypatch.setattr(elimination_module, "SPACE_LIMIT", 8)
    monkeypatch.setattr(elimination_module, "LEAST_MESSAGE", 2)
    monkeypatch.setattr(search_module, "LEAST_MESSAGE", 2)


def test_messages_that_take_too_much_memory_are_refused(repeated_layers: LayerMaker):
    network = build_network(repeated_layers(4, 8))
    tables = list(network.tables.values())
    elimination = Elimination(network.sizes, network.tables)
    first = elimination.minimise(network.unary, tables)
    entries = sum(elimination.entries(group.scope[1:]) for (group,) in elimination.groups)
    elimination.space = entries  # of which half is enough for neither
    other = [2 * cost for cost in network.unary]
    value = elimination.minimise(other, tables).value
    assert elimination.minimise(network.unary, tables) == first
    assert value == Elimination(network.sizes, network.tables).minimise(other, tables).value
    little = Elimination(network.sizes, network.tables)
    little.space = entries // 8
    with pytest.raises(OutOfSpaceError):
        little.minimise(network.unary, tables)


@pytest.mark.parametrize("passes_messages", [True, False])
def test_bounds_hold_with_little_memory(
    random_problem: ProblemMaker,
    passes_messages: bool,
    little_space: None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(search_module, "IS_FAST", passes_messages)
    monkeypatch.setattr(search_module, "MOST_ENTRIES", 0)  # without CP-SAT, which closes the gap
    if passes_messages:  # but for these tables it would take too much memory
        monkeypatch.setattr(search_module, "MOST_FLAT_ENTRIES", -1)
        monkeypatch.setattr(ExactSearch, "_pass_messages", lambda _: pytest.fail("no memory"))
    found = 0
    for seed in range(60):
        problem = random_problem(seed)
        truth, answer = brute_force(problem), solve(problem)
        assert answer.lower_bound <= truth.cost, seed
        if answer.assignment is None:
            assert answer.status == truth.status or answer.status == "unknown", seed
            continue
        found += 1
        assert evaluate(problem, answer.assignment).feasible
        assert answer.cost >= truth.cost * (1 - 1e-12), seed
        assert answer.status != "optimal" or answer.cost == pytest.approx(truth.cost, rel=1e-9)
    assert found > 30


def test_the_least_memory_is_found_with_little_memory(
    random_problem: ProblemMaker, little_space: None
):
    for seed in range(40):
        problem = random_problem(seed)
        little = minimize_memory(problem, gap=0.5)
        truth = brute_force(problem.limited(little.cost) if little.assignment else problem)
        assert (little.assignment is None) == (truth.assignment is None), seed
        if little.assignment is not None and little.lower_bound > 0:
            below = brute_force(problem.limited(little.lower_bound * (1 - 1e-9)))
            assert below.assignment is None, seed


@pytest.mark.parametrize("largest", [1e300, 1.0, 1e-290, 1e-310, 5e-324, 0.0])
def test_rounded_prices_are_prices_near_them(largest: float) -> None:
    """Sums of them are exact, however small they are."""
    prices = largest * np.array([1.0, 0.3, 1e-3, 0.0])
    rounded = round_prices(prices)
    assert (rounded >= 0).all()
    assert np.isfinite(rounded).all()
    np.testing.assert_allclose(rounded, prices, rtol=0, atol=max(largest * 2.0**-20, 1e-300))
