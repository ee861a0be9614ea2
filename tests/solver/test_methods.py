"""Methods of the solver are registered by name, also from outside the package."""

import numpy as np
import pytest

from shardwright.ir.errors import SolverError
from shardwright.solver import Problem, Solution, Variable, brute_force, register_method, solve
from shardwright.solver.methods import METHODS, SolveOptions

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

    solution = solve(PROBLEM, method="enumeration of this test", time_limit=3.0, gap=0.1)
    assert (solution.assignment, solution.how) == ((1,), "brute force")
    assert options == [SolveOptions(time_limit=3.0, gap=0.1)]


def test_a_registered_name_is_taken() -> None:
    with pytest.raises(SolverError, match="the solver method `exact` is registered already"):
        register_method("exact")(lambda problem, options: brute_force(problem))
