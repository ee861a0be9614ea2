"""The timeline on the page: streams of a rank, segments of device groups; honestly shortened.

A row of many nodes is shortened: nodes that are shorter than a threshold are merged into a block
with the short nodes next to them. A block has its number of nodes and the seconds for which they
run, so the sums of a row stay those of the timeline. Segments of a pipeline are merged likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwright.cost_model.events import Event, SegmentEvent, Timeline
from shardwright.cost_model.streams import COMPUTE

MOST_OF_ROW = 3000
"""Entries of a row, or moments of a series: about as many as a screen has columns of points."""
MOST_DRAWN = 36_000
"""Entries or segments of all rows, or moments of all series: the size of a page grows with them."""


@dataclass
class Entry:
    """A node of a row, or several short ones.

    Parameters
    ----------
    start, end : float
        Where it begins and ends.
    busy : float
        Seconds for which its nodes run.
    label : str
        The first node.
    count : int
        Number of nodes.
    micro_batch : int
        Micro-batch of the first.
    is_short : bool
        Whether its nodes are shorter than the threshold.
    """

    start: float
    end: float
    busy: float
    label: str
    count: int = 1
    micro_batch: int = 0
    is_short: bool = False

    def merge(self, other: "Entry") -> None:
        """Take in the next entry."""
        self.end, self.busy = max(self.end, other.end), self.busy + other.busy
        self.count += other.count


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Return the rows of a timeline.

    Parameters
    ----------
    timeline : Timeline
        The timeline of a step.
    """
    rows: dict[tuple[int, str], list[Event]] = {}
    for event in timeline.events:
        if event.seconds:
            for row in rows_of(event):
                rows.setdefault((event.group, row), []).append(event)
    labels: dict[str, int] = {}
    most = _fair_share([len(events) for events in rows.values()], MOST_DRAWN, MOST_OF_ROW)
    return {
        "step_seconds": timeline.step_seconds,
        "compute_seconds": timeline.compute_seconds,
        "communication_seconds": timeline.communication_seconds,
        "exposed_communication_seconds": timeline.exposed_communication_seconds,
        "bubble_seconds": timeline.bubble_seconds,
        "window_bytes": timeline.window_bytes,
        "rows": [_row(*key, rows[key], most, labels) for key in sorted(rows, key=_order)],
        "labels": list(labels),
        "segments": _segments(timeline.record.segments),
        "left_out": _left_out(timeline),
    }


def rows_of(event: Event) -> tuple[str, ...]:
    """Return the rows that show an event: one for each link and queue that it is in."""
    where = event.placement
    return tuple(f"{level}: {where.queue}" for level in where.levels) or (COMPUTE,)


def _order(row: tuple[int, str]) -> tuple[int, bool, str]:
    group, name = row
    return group, name != COMPUTE, name


def _fair_share(counts: Sequence[int], most: int, most_of_one: int) -> int:
    """Return how many entries each row may have, so that all have at most so many."""
    share, left = 0, most
    for place, count in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if count > share:
            break
        left -= count
    return max(1, min(share, most_of_one))


def _row(
    group: int, name: str, events: Sequence[Event], most: int, labels: dict[str, int]
) -> dict[str, Any]:
    """Return a row; the labels of its entries are added to `labels`."""
    in_order = sorted(events, key=lambda event: event.start)
    entries, threshold = shortened([_entry(event) for event in in_order], most)
    return {
        "group": group,
        "name": name,
        "nodes": len(events),
        "busy_seconds": sum(event.seconds for event in events),
        "merged_below_seconds": threshold,
        "entries": [
            [
                *map(rounded, (entry.start, entry.end, entry.busy)),
                labels.setdefault(entry.label, len(labels)),
                entry.count,
                entry.micro_batch,
            ]
            for entry in entries
        ],
    }


def _entry(event: Event) -> Entry:
    label = f"{event.node.operator} {event.node.name}"
    return Entry(event.start, event.end, event.seconds, label, 1, event.micro_batch)


def shortened(entries: Sequence[Entry], most: int) -> tuple[list[Entry], float]:
    """Return at most so many entries, if merging helps, and the seconds below which they merged.

    Parameters
    ----------
    entries : sequence of Entry
        The nodes of a row, by their starts.
    most : int
        Number of entries; more stay where gaps between them are as many.
    """
    threshold, found = 0.0, list(entries)
    longest = max((entry.busy for entry in entries), default=0.0)
    while len(found) > most and threshold <= longest:
        threshold = 2 * threshold or sum(entry.busy for entry in entries) / len(entries) / 16
        found = _merged(entries, threshold)
    return found, threshold


def _merged(entries: Sequence[Entry], threshold: float) -> list[Entry]:
    """Merge entries that are shorter than a threshold, and no further apart than that."""
    found: list[Entry] = []
    for entry in entries:
        own = replace(entry, is_short=entry.busy < threshold)
        last = found[-1] if found else None
        near = last is not None and own.start - last.end < threshold
        if last is not None and near and own.is_short and last.is_short:
            last.merge(own)
        else:
            found.append(own)
    return found


def rounded(seconds: float) -> float:
    """Return a time of eight digits."""
    return float(f"{seconds:.8g}")


def _segments(segments: Sequence[SegmentEvent]) -> dict[str, Any]:
    """Return the segments of all device groups, shortened by group and part."""
    rows: dict[tuple[int, int | None, str], list[SegmentEvent]] = {}
    for item in segments:
        rows.setdefault((item.group, item.stage, item.part), []).append(item)
    most = _fair_share([len(items) for items in rows.values()], MOST_DRAWN, MOST_DRAWN)
    entries, threshold = [], 0.0
    for (group, stage, part), items in rows.items():
        own = [Entry(i.start, i.start + i.seconds, i.seconds, "", 1, i.micro_batch) for i in items]
        found, below = shortened(own, most)
        threshold = max(threshold, below)
        for entry in found:
            times = map(rounded, (entry.start, entry.end, entry.busy))
            entries.append([group, stage, part, entry.micro_batch, *times, entry.count])
    return {
        "count": len(segments),
        "busy_seconds": sum(item.seconds for item in segments),
        "merged_below_seconds": threshold,
        "entries": entries,
    }


def _left_out(timeline: Timeline) -> str:
    """Return which nodes the rows do not have, in words; empty for none."""
    record = timeline.record
    if record.simulated:
        passes = {event.micro_batch for event in record.events}
        missing = max(passes) + 1 - len(passes)
        return (
            f"{missing} passes over micro-batches repeat the pass before them; they are left blank"
        )
    if record.segments:
        listed = {event.micro_batch for event in record.events}
        all_of_them = {item.micro_batch for item in record.segments}
        if listed != all_of_them:
            return (
                f"nodes are listed for the first {len(listed)} of {len(all_of_them)} micro-batches;"
                " the segments above are those of all"
            )
    return ""
