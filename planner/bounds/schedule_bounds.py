"""Lower bounds of the step of a schedule: by few of its rounds, and for all durations.

The step is the longest path of a graph that depends on the schedule alone, so the counts of any
path, such as the critical path of one plan, bound the step of every plan of the schedule: each
count times the seconds of the segment, added up.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedule_paths import Pair, Path, simulate_schedule
from shardwright.dataflow.schedules import Schedule, Segment, make_schedule

ROUNDS = 4
"""Rounds of a schedule that repeats, of S micro-batches each, by which one of more is bounded.

Its warm-up ends in three, and one more is whole: bounds are those of all rounds, to five digits. Of
half as many none is whole; twice as many take twice as long."""
_SLIGHT = 1e-3  # duration of segments off the path, over that of the slow group's
_LATER = 0.75  # the same of later groups, followed only while a pipeline fills and drains


def least_seconds(
    schedule: Schedule,
    micro_batches: int,
    durations: Mapping[Segment, float],
    begin: Sequence[float],
    after: Sequence[float],
    beside: Mapping[Pair, float] | None = None,
) -> float:
    """Return a lower bound of the step of a schedule of many micro-batches, by one of few.

    The longest path of few micro-batches is one of more: whichever of its actions are a round
    later, as the rest of it then is, `Order.repeats` says that they are in the same order. Where
    the path comes to a segment again a round later, all rounds that are missing may follow it.

    Parameters
    ----------
    schedule : Schedule
        The schedule of few micro-batches (`shortened`), of a chain of stages.
    micro_batches : int
        How many there are.
    durations : mapping of (int, str) to float
        Seconds of each segment.
    begin, after : sequence of float
        When each device group begins, and what follows its last action.
    beside : mapping of (tuple of segment) to float, optional
        Seconds of the pairs, as for `simulate_schedule`.
    """
    found = simulate_schedule(schedule, durations, None, begin, beside)
    last = {schedule.group_of(action.stage): i for i, action in enumerate(found.order)}
    seconds, end = max((found.ends[n] + after[group], n) for group, n in last.items())
    left_out, longest = (micro_batches - schedule.micro_batches) // schedule.groups, 0.0
    later: dict[Segment, list[int]] = {}  # of segments, their actions on the path behind
    for number in found.path_to(end):
        action = found.order[number]
        for other in later.get(action.segment, ()):
            distance = found.order[other].micro_batch - action.micro_batch
            rounds, rest = divmod(distance, schedule.groups)
            if rounds and not rest:
                each = found.starts[other] - found.starts[number]
                longest = max(longest, left_out // rounds * each)
        later.setdefault(action.segment, []).append(number)
    return seconds + longest


def shortened(name: str, groups: int, chunks: int, micro_batches: int) -> Schedule:
    """Return a schedule, with few of its rounds of S micro-batches if all are alike.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`.
    groups, chunks, micro_batches : int
        Device groups S, chunks V of each, and micro-batches M.
    """
    left_out = max(micro_batches // groups - ROUNDS, 0) if SCHEDULES[name].repeats else 0
    return make_schedule(name, groups, chunks, micro_batches - left_out * groups)


@lru_cache(maxsize=64)
def bounding_paths(schedule: Schedule) -> tuple[Path, ...]:
    """Return paths of a chain of stages whose greatest length is close to the step.

    For each device group one that follows it alone, and one that follows the later groups while the
    pipeline fills and drains; and that of equal stages. Without duplicates.
    """
    found: dict[object, Path] = {}
    for durations in _profiles(schedule):
        path = simulate_schedule(schedule, durations).path
        found[frozenset(path.segments.items())] = path
    return tuple(found.values())


def _profiles(schedule: Schedule) -> Iterator[dict[Segment, float]]:
    """Yield durations whose critical paths differ."""
    groups = range(schedule.groups)
    yield dict.fromkeys(schedule.segments, 1.0)
    for slow in groups:
        yield _durations(schedule, [1.0 if g == slow else _SLIGHT for g in groups])
        if slow < schedule.groups - 1:
            later = [_SLIGHT if g < slow else 1.0 if g == slow else _LATER for g in groups]
            yield _durations(schedule, later)


def _durations(schedule: Schedule, seconds: Sequence[float]) -> dict[Segment, float]:
    return {(s, part): seconds[schedule.group_of(s)] for s, part in schedule.segments}
