"""Bounds of the step of a schedule, beside simulated ones."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedule_paths import pairs_of, simulate_schedule
from shardwright.dataflow.schedules import BACKWARD, make_schedule
from shardwright.planner.bounds.schedule_bounds import bounding_paths, least_seconds, shortened
from tests.drawn_schedules import REPEATING, chunks_of, drawn, schedules
from tests.extent import long_after


def longest(schedule, durations):
    return max(path.seconds(durations) for path in bounding_paths(schedule))


@settings(deadline=None, max_examples=50)
@given(schedules(), st.integers())
def test_no_bounding_path_is_longer_than_the_step(schedule, seed):
    durations, delays = drawn(schedule, seed)
    step = simulate_schedule(schedule, durations, delays).step_seconds
    assert longest(schedule, durations) <= step * (1 + 1e-12)


def test_the_bounding_paths_are_close_to_the_step():
    worst, generator = 0.0, random.Random(0)
    for groups, passes in [(2, 4), (4, 4), (4, 8), (8, 16), (8, 8)]:
        schedule = make_schedule("1f1b", groups, 1, passes)
        for _ in range(20):
            durations = {s: generator.uniform(1, 1.3) for s in schedule.segments}
            step = simulate_schedule(schedule, durations).step_seconds
            bound = longest(schedule, durations)
            assert bound <= step * (1 + 1e-12)
            worst = max(worst, 1 - bound / step)
    assert worst < 0.03


@pytest.mark.parametrize("slow", range(4))
def test_a_stage_and_those_before_it_bound_1f1b(slow):
    """The step is at least ``sum_{<s} t + M t_s``, and less than ``sum t + (M - 1) max t``."""
    schedule = make_schedule("1f1b", 4, 1, 8)
    seconds = [1.2 if stage == slow else 1.0 for stage in range(4)]
    durations = {(s, part): seconds[s] / 2 for s, part in schedule.segments}
    step = simulate_schedule(schedule, durations).step_seconds
    bound = sum(seconds[:slow]) + 8 * seconds[slow]
    formula = sum(seconds) + 7 * seconds[slow]
    found = longest(schedule, durations)
    assert bound <= found * (1 + 1e-12) <= step * (1 + 2e-12)
    assert found == pytest.approx(step)
    assert step == pytest.approx(formula) if slow == 3 else step < formula


@pytest.mark.parametrize(("name", "seed"), long_after(8, product(REPEATING, range(12))))
def test_a_schedule_without_most_rounds_takes_no_longer(name, seed):
    generator = random.Random(seed)
    groups = generator.choice((1, 2, 3, 5))
    chunks = generator.choice(chunks_of(SCHEDULES[name]))
    count = groups * generator.randint(4, 16)
    count += 0 if SCHEDULES[name].in_rounds else generator.randint(0, groups - 1)
    whole, few = (make(name, groups, chunks, count) for make in (make_schedule, shortened))
    assert few.micro_batches <= count
    durations, _ = drawn(whole, seed)
    begin, after = ([generator.random() for _ in range(groups)] for _ in range(2))
    both = {
        pair: max(durations[segment] for segment in pair) * generator.uniform(1, 2)
        for pair in pairs_of(whole)
    }
    for beside in (None, both or None):
        found = simulate_schedule(whole, durations, None, begin, beside)
        ends = (
            end + after[whole.group_of(action.stage)]
            for action, end in zip(found.order, found.ends, strict=True)
        )
        step, least = max(ends), least_seconds(few, count, durations, begin, after, beside)
        assert 0.95 * step <= least <= step * (1 + 1e-9)


@pytest.mark.parametrize("name", REPEATING)
def test_a_schedule_of_equal_stages_takes_as_long_without_most_rounds(name):
    chunks = 2 if SCHEDULES[name].has_chunks else 1
    whole, few = (make(name, 4, chunks, 64) for make in (make_schedule, shortened))
    assert few.micro_batches < 64
    durations = {segment: 2.0 if segment[1] == BACKWARD else 1.0 for segment in whole.segments}
    least = least_seconds(few, 64, durations, [0.0] * 4, [0.0] * 4)
    assert least == simulate_schedule(whole, durations).step_seconds
