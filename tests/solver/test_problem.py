"""Malformed problems are refused; the evaluator agrees with a count by hand."""

from itertools import product

import numpy as np
import pytest

from shardwright.ir.errors import SolverError
from shardwright.solver import Identity, MemoryUse, Pair, Problem, Solution, Variable, evaluate
from shardwright.solver.evaluate import cost_if_feasible
from shardwright.solver.problem import distinct


def two_variables() -> tuple[Variable, Variable]:
    return Variable("a", np.array([1.0, 2.0])), Variable("b", np.array([3.0, 4.0, 5.0]))


def refusal(**changes: object) -> str:
    a, b = two_variables()
    arguments: dict[str, object] = {"variables": (a, b), "pairs": (), "memory_limit": None}
    with pytest.raises(SolverError) as caught:
        Problem(**(arguments | changes))  # type: ignore[arg-type]
    return str(caught.value)


def test_table_of_wrong_shape():
    assert refusal(pairs=(Pair(0, 1, np.zeros((3, 2))),)) == (
        "the table has shape (3, 2), expected (2, 3) (in pair 0, `a` and `b`)"
    )


def test_pair_of_unknown_variable():
    assert refusal(pairs=(Pair(0, 2, np.zeros((2, 2))),)) == (
        "the pair joins variable 2, expected a number from 0 to 1 (in pair 0)"
    )


def test_nan_in_table():
    table = np.zeros((2, 3))
    table[1, 1] = np.nan
    assert refusal(pairs=(Pair(0, 1, table),)) == (
        "the table holds NaN, expected numbers (in pair 0, `a` and `b`)"
        "; use `inf` for what is forbidden"
    )


def test_cost_without_strategies():
    assert refusal(variables=(Variable("a", np.zeros(0)),)) == (
        "the cost has shape (0,), expected one entry a strategy (in variable `a`)"
    )


def test_cost_of_wrong_kind():
    assert refusal(variables=(Variable("a", np.array(["x"])),)) == (
        "the cost holds <U1, expected float64 or int64 (in variable `a`)"
    )


def test_interval_that_ends_before_it_starts():
    use = MemoryUse(np.zeros(2), 3, 2)
    assert refusal(variables=(Variable("a", np.zeros(2), (use,)),)) == (
        "the interval [3, 2) ends before it starts (in variable `a`); an empty interval is [t, t)"
    )


def test_usage_of_wrong_shape():
    use = MemoryUse(np.zeros(3), 0, 2)
    assert refusal(variables=(Variable("a", np.zeros(2), (use,)),)) == (
        "the memory use has shape (3,), expected (2,) (in variable `a`)"
    )


@pytest.mark.parametrize("amount", [-1.0, np.inf])
def test_usage_that_is_no_amount(amount: float):
    use = MemoryUse(np.array([0.0, amount]), 0, 2)
    assert refusal(variables=(Variable("a", np.zeros(2), (use,)),)) == (
        f"the memory use holds {amount}, expected finite numbers of at least 0 (in variable `a`)"
    )


def test_negative_limit():
    message = refusal(memory_limit=-1.0)
    assert message == "the memory limit is -1.0, expected a number of at least 0"


def test_evaluation_of_a_hand_made_case():
    usage = np.array([10, 20])
    a = Variable("a", np.array([1, 2]), (MemoryUse(usage, 0, 2), MemoryUse(usage, 5, 6)))
    b = Variable("b", np.array([3, 4, 5]), (MemoryUse(np.array([1, 2, 3]), 1, 3),))
    idle = Variable("c", np.array([7]), (MemoryUse(np.array([1000]), 4, 4),))
    table = np.array([[0, 10, 20], [30, 40, 50]])
    problem = Problem((a, b, idle), (Pair(0, 1, table), Pair(0, 1, table)), 23)
    result = evaluate(problem, [1, 2, 0])
    assert (result.cost, result.peak_usage, result.feasible) == (2 + 5 + 7 + 100, 23.0, True)
    assert not evaluate(Problem(problem.variables, problem.pairs, 22), [1, 2, 0]).feasible


@pytest.mark.parametrize("seed", range(40))
def test_the_cost_alone_is_that_of_the_evaluation(seed, random_problem):
    problem = random_problem(seed)
    for assignment in product(*map(range, problem.sizes)):
        result = evaluate(problem, assignment)
        expected = result.cost if result.feasible else None
        assert cost_if_feasible(problem, assignment) == expected


def test_intervals_are_half_open():
    first = Variable("a", np.zeros(1), (MemoryUse(np.array([5.0]), 0, 3),))
    second = Variable("b", np.zeros(1), (MemoryUse(np.array([6.0]), 3, 4),))
    assert evaluate(Problem((first, second)), [0, 0]).peak_usage == 6.0


def test_forbidden_entries_are_infeasible_and_integers_still_add_up():
    a = Variable("a", np.array([10**18]))
    result = evaluate(Problem((a,) * 20), [0] * 20)
    assert result.cost == 20 * 10**18
    assert not result.feasible


def test_assignments_that_are_none():
    problem = Problem(two_variables())
    with pytest.raises(SolverError, match=r"the assignment has 1 entries, expected 2"):
        evaluate(problem, [0])
    with pytest.raises(SolverError) as caught:
        evaluate(problem, [0, 3])
    assert str(caught.value) == (
        "the assignment names strategy 3, expected a number from 0 to 2 (in variable `b`)"
    )


def test_a_problem_is_shown_by_its_sizes():
    shown = "<Problem: 2 variables, 5 strategies, 1 pairs, {} memory limit>"
    pairs = (Pair(0, 1, np.zeros((2, 3))),)
    for limit, text in ((None, "no"), (1.5e9, "1.5e+09")):
        assert repr(Problem(two_variables(), pairs, limit)) == shown.format(text)


def test_gap():
    assert Solution((0,), 10.0, 9.0, "feasible", "").gap == pytest.approx(0.1)
    assert Solution((0,), 10.0, 10.0, "optimal", "").gap == 0
    assert Solution(None, np.inf, 10.0, "unknown", "").gap == np.inf


def test_an_identity_keeps_its_object_alive():
    keys = {Identity(np.zeros(3)) for _ in range(100)}
    assert len(keys) == 100


def test_equal_identities_are_one_object():
    table, other = np.zeros(2), np.zeros(2)
    assert Identity(table) == Identity(table) != Identity(other)
    assert [array is table for array in distinct([table, other, table])] == [True, False]


def test_a_limited_problem_keeps_the_pairs_of_a_role():
    table = np.zeros((2, 3))
    pairs = Pair(0, 1, table), Pair(0, 1, table, role="copy"), Pair(0, 1, table)
    problem = Problem(two_variables(), pairs)
    assert problem.limited(5.0).pairs == pairs
    assert problem.limited(5.0, role="edge").pairs == (pairs[0], pairs[2])
    assert problem.limited(5.0).memory_limit == 5.0
