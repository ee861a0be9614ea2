"""Sums over blocks bound what programs take: at drawn weights and prices, none weighs less."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.planner.bounds.priced_blocks import PricedBlocks
from shardwright.solver.work import Budget
from tests.extent import first
from tests.small_sites import PLANNED, POD, SHORT, planned, site


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("model", first(1, ["gpt", "mixtral"]))
def test_no_program_weighs_less_in_both_halves(model: str) -> None:
    steps = [*planned(model, 1).steps, *planned(model, 1, SHORT).steps]
    programs = [step.emitted.program for step in steps]
    loads = [least_loads(program, POD, 2) for program in programs]
    peaks = [peak_memory(program).peak_bytes for program in programs]
    draw, where = np.random.default_rng(1), site(model, 1)
    assert can_divide(where.source)
    for _ in range(4):
        rows = [tuple(draw.uniform(0, 0.45, 2)) for _ in range(2)]
        forward, backward = (ResourceWeights(1 - sum(row), row) for row in rows)
        weights = replace(forward, later=(backward,))
        blocks = PricedBlocks(where.problems(weights), 1, Budget())
        weighed = [load.weighted(np.array(weights.intervals)) for load in loads]
        price = weighed[0] / peaks[0] * 10 ** float(draw.uniform(-2, 1))
        bound = blocks.total(price, 1).seconds + blocks.own_seconds(price)
        sums = [one + price * peak for one, peak in zip(weighed, peaks, strict=True)]
        assert 0.3 * min(sums) <= bound <= min(sums) * (1 + 1e-9)
