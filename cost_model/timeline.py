"""The overlapped step: the simulated schedule of the nodes of a program on a rank.

The serial step is the sum of the seconds of all nodes; here deferrable communication runs
concurrently with computation (`streams`). All ranks run the same program in lockstep, so one rank
stands for all. The schedule is greedy, and nothing is interrupted:

- Computation and blocking communication run in program order.
- Gathers of parameters run ahead, in program order, as far as the window of bytes allows.
- Reductions of gradients run behind, in program order on each level; computation waits for them
  only where the gradients that are still to be reduced exceed the window. The updates start after
  the backward computation, each as soon as its gradient is reduced.
- Where several wait for a resource, local work on parameters comes first, then computation and
  blocking communication, then gathers, then reductions.

So every resource serves one node at a time, and the step is at least the load of each
(`streams.loads`). A window of no bytes is the serial step.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import Buffers
from shardwright.cost_model.schedule import Tasks, schedule, tasks_of
from shardwright.cost_model.streams import COMPUTE, Placement
from shardwright.ir.graph import Graph, Node

_HALVINGS = 10  # of the window, where all deferrable bytes at once exceed the memory limit
_SMALL = 600  # nodes of a program up to which every window is tried


@dataclass(frozen=True, slots=True)
class Event:
    """The execution of one node.

    Parameters
    ----------
    node : Node
        The node.
    placement : Placement
        Its queue, and the levels of its links.
    start, seconds : float
        Start and duration.
    nbytes : float
        Bytes of its results on the rank; 0 for views and in-place updates.
    micro_batch : int
        The pass over micro-batches that runs it; 0 outside of their loop.
    """

    node: Node
    placement: Placement
    start: float
    seconds: float
    nbytes: float
    micro_batch: int = 0

    @property
    def end(self) -> float:
        """Time at which it ends."""
        return self.start + self.seconds

    @property
    def streams(self) -> tuple[str, ...]:
        """The resources that it occupies."""
        return self.placement.resources


@dataclass(frozen=True)
class Timeline:
    """One step of a program on one rank.

    Parameters
    ----------
    step_seconds : float
        Time of the step.
    compute_seconds : float
        Time of computation.
    communication_seconds : float
        Sum of the times of all collectives.
    exposed_communication_seconds : float
        Time in which the rank waits for communication without computing.
    peak_bytes : float
        Peak memory. A buffer is live from the start of the node that defines it to the end of its
        last reader, so early communication takes memory early.
    window_bytes : float
        Bytes that gathers ahead and gradients that wait to be reduced may take together.
    events : tuple of Event
        The nodes, in program order.
    live_bytes : tuple of (float, float)
        Times at which the live bytes change, with the live bytes from then on.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    peak_bytes: float
    window_bytes: float
    events: tuple[Event, ...]
    live_bytes: tuple[tuple[float, float], ...]


def simulate(graph: Graph, cluster: Cluster, memory_limit: float = math.inf) -> Timeline:
    """Return the fastest timeline found of a program, lowered to collectives, within a limit.

    The window is as large as the memory allows: unbounded, or halved until the peak memory is
    within the limit. Where not even the serial step is, it is the serial step.

    Parameters
    ----------
    graph : Graph
        The program; without a mesh it runs whole on one device.
    cluster : Cluster
        Its devices and links.
    memory_limit : float
        Peak memory of the rank, in bytes.

    Raises
    ------
    ClusterError
        If an axis of the mesh belongs to a level that the cluster lacks.
    """
    tasks = tasks_of(graph, cluster)
    unbounded = _timeline(graph, tasks, math.inf)
    if unbounded.peak_bytes <= memory_limit:
        return unbounded
    windows = [tasks.deferrable_bytes / 2**i for i in range(1, _HALVINGS + 1)]
    found = {0.0: _timeline(graph, tasks, 0.0)}
    low, high = 0, len(windows)
    while low < high:  # more bytes in the window take more memory, but for a few anomalies
        middle = (low + high) // 2
        timeline = found[windows[middle]] = _timeline(graph, tasks, windows[middle])
        fits = timeline.peak_bytes <= memory_limit
        low, high = (low, middle) if fits else (middle + 1, high)
    if len(graph) <= _SMALL:
        found |= {w: _timeline(graph, tasks, w) for w in windows if w not in found}
    fitting = [timeline for timeline in found.values() if timeline.peak_bytes <= memory_limit]
    return min(fitting, key=lambda timeline: timeline.step_seconds, default=found[0.0])


def serial_timeline(graph: Graph, cluster: Cluster) -> Timeline:
    """Return the timeline without any overlap."""
    return _timeline(graph, tasks_of(graph, cluster), 0.0)


def _timeline(graph: Graph, tasks: Tasks, window: float) -> Timeline:
    starts = schedule(tasks.tasks, window)
    held = tasks.buffers
    events = [
        Event(
            graph.nodes[position],
            task.placement,
            start,
            task.seconds,
            _allocated(graph.nodes[position], held),
            number,
        )
        for (position, number), task, start in zip(tasks.order, tasks.tasks, starts, strict=True)
    ]
    return _summary(graph, tasks, events, window)


def _allocated(node: Node, held: Buffers) -> float:
    """Return the bytes that are allocated for a node; those of accumulators once, before a loop."""
    names = (result.name for result in node.results)
    return sum(held.sizes[name] for name in names if not held.live.is_accumulator(name))


def _summary(graph: Graph, tasks: Tasks, events: Sequence[Event], window: float) -> Timeline:
    step = max((event.end for event in events), default=0.0)
    compute = sum(event.seconds for event in events if not event.placement.levels)
    total = sum(event.seconds for event in events)
    live = _live_bytes(graph, tasks, events)
    return Timeline(
        step_seconds=step,
        compute_seconds=compute,
        communication_seconds=total - compute,
        exposed_communication_seconds=max(0.0, step - compute),
        peak_bytes=max(nbytes for _, nbytes in live),
        window_bytes=window,
        events=tuple(events),
        live_bytes=tuple(live),
    )


def _live_bytes(graph: Graph, tasks: Tasks, events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the changes of the live bytes over time, and the bytes from then on."""
    held, loop = tasks.buffers, tasks.buffers.live.loop
    runs: list[list[int]] = [[] for _ in graph.nodes]  # the events of each node
    for i, (position, _) in enumerate(tasks.order):
        runs[position].append(i)
    present = [value.name for value in graph.inputs] + [p.name for p in graph.parameters]
    # At equal times in program order, and within a node definitions before frees.
    changes = [(e.start, i, 0, e.nbytes) for i, e in enumerate(events) if e.nbytes]
    if loop is not None:
        first = runs[loop.start][0]
        total = sum(held.sizes[name] for name in loop.accumulated)
        changes.append((events[first].start, first, -1, total))
    for name, uses in held.live.freed():
        if held.sizes[name]:
            for used in zip(*_uses_by_pass(name, uses, held, runs), strict=True):
                end, last = max((events[i].end, i) for i in used)
                changes.append((end, last, 1, -held.sizes[name]))
    now = sum(held.sizes[name] for name in present)
    live = [(0.0, now)]
    for moment, _, _, change in sorted(changes):
        now += change
        live.append((moment, now))
    return live


def _uses_by_pass(
    name: str, uses: Sequence[int], held: Buffers, runs: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """Return the events that use a buffer; for one that each pass allocates, those of each."""
    loop = held.live.loop
    if loop is None or name in loop.accumulated or name in loop.kept:
        return [runs[position][-1:] for position in uses]
    if any(len(runs[position]) == 1 for position in uses):
        return [runs[position][-1:] for position in uses]
    return [runs[position] for position in uses]


# The format of chrome://tracing and https://ui.perfetto.dev


def to_chrome_trace(timeline: Timeline) -> str:
    """Return the timeline as JSON for ``chrome://tracing`` and Perfetto.

    Computation is a thread, and so is every queue of a level. The live bytes are a counter. Times
    are microseconds.
    """
    threads = {name: number for number, name in enumerate(_thread_names(timeline))}
    records = [_thread(name, number) for name, number in threads.items()]
    for event in timeline.events:
        if event.seconds:
            records += [_slice(event, threads[name]) for name in _threads(event)]
    for moment, nbytes in timeline.live_bytes:
        counter = {"name": "live bytes", "ph": "C", "ts": moment * 1e6, "pid": 0}
        records.append({**counter, "args": {"bytes": nbytes}})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": records}, indent=1) + "\n"


def _thread_names(timeline: Timeline) -> list[str]:
    """Return the threads of a trace: computation, then the queues of each level."""
    found = dict.fromkeys(name for event in timeline.events for name in _threads(event))
    return [COMPUTE, *(name for name in found if name != COMPUTE)]


def _threads(event: Event) -> tuple[str, ...]:
    """Return the threads that show an event: one for each level and queue that it is in."""
    placed = event.placement
    return tuple(f"{level}: {placed.queue}" for level in placed.levels) or (COMPUTE,)


def _thread(name: str, number: int) -> Mapping[str, object]:
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}


def _slice(event: Event, thread: int) -> Mapping[str, object]:
    node, origin = event.node, event.node.provenance
    return {
        "name": f"{node.operator} {node.name}",
        "cat": node.operator,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": event.seconds * 1e6,
        "pid": 0,
        "tid": thread,
        "args": {
            "scope": node.scope,
            "from": origin.operator,
            "as": origin.role,
            "bytes": event.nbytes,
            **({"micro_batch": event.micro_batch} if event.micro_batch else {}),
        },
    }
