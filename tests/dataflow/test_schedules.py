"""Schedules of pipelines: their orders, deadlocks, steps and bounds."""

from dataclasses import replace
from itertools import chain, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedule_paths import (
    pairs_of,
    segment_seconds,
    simulate_in_step,
    simulate_schedule,
)
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    check_schedule,
    forward_only,
    in_flight,
    make_schedule,
    needed_by,
)
from shardwright.ir.errors import ExecutionError, OptionError
from tests.drawn_schedules import REPEATING, chunks_of, drawn, schedules


def group_of(schedule, stage):
    """Return the group of a stage, by the order of groups in two rounds or in a V."""
    rounds = [*range(schedule.groups)]
    both = [*rounds, *(reversed(rounds) if SCHEDULES[schedule.name].in_v else rounds)]
    return both[stage % len(both)]


def relaxed_step(schedule, durations, delays):
    """Return the step by relaxation of all starts, in no particular order."""
    ends = dict.fromkeys(chain.from_iterable(schedule.actions), 0.0)
    links = {}  # the sends of each link, in the order of the sender
    for order in schedule.actions:
        for action in order:
            for source, target in delays:
                if source == action.segment:
                    groups = (group_of(schedule, source[0]), group_of(schedule, target[0]))
                    links.setdefault(groups, []).append((action, target))
    arrivals, changed = {}, True
    while changed:
        changed = False
        for groups, sends in links.items():
            free = 0.0
            for action, target in sends:
                seconds = delays[action.segment, target] if groups[0] != groups[1] else 0.0
                arrival = (max(free, ends[action]) if seconds else ends[action]) + seconds
                free = arrival if seconds else free
                reader = Action(*target, action.micro_batch)
                arrivals[action, reader] = arrival
        for order in schedule.actions:
            now = 0.0
            for action in order:
                ready = [t for (_, reader), t in arrivals.items() if reader == action]
                now = max([now, *ready]) + durations[action.segment]
                changed |= now != ends[action]
                ends[action] = now
    return max(ends.values())


@pytest.mark.parametrize("name", REPEATING)
def test_a_round_more_keeps_what_is_before_what(name):
    """Of the same micro-batches, and of those one or two rounds later."""
    order = SCHEDULES[name]
    for groups, chunks in product((1, 2, 3), chunks_of(order)):
        few, *more = (make_schedule(name, groups, chunks, n * groups) for n in (4, 5, 6))
        for number, whole in enumerate(more, 1):
            for own, actions in zip(few.actions, whole.actions, strict=True):
                place = {action: i for i, action in enumerate(actions)}
                for later in range(0, number * groups + 1, groups):
                    places = [place[a._replace(micro_batch=a.micro_batch + later)] for a in own]
                    assert places == sorted(places)


def test_other_actions_may_not_repeat():
    class Other(SCHEDULES["1f1b"]):
        @staticmethod
        def actions(group, groups, chunks, micro_batches):
            return SCHEDULES["gpipe"].actions(group, groups, chunks, micro_batches)

    assert not Other.repeats
    assert SCHEDULES["1f1b"].repeats


@pytest.mark.long
@settings(deadline=None, max_examples=100)
@given(schedules())
def test_every_segment_runs_once_and_after_what_it_waits_for(schedule):
    order = schedule.order
    parts = 3 if schedule.name.startswith(("zero_bubble", "dualpipe")) else 2
    assert len(order) == len(set(order)) == schedule.stages * schedule.micro_batches * parts
    place = {action: i for i, action in enumerate(order)}
    for action in order:
        for segment in needed_by(action.segment, schedule.stages):
            assert place[Action(*segment, action.micro_batch)] < place[action]
    for group, actions in enumerate(schedule.actions):
        assert [a for a in order if group_of(schedule, a.stage) == group] == list(actions)


@settings(deadline=None, max_examples=40)
@given(schedules(4), st.integers())
def test_the_simulated_step_is_that_of_relaxation(schedule, seed):
    durations, delays = drawn(schedule, seed)
    found = simulate_schedule(schedule, durations, delays)
    assert found.step_seconds == pytest.approx(relaxed_step(schedule, durations, delays))
    assert found.path.seconds(durations, delays) == pytest.approx(found.step_seconds)


@settings(deadline=None, max_examples=150)
@given(schedules(), st.integers(), st.integers())
def test_no_path_is_longer_than_the_step(schedule, seed, other):
    durations, delays = drawn(schedule, seed)
    step = simulate_schedule(schedule, durations, delays).step_seconds
    elsewhere = simulate_schedule(schedule, *drawn(schedule, other)).path
    assert elsewhere.seconds(durations, delays) <= step * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "chunks", "expected"),
    [("gpipe", 1, 33), ("1f1b", 1, 33), ("zero_bubble", 1, 27), ("interleaved", 2, 57)],
)
def test_the_steps_of_equal_stages(name, chunks, expected):
    """Bubble of S - 1 forward and backward passes, of one stage; ZB-H1's is a third of it."""
    schedule = make_schedule(name, 4, chunks, 8)
    backward = 1 if name == "zero_bubble" else 2
    durations = {(s, p): backward if p == "backward" else 1 for s, p in schedule.segments}
    assert simulate_schedule(schedule, durations).step_seconds == expected


def most_in_flight(schedule, group):
    return max(sum(chain(*counts)) for counts in in_flight(schedule)[group])


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        *[("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)],
        *[("zero_bubble_v", 2), ("dualpipe_v", 2)],
    ],
)
def test_the_bubble_of_equal_stages_is_its_share_of_passes(name, chunks):
    schedule = make_schedule(name, 4, chunks, 16)
    seconds = segment_seconds(schedule, [1.0 / chunks] * schedule.stages)  # a pass takes a second
    step = simulate_schedule(schedule, seconds).step_seconds
    assert step == pytest.approx(16 + 3 * SCHEDULES[name].bubble(chunks))


def test_micro_batches_in_flight():
    groups = range(4)
    assert [most_in_flight(make_schedule("gpipe", 4, 1, 8), g) for g in groups] == [8] * 4
    assert [most_in_flight(make_schedule("1f1b", 4, 1, 8), g) for g in groups] == [4, 3, 2, 1]
    assert [most_in_flight(make_schedule("1f1b", 4, 1, 2), g) for g in groups] == [2, 2, 2, 1]
    assert [most_in_flight(make_schedule("zero_bubble", 4, 1, 8), g) for g in groups] == [4] * 4
    in_a_v = make_schedule("zero_bubble_v", 4, 2, 8)  # in halves of the stages of 1f1b
    assert [most_in_flight(in_a_v, g) for g in groups] == [8] * 4
    in_pairs = make_schedule("dualpipe_v", 4, 2, 8)
    assert [most_in_flight(in_pairs, g) for g in groups] == [9] * 4
    interleaved = make_schedule("interleaved", 4, 3, 8)
    assert [most_in_flight(interleaved, g) for g in groups] == [2 * (3 - g) + 9 for g in groups]
    assert in_flight(make_schedule("interleaved", 2, 2, 2))[0][0].passes == (2, 2)
    assert in_flight(forward_only(make_schedule("1f1b", 2, 1, 2)))[0][0].passes == (1,)


@pytest.mark.parametrize(("groups", "chunks"), [(1, 2), (2, 2), (4, 3), (8, 2), (1, 1), (5, 1)])
def test_after_the_warm_up_every_forward_pass_has_a_backward_pass_beside_it(groups, chunks):
    name = "interleaved_pairs" if chunks > 1 else "1f1b_pairs"
    schedule = make_schedule(name, groups, chunks, 4 * groups)
    for group, order in enumerate(schedule.actions):
        warm_up = 2 * (groups - 1 - group) + (chunks - 1) * groups + 1
        own = [pair for pair in schedule.pairs.items() if pair[0] in order]
        assert len(own) == 4 * groups * chunks - warm_up
        assert all(one.micro_batch != other.micro_batch for one, (other,) in own)
        assert most_in_flight(schedule, group) == warm_up + 1
    assert not make_schedule("interleaved", 2, 2, 4).pairs


def test_pairs_that_take_as_long_as_both_hide_nothing_and_shorter_ones_the_difference():
    schedule = make_schedule("interleaved_pairs", 4, 2, 32)
    durations = {(s, part): 1.0 if part == "forward" else 2.0 for s, part in schedule.segments}
    pairs = pairs_of(schedule)
    apart = simulate_schedule(schedule, durations).step_seconds
    of_sums = simulate_schedule(schedule, durations, beside=dict.fromkeys(pairs, 3.0))
    hidden = simulate_schedule(schedule, durations, beside=dict.fromkeys(pairs, 2.0))
    assert apart <= of_sums.step_seconds <= 1.05 * apart
    warm_up = 5  # of the last group, which waits for nothing but the ends of the pipeline
    assert of_sums.step_seconds - hidden.step_seconds == pytest.approx(64 - warm_up, rel=0.02)
    ends = dict(zip(hidden.order, zip(hidden.starts, hidden.ends, strict=True), strict=True))
    assert all(ends[one] == ends[other] for one, (other,) in schedule.pairs.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("dualpipe", 2, 1, 4),
            "unknown schedule `dualpipe`: expected gpipe, 1f1b, interleaved, zero_bubble, "
            "zero_bubble_v, 1f1b_pairs, interleaved_pairs, dualpipe_v",
        ),
        (("1f1b", 0, 1, 4), "a pipeline has 0 device groups, expected at least 1"),
        (("1f1b", 2, 1, 0), "a pipeline has 0 micro-batches, expected at least 1"),
        (
            ("zero_bubble", 2, 3, 4),
            "the schedule `zero_bubble` has one chunk for each device group, not 3; use the "
            "schedule `interleaved`",
        ),
        (
            ("interleaved", 2, 1, 4),
            "the schedule `interleaved` needs at least 2 chunks for each device group, not 1; use "
            "the schedule `1f1b`",
        ),
        (
            ("zero_bubble_v", 2, 3, 4),
            "the schedule `zero_bubble_v` has 2 chunks for each device group, the ends of a V, not "
            "3; use 2 chunks",
        ),
        (
            ("dualpipe_v", 4, 2, 7),
            "the schedule `dualpipe_v` needs at least 8 micro-batches, 2 for each device group, "
            "not 7; use 8 micro-batches or more",
        ),
        (
            ("interleaved", 4, 2, 6),
            "the schedule `interleaved` needs a multiple of 4 micro-batches, one for each device "
            "group, not 6; use 8 micro-batches",
        ),
    ],
)
def test_schedules_that_do_not_exist(arguments, message):
    with pytest.raises(OptionError) as error:
        make_schedule(*arguments)
    assert str(error.value) == message


def wrong(*orders):
    actions = tuple(tuple(Action(*action) for action in order) for order in orders)
    return Schedule("1f1b", 2, 1, 1, actions)


def test_a_deadlock_names_the_actions():
    first = ((0, "backward", 0), (0, "forward", 0))
    with pytest.raises(ExecutionError) as error:
        check_schedule(wrong(first, ((1, "forward", 0), (1, "backward", 0))))
    assert error.value.what == (
        "the schedule `1f1b` of 2 device groups, 1 chunks and 1 micro-batches cannot run: device "
        "groups wait for each other (device group 0: the backward pass of stage 0 for micro-batch "
        "0 waits for the forward pass of stage 0 for micro-batch 0; device group 1: the forward "
        "pass of stage 1 for micro-batch 0 waits for the forward pass of stage 0 for micro-batch 0)"
    )


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (
            [[(0, "forward", 0), (0, "forward", 0)], [(1, "forward", 0)]],
            "device group 0 runs the forward pass of stage 0 for micro-batch 0 again",
        ),
        (
            [[(1, "forward", 0)], [(0, "forward", 0)]],
            "device group 0 runs the forward pass of stage 1 for micro-batch 0, which is not among "
            "its segments",
        ),
        (
            [[(0, "forward", 0)], []],
            "no device group runs the forward pass of stage 1 for micro-batch 0",
        ),
    ],
)
def test_incomplete_schedules(orders, message):
    with pytest.raises(ExecutionError, match=message):
        check_schedule(wrong(*orders))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_a_backward_pass_before_its_forward_pass_is_refused(name):
    schedule = make_schedule(name, 3, 1, 4)
    for group, order in enumerate(schedule.actions):
        first = Action(group, "backward", 0)
        actions = list(schedule.actions)
        actions[group] = (first, *(action for action in order if action != first))
        with pytest.raises(ExecutionError, match="wait for each other"):
            check_schedule(replace(schedule, actions=tuple(actions)))


def test_micro_batches_out_of_order_are_refused():
    actions = ((Action(0, "forward", 1), Action(0, "forward", 0)),)
    with pytest.raises(ExecutionError) as error:
        check_schedule(Schedule("1f1b", 1, 1, 2, actions))
    assert error.value.what == (
        "the schedule `1f1b` of 1 device groups, 1 chunks and 2 micro-batches cannot run: the "
        "forward pass of stage 0 for micro-batch 0 follows the forward pass of stage 0 for "
        "micro-batch 1"
    )


def test_a_transfer_to_an_earlier_segment_is_refused():
    schedule = make_schedule("1f1b", 2, 1, 2)
    with pytest.raises(ExecutionError) as error:
        simulate_schedule(
            schedule,
            dict.fromkeys(schedule.segments, 1.0),
            {((1, "forward"), (0, "forward")): 1.0},
        )
    assert error.value.what == (
        "a transfer leads from the forward pass of stage 1 to the forward pass of stage 0, which "
        "is not later"
    )


def in_rounds(schedule, durations):
    """The step in rounds, by the definition: a clock for each group."""
    unit = simulate_schedule(schedule, dict.fromkeys(schedule.segments, 1.0))
    clocks, last = [0.0] * schedule.groups, schedule.stages - 1
    for moment in range(round(unit.step_seconds)):
        running = {
            group_of(schedule, action.stage): action
            for action, start in zip(unit.order, unit.starts, strict=True)
            if round(start) == moment
        }
        ends = [
            clock + (durations[running[group].segment] if group in running else 0.0)
            for group, clock in enumerate(clocks)
        ]
        clocks = list(ends)
        for group, action in running.items():
            other = action.stage + {FORWARD: 1, BACKWARD: -1}.get(action.part, last + 1)
            if 0 <= other <= last:
                there = group_of(schedule, other)
                meet = max(ends[group], ends[there])
                clocks[group] = max(clocks[group], meet)
                clocks[there] = max(clocks[there], meet)
    return max(clocks)


@settings(deadline=None, max_examples=60)
@given(schedules(), st.integers())
def test_in_step_groups_that_exchange_wait_for_each_other(schedule, seed):
    durations, _ = drawn(schedule, seed)
    found = simulate_in_step(schedule, durations)
    assert found.step_seconds == pytest.approx(in_rounds(schedule, durations))
    assert found.path.seconds(durations) == pytest.approx(found.step_seconds)
    alone = simulate_schedule(schedule, durations).step_seconds
    assert found.step_seconds >= alone * (1 - 1e-12)


def test_longer_backward_passes_hold_up_a_pipeline_in_step():
    """Backward of one group is beside forward of its neighbour: both take the longer of the two."""
    schedule = make_schedule("interleaved", 4, 8, 8)
    durations = {(s, part): 3.0 if part == BACKWARD else 1.0 for s, part in schedule.segments}
    assert simulate_schedule(schedule, durations).step_seconds == 8 * 33.5
    assert simulate_in_step(schedule, durations).step_seconds == 8 * 41.75
