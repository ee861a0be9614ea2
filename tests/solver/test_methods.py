"""Methods of the solver, registered by name and from outside the package; mixtures of paths."""

import random

import numpy as np
import pytest

from shardwright.ir.errors import SolverError
from shardwright.solver import Problem, Solution, Variable, brute_force, register_method, solve
from shardwright.solver.linear_program import Job, highest_weights, path_mixture
from shardwright.solver.methods import METHODS, SolveOptions
from shardwright.solver.work import Budget

PROBLEM = Problem((Variable("a", np.array([2.0, 1.0])),))


def test_unknown_method() -> None:
    with pytest.raises(SolverError) as caught:
        solve(PROBLEM, method="guessing")
    known = ", ".join(sorted(METHODS))
    assert str(caught.value) == f"unknown solver method `guessing`; expected one of {known}"
    assert {"anytime", "dynamic_programming", "exact"} <= set(METHODS)


def test_a_method_from_outside() -> None:
    options: list[SolveOptions] = []

    @register_method("enumeration of this test")
    def enumerate_all(problem: Problem, limits: SolveOptions) -> Solution:
        options.append(limits)
        return brute_force(problem)

    budget = Budget(3.0)
    solution = solve(PROBLEM, method="enumeration of this test", budget=budget, gap=0.1)
    assert (solution.assignment, solution.how) == ((1,), "brute force")
    assert options == [SolveOptions(budget=budget, gap=0.1)]


def test_a_registered_name_is_taken() -> None:
    with pytest.raises(SolverError, match="the solver method `exact` is registered already"):
        register_method("exact")(lambda problem, options: brute_force(problem))


# Mixtures of critical paths


@pytest.mark.parametrize("seed", range(20))
def test_a_mixture_is_one_of_paths(seed: int) -> None:
    """What passes a job comes from those before it, and one path's worth begins somewhere."""
    draw = random.Random(seed)
    jobs = [Job((), {0: draw.choice([0.0, 1.0])}), Job((), {1: 1.0} if seed % 3 else {})]
    for number in range(2, 7):
        after = tuple(sorted(draw.sample(range(number), draw.randint(1, 2))))
        jobs.append(Job(after, {draw.randrange(2): draw.choice([0.0, 0.5, 2.0])}))
    jobs.append(Job(tuple(range(len(jobs))), {} if seed % 2 else {0: 1.0}))
    passed = path_mixture(jobs, 2, [{-1: draw.choice([0.0, 1.0]), 0: 1.0, 1: 1.0}])
    assert np.all((passed >= 0) & (passed <= 1 + 1e-9))
    begins = sum(passed[i] for i, job in enumerate(jobs) if not job.after)
    assert begins == pytest.approx(1.0)
    assert passed[-1] == pytest.approx(1.0)


def test_without_an_optimum_the_height_bounds_nothing():
    height, weights = highest_weights(np.array([[np.nan, 1.0]]))
    assert height == -np.inf
    assert not weights.any()
    assert highest_weights(np.array([[1.0, 3.0], [3.0, 1.0]]))[0] == 2.0
