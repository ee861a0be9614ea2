"""Pairs of passes, in the order of PyTorch where it has one, and what is no pair."""

from dataclasses import replace
from itertools import chain

import pytest

from shardwright.dataflow.schedule_paths import pairs_of, simulate_schedule
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Action,
    check_schedule,
    make_schedule,
)
from shardwright.ir.errors import ExecutionError

PARTS = {
    "FORWARD": (FORWARD,),
    "BACKWARD_INPUT": (BACKWARD,),
    "BACKWARD_WEIGHT": (WEIGHTS,),
    "FULL_BACKWARD": (BACKWARD, WEIGHTS),
}
NUMBERS = [(s, m) for s in (1, 2, 3, 4, 7, 8) for m in (2 * s, 2 * s + 1, 2 * s + 3, 4 * s, 30)]


def steps_of_torch(name, groups, group, micro_batches):
    """Return what a rank of a schedule of PyTorch runs at a time, in our words."""
    schedules = pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="needs PyTorch, whose orders are compared"
    )
    made = object.__new__(getattr(schedules, name))
    made.pp_group_size, made._n_microbatches = groups, micro_batches
    for action in made._calculate_single_rank_operations(group):
        yield tuple(
            Action(one.stage_index, part, one.microbatch_index)
            for one in getattr(action, "sub_actions", None) or (action,)
            for part in PARTS[one.computation_type.name]
        )


@pytest.mark.parametrize(("groups", "micro_batches"), NUMBERS)
def test_dualpipe_v_has_the_order_and_the_pairs_of_torch(groups, micro_batches):
    made = make_schedule("dualpipe_v", groups, 2, micro_batches)
    for group, order in enumerate(made.actions):
        theirs = [*steps_of_torch("ScheduleDualPipeV", groups, group, micro_batches)]
        assert list(order) == [*chain.from_iterable(theirs)]
        pairs = [step for step in theirs if step[0].part == FORWARD and len(step) > 1]
        assert pairs == [(one, *made.pairs[one]) for one in order if one in made.pairs]


@pytest.mark.parametrize("groups", [2, 4, 8, 16])
def test_of_dualpipe_v_all_but_the_ends_are_pairs_of_two_micro_batches(groups):
    schedule = make_schedule("dualpipe_v", groups, 2, 3 * groups)
    for group, order in enumerate(schedule.actions):
        own = [(one, schedule.pairs[one]) for one in order if one in schedule.pairs]
        alone = groups - group - 1  # of the pairs that come up, these have none down beside them
        assert len(own) == 2 * (groups + group + 1) + alone - (group == groups - 1)
        for one, (other, late) in own:
            assert one.micro_batch != other.micro_batch
            assert schedule.group_of(one.stage) == schedule.group_of(other.stage) == group
            assert one.stage != other.stage
            assert late == other._replace(part=WEIGHTS)
        put_off = sum(one.part == WEIGHTS for one in order[-group - 1 :])
        assert put_off == group + 1


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_the_bubble_of_pairs_that_hide_nothing_is_the_published_one(groups):
    """It is (S - 1) (F&B + B - 3 W) of half stages (DeepSeek-AI, the table of DualPipe's page)."""
    schedule = make_schedule("dualpipe_v", groups, 2, 4 * groups)
    durations = dict.fromkeys(schedule.segments, 1.0)
    beside = dict.fromkeys(pairs_of(schedule), 3.0)
    step = simulate_schedule(schedule, durations, beside=beside).step_seconds
    assert step == pytest.approx(2 * 3 * schedule.micro_batches + (groups - 1) * (3 + 2 - 3))


def test_what_a_pair_hides_is_off_the_step():
    """A pair of 3 parts takes 2 where all but the forward pass of one is hidden."""
    schedule = make_schedule("dualpipe_v", 4, 2, 64)
    durations = dict.fromkeys(schedule.segments, 1.0)
    pairs = pairs_of(schedule)
    assert {len(pair) for pair in pairs} == {3}
    found = [
        simulate_schedule(schedule, durations, beside=dict.fromkeys(pairs, one)) for one in (3, 2)
    ]
    assert found[0].step_seconds - found[1].step_seconds == pytest.approx(128, rel=0.05)
    ends = dict(zip(found[1].order, zip(found[1].starts, found[1].ends, strict=True), strict=True))
    assert all(ends[one] == ends[other] for one, own in schedule.pairs.items() for other in own)


def test_both_of_a_pair_wait_for_what_either_needs():
    schedule = make_schedule("dualpipe_v", 3, 2, 6)
    place = {action: i for i, action in enumerate(schedule.order)}
    for one, others in schedule.pairs.items():
        assert [place[other] - place[one] for other in others] == [1, 2]
        before = Action(others[0].stage + 1, BACKWARD, others[0].micro_batch)
        assert before.stage == schedule.stages or place[before] < place[one]


@pytest.mark.parametrize(
    ("other", "late"), [((0, FORWARD, 2), None), ((0, BACKWARD, 0), (1, WEIGHTS, 0))]
)
def test_what_is_no_pair_is_refused(other, late):
    schedule = make_schedule("dualpipe_v", 1, 2, 4)
    one = next(iter(schedule.pairs))
    others = tuple(Action(*action) for action in (other, late) if action)
    with pytest.raises(ExecutionError, match="a pair is a forward and a backward pass, not the fo"):
        check_schedule(replace(schedule, pairs={**schedule.pairs, one: others}))


def test_a_pair_that_waits_for_itself_is_named():
    schedule = make_schedule("1f1b", 1, 1, 2)
    first, second = (Action(0, FORWARD, i) for i in range(2))
    own = Action(0, BACKWARD, 1)
    actions = ((first, second, own, Action(0, BACKWARD, 0)),)
    kept = replace(schedule, actions=actions, pairs={second: (own,)})
    with pytest.raises(ExecutionError, match="follows the backward pass of stage 0"):
        check_schedule(kept)
    actions = ((first, Action(0, BACKWARD, 0), second, own),)
    with pytest.raises(ExecutionError, match="1 waits for the forward pass of stage 0 for micro"):
        check_schedule(replace(kept, actions=actions))
