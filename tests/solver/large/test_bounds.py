"""Bounds, local search, parts: each against plain sums over the problem as given."""

import numpy as np
import pytest

from shardwright.solver import brute_force
from shardwright.solver.large.ascent import Ascent, used
from shardwright.solver.large.finish import REACH, reparametrise
from shardwright.solver.large.flat import flatten
from shardwright.solver.large.graph import build_graph, build_rows
from shardwright.solver.large.local import LocalSearch, change, descend, exchange, repair
from shardwright.solver.large.parts import fused, part_of
from shardwright.solver.large.reductions import normalised, restricted


class Case:
    """A random problem, its pairs put in order but not reduced, and what brute force says."""

    def __init__(self, problem):
        self.known = brute_force(problem)
        flat = normalised(flatten(problem))
        everything = np.ones(len(flat.unary), bool)
        self.flat = normalised(restricted(flat, everything, "put in order")[0])
        self.graph, self.rows = build_graph(self.flat), build_rows(self.flat)
        self.local = LocalSearch(self.graph, self.rows)

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
    for case in cases:
        ascent = Ascent(case.graph, case.rows)
        for _ in range(30):
            bound = ascent.step(case.cost(np.zeros(len(case.flat.size), np.int64)))
            assert bound + case.flat.constant <= case.known.cost


def test_bounds_rise_while_prices_stay(cases):
    for case in cases:
        ascent = Ascent(case.graph, case.rows)
        bounds = [ascent.sweep() for _ in range(10)]
        assert bounds == pytest.approx(sorted(bounds), rel=1e-9)


def test_costs_split_anew_are_the_same_costs(cases, random_choice):
    for case in cases:
        ascent = Ascent(case.graph, case.rows)
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


def test_a_part_costs_what_the_whole_does(cases, random_choice):
    compared = 0
    for case in cases:
        whole = random_choice(case.flat.size)
        if not case.local.allowed(whole):
            continue
        state = case.local.start(whole)
        inside = np.flatnonzero(np.arange(len(whole)) % 3 != 1)
        part = part_of(case.graph, case.rows, state, inside, np.ones(len(case.rows.capacity)))
        local = LocalSearch(part.graph, part.rows)
        base = local.cost(whole[inside]) - case.cost(whole)
        for _ in range(5):
            other = whole.copy()
            other[inside] = random_choice(case.flat.size)[inside]
            assert local.allowed(other[inside]) == case.local.allowed(other)
            if case.local.allowed(other):
                compared += 1
                assert local.cost(other[inside]) - case.cost(other) == base
            fits_outside = (case.rows.capacity - used(case.rows, whole) >= 0).all()
            if fits_outside:
                within = (used(case.rows, other) <= case.rows.capacity).all()
                assert local.fits(other[inside]) == within
    assert compared > 20


def test_fusion_keeps_what_is_fused(cases, random_choice):
    for case in cases:
        choices = [random_choice(case.flat.size) for _ in range(3)]
        state = fused(case.flat, choices)
        if state.infeasible:
            assert not any(case.local.allowed(choice) for choice in choices)
            continue
        lifted = state.lift(random_choice(state.flat.size))
        allowed = np.stack(choices)
        assert ((allowed == lifted).any(axis=0)).all()
