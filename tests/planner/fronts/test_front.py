"""Fronts of blocks: no plan of a block is better at any price, and labels are what plans take."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.timeline import simulate
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.ir.graph import Graph
from shardwright.planner.fronts.front import BlockFront
from shardwright.planner.fronts.priced_block import at_turn
from shardwright.solver.evaluate import evaluate
from tests.extent import first
from tests.small_sites import (
    CASES,
    PLANNED,
    POD,
    SHORT,
    planned,
    planned_on_slow_links,
    site,
)


@pytest.mark.parametrize(("model", "passes"), [*CASES, ("dropout", 1)])
def test_blocks_are_the_layers_and_what_is_around_them(model: str, passes: int) -> None:
    where = site(model, passes)
    assert len(where.most_frequent.places) == 3
    assert sorted(b for kind in where.kinds for b in kind.places) == [*range(len(where.blocks))]


@pytest.mark.long
@pytest.mark.parametrize(("model", "passes"), first(1, CASES[:2]))
def test_no_plan_that_is_drawn_is_better_than_the_front(model: str, passes: int) -> None:
    where, draw = site(model, passes), np.random.default_rng(0)
    front = BlockFront(where, where.most_frequent)
    problem, held = front.spaces[0].problem, at_turn(front.spaces[0])
    costs = np.array([plan.seconds.ravel() @ where.matrix[0] for plan in front.plans])
    sizes = np.array([plan.held_bytes for plan in front.plans])
    for _ in range(100):
        drawn = [int(draw.integers(len(v.cost))) for v in problem.variables]
        cost = float(evaluate(problem, drawn).cost)
        nbytes = sum(float(h[o]) for h, o in zip(held, drawn, strict=True) if h is not None)
        price = costs.min() / sizes.max() * 10 ** float(draw.uniform(-3, 2))
        assert (costs + price * sizes).min() <= (cost + price * nbytes) * (1 + 1e-3)


@pytest.mark.long
@pytest.mark.parametrize(("model", "passes"), PLANNED)
def test_a_step_takes_what_the_labels_of_its_blocks_say(model: str, passes: int) -> None:
    where = site(model, passes)
    used = [0, *(1 + level for level in where.levels)]
    for step in planned(model, passes, SHORT).steps:
        loads = least_loads(step.emitted.program, POD).total[used]
        assert step.choice.seconds == pytest.approx(loads.max(), rel=2e-2)
        assert step.seconds >= loads.max() * (1 - 1e-9)


def in_halves(program: Graph, where: Cluster) -> np.ndarray:
    """Return the load of each resource in both halves; what may run in either is in the second."""
    loads = least_loads(program, where, 2)
    found = np.zeros((2, loads.resources))
    for (among, occupied), seconds in loads.seconds.items():
        found[among[-1], list(occupied)] += seconds
    return found


@pytest.mark.long
def test_where_links_bind_the_halves_of_a_step_are_told() -> None:
    """Links are busiest in the forward half, as long as computation in the backward half."""
    assert [site(model, passes).intervals for model, passes in CASES] == [1, 1, 1]
    search = planned_on_slow_links()
    step, used = search.best(), [0, *(1 + level for level in search.site.levels)]
    assert search.site.intervals == 2
    for one in search.steps:
        program = one.emitted.program
        halves = in_halves(program, search.site.cluster)[:, used]
        assert one.choice.seconds == pytest.approx(halves.max(axis=1).sum(), rel=2e-2)
        assert one.seconds >= halves.max(axis=1).sum() * (1 - 1e-9)
        assert step.seconds <= simulate(program, search.site.cluster).step_seconds


@pytest.mark.long
@pytest.mark.parametrize(("model", "passes"), PLANNED)
def test_within_less_memory_a_plan_fits_and_is_no_faster(model: str, passes: int) -> None:
    free, short = planned(model, passes), planned(model, passes, SHORT)
    within = short.best()
    limit = short.site.limits.limit_bytes
    assert within.emitted.memory.peak_bytes <= within.timeline.peak_bytes <= limit
    assert within.choice.seconds >= free.best().choice.seconds * (1 - 1e-6)
