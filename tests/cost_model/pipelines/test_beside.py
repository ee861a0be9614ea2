"""Segments beside each other: in order, one task at a time on each resource, and no longer."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_model.pipelines.beside import beside
from shardwright.cost_model.pipelines.segments import TimedSegment
from shardwright.cost_model.schedule import schedule
from shardwright.cost_model.streams import Placement, Task

LEVELS = ("node", "network")


def computes(seconds, host=0.0):
    return Task(Placement("compute"), seconds, (), computing=seconds, host=host)


def moves(seconds, level="network", exposed=1.0):
    return Task(Placement("blocking", (level,)), seconds, (), exposed=exposed)


def segment(*tasks, received=0.0):
    starts = tuple(received + start for start in schedule(tasks, 0.0))
    return TimedSegment((), tasks, starts, received)


def test_one_computes_while_links_carry_for_the_other():
    forward = segment(computes(1), moves(2), computes(1))
    backward = segment(computes(2), moves(2), computes(2))
    one, other = beside(forward, backward)
    assert one.starts == (2, 4, 6)
    assert other.starts == (0, 2, 4)
    assert (forward.seconds, backward.seconds) == (4, 6)
    assert max(one.seconds, other.seconds) == 7


def test_both_wait_for_what_both_receive_and_for_the_host():
    forward = segment(computes(1, host=2), received=0.5)
    backward = segment(computes(1, host=2), received=0.25)
    one, other = beside(forward, backward)
    assert (one.starts, other.starts) == ((2.75,), (4.75,))


TASKS = st.lists(
    st.one_of(
        st.builds(computes, st.floats(0.1, 3)),
        st.builds(moves, st.floats(0.1, 3), st.sampled_from(LEVELS)),
    ),
    max_size=6,
)


@given(TASKS, TASKS)
def test_each_resource_serves_one_task_at_a_time_and_each_segment_is_in_order(first, second):
    pair = segment(*first), segment(*second)
    found = beside(*pair)
    step = max(one.seconds for one in found)
    alone = [one.seconds for one in pair]
    assert max(alone) - 1e-9 <= step <= sum(alone) + 1e-9
    runs = []
    for one in found:
        own = [(s, s + t.seconds, t) for s, t in zip(one.starts, one.tasks, strict=True)]
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(own))
        runs += own
    for (start, end, task), (begin, stop, other) in combinations(runs, 2):
        if task.placement.levels == other.placement.levels:
            assert end <= begin + 1e-9 or stop <= start + 1e-9


@pytest.mark.parametrize("level", LEVELS)
def test_two_exchanges_over_one_link_follow_each_other(level):
    found = beside(segment(moves(1, level)), segment(moves(1, level)))
    assert sorted(one.starts for one in found) == [(0,), (1,)]


@given(TASKS, TASKS, TASKS)
def test_a_pass_in_two_segments_runs_as_one(first, second, third):
    """Also beside another: the later segment waits for the earlier one, and for nothing more."""
    one, other, late = beside(segment(*first), segment(*second), segment(*third))
    whole = beside(segment(*first), segment(*second, *third))
    assert one.starts == pytest.approx(whole[0].starts)
    assert (*other.starts, *late.starts) == pytest.approx(whole[1].starts)
