"""Two passes of a device group beside each other: one computes while links carry for the other.

A rank computes one operator at a time, and a link serves one collective at a time. Each pass runs
its tasks in program order, and waits for its collectives; whichever can begin its next task
first does, and where both can, the one that has more left: so both progress to the same end. The
host launches the tasks of both in that order.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from shardwright.cost_model.pipelines.segments import TimedSegment
from shardwright.cost_model.streams import COMPUTE, Task


class Turn(NamedTuple):
    """What a task takes when it is its turn in a pass.

    Parameters
    ----------
    needs : tuple of str
        What serves one task at a time: links, and the device where the task computes.
    seconds : float
        Its duration.
    waited : float
        Seconds of it for which its pass waits.
    host : float
        Seconds in which the host launches it.
    """

    needs: tuple[str, ...]
    seconds: float
    waited: float
    host: float


Lane = tuple[Turn, ...]
"""The tasks of a pass, in order."""


def lane_of(tasks: Iterable[Task]) -> Lane:
    """Return the lane of some tasks."""
    return tuple(Turn(_needs(t), t.seconds, t.seconds * t.exposed, t.host) for t in tasks)


def seconds_beside(one: Lane, other: Lane) -> float:
    """Return the seconds after which two passes that begin together have ended."""
    lanes = one, other
    return max(map(_end, _starts(lanes), lanes))


def beside(one: TimedSegment, *others: TimedSegment) -> tuple[TimedSegment, ...]:
    """Return segments with the times at which their tasks run beside those of the other pass.

    That is of one segment, or of several that follow each other. Both begin when both have received
    what they need. Where that takes no less than one after the other, the second begins behind the
    first.
    """
    segments = one, *others
    lanes = lane_of(one.tasks), lane_of(task for other in others for task in other.tasks)
    first, second = _starts(lanes)
    ends = [*map(_end, (first, second), lanes)]
    own, rest = [first], iter(second)
    own += [[*islice(rest, len(other.tasks))] for other in others]
    alone = [segment.seconds - segment.received for segment in segments]
    if max(ends) >= sum(alone):
        begins = [*accumulate(alone[:-1], initial=0.0)]
        own = [
            [begin + start - segment.received for start in segment.starts]
            for begin, segment in zip(begins, segments, strict=True)
        ]
    received = sum(segment.received for segment in segments)
    return tuple(_from(*pair, received) for pair in zip(segments, own, strict=True))


def _from(segment: TimedSegment, starts: Sequence[float], received: float) -> TimedSegment:
    later = tuple(received + start for start in starts)
    return TimedSegment(segment.runs, segment.tasks, later, received)


def _end(starts: Sequence[float], lane: Lane) -> float:
    return max(
        (start + turn.seconds for start, turn in zip(starts, lane, strict=True)), default=0.0
    )


def _starts(lanes: Sequence[Lane]) -> list[list[float]]:
    """Return when each task of some lanes starts; a lane runs its tasks in order."""
    starts: list[list[float]] = [[] for _ in lanes]
    rest = [sum(turn.waited for turn in lane) for lane in lanes]
    ready, launched = [0.0] * len(lanes), 0.0
    free: dict[str, float] = {}
    while left := [i for i, lane in enumerate(lanes) if len(starts[i]) < len(lane)]:
        nexts = [(i, lanes[i][len(starts[i])]) for i in left]
        begins = [max(ready[i], *(free.get(r, 0.0) for r in turn.needs)) for i, turn in nexts]
        begin, (i, turn) = min(
            zip(begins, nexts, strict=True), key=lambda x: (x[0], -rest[x[1][0]])
        )
        launched += turn.host
        if turn.host:
            begin = max(begin, launched)
        starts[i].append(begin)
        free.update(dict.fromkeys(turn.needs, begin + turn.seconds))
        ready[i] = begin + turn.waited
        rest[i] -= turn.waited
    return starts


def _needs(task: Task) -> tuple[str, ...]:
    """Return what serves one task at a time: links, and the device where a task computes."""
    links = task.placement.levels
    return (*links, COMPUTE) if task.computing or not links else links
