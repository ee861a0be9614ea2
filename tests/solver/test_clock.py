"""How fast the machine is decides no answer, unless the answer says so."""

import time

import numpy as np
import pytest

from shardwright.solver import solve
from shardwright.solver.anytime.bounded_search import BoundedSearch, new_incumbent
from shardwright.solver.anytime.flat import flatten
from shardwright.solver.anytime.graph import build_graph, build_rows
from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.exact import search
from shardwright.solver.problem import Pair, Problem, Variable


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


def slow_down(monkeypatch, factor):
    """Let the clock of the solver run so many times as fast, as on a slower machine."""
    real, begin = time.monotonic, time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + factor * (real() - begin))


@pytest.mark.parametrize("seed", range(4))
def test_a_slower_machine_gives_the_same_answer(seed, monkeypatch):
    problem, found = dense(seed), []
    monkeypatch.setattr(search, "WORK_PER_SECOND", 2**16)  # so that messages are passed
    for factor in (1, 4):
        with monkeypatch.context() as patched:
            slow_down(patched, factor)
            found.append(solve(problem, time_limit=60, gap=0.4))
    first, second = found
    assert first.how == second.how == "message passing"
    assert not first.timed
    assert not second.timed
    assert (first.assignment, first.lower_bound) == (second.assignment, second.lower_bound)


@pytest.mark.parametrize("factor", [1, 30])
def test_an_elimination_ends_by_its_work(factor, monkeypatch):
    slow_down(monkeypatch, factor)
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
    again = Elimination(sizes, list(tables))
    again.work = work - 1
    with pytest.raises(OutOfTimeError):
        again.minimise(unary, list(tables.values()))


def test_an_ascent_that_the_clock_ends_says_so():
    flat = flatten(dense(1, kind=np.int64))
    for seconds, timed in ((0.0, True), (60.0, False)):
        incumbent = new_incumbent(0, time.monotonic() + 100)
        ascent = BoundedSearch(build_graph(flat), build_rows(flat), incumbent, 0, 1)
        ascent.start()
        ascent.raise_bound(seconds)
        assert incumbent.timed == timed
