"""Joining variables, the dearest table first."""

from itertools import combinations

import numpy as np
import pytest

from shardwright.solver.brute_force import brute_force
from shardwright.solver.joining import join
from shardwright.solver.problem import Pair, Problem, Variable

Tables = dict[tuple[int, int], np.ndarray]


def cost_of(costs: list[np.ndarray], tables: Tables, choice: list[int]) -> float:
    own = sum(float(cost[c]) for cost, c in zip(costs, choice, strict=True))
    return own + sum(float(t[choice[u], choice[v]]) for (u, v), t in tables.items())


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_solved_to_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, 7)
    costs = [random.random(size) for size in sizes]
    ends = [(int(random.integers(i)), i) for i in range(1, len(sizes))]
    star = {(0, i): random.random((sizes[0], sizes[i])) for i in range(1, len(sizes))}
    for tables in (star, {(u, v): random.random((sizes[u], sizes[v])) for u, v in ends[:1]}):
        variables = tuple(Variable(str(i), cost) for i, cost in enumerate(costs))
        pairs = tuple(Pair(u, v, table) for (u, v), table in tables.items())
        best = brute_force(Problem(variables, pairs)).cost
        assert cost_of(costs, tables, join(costs, tables)) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_relations_that_agree_are_all_kept(seed: int) -> None:
    """Every table allows one strategy for each of the other: differences in a cyclic group."""
    random, size, count = np.random.default_rng(seed), 6, 60
    hidden = random.integers(size, size=count)
    tables: Tables = {}
    for one, other in combinations(range(count), 2):
        if random.random() < 0.3:
            difference = (hidden[other] - hidden[one]) % size
            steps = (np.arange(size)[None, :] - np.arange(size)[:, None]) % size
            tables[one, other] = np.where(steps == difference, 0.0, random.random())
    given = np.full(size, np.inf)
    given[3] = 0.0
    costs = [np.zeros(size)] * (count - 1) + [given]
    choice = join(costs, tables)
    assert cost_of(costs, tables, choice) == 0.0
    assert choice[-1] == 3


def test_variables_without_tables_choose_alone() -> None:
    assert join([np.array([2.0, 1.0]), np.zeros(3)], {}) == [1, 0]
    assert join([], {}) == []
