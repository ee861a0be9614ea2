"""Exposed communication of a step, by what is sent.

Communication is exposed while the rank does not compute. An instant at which several kinds are
sent counts for activations, for which computation waits; without these, for each in equal parts.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_model.cluster import HOST_LINKS
from shardwright.cost_model.events import Event, SegmentEvent, Timeline

ACTIVATIONS, PARAMETERS, GRADIENTS, HOST = "activations", "parameters", "gradients", "host memory"
SENT = (ACTIVATIONS, PARAMETERS, GRADIENTS, HOST)
"""What is sent: activations with their gradients, parameters, their gradients, tensors to and from
host memory."""
_OF_QUEUE = {"blocking": ACTIVATIONS, "gathers": PARAMETERS, "reductions": GRADIENTS}


@dataclass(frozen=True)
class Exposed:
    """The seconds of a step in which a rank does not compute, but for a pipeline's bubble.

    Parameters
    ----------
    by_kind : mapping of str to float
        Exposed communication, by what is sent; of a pipeline a mean over its device groups.
    waiting : float
        Seconds in which nothing is sent either: as a software runs a step, its host is waited for,
        and transfers between stages.
    """

    by_kind: Mapping[str, float]
    waiting: float


def exposed(timeline: Timeline) -> Exposed:
    """Return the exposed communication of a timeline, by what is sent."""
    record = timeline.record
    if record.segments:
        total, groups = _of_pipeline(record.segments, record.events)
        step = timeline.step_seconds - timeline.bubble_seconds
    else:
        total, groups, step = _of_rank(timeline), 1, timeline.step_seconds
    by_kind = {kind: total[kind] / groups for kind in SENT if total[kind] > 0}
    waiting = step - timeline.compute_seconds - sum(by_kind.values())
    return Exposed(by_kind, waiting if waiting > 1e-9 * step else 0.0)


def parts_of_step(timeline: Timeline, found: Exposed) -> dict[str, float]:
    """Return the seconds of which a step consists: all parts together are the step.

    Computing, what is sent while nothing is computed, other waiting, and the bubble of a pipeline.

    Parameters
    ----------
    timeline : Timeline
        The step.
    found : Exposed
        Its exposed communication.
    """
    sent = {f"sending {kind}, exposed": seconds for kind, seconds in found.by_kind.items()}
    others = {"waiting": found.waiting, "bubble of the pipeline": timeline.bubble_seconds}
    parts = {"computing": timeline.compute_seconds, **sent, **others}
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _of_rank(timeline: Timeline) -> dict[str, float]:
    """Return the exposed seconds of a program of one stage."""
    record = timeline.record
    found = _sent_alone(record.simulated or record.events)
    if record.simulated:  # further passes repeat the one before them
        pairs = zip(record.simulated, record.events, strict=True)
        later = [(one.start, moved.start - one.start) for one, moved in pairs]
        skipped = max(shift for _, shift in later)
        end = min(start for start, shift in later if shift > skipped / 2)
        passes = max(e.micro_batch for e in record.events) - max(
            e.micro_batch for e in record.simulated
        )
        repeated = _sent_alone(record.simulated, end - skipped / passes, end)
        for kind, seconds in repeated.items():
            found[kind] += passes * seconds
    return found


def _of_pipeline(
    segments: Sequence[SegmentEvent], events: Sequence[Event]
) -> tuple[dict[str, float], int]:
    """Return the exposed seconds of all device groups, and their number.

    Segments of other micro-batches are those of the first.
    """
    own: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda one: one.start):
        if event.micro_batch == 0:
            own.setdefault(event.group, []).append(event)
    starts = {group: [event.start for event in found] for group, found in own.items()}
    times = Counter((one.group, one.stage, one.part) for one in segments if one.stage is not None)
    total = dict.fromkeys(SENT, 0.0)
    for one in segments:
        if one.micro_batch or one.group not in own:
            continue
        end = one.start + one.seconds
        first, last = (bisect_left(starts[one.group], at) for at in (one.start, end))
        count = 1 if one.stage is None else times[one.group, one.stage, one.part]
        for kind, seconds in _sent_alone(own[one.group][first:last], one.start, end).items():
            total[kind] += count * seconds
    return total, 1 + max(one.group for one in segments)


def _sent_alone(
    events: Iterable[Event], begin: float = 0.0, end: float = float("inf")
) -> dict[str, float]:
    """Return the seconds between two moments in which something is sent and nothing computed."""
    changes: list[tuple[float, int, str]] = []
    for event in events:
        sends_from = event.start + event.computing
        for kind, start, stop in (
            ("", event.start, sends_from),
            (_kind(event), sends_from, event.end),
        ):
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                changes += [(start, 1, kind), (stop, -1, kind)]
    found, running = dict.fromkeys(SENT, 0.0), Counter[str]()
    before = begin
    for moment, change, kind in sorted(changes):
        if moment > before and not running[""]:
            sent = [ACTIVATIONS] if running[ACTIVATIONS] else [k for k in SENT if running[k]]
            for one in sent:
                found[one] += (moment - before) / len(sent)
        before = moment
        running[kind] += change
    return found


def _kind(event: Event) -> str:
    where = event.placement
    if not where.levels:
        return ""
    return HOST if where.levels[0] in HOST_LINKS else _OF_QUEUE[where.queue]
