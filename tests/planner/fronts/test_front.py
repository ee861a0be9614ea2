"""Fronts of blocks: no plan of a block is better at any price, and labels are what plans take."""

import numpy as np
import pytest

from shardwright.cost_model.weighted.loads import least_loads
from shardwright.planner.fronts.front import BlockFront
from shardwright.planner.fronts.priced_block import at_turn
from shardwright.solver.evaluate import evaluate
from tests.extent import first
from tests.small_sites import CASES, PLANNED, POD, SHORT, planned, site


@pytest.mark.parametrize(("model", "passes"), [*CASES, ("dropout", 1)])
def test_blocks_are_the_layers_and_what_is_around_them(model: str, passes: int) -> None:
    where = site(model, passes)
    assert len(where.most_frequent.places) == 3
    assert sorted(b for kind in where.kinds for b in kind.places) == [*range(len(where.blocks))]


@pytest.mark.parametrize(("model", "passes"), first(1, CASES[:2]))
def test_no_plan_that_is_drawn_is_better_than_the_front(model: str, passes: int) -> None:
    where, draw = site(model, passes), np.random.default_rng(0)
    front = BlockFront(where, where.most_frequent)
    problem, held = front.spaces[0].problem, at_turn(front.spaces[0])
    costs = np.array([plan.seconds @ where.matrix[0] for plan in front.plans])
    sizes = np.array([plan.held_bytes for plan in front.plans])
    for _ in range(100):
        drawn = [int(draw.integers(len(v.cost))) for v in problem.variables]
        cost = float(evaluate(problem, drawn).cost)
        nbytes = sum(float(h[o]) for h, o in zip(held, drawn, strict=True) if h is not None)
        price = costs.min() / sizes.max() * 10 ** float(draw.uniform(-3, 2))
        assert (costs + price * sizes).min() <= (cost + price * nbytes) * (1 + 1e-3)


@pytest.mark.parametrize(("model", "passes"), PLANNED)
def test_a_step_takes_what_the_labels_of_its_blocks_say(model: str, passes: int) -> None:
    where = site(model, passes)
    used = [0, *(1 + level for level in where.levels)]
    for step in planned(model, passes, SHORT).steps:
        loads = least_loads(step.emitted.program, POD).total[used]
        assert step.choice.seconds == pytest.approx(loads.max(), rel=2e-2)
        assert step.seconds >= loads.max() * (1 - 1e-9)


@pytest.mark.parametrize(("model", "passes"), PLANNED)
def test_within_less_memory_a_plan_fits_and_is_no_faster(model: str, passes: int) -> None:
    free, short = planned(model, passes), planned(model, passes, SHORT)
    within = short.best()
    limit = short.site.limits.limit_bytes
    assert within.emitted.memory.peak_bytes <= within.timeline.peak_bytes <= limit
    assert within.choice.seconds >= free.best().choice.seconds * (1 - 1e-6)
