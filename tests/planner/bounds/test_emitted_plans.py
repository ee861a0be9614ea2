"""Sums over blocks bound what programs take: at drawn weights and prices, none weighs less."""

import numpy as np
import pytest

from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.planner.bounds.priced_blocks import PricedBlocks
from shardwright.solver.work import Budget
from tests.extent import first
from tests.small_sites import PLANNED, POD, SHORT, planned, site


@pytest.mark.parametrize(("model", "passes"), first(1, PLANNED[::-1]))
def test_no_program_weighs_less_than_the_bound(model: str, passes: int) -> None:
    steps = [*planned(model, passes).steps, *planned(model, passes, SHORT).steps]
    programs = [step.emitted.program for step in steps]
    loads = [least_loads(program, POD) for program in programs]
    peaks = [peak_memory(program).peak_bytes for program in programs]
    assert len(programs) > 1
    draw, where = np.random.default_rng(0), site(model, passes)
    for links in ((1e-9, 1e-9), (0.1, 0.3)):
        weights = ResourceWeights(1 - sum(links), links)
        blocks = PricedBlocks(where.problems(weights), passes, Budget())
        row = np.array([[weights.compute, *links]])
        weighed = [load.weighted(row) for load in loads]
        for _ in range(3):
            price = weighed[0] / peaks[0] * 10 ** float(draw.uniform(-2, 1))
            bound = blocks.total(price, 1).seconds + blocks.own_seconds(price)
            sums = [one + price * peak for one, peak in zip(weighed, peaks, strict=True)]
            assert 0.3 * min(sums) <= bound <= min(sums) * (1 + 1e-9)
