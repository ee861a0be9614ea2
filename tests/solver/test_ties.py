"""Of assignments that cost the same, one is returned."""

from itertools import product

import numpy as np
import pytest

from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import MemoryUse, Pair, Problem, Variable
from shardwright.solver.ties import TIE, settled


def problem_of(seed: int) -> Problem:
    """Return a problem of few different costs, so that ties abound."""
    random = np.random.default_rng(seed)
    variables = tuple(
        Variable(
            str(i),
            random.integers(0, 2, 3) * 1.0,
            (MemoryUse(random.integers(0, 3, 3) * 1.0, 0, 1 + i),),
        )
        for i in range(4)
    )
    pairs = tuple(Pair(i, i + 1, random.integers(0, 2, (3, 3)) * 1.0) for i in range(3))
    return Problem(variables, pairs)


@pytest.mark.parametrize("seed", range(10))
def test_neither_cost_nor_memory_rises_and_indices_fall(seed: int) -> None:
    problem = problem_of(seed)
    moved = 0
    for assignment in product(range(3), repeat=4):
        found = settled(problem, assignment)
        before, after = evaluate(problem, assignment), evaluate(problem, found)
        assert after.cost <= before.cost
        assert after.peak_usage <= before.peak_usage
        assert all(a <= b for a, b in zip(found, assignment, strict=True))
        assert settled(problem, found) == found
        moved += found != assignment
    assert moved


def settled_in_full_sweeps(problem: Problem, assignment: tuple[int, ...]) -> tuple[int, ...]:
    """Return what `settled` does, where every variable is looked at in every sweep."""
    chosen, before = list(assignment), list[int]()
    pairs = zip(problem.variables, assignment, strict=True)
    tie = TIE * sum(variable.cost[option] for variable, option in pairs)

    def cost(i: int, option: int) -> float:
        here = [*chosen[:i], option, *chosen[i + 1 :]]
        return evaluate(problem, here).cost

    while chosen != before:
        before = list(chosen)
        for i, variable in enumerate(problem.variables):
            (use,), now = variable.memory, chosen[i]
            chosen[i] = next(
                option
                for option in range(now + 1)
                if cost(i, option) <= cost(i, now) + tie and use.usage[option] <= use.usage[now]
            )
    return tuple(chosen)


@pytest.mark.parametrize("seed", range(10))
def test_variables_whose_neighbours_stay_need_no_second_look(seed: int) -> None:
    problem = problem_of(seed)
    for assignment in product(range(3), repeat=4):
        assert settled(problem, assignment) == settled_in_full_sweeps(problem, assignment)


def test_forbidden_options_are_not_taken() -> None:
    cost = np.array([np.inf, 1.0, 1.0])
    apart = np.array([[0.0, 0.0, np.inf]] * 3)
    problem = Problem((Variable("a", cost), Variable("b", np.zeros(3))), (Pair(0, 1, apart),))
    assert settled(problem, (2, 1)) == (1, 0)
