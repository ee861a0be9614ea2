"""Floors of pipelines of several chunks: no stages are faster, whatever their segments take."""

import random
from dataclasses import replace
from functools import cache

import pytest

from shardwright.dataflow.schedule_paths import chain_transfers, simulate_schedule
from shardwright.dataflow.schedules import BACKWARD, FORWARD, Segment, make_schedule
from shardwright.planner.bounds.chunk_floors import Halves
from shardwright.planner.bounds.floors import halves_of
from shardwright.planner.choice.configuration import Configuration

DEVICES = 4  # of a group
NUMBERS = [(2, 2, 2), (2, 3, 4), (2, 8, 2), (3, 2, 3), (3, 4, 6), (4, 2, 8), (4, 3, 4)]


@cache
def drawn(seed: int) -> tuple[Halves, Configuration, float, float]:
    """Return the halves of random stages, a configuration, all seconds of a pass, and the step."""
    draw = random.Random(seed)
    stages, chunks, count = draw.choice(NUMBERS)
    forward = draw.choice([0.1, 0.33, 0.5])
    backward = (1 - forward) * draw.choice([1.0, draw.random()])
    kind = draw.choice(["equal", "any", "few"])
    durations: dict[Segment, float] = {}
    computation = passes = 0.0
    for stage in range(stages * chunks):
        own = {"equal": 1.0, "any": draw.random(), "few": draw.choice([0.0, 1e-3, 1.0])}[kind]
        rest = (1 - forward - backward) * own
        more = draw.choice([0.0, 0.02, 0.3]) * draw.random()
        part = (rest + more) * draw.choice([0.0, 1.0, draw.random()])
        durations[stage, FORWARD] = forward * own + part
        durations[stage, BACKWARD] = backward * own + rest + more - part
        computation, passes = computation + own, passes + own + more
    made = make_schedule("interleaved", stages, chunks, count)
    step = simulate_schedule(made, durations, dict.fromkeys(chain_transfers(made), 0.0))
    halves = Halves(DEVICES * count * computation, forward, backward)
    where = Configuration(None, count, stages, chunks, "interleaved")
    return halves, where, passes, step.step_seconds


def test_no_random_stages_are_faster() -> None:
    for seed in range(300):
        halves, where, passes, step = drawn(seed)
        assert halves.step(where, DEVICES, passes) <= step * (1 + 1e-9)


def test_too_much_computation_or_communication_is_caught() -> None:
    cases = [drawn(seed) for seed in range(300)]
    for more, longer in ((1.02, 1.0), (1.0, 1.02)):
        wrong = [
            (replace(h, seconds=more * h.seconds), w, longer * p, step) for h, w, p, step in cases
        ]
        assert any(h.step(where, DEVICES, passes) > step for h, where, passes, step in wrong)


@pytest.mark.parametrize(
    ("numbers", "least"), [((2, 8, 2), 1.042), ((2, 2, 2), 1.18), ((4, 8, 4), 1.066)]
)
def test_a_part_of_the_bubble_is_in_the_floor(numbers: tuple[int, int, int], least: float) -> None:
    stages, chunks, count = numbers
    halves = Halves(DEVICES * count * 1.0, 1 / 3, 2 / 3)
    where = Configuration(None, count, stages, chunks, "interleaved")
    bubble = 1 + (stages - 1) / (count * chunks)
    assert least <= halves.step(where, DEVICES, 1.0) * stages / count <= bubble


def test_of_no_schedule_or_a_long_one_there_is_no_floor() -> None:
    halves = Halves(1.0, 1 / 3, 2 / 3)
    for count, stages, chunks in ((3, 2, 2), (2, 2, 1), (512, 2, 2)):
        assert (
            halves.step(Configuration(None, count, stages, chunks, "interleaved"), DEVICES, 1.0)
            == 0.0
        )


def test_another_order_of_chunks_may_be_faster_and_has_no_floor() -> None:
    halves = Halves(DEVICES * 8.0, 1 / 3, 2 / 3)
    orders = [Configuration(None, 8, 4, 2, name) for name in ("interleaved", "interleaved_pairs")]
    known, other = (halves.step(one, DEVICES, 1.0) for one in orders)
    assert known > 0 == other


def test_blocks_of_small_shares_count_in_part() -> None:
    found = halves_of((3.0, 3.0, 1.0), (1.0, 1.0, 1.0), (2.0, 2.0, 0.0))
    assert found.seconds == pytest.approx(6.0)
    assert (found.forward, found.backward) == pytest.approx((1 / 3, 2 / 3))
    assert halves_of((), (), ()) == Halves()
