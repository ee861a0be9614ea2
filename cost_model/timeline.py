"""The overlapped step: the simulated schedule of the nodes of a program on a rank.

The serial step is the sum of the seconds of all nodes; here communication runs concurrently with
computation. All ranks run the same program in lockstep, so one rank stands for all. It has a stream
for computation and one for the links of each level of the cluster. A collective occupies the
streams of all levels that it spans, since a hierarchical algorithm uses the links of each. Every
stream takes its nodes in program order; a node starts when its operands are ready and its streams
are free. So the all-reduce of a gradient overlaps the backward computation that follows it. Until
the end at least one stream is busy: the first unfinished node waits for nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.memory import Buffers, buffers
from shardwright.cost_model.roofline import node_axes, node_seconds
from shardwright.ir.graph import Graph, Node

COMPUTE = "compute"
"""The stream of computation; the others have the names of the levels of the cluster."""


@dataclass(frozen=True, slots=True)
class Event:
    """The execution of one node.

    Parameters
    ----------
    node : Node
        The node.
    streams : tuple of str
        The streams that it occupies.
    start, seconds : float
        Start and duration.
    nbytes : float
        Bytes of its results on the rank; 0 for views and in-place updates.
    """

    node: Node
    streams: tuple[str, ...]
    start: float
    seconds: float
    nbytes: float

    @property
    def end(self) -> float:
        """Time at which it ends."""
        return self.start + self.seconds


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
    events: tuple[Event, ...]
    live_bytes: tuple[tuple[float, float], ...]


def simulate(graph: Graph, cluster: Cluster) -> Timeline:
    """Return the timeline of a program, lowered to collectives, on a rank of a cluster.

    Parameters
    ----------
    graph : Graph
        The program; without a mesh it runs whole on one device.
    cluster : Cluster
        Its devices and links.

    Raises
    ------
    ClusterError
        If an axis of the mesh belongs to a level that the cluster lacks.
    """
    held = buffers(graph)
    free: dict[str, float] = {}  # stream -> when it is free
    ready: dict[str, float] = {}  # value -> when it is ready
    events = []
    for node in graph.nodes:
        streams = _streams(node, graph, cluster)
        waits = [ready.get(name, 0.0) for name in node.operands]
        waits += [free.get(stream, 0.0) for stream in streams]
        nbytes = sum(held.sizes[result.name] for result in node.results)
        seconds = node_seconds(node, graph, cluster)
        event = Event(node, streams, max(waits), seconds, nbytes)
        free.update(dict.fromkeys(streams, event.end))
        ready.update((result.name, event.end) for result in node.results)
        events.append(event)
    return _summary(graph, held, events)


def _streams(node: Node, graph: Graph, cluster: Cluster) -> tuple[str, ...]:
    mesh = graph.mesh
    axes = [mesh.axis(name) for name in node_axes(node, graph)] if mesh else []
    levels = sorted({axis.level for axis in axes if axis.size > 1})
    return tuple(cluster.levels[level].name for level in levels) or (COMPUTE,)


def _summary(graph: Graph, held: Buffers, events: Sequence[Event]) -> Timeline:
    step = max((event.end for event in events), default=0.0)
    compute = sum(event.seconds for event in events if event.streams == (COMPUTE,))
    total = sum(event.seconds for event in events)
    live = _live_bytes(graph, held, events)
    return Timeline(
        step_seconds=step,
        compute_seconds=compute,
        communication_seconds=total - compute,
        exposed_communication_seconds=max(0.0, step - compute),
        peak_bytes=max(nbytes for _, nbytes in live),
        events=tuple(events),
        live_bytes=tuple(live),
    )


def _live_bytes(graph: Graph, held: Buffers, events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the changes of the live bytes over time, and the bytes from then on."""
    present = [value.name for value in graph.inputs] + [p.name for p in graph.parameters]
    # At equal times in program order, and within a node definitions before frees.
    changes = [(e.start, i, 0, e.nbytes) for i, e in enumerate(events) if e.nbytes]
    for name, uses in held.live.freed():
        if held.sizes[name]:
            end, last = max((events[i].end, i) for i in uses)
            changes.append((end, last, 1, -held.sizes[name]))
    now = sum(held.sizes[name] for name in present)
    live = [(0.0, now)]
    for moment, _, _, change in sorted(changes):
        now += change
        live.append((moment, now))
    return live


# The format of chrome://tracing and https://ui.perfetto.dev


def to_chrome_trace(timeline: Timeline) -> str:
    """Return the timeline as JSON for ``chrome://tracing`` and Perfetto.

    Every stream is a thread, and the live bytes are a counter. Times are microseconds.
    """
    streams = list(dict.fromkeys([COMPUTE, *(s for e in timeline.events for s in e.streams)]))
    threads = {stream: number for number, stream in enumerate(streams)}
    records = [_thread(stream, number) for stream, number in threads.items()]
    for event in timeline.events:
        if event.seconds:
            records += [_slice(event, threads[stream]) for stream in event.streams]
    for moment, nbytes in timeline.live_bytes:
        counter = {"name": "live bytes", "ph": "C", "ts": moment * 1e6, "pid": 0}
        records.append({**counter, "args": {"bytes": nbytes}})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": records}, indent=1) + "\n"


def _thread(stream: str, number: int) -> Mapping[str, object]:
    name = stream if stream == COMPUTE else f"communication: {stream}"
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
        },
    }
