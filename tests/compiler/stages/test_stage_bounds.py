"""Paths through a schedule that bound all cuts of a pipeline, and errors in them."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwright.compiler.stages import stage_bounds
from shardwright.compiler.stages.stage_bounds import CutBounds
from shardwright.dataflow.schedule_paths import simulate_schedule
from shardwright.dataflow.schedules import FORWARD, make_schedule

NUMBERS = {
    ("1f1b", 1): (2, 3, 8),
    ("interleaved", 2): (2, 4, 8),
    ("zero_bubble", 1): (2, 4, 8),
    ("zero_bubble_v", 2): (2, 4, 8),
    ("dualpipe_v", 2): (2, 4, 8),
}


def lengths(name: str, chunks: int, seed: int) -> float:
    """Return the longest path along a device group, over the step of random stages."""
    draw = random.Random(seed)
    groups = draw.choice([2, 4])
    made = make_schedule(name, groups, chunks, groups * draw.choice(NUMBERS[name, chunks]))
    stages = range(made.stages)
    passes = [1.0 if seed % 2 else draw.uniform(0.1, 1.0) for _ in stages]
    share = draw.uniform(0.1, 0.4)
    rest = (1 - share) / (len(made.parts) - 1)
    seconds = {(s, p): passes[s] * (share if p == FORWARD else rest) for s, p in made.segments}
    step = simulate_schedule(made, seconds).step_seconds
    bounds = cast("Any", SimpleNamespace(schedule=made))
    return max(float(CutBounds._of_group(bounds, g) @ passes) for g in range(groups)) / step


@pytest.mark.parametrize(("name", "chunks"), NUMBERS)
def test_no_stages_are_faster_than_the_passes_of_a_device_group(name: str, chunks: int) -> None:
    assert max(lengths(name, chunks, seed) for seed in range(200)) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("name", "chunks"), [("zero_bubble", 1), ("zero_bubble_v", 2), ("dualpipe_v", 2)]
)
def test_whole_passes_of_the_stages_before_a_group_are_caught(
    name: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of weights may come last: what is before a group is forward alone."""
    monkeypatch.setattr(stage_bounds, "WEIGHTS", "none")
    assert max(lengths(name, chunks, seed) for seed in range(200)) > 1.001
