import itertools
import math

import numpy as np
import pytest

from shardwright.ir.errors import SolverError
from shardwright.solver import MemoryUse, Pair, Problem, Variable, brute_force, evaluate
from shardwright.solver.anytime import dominance
from shardwright.solver.anytime.flat import flatten
from shardwright.solver.anytime.presolve import presolve
from shardwright.solver.anytime.reductions import contracted, normalised, supported

INF = 10**18


def reduced_cost(flat, choice):
    entries = flat.table_offset[:-1] + choice[flat.first] * flat.columns + choice[flat.second]
    unary = flat.unary[flat.offset[:-1] + choice]
    return flat.constant + int(unary.sum()) + int(flat.tables[entries].sum())


def reduced_peak(flat, choice):
    amounts = flat.usage[flat.use_offset[:-1] + choice[flat.use_variable]].tolist()
    uses = [*zip(flat.use_start, flat.use_end, amounts, strict=True)]
    uses += zip(flat.base_start, flat.base_end, flat.base_amount.tolist(), strict=True)
    return max(
        (sum(use for start, end, use in uses if start <= time < end) for time, _, _ in uses),
        default=0,
    )


@pytest.mark.parametrize("fast", [True, False])
def test_the_reduced_problem_keeps_an_optimum_and_tells_its_true_cost(
    random_whole_problem, fast, monkeypatch
):
    monkeypatch.setattr(dominance, "COMPILED", fast and dominance.COMPILED)
    for seed in range(150):
        problem = random_whole_problem(seed)
        known = brute_force(problem)
        state = presolve(flatten(problem))
        if state.infeasible:
            assert known.assignment is None, f"seed {seed}"
            continue
        best = math.inf
        for labels in itertools.product(*map(range, state.flat.size)):
            choice = np.array(labels, dtype=np.int64)
            judged = evaluate(problem, state.lift(choice).tolist())
            if judged.cost < INF // 2:
                assert reduced_cost(state.flat, choice) == judged.cost, f"seed {seed}"
            assert reduced_peak(state.flat, choice) == judged.peak_usage, f"seed {seed}"
            best = min(best, judged.cost if judged.feasible else math.inf)
        assert best == known.cost, f"seed {seed}"


def test_every_reduction_is_recorded(random_whole_problem):
    what = {
        reduction.name
        for seed in range(60)
        for reduction in presolve(flatten(random_whole_problem(seed))).reductions
    }
    assert what == {
        "forbidden strategies dropped",
        "merged with a variable that decides them",
        "strategies that never fit dropped",
        "dominated strategies dropped",
        "decided variables taken out",
    }


def test_a_separable_table_goes():
    table = np.array([3, 5])[:, None] + np.array([0, 4, 9])
    variables = (Variable("a", np.array([1, 2])), Variable("b", np.array([7, 1, 4])))
    flat = normalised(flatten(Problem(variables, (Pair(0, 1, table),))))
    assert len(flat.first) == 0
    assert flat.unary.tolist() == [4, 7, 7, 5, 13]


def test_a_chain_of_functions_becomes_one_variable():
    sizes = (6, 3, 3, 2)
    follows = ([0, 0, 1, 1, 2, 2], [2, 0, 1], [0, 1, 1])
    pairs = []
    for index, function in enumerate(follows):
        table = np.full((sizes[index], sizes[index + 1]), INF)
        table[np.arange(sizes[index]), function] = 10 * index
        pairs.append(Pair(index, index + 1, table))
    costs = [np.arange(size) * 100**index for index, size in enumerate(sizes)]
    uses = [MemoryUse(np.arange(size), 0, 1) for size in sizes]
    variables = tuple(
        Variable(str(index), cost, (use,))
        for index, (cost, use) in enumerate(zip(costs, uses, strict=True))
    )
    flat = normalised(flatten(Problem(variables, tuple(pairs), 100)))
    merged, step = contracted(flat)
    assert merged.size.tolist() == [6]
    assert step.undo(np.array([3])).tolist() == [3, 1, 0, 0]
    assert reduced_cost(merged, np.array([3])) == 3 + 100 + 0 + 0 + 10 + 20
    assert reduced_peak(merged, np.array([3])) == 4


def test_cheapest_goes_where_another_uses_less():
    def kept(usage):
        variable = Variable("v", np.array([2, 1, 2]), (MemoryUse(np.array(usage), 0, 4),))
        flat = flatten(Problem((variable,), (), 10))
        return dominance.undominated(flat).tolist()

    assert kept([1, 5, 1]) == [True, True, False]
    assert kept([1, 1, 1]) == [False, True, False]


def test_strategies_without_a_partner_are_not_supported():
    table = np.array([[0, INF], [INF, INF]])
    variables = (Variable("a", np.array([1, 2])), Variable("b", np.array([1, INF])))
    flat = flatten(Problem(variables, (Pair(0, 1, table),)))
    assert supported(flat).tolist() == [True, False, True, False]


def test_numbers_that_are_no_integers_are_refused():
    with pytest.raises(SolverError, match="`anytime` works on integers, found float64"):
        flatten(Problem((Variable("v", np.array([0.5])),)))


def test_sums_that_leave_64_bits_are_refused():
    variables = tuple(Variable(f"v{index}", np.array([9 * 10**16])) for index in range(9))
    with pytest.raises(SolverError, match=r"the costs sum up to 8\.1e"):
        flatten(Problem(variables))


@pytest.mark.parametrize("seed", range(10))
def test_without_pairs_what_costs_and_uses_no_less_than_another_is_dominated(seed):
    random = np.random.default_rng(seed)
    variables = []
    for number, size in enumerate(random.integers(1, 4, 6)):
        use = MemoryUse(random.integers(0, 3, size), 0, 2)
        variables.append(Variable(f"v{number}", random.integers(0, 4, size), (use,)))
    keep = dominance.undominated(flatten(Problem(tuple(variables), (), 9)))
    masks = np.split(keep, np.cumsum([len(one.cost) for one in variables])[:-1])
    for one, mask in zip(variables, masks, strict=True):
        points = list(zip(one.cost.tolist(), one.memory[0].usage.tolist(), strict=True))
        best = {p for p in points if not any(is_no_worse(q, p) for q in points)}
        kept = [point for point, stays in zip(points, mask, strict=True) if stays]
        assert sorted(kept) == sorted(best)


def is_no_worse(one, other):
    return one != other and one[0] <= other[0] and one[1] <= other[1]
