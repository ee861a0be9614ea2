"""Pipelines within ever more memory: none is taken away, and none is dearer."""

import math

import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import NoPlanError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.extent import first
from tests.random_graphs import random_graph

CPU = cluster("cpu")


def step_within(limit: float, seed: int, **options: object) -> float:
    asked = CompileOptions(memory_limit=limit, gap=0.0, stages=2, micro_batches=2, **options)  # type: ignore[arg-type]
    try:
        found = compile_graph(random_graph(seed, nodes=1 + seed % 4), CPU, 4, asked)
    except NoPlanError:
        return math.inf
    assert found.result is not None
    assert found.memory.peak_bytes <= limit
    assert found.result.lower_bound <= found.result.cost
    return found.result.cost


@pytest.mark.long
@pytest.mark.parametrize("objective", first(1, ["overlapped", "serial"]))
def test_more_memory_does_not_take_a_faster_pipeline_away(objective: str) -> None:
    least = math.inf
    for limit in (519.84, 588.24, 912.0):
        options = {"optimizer": Optimizer("adam"), "schedule": "gpipe", "objective": objective}
        step = step_within(limit, 2, **options)
        assert step <= least * (1 + 1e-9)
        least = step
    assert least < math.inf


@pytest.mark.long
def test_tighter_limits_are_for_small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them, 588 bytes gave a slower pipeline than 520 bytes."""
    monkeypatch.setattr("shardwright.compiler.stages.tighter_limits.SMALL", 1)
    less, more = (
        step_within(limit, 2, optimizer=Optimizer("adam"), schedule="gpipe")
        for limit in (519.84, 588.24)
    )
    assert more > 1.1 * less
