"""Fronts of blocks: no plan of a block is better at any price, and labels are what plans take."""

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.choice.one_stage import OneStage
from shardwright.planner.fronts.front import BlockFront, BlockPlan
from shardwright.planner.fronts.priced_block import at_turn
from shardwright.planner.fronts.site import Site
from shardwright.planner.options import CompileOptions
from shardwright.solver.evaluate import evaluate
from shardwright.solver.work import Budget

POD = cluster("a100-pod")
MESHES = {
    "one level": Mesh((MeshAxis("x", 2), MeshAxis("y", 2))),
    "two levels": Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 4, 0))),
}
SIZES = "batch=16,sequence=32,vocabulary=256,dtype=float32"
MODELS = {
    "gpt": f"gpt:layers=4,hidden=64,heads=4,{SIZES}",
    "llama": f"llama:layers=4,hidden=64,heads=4,kv_heads=2,inner=128,{SIZES}",
}


@cache
def site(model: str, mesh: str, passes: int, memory: float = inf) -> Site:
    options = CompileOptions(
        micro_batches=passes, optimizer=Optimizer("adam"), memory_limit=memory, gap=0.0
    )
    source = Canonicalize().run(load_model(MODELS[model]).graph)
    return Site.of(source, POD, MESHES[mesh], options, Budget())


@cache
def layer(model: str, mesh: str, passes: int) -> BlockFront:
    where = site(model, mesh, passes)
    return BlockFront(where, where.most_frequent)


CASES = [("gpt", "one level", 1), ("llama", "two levels", 1), ("llama", "two levels", 2)]


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_the_layers_and_what_is_around_them(case: tuple[str, str, int]) -> None:
    where = site(*case)
    assert len(where.most_frequent.places) == 4
    assert sorted(b for kind in where.kinds for b in kind.places) == [*range(len(where.blocks))]


@pytest.mark.parametrize("case", CASES)
def test_no_plan_that_is_drawn_is_better_than_the_front_at_any_price(
    case: tuple[str, str, int],
) -> None:
    front, draw = layer(*case), np.random.default_rng(0)
    space = front.spaces[0]
    problem, held = space.problem, at_turn(space)
    weights = front.site.matrix[0]
    costs = np.array([plan.seconds @ weights for plan in front.plans])
    sizes = np.array([plan.held_bytes for plan in front.plans])
    for _ in range(100):
        drawn = [int(draw.integers(len(v.cost))) for v in problem.variables]
        cost = float(evaluate(problem, drawn).cost)
        nbytes = sum(float(h[o]) for h, o in zip(held, drawn, strict=True) if h is not None)
        price = costs.min() / sizes.max() * 10 ** float(draw.uniform(-3, 2))
        assert (costs + price * sizes).min() <= (cost + price * nbytes) * (1 + 1e-3)


@pytest.mark.parametrize("case", CASES)
def test_a_step_takes_what_the_labels_of_its_blocks_say(case: tuple[str, str, int]) -> None:
    where = site(*case)
    step = OneStage(where).best()
    loads = least_loads(step.emitted.program, POD).total[[0, *(1 + i for i in where.levels)]]
    assert step.choice.seconds == pytest.approx(loads.max(), rel=2e-2)
    assert step.seconds >= loads.max() * (1 - 1e-9)


def least_held(where: Site) -> float:
    """Return the bytes that the program holds by the plans of the least memory of each kind."""
    found = 0.0
    for kind in where.kinds:
        plans: tuple[BlockPlan, ...] = BlockFront(where, kind).plans
        found += len(kind.places) * min(plan.held_bytes + plan.own_bytes for plan in plans)
    return found


@pytest.mark.parametrize("case", CASES)
def test_within_less_memory_a_plan_fits_and_is_no_faster(case: tuple[str, str, int]) -> None:
    free = OneStage(site(*case)).best()
    limit = 0.7 * free.timeline.peak_bytes
    within = OneStage(site(*case, limit)).best()
    assert within.emitted.memory.peak_bytes <= within.timeline.peak_bytes <= limit
    assert within.choice.seconds >= free.choice.seconds * (1 - 1e-6)
    assert replace(within.choice, runs=()) != free.choice
