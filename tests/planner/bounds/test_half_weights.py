"""Weights of both halves of a step raise bounds where links bind one, and never above a step."""

from functools import partial
from math import inf

import numpy as np
import pytest

from shardwright.compiler.outer.block_prices import BlockPricing
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.ir.mesh import Mesh
from shardwright.passes.manager import PassManager
from shardwright.planner.bounds.half_weights import HalfWeights
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.options import CompileOptions
from shardwright.solver.work import Budget
from tests.small_sites import planned_on_slow_links


@pytest.mark.parametrize("seed", range(10))
def test_shares_move_apart_where_plans_ask_for_it(seed: int) -> None:
    """Of drawn loads of both halves, the best weights are about those of the busiest resources."""
    draw = np.random.default_rng(seed)
    plans = draw.uniform(0.5, 1.5, (3, 2, 2))

    def seconds(weights: ResourceWeights) -> float:
        rows = np.array(weights.intervals) if weights.later else np.array([*weights.intervals] * 2)
        return float((plans * rows).sum(axis=(1, 2)).min())

    equal = [ResourceWeights(1 - share, (share,)) for share in (0.1, 0.2, 0.4)]
    first = max(equal, key=seconds)
    found = HalfWeights(first, seconds(first), (0,), seconds).best()
    assert seconds(found) >= seconds(first)
    for interval in found.intervals:
        assert min(interval) >= 0
        assert sum(interval) == pytest.approx(1)
    assert seconds(found) <= plans.max(axis=2).sum(axis=1).min() * (1 + 1e-12)


@pytest.mark.long
def test_a_bound_by_halves_is_higher_and_no_plan_is_below_it() -> None:
    site, step = planned_on_slow_links().site, planned_on_slow_links().best()

    def pipeline_of(options: CompileOptions, mesh: Mesh, budget: Budget) -> PipelinePartitioning:
        where = site.source, site.cluster, mesh, options, PassManager(), None, budget, 0
        return PipelinePartitioning(*where)

    def bound(below: float) -> tuple[float, float]:
        pricing = BlockPricing(pipeline_of, len(site.cluster.levels), True, True)
        told = pricing.prices(Configuration(site.mesh), site.options, Budget(), below, {})
        return told.step_seconds, told.limited_seconds

    free, limited = bound(inf)
    assert free * 1.02 < limited <= step.choice.seconds
    whole = partial(bound, free * 0.5)  # is enough: nothing more is asked
    assert whole()[1] <= free
