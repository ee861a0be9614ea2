"""The live bytes of a timeline: when each buffer of a program is allocated and freed."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from shardwright.cost_model.buffers import KINDS, Buffers, MemoryUseReport, buffer_kinds, buffers
from shardwright.cost_model.events import Event, Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.graph import Graph

Change = tuple[float, int, int, float, str]
"""Moment, position of the event, order at that moment, bytes, and the name of the buffer."""


def live_changes(graph: Graph, held: Buffers, events: Sequence[Event]) -> list[Change]:
    """Return the changes of the live bytes, by time.

    A buffer is live from the start of the event that defines it to the end of the last that reads
    it. At equal times the events are in program order, and within one definitions before frees.

    Parameters
    ----------
    graph : Graph
        The program of one rank.
    held : Buffers
        Its buffers.
    events : sequence of Event
        The executions of its nodes, in program order.
    """
    runs = _runs(graph, events)
    loop, sizes = held.live.loop, held.sizes
    changes = [
        (event.start, i, 0, sizes[result.name], result.name)
        for i, event in enumerate(events)
        if event.nbytes
        for result in event.node.results
        if not held.live.is_accumulator(result.name)
    ]
    for i, event in enumerate(events):
        workspace, name = held.workspaces.get(event.node.name, 0.0), event.node.name
        if workspace:
            changes.append((event.start, i, 0, workspace, name))
            changes.append((event.end, i, 1, -workspace, name))
    if loop is not None:
        first = runs[loop.start][0]
        start = events[first].start
        changes += [(start, first, -1, sizes[name], name) for name in sorted(loop.accumulated)]
    for name, uses in held.live.freed():
        if sizes[name]:
            for used in zip(*_uses_by_pass(name, uses, held, runs), strict=True):
                end, last = max((events[i].end, i) for i in used)
                changes.append((end, last, 1, -sizes[name], name))
    return sorted(changes)


def overlapped_memory(graph: Graph, timeline: Timeline) -> MemoryUseReport:
    """Return the peak memory of a rank in a timeline, by kind of tensor.

    Parameters
    ----------
    graph : Graph
        The program of one rank.
    timeline : Timeline
        The timeline of its nodes.
    """
    window = timeline.window_bytes
    if not window:  # nodes are in program order
        return replace(peak_memory(graph), window_bytes=window)
    held, kinds = buffers(graph), buffer_kinds(graph)
    now = dict.fromkeys(KINDS, 0.0)
    for name in present_names(graph):
        now[kinds[name]] += held.sizes[name]
    events = timeline.simulated or timeline.events
    changes = live_changes(graph, held, events)
    totals = [*accumulate((change[3] for change in changes), initial=sum(now.values()))]
    last = max(range(len(totals)), key=totals.__getitem__)
    for _, _, _, nbytes, name in changes[:last]:
        now[kinds[name]] += nbytes
    at = events[changes[last - 1][1]].node.name if last else "the start"
    hosted = host_peak(graph, held, events)
    return MemoryUseReport(totals[last], now, at, host_bytes=hosted, window_bytes=window)


def host_peak(graph: Graph, held: Buffers, events: Sequence[Event]) -> float:
    """Return the peak bytes in host memory, from the starts of copies there to the last reads."""
    runs = _runs(graph, events) if held.hosted else []
    position = {node.name: i for i, node in enumerate(graph.nodes)} if held.hosted else {}
    changes: list[tuple[float, float]] = []
    for name, nbytes in held.hosted.items():
        uses = [runs[position[node.name]] for node, _ in graph.uses[name]]
        made = runs[position[graph.producers[name].name]]
        for number, first in enumerate(made):
            last = max((events[i].end for of in uses for i in of[number : number + 1]), default=0.0)
            changes += [(events[first].start, nbytes), (max(last, events[first].end), -nbytes)]
    totals = accumulate((change for _, change in sorted(changes)), initial=0.0)
    return max(totals)


def present_names(graph: Graph) -> list[str]:
    """Return the names of the buffers that are live before the first node."""
    return [value.name for value in graph.inputs] + [p.name for p in graph.parameters]


def _runs(graph: Graph, events: Sequence[Event]) -> list[list[int]]:
    """Return the events of each node."""
    positions = {node.name: position for position, node in enumerate(graph.nodes)}
    runs: list[list[int]] = [[] for _ in graph.nodes]
    for i, event in enumerate(events):
        runs[positions[event.node.name]].append(i)
    return runs


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
