"""Work is counted: how fast the machine is decides no answer."""

import time

import numpy as np
import pytest

from shardwright.solver import solve
from shardwright.solver.anytime.bounded_search import BoundedSearch, new_incumbent
from shardwright.solver.anytime.flat import flatten
from shardwright.solver.anytime.graph import build_graph, build_rows
from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.exact import search
from shardwright.solver.exact.network_model import NetworkModel
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.methods import SolveOptions
from shardwright.solver.network import build_network
from shardwright.solver.problem import Pair, Problem, Variable
from shardwright.solver.work import Budget, Work
from tests.extent import first


def dense(seed, variables=14, options=6, density=0.7, kind=float):
    """Return a problem that is wide for elimination."""
    random = np.random.default_rng(seed)
    own = [
        Variable(f"v{i}", random.integers(0, 50, options).astype(kind)) for i in range(variables)
    ]
    pairs = [
        Pair(i, j, random.integers(0, 50, (options, options)).astype(kind))
        for i in range(variables)
        for j in range(i)
        if random.random() < density
    ]
    return Problem(tuple(own), tuple(pairs))


def hurry(monkeypatch):
    """Let every look at a clock be an hour after the one before."""
    now = iter(range(0, 10**9, 3600))
    for clock in ("monotonic", "perf_counter", "process_time", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(now)))


def test_parts_of_a_budget_spend_the_whole():
    budget = Budget(8.0)
    part, beyond = budget.share(1 / 2), budget.beyond(20.0)
    assert budget.within(2.0).left == 2.0
    assert budget.within(20.0).left == 8.0
    part.charge(3.0)
    assert (part.left, budget.left, beyond.left) == (1.0, 5.0, 17.0)
    beyond.charge(7.0)
    assert part.is_spent
    assert budget.is_spent
    assert (budget.left, budget.spent, beyond.left) == (0.0, 10.0, 10.0)


def test_budgets_of_other_work_are_independent():
    one, other = Budget(1.0), Budget(1.0)
    one.charge(1.0)
    assert (one.is_spent, other.left) == (True, 1.0)
    assert Budget(1.0, one.work).left == 1.0


def test_a_budget_without_limit_is_never_spent():
    budget = Budget()
    budget.charge(1e9)
    assert not budget.is_spent
    assert budget.spent == 1e9


@pytest.mark.parametrize("seed", range(4))
def test_another_clock_gives_the_same_answer(seed, monkeypatch):
    problem, found = dense(seed), []
    monkeypatch.setattr(search, "WORK_PER_SECOND", 2**16)  # so that messages are passed
    monkeypatch.setattr(search, "PASSING", 0)
    for hurries in (False, True):
        with monkeypatch.context() as patched:
            if hurries:
                hurry(patched)
            found.append(solve(problem, budget=Budget(60), gap=0.4))
    first, second = found
    assert first.how == second.how == "message passing"
    assert not first.timed
    assert (first.assignment, first.lower_bound) == (second.assignment, second.lower_bound)
    assert first.seconds == second.seconds > 0


@pytest.mark.parametrize("method", ["exact", "anytime"])
@pytest.mark.parametrize("seconds", first(1, [0.2, 0.05]))
def test_a_budget_ends_a_search_at_the_same_place(method, seconds, monkeypatch):
    problem, found = dense(5, 30, 8, kind=np.int64), []
    for hurries in (False, True):
        with monkeypatch.context() as patched:
            if hurries:
                hurry(patched)
            found.append(solve(problem, budget=Budget(seconds), method=method))
    first, second = found
    assert (first.assignment, first.lower_bound) == (second.assignment, second.lower_bound)
    assert first.seconds == second.seconds
    assert first.status == "feasible"


def test_cp_sat_ends_by_counted_work():
    network, work, found = build_network(dense(1, 30, 8)), Work(), []
    rows = MemoryRows(network, np.inf)
    for _ in range(2):
        budget = Budget(0.4, work)
        answer = NetworkModel(network, rows, 0.0).solve(None, SolveOptions(budget))
        found.append((answer.lower_bound, answer.choice, budget.spent))
    assert found[0][:2] == found[1][:2]
    assert found[0][2] == pytest.approx(found[1][2])
    assert found[0][2] > 0.2


def test_an_elimination_ends_by_its_work():
    problem = dense(0, variables=9)
    sizes = [len(variable.cost) for variable in problem.variables]
    unary = [variable.cost for variable in problem.variables]
    tables = {(pair.second, pair.first): pair.table.T.copy() for pair in problem.pairs}
    elimination = Elimination(sizes, list(tables))
    work = sum(
        elimination.entries(group.scope) * len(group.factors)
        for groups in elimination.groups
        for group in groups
    )
    elimination.work = work
    assert np.isfinite(elimination.minimise(unary, list(tables.values())).value)
    spent = elimination.budget.spent
    again = Elimination(sizes, list(tables))
    again.work = work - 1
    with pytest.raises(OutOfTimeError):
        again.minimise(unary, list(tables.values()))
    for seconds in (0.0, 0.9 * spent):
        short = Elimination(sizes, list(tables))
        short.budget = Budget(seconds)
        with pytest.raises(OutOfTimeError):
            short.minimise(unary, list(tables.values()))


def test_an_ascent_that_its_budget_ends_says_so():
    flat = flatten(dense(1, kind=np.int64))
    for seconds, timed in ((0.0, True), (60.0, False)):
        incumbent = new_incumbent(0, Budget(100))
        ascent = BoundedSearch(build_graph(flat), build_rows(flat), incumbent, 0, 1)
        ascent.start()
        ascent.raise_bound(seconds)
        assert incumbent.timed == timed
