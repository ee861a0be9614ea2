"""Bounds, local search, subproblems: compared with plain sums over the flat problem."""

from itertools import product

import numpy as np
import pytest

from shardwright.solver import brute_force
from shardwright.solver.anytime.background_bound import BackgroundBound
from shardwright.solver.anytime.bounded_search import BoundedSearch, new_incumbent
from shardwright.solver.anytime.dual_ascent import DualAscent, used
from shardwright.solver.anytime.flat import flatten
from shardwright.solver.anytime.graph import affordable, build_graph, build_rows, carried
from shardwright.solver.anytime.large_neighbourhoods import LargeNeighbourhoods
from shardwright.solver.anytime.local_search import LocalSearch, change, descend, exchange, repair
from shardwright.solver.anytime.reductions import normalised, restricted
from shardwright.solver.anytime.reparametrisation import REACH, reparametrise
from shardwright.solver.anytime.subproblem import presolve_restricted, subproblem_of
from shardwright.solver.work import Budget
from tests.extent import first


class Case:
    """A random problem, its pairs normalised but not reduced, and what brute force says."""

    def __init__(self, problem):
        self.known = brute_force(problem)
        flat = normalised(flatten(problem))
        everything = np.ones(len(flat.unary), bool)
        self.flat = normalised(restricted(flat, everything, "normalised")[0])
        self.graph, self.rows = build_graph(self.flat), build_rows(self.flat)
        self.local = LocalSearch(self.graph, self.rows)

    def all_that_fit(self):
        """Return every allowed assignment that fits."""
        choices = map(np.array, product(*map(range, self.flat.size.tolist())))
        return [x for x in choices if self.local.allowed(x) and self.local.fits(x)]

    def cost(self, choice):
        """Return the cost of a choice by a plain loop, forbidden entries as `big`."""
        flat, big = self.flat, self.graph.big
        entries = flat.unary[flat.offset[:-1] + choice].tolist()
        rows = flat.table_offset[:-1] + choice[flat.first] * flat.columns + choice[flat.second]
        entries += flat.tables[rows].tolist()
        return sum(big if entry >= 2**59 else entry for entry in entries)


@pytest.fixture(scope="module")
def random_choice():
    random = np.random.default_rng(5)
    return lambda size: np.array([random.integers(0, count) for count in size], dtype=np.int64)


@pytest.fixture(scope="module")
def cases(random_whole_problem):
    found = []
    for seed in range(2000, 2060):
        case = Case(random_whole_problem(seed))
        if len(case.flat.size) > 1 and case.flat.constant < 2**59:
            found.append(case)
    assert len(found) > 30
    return found


def test_bounds_never_exceed_the_optimum(cases):
    for case in first(24, cases):
        ascent = DualAscent(case.graph, case.rows)
        for _ in range(30):
            bound = ascent.step(case.cost(np.zeros(len(case.flat.size), np.int64)))
            assert bound + case.flat.constant <= case.known.cost


def test_bounds_rise_while_prices_stay(cases):
    for case in cases:
        ascent = DualAscent(case.graph, case.rows)
        bounds = [ascent.sweep() for _ in range(10)]
        assert bounds == pytest.approx(sorted(bounds), rel=1e-9)


def test_marginals_bound_what_each_strategy_costs(cases):
    useful = 0
    for case in cases:
        if case.flat.size.prod() > 500:
            continue
        ascent = DualAscent(case.graph, case.rows)
        for _ in range(20):
            ascent.step(100.0)
        marginals = ascent.marginals()
        for choice in case.all_that_fit():
            most = marginals[case.flat.offset[:-1] + choice].max()
            assert ascent.best + most <= case.cost(choice)
            useful += most > 0
    assert useful > 100


def test_strategies_that_are_too_large_are_in_no_assignment(cases):
    dropped = 0
    for case in cases:
        if case.flat.size.prod() > 500:
            continue
        fits = affordable(case.flat)
        dropped += (~fits).sum()
        for choice in case.all_that_fit():
            assert fits[case.flat.offset[:-1] + choice].all()
    assert dropped > 20


def test_a_search_of_the_likely_strategies_raises_the_bound_and_keeps_it_valid(cases):
    raised = 0
    for case in cases:
        incumbent = new_incumbent(case.flat.constant, Budget(60))
        search = BoundedSearch(case.graph, case.rows, incumbent, 0, 1)
        if search.solve_trivial():
            continue
        search.start()
        if incumbent.assignment is None or incumbent.closed:
            continue
        neighbourhoods = LargeNeighbourhoods(search, case.flat)
        check_neighbourhoods(neighbourhoods, case)
        before = incumbent.bound
        for extra in (1, 2, 4):
            neighbourhoods.size["likely"] = extra
            assert neighbourhoods.search_likely(incumbent.budget)
            assert incumbent.bound <= case.known.cost <= incumbent.cost
        raised += incumbent.bound > before
    assert raised >= 3


def check_neighbourhoods(neighbourhoods, case):
    """Check that a stretch is one, and that disturbed prices give assignments, and are gone."""
    sizes, prices = case.flat.size, neighbourhoods.search.ascent.prices.copy()
    for size in (1.0, 2.0, 20.0):
        neighbourhoods.size["stretch"] = size
        stretch = neighbourhoods.stretch()
        assert len(stretch) > 0
        assert 0 <= stretch[0] <= stretch[-1] < len(sizes)
        assert (np.diff(stretch) == 1).all()
    decoded = neighbourhoods.decode_disturbed()
    assert decoded
    for choice in decoded:
        assert ((choice >= 0) & (choice < sizes)).all()
    np.testing.assert_array_equal(neighbourhoods.search.ascent.prices, prices)


def test_the_background_bound_is_handed_over(cases):
    raised = 0
    for case in cases:
        incumbent = new_incumbent(case.flat.constant, Budget(60))
        search = BoundedSearch(case.graph, case.rows, incumbent, 0, 2)
        if search.solve_trivial():
            continue
        search.start()
        if incumbent.assignment is None:
            continue
        before = incumbent.bound
        background = BackgroundBound(search)
        background.thread.join()
        background.stop()
        assert before <= incumbent.bound <= case.known.cost <= incumbent.cost
        assert search.ascent.best == background.ascent.best
        raised += incumbent.bound > before
    assert raised >= 3


def test_prices_are_carried_to_the_nearest_rows(cases):
    for case in cases:
        rows = case.rows
        prices = np.arange(1.0, len(rows.capacity) + 1)
        assert (carried(prices, rows, rows) == prices).all()
        if len(rows.times) > 1:
            fewer = rows._replace(times=rows.times[1:], capacity=rows.capacity[1:])
            expected = prices[1:].copy()
            expected[0] += prices[0]
            assert (carried(prices, rows, fewer) == expected).all()


def test_costs_split_anew_are_the_same_costs(cases, random_choice):
    for case in cases:
        ascent = DualAscent(case.graph, case.rows)
        for _ in range(20):
            ascent.step(100.0)
        for messages in (ascent.messages, None):
            prices = ascent.prices if messages else np.zeros(len(ascent.prices))
            split = reparametrise(case.graph, case.rows, prices, messages, 1000.0)
            assert (split.unary >= 0).all()
            assert all((table >= 0).all() for table in split.tables)
            choice = random_choice(case.flat.size)
            terms = split.unary[case.flat.offset[:-1] + choice].tolist()
            for e, table in enumerate(split.tables):
                u, v = case.flat.first[e], case.flat.second[e]
                terms.append(int(table[choice[u] * case.flat.size[v] + choice[v]]))
            if max(terms) >= REACH:
                assert not case.local.allowed(choice)
                continue
            assert case.local.allowed(choice)
            left = case.rows.capacity - used(case.rows, choice)
            total = split.floor + sum(terms) + int((split.prices * left).sum())
            assert total == split.scale * case.cost(choice)


def test_changes_keep_costs_and_memory_in_step(cases, random_choice):
    for case in cases:
        state = case.local.start(random_choice(case.flat.size))
        for _ in range(10):
            before = case.cost(state.choice)
            v = int(np.argmax(case.flat.size))
            more = change(case.graph, case.rows, state, v, int(random_choice(case.flat.size)[v]))
            assert before + more == case.cost(state.choice)
        fresh = case.local.start(state.choice)
        assert (state.costs == fresh.costs).all()
        assert (state.free == fresh.free).all()
        assert (state.free == case.rows.capacity - used(case.rows, state.choice)).all()


def test_local_search_never_gets_worse_and_stays_within_the_memory(cases, random_choice):
    repaired = 0
    for case in cases:
        state = case.local.start(random_choice(case.flat.size))
        if repair(case.graph, case.rows, state, case.local.trail, np.inf, 1000, -1) < 0:
            continue
        repaired += 1
        costs = [case.cost(state.choice)]
        for pairs in (False, True):
            descend(case.graph, case.rows, state, pairs)
            costs.append(case.cost(state.choice))
        order = np.arange(len(case.flat.size))
        exchange(case.graph, case.rows, state, case.local.trail, order, 8)
        costs.append(case.cost(state.choice))
        assert costs == sorted(costs, reverse=True)
        assert (used(case.rows, state.choice) <= case.rows.capacity).all()
        if case.local.allowed(state.choice):
            assert case.known.cost <= costs[-1] + case.flat.constant
    assert repaired > 20


def test_a_subproblem_costs_what_the_whole_does(cases, random_choice):
    compared = 0
    for case in cases:
        whole = random_choice(case.flat.size)
        if not case.local.allowed(whole):
            continue
        state = case.local.start(whole)
        free = np.flatnonzero(np.arange(len(whole)) % 3 != 1)
        prices = np.ones(len(case.rows.capacity))
        part = subproblem_of(case.graph, case.rows, state, free, prices)
        local = LocalSearch(part.graph, part.rows)
        base = local.cost(whole[free]) - case.cost(whole)
        for _ in range(5):
            other = whole.copy()
            other[free] = random_choice(case.flat.size)[free]
            assert local.allowed(other[free]) == case.local.allowed(other)
            if case.local.allowed(other):
                compared += 1
                assert local.cost(other[free]) - case.cost(other) == base
            fits_outside = (case.rows.capacity - used(case.rows, whole) >= 0).all()
            if fits_outside:
                within = (used(case.rows, other) <= case.rows.capacity).all()
                assert local.fits(other[free]) == within
    assert compared > 20


def test_fusion_keeps_what_is_fused(cases, random_choice):
    for case in cases:
        choices = [random_choice(case.flat.size) for _ in range(3)]
        keep = np.zeros(len(case.flat.unary), bool)
        for choice in choices:
            keep[case.flat.offset[:-1] + choice] = True
        state = presolve_restricted(case.flat, keep)
        if state.infeasible:
            assert not any(
                case.local.allowed(choice) and case.local.fits(choice) for choice in choices
            )
            continue
        lifted = state.lift(random_choice(state.flat.size))
        allowed = np.stack(choices)
        assert ((allowed == lifted).any(axis=0)).all()
