"""The live bytes of a timeline: when each buffer of a program is allocated and freed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import KINDS, Buffers, MemoryUseReport, told_kinds
from shardwright.cost_model.events import Event, Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.graph import Graph

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LiveChanges:
    """The changes of the live bytes of a timeline, by time.

    Parameters
    ----------
    moments : array
        When they happen, in seconds.
    executions : array
        The executions of nodes with which they happen, by position.
    nbytes : array
        Bytes that are allocated, negative where they are freed.
    buffers : array
        The buffers, by position among `LiveRanges.names`.
    """

    moments: Floats
    executions: NDArray[np.intp]
    nbytes: Floats
    buffers: NDArray[np.intp]


class LiveRanges:
    """From which execution of a node to which each buffer of a program is live.

    A buffer is live from the start of the execution that defines it to the end of the last that
    reads it.

    Parameters
    ----------
    graph : Graph
        The program of one rank.
    held : Buffers
        Its buffers.
    positions : sequence of int
        The positions of the nodes that are executed, in program order.
    """

    def __init__(self, graph: Graph, held: Buffers, positions: Sequence[int]) -> None:
        self.present = sum(held.sizes[name] for name in present_names(graph))
        self._sizes, self._positions = held.sizes, positions
        runs = _runs(len(graph), positions)
        made, freed = [*_allocations(graph, held, runs)], [*_releases(graph, held, runs)]
        names = [name for *_, name in made] + [name for *_, name in freed]
        self.names = sorted(set(names))
        """The names of the buffers."""
        number = {name: i for i, name in enumerate(self.names)}
        executions = [one for one, *_ in made]
        passes = [one for one, *_ in freed]
        uses = [*chain.from_iterable(passes)]
        self._made = np.array([*chain.from_iterable(executions)], np.intp)
        self._used = np.array([*chain.from_iterable(uses)], np.intp)
        self._counts = np.array([*map(len, uses)], np.intp)
        times = [*map(len, executions), *map(len, passes)]
        orders = [order for _, order, *_ in made] + [1] * len(freed)
        nbytes = [nbytes for *_, nbytes, _ in made] + [nbytes for _, nbytes, _ in freed]
        self._orders = np.repeat(np.array(orders, np.intp), times)
        self._nbytes = np.repeat(np.array(nbytes, np.float64), times)
        self._buffers = np.repeat(np.array([number[name] for name in names], np.intp), times)

    def changes(self, starts: Floats, ends: Floats) -> LiveChanges:
        """Return the changes of the live bytes.

        At equal times they are in program order, and within one execution definitions come before
        frees.

        Parameters
        ----------
        starts, ends : array of shape (executions,)
            When each execution starts and ends.
        """
        last_ends, last = self._last_uses(ends)
        moments = np.concatenate([starts[self._made], last_ends])
        executions = np.concatenate([self._made, last])
        by_time = np.lexsort((self._buffers, self._nbytes, self._orders, executions, moments))
        return LiveChanges(
            moments[by_time], executions[by_time], self._nbytes[by_time], self._buffers[by_time]
        )

    def peak_bytes(self, starts: Floats, ends: Floats) -> float:
        """Return the most bytes that are live at once."""
        return float(self.totals(self.changes(starts, ends)).max())

    def totals(self, changes: LiveChanges) -> Floats:
        """Return the live bytes before all changes, and after each."""
        return np.cumsum(np.concatenate([[self.present], changes.nbytes]))

    def memory(self, graph: Graph, starts: Floats, ends: Floats) -> MemoryUseReport:
        """Return the most bytes that are live at once, by kind of tensor."""
        kinds, changes = told_kinds(graph), self.changes(starts, ends)
        totals = self.totals(changes)
        last = int(totals.argmax())
        sums = np.bincount(changes.buffers[:last], changes.nbytes[:last], len(self.names))
        now = dict.fromkeys(KINDS, 0.0)
        for name in present_names(graph):
            now[kinds[name]] += self._sizes[name]
        for name, nbytes in zip(self.names, sums.tolist(), strict=True):
            now[kinds[name]] += nbytes
        at = self._positions[changes.executions[last - 1]] if last else None
        where = "the start" if at is None else graph.nodes[at].name
        return MemoryUseReport(float(totals[last]), now, where)

    def _last_uses(self, ends: Floats) -> tuple[Floats, NDArray[np.intp]]:
        """Return when the last use of each buffer ends, and which it is."""
        if not len(self._counts):
            return np.empty(0), np.empty(0, np.intp)
        begins = np.cumsum(self._counts) - self._counts
        of_uses = ends[self._used]
        last_ends = np.maximum.reduceat(of_uses, begins)
        is_last = of_uses == np.repeat(last_ends, self._counts)
        return last_ends, np.maximum.reduceat(np.where(is_last, self._used, -1), begins)


def _allocations(
    graph: Graph, held: Buffers, runs: Sequence[Sequence[int]]
) -> Iterator[tuple[Sequence[int], int, float, str]]:
    """Yield the executions, the order in each, the bytes and the name of what is allocated."""
    sizes, loop, workspaces = held.sizes, held.live.loop, held.workspaces
    accumulated = frozenset[str]() if loop is None else loop.accumulated
    for node, executions in zip(graph.nodes, runs, strict=True):
        for result in node.results:
            name = result.name
            if sizes[name] and name not in accumulated:
                yield executions, 0, sizes[name], name
        if workspaces.get(node.name):
            yield executions, 0, workspaces[node.name], node.name
    if loop is not None:
        first = runs[loop.start][:1]
        yield from ((first, -1, sizes[name], name) for name in loop.accumulated)


def _releases(
    graph: Graph, held: Buffers, runs: Sequence[Sequence[int]]
) -> Iterator[tuple[Sequence[tuple[int, ...]], float, str]]:
    """Yield the uses in each pass, the bytes, negative, and the name of what is freed."""
    for node, executions in zip(graph.nodes, runs, strict=True) if held.workspaces else ():
        if held.workspaces.get(node.name):
            yield [(i,) for i in executions], -held.workspaces[node.name], node.name
    for name, uses in held.live.freed():
        if held.sizes[name]:
            by_pass = [*zip(*_uses_by_pass(name, uses, held, runs), strict=True)]
            yield by_pass, -held.sizes[name], name


def overlapped_memory(graph: Graph, timeline: Timeline) -> MemoryUseReport:
    """Return the peak memory of a rank in a timeline, by kind of tensor.

    Parameters
    ----------
    graph : Graph
        The program of one rank.
    timeline : Timeline
        The timeline of its nodes.
    """
    if not timeline.window_bytes:  # nodes are in program order
        return replace(peak_memory(graph), window_bytes=timeline.window_bytes)
    assert timeline.make_memory is not None
    return timeline.make_memory()


def host_peak(graph: Graph, held: Buffers, events: Sequence[Event]) -> float:
    """Return the peak bytes in host memory, from the starts of copies there to the last reads."""
    runs = _runs(len(graph), _positions(graph, events)) if held.hosted else []
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


def _positions(graph: Graph, events: Sequence[Event]) -> list[int]:
    """Return the positions of the nodes that are executed."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    return [position[event.node.name] for event in events]


def _runs(count: int, positions: Sequence[int]) -> list[list[int]]:
    """Return the executions of each of so many nodes."""
    runs: list[list[int]] = [[] for _ in range(count)]
    for i, position in enumerate(positions):
        runs[position].append(i)
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
