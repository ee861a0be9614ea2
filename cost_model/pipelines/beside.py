"""Two passes of a device group beside each other: one computes while links carry for the other.

A rank computes one operator at a time, and a link serves one collective at a time. Each pass runs
its tasks in program order, and waits for its collectives; whichever can begin its next task
first does, and where both can, the one that has more left: so both progress to the same end. The
host launches the tasks of both in that order.
"""

from collections.abc import Sequence
from itertools import accumulate, islice

from shardwright.cost_model.pipelines.segments import TimedSegment
from shardwright.cost_model.streams import COMPUTE, Task


def beside(one: TimedSegment, *others: TimedSegment) -> tuple[TimedSegment, ...]:
    """Return segments with the times at which their tasks run beside those of the other pass.

    That is of one segment, or of several that follow each other. Both begin when both have received
    what they need. Where that takes no less than one after the other, the second begins behind the
    first.
    """
    segments = one, *others
    first, second = _starts((one.tasks, [task for other in others for task in other.tasks]))
    own, rest = [first], iter(second)
    own += [[*islice(rest, len(other.tasks))] for other in others]
    ends = [_end(starts, segment.tasks) for starts, segment in zip(own, segments, strict=True)]
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


def _end(starts: Sequence[float], tasks: Sequence[Task]) -> float:
    pairs = zip(starts, tasks, strict=True)
    return max((start + task.seconds for start, task in pairs), default=0.0)


def _starts(lanes: Sequence[Sequence[Task]]) -> list[list[float]]:
    """Return when each task of some lanes starts; a lane runs its tasks in order."""
    starts: list[list[float]] = [[] for _ in lanes]
    rest = [sum(task.seconds * task.exposed for task in lane) for lane in lanes]
    ready, launched = [0.0] * len(lanes), 0.0
    free: dict[str, float] = {}
    while left := [i for i, lane in enumerate(lanes) if len(starts[i]) < len(lane)]:
        nexts = [(i, lanes[i][len(starts[i])]) for i in left]
        begins = [max(ready[i], *(free.get(r, 0.0) for r in _needs(task))) for i, task in nexts]
        begin, (i, task) = min(
            zip(begins, nexts, strict=True), key=lambda x: (x[0], -rest[x[1][0]])
        )
        launched += task.host
        if task.host:
            begin = max(begin, launched)
        starts[i].append(begin)
        free.update(dict.fromkeys(_needs(task), begin + task.seconds))
        ready[i] = begin + task.seconds * task.exposed
        rest[i] -= task.seconds * task.exposed
    return starts


def _needs(task: Task) -> tuple[str, ...]:
    """Return what serves one task at a time: links, and the device where a task computes."""
    links = task.placement.levels
    return (*links, COMPUTE) if task.computing or not links else links
