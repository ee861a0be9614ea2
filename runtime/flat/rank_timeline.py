"""The timeline of a run: what every rank really did when.

Times are those of the clock of the host. A collective that runs while the rank computes is shown
from its start to the moment in which the rank learned of its end, when it asked MPI the next time.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from time import perf_counter, time
from typing import Literal, NamedTuple

import numpy as np

from shardwright.ir.files.writing import begins, check_file, write_file
from shardwright.ir.units import seconds_text
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.instructions import Instruction
from shardwright.runtime.messages import decoded, encoded

Kind = Literal["compute", "communicate", "wait", "move", "under way"]
STEPS = 5  # the last ones, that a timeline keeps
_TIMELINE = "the timeline"
_is_trace = begins(b'{\n "displayTimeUnit": "ms",\n "traceEvents": ')
_SHORTEST = 2e-6  # seconds; a shorter look at MPI is left out


class Span(NamedTuple):
    """Something that took time.

    Parameters
    ----------
    kind : str
        ``compute``; ``communicate``: in a collective, or in a message; ``wait``: for one that has
        started; ``move``: in MPI, between two nodes; ``under way``: a collective that runs
        meanwhile.
    name : str
        The operator and its node.
    begin, end : float
        Seconds.
    """

    kind: Kind
    name: str
    begin: float
    end: float

    def later(self, seconds: float) -> "Span":
        """Return the same, so many seconds later."""
        return self._replace(begin=self.begin + seconds, end=self.end + seconds)


class RunTimeline:
    """What one process did in the last steps.

    Attributes
    ----------
    steps : deque of (list of Span)
        The last steps, each in the order of the ends.
    origin : float
        When it began, in seconds since the epoch of the host's clock.
    """

    def __init__(self) -> None:
        self.origin, self._begin = time(), perf_counter()
        self.steps: deque[list[Span]] = deque(maxlen=STEPS)

    def begin_step(self) -> None:
        """Begin a new step."""
        self.steps.append([])

    @property
    def now(self) -> float:
        """Seconds since the origin."""
        return perf_counter() - self._begin

    def record(self, span: Span) -> None:
        """Add a span."""
        if self.steps and (span.kind != "move" or span.end - span.begin >= _SHORTEST):
            self.steps[-1].append(span)

    def add(self, kind: Kind, name: str, begin: float) -> None:
        """Add something that began at a moment, and has ended now."""
        self.record(Span(kind, name, begin, self.now))


def kind_of(instruction: Instruction) -> Kind:
    """Return what a node does in a timeline."""
    moves = isinstance(instruction.info, Communication | RingOperator)
    return "communicate" if moves and instruction.info.is_collective else "compute"


def label(instruction: Instruction) -> str:
    """Return the name of a node in a timeline."""
    return f"{instruction.node.operator} {instruction.node.name}"


def overlap(spans: Iterable[Span]) -> tuple[float, float]:
    """Return how long collectives were under way, and for how much of that the rank computed.

    Examples
    --------
    >>> overlap([Span("under way", "a", 0.0, 4.0), Span("compute", "b", 1.0, 3.0)])
    (4.0, 2.0)
    """
    spans = list(spans)
    under_way = _union((s.begin, s.end) for s in spans if s.kind == "under way")
    computing = _union((s.begin, s.end) for s in spans if s.kind == "compute")
    both = sum(
        max(0.0, min(end, last) - max(begin, first))
        for begin, end in under_way
        for first, last in computing
    )
    return sum(end - begin for begin, end in under_way), both


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return disjoint intervals that cover the same moments."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def check_timeline_file(path: Path) -> None:
    """Check that a timeline can be written, before long work.

    Raises
    ------
    OutputError
        If not: the folder is missing, or another file is there.
    """
    check_file(path, _TIMELINE, _is_trace)


def write_timeline(path: Path, timeline: RunTimeline, communicator: Communicator) -> None:
    """Write what all processes did, from the first one; the others take part.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    spans = [tuple(span) for step in timeline.steps for span in step]
    own = np.frombuffer(encoded((timeline.origin, spans)), np.uint8)
    parts = communicator.collect({communicator.ranks[0]: own})
    if communicator.ranks[0]:
        return
    ranks = communicator.ranks
    several = f"ranks {ranks[0]} to {ranks[-1]}, one after the other"
    found = {rank: decoded(part) for rank, part in parts.items()}
    origins = {rank: origin for rank, (origin, _) in found.items()}
    first = min(origins.values())
    processes = {
        f"rank {rank}" if len(ranks) == 1 else several: [
            span.later(origins[rank] - first) for span in starmap(Span, spans)
        ]
        for rank, (_, spans) in found.items()
    }
    write_file(path, to_chrome_trace(processes).encode(), _TIMELINE, _is_trace)


def figures(timeline: RunTimeline) -> str:
    """Return how long collectives of a step were under way, and computed meanwhile, as a text."""
    pairs = [overlap(step) for step in timeline.steps]
    under_way, both = (sum(pair[i] for pair in pairs) / max(len(pairs), 1) for i in (0, 1))
    if not under_way:
        return "no collective runs while a rank computes"
    return (
        f"collectives are under way for {seconds_text(under_way)} of a step, and the rank computes "
        f"for {seconds_text(both)} of that"
    )


def to_chrome_trace(processes: Mapping[str, Sequence[Span]]) -> str:
    """Return spans as JSON for ``chrome://tracing`` and Perfetto, in microseconds.

    Parameters
    ----------
    processes : mapping of str to (sequence of Span)
        What each process did; its name is that of its ranks.
    """
    records: list[Mapping[str, object]] = []
    for number, (name, spans) in enumerate(processes.items()):
        records.append(_named("process_name", name, number))
        rows = _rows(spans)
        for row, thread in {row: thread for _, row, thread in rows}.items():
            records.append({**_named("thread_name", row, number), "tid": thread})
        records += [_slice(span, number, thread) for span, _, thread in rows]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": records}, indent=1) + "\n"


def _named(what: str, name: str, process: int) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": process, "args": {"name": name}}


def _slice(span: Span, process: int, thread: int) -> Mapping[str, object]:
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",
        "ts": round(span.begin * 1e6, 3),
        "dur": round((span.end - span.begin) * 1e6, 3),
        "pid": process,
        "tid": thread,
    }


def _rows(spans: Sequence[Span]) -> list[tuple[Span, str, int]]:
    """Return each span with its row: collectives that overlap have a row each."""
    found: list[tuple[Span, str, int]] = []
    ends: list[float] = []  # of the last collective in each row
    for span in sorted(spans, key=lambda span: span.begin):
        if span.kind != "under way":
            found.append((span, "computation", 0))
            continue
        free = next((i for i, end in enumerate(ends) if end <= span.begin), len(ends))
        ends[free : free + 1] = [span.end]
        found.append((span, f"collectives {free + 1}", free + 1))
    return found
