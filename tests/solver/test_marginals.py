"""What is kept below a cost is just what some assignment below it chooses."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from shardwright.solver import Problem, evaluate
from shardwright.solver.marginals import options_below

ProblemMaker = Callable[[int], Problem]


@pytest.mark.parametrize("block", range(5))
def test_options_below_a_cost(random_problem: ProblemMaker, block: int) -> None:
    for seed in range(20 * block, 20 * (block + 1)):
        made = random_problem(seed)
        problem = Problem(made.variables, made.pairs)
        choices = list(product(*map(range, problem.sizes)))
        costs = np.array([evaluate(problem, choice).cost for choice in choices], dtype=float)
        possible = np.sort(costs[costs < 1e17])
        for rank in (0, len(possible) // 4, len(possible) - 1) if possible.size else ():
            cutoff = possible[rank] + 0.5
            below = [choice for choice, cost in zip(choices, costs, strict=True) if cost < cutoff]
            found = options_below(problem, cutoff)
            assert found is not None
            for variable, kept in enumerate(found):
                assert sorted(kept) == sorted({choice[variable] for choice in below}), seed
