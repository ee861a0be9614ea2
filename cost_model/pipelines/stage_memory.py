"""Peak memory of the device groups of a pipeline, by walking the schedule of each.

A segment allocates and frees the same bytes for every micro-batch. So one pass over the nodes of a
group tells for each segment how far it rises above the bytes before it, and what it leaves; the
walk through the schedule adds these up. It is the account of the executor (`runtime.pipeline`):
parameters and inputs, accumulators for the whole loop, and what is in flight.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import (
    KINDS,
    Buffers,
    MemoryUseReport,
    told_kinds,
)
from shardwright.cost_model.pipelines.segments import GroupSegments, TimedSegment
from shardwright.dataflow.schedules import Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.graph import Graph, value_bytes
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import Update

Bytes = NDArray[np.float64]  # by kind
Integers = NDArray[np.intp]
Times = Sequence[tuple[float, float]]  # starts and ends of the nodes of a segment
# Of the live bytes: the column, the bytes, the node, whether at an end, and of which runs.
_Change = tuple[int, float, str, bool, tuple[int, ...]]


@dataclass(frozen=True)
class Columns:
    """What the live bytes of a device group are divided by: kinds of tensors, unless asked more.

    Parameters
    ----------
    count : int
        Number of columns.
    of : mapping of str to int
        The column of every value.
    """

    count: int
    of: Mapping[str, int]

    @classmethod
    def of_kinds(cls, graph: Graph) -> "Columns":
        """Return a column for each of `KINDS`."""
        place = {kind: i for i, kind in enumerate(KINDS)}
        return cls(len(KINDS), {name: place[kind] for name, kind in told_kinds(graph).items()})


@dataclass(frozen=True)
class Rise:
    """What some nodes do to the live bytes.

    Parameters
    ----------
    peak : array
        How far they rise above the bytes before, by kind.
    at : str
        The node during which they do.
    left : array
        What is left of them.
    """

    peak: Bytes
    at: str
    left: Bytes


@dataclass(frozen=True)
class WalkedGroup:
    """The live bytes of a device group in a step.

    Parameters
    ----------
    peak : Rise
        Their peak.
    levels : tuple of (float, float, float)
        Bytes before, at most in, and after each segment: those before the loop, those of the
        actions of the schedule, and those after the loop.
    kinds : array of shape (2 segments, kinds)
        Bytes at most in and after each segment, in turn, by kind.
    """

    peak: Rise
    levels: tuple[tuple[float, float, float], ...]
    kinds: Bytes


def pipeline_memory(pipeline: Pipeline, held: Buffers) -> MemoryUseReport:
    """Return the peak memory of the device group that takes most, with that of each."""
    memory = memory_by_kind(pipeline, held)
    peaks = [memory.walked(group).peak for group in pipeline.groups]
    totals = tuple(float(peak.peak.sum()) for peak in peaks)
    most = peaks[totals.index(max(totals))]
    by_kind = dict(zip(KINDS, most.peak.tolist(), strict=True))
    return MemoryUseReport(max(totals), by_kind, most.at, totals)


@lru_cache(maxsize=2)  # the peak is asked for before and after the step is simulated
def memory_by_kind(pipeline: Pipeline, held: Buffers) -> "PipelineMemory":
    """Return the live bytes of a pipeline by kind; both arguments are compared by identity."""
    return PipelineMemory(pipeline, held)


class PipelineMemory:
    """The live bytes of the device groups of a pipeline.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    held : Buffers
        Its buffers.
    columns : Columns, optional
        What the bytes are divided by, instead of kinds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        held: Buffers,
        columns: Columns | None = None,
    ) -> None:
        self.pipeline, graph = pipeline, pipeline.graph
        copied = _copied(graph)
        mesh = graph.mesh or Mesh(())
        constants = [name for name, root in held.live.roots.items() if root == name]
        own = (*copied.values(), *constants)
        sizes = {name: value_bytes(graph.values[name], mesh) for name in own}
        self.held = replace(held, sizes={**held.sizes, **sizes})
        self.columns = columns or Columns.of_kinds(graph)
        parameters = {parameter.name for parameter in graph.parameters}
        self.lasting = graph.kept() | (parameters - set(copied))
        self._walks: dict[tuple[int, int, int], _Walk] = {}  # by group and segments outside

    def walked(self, group: GroupProgram, segments: GroupSegments | None = None) -> WalkedGroup:
        """Return the live bytes of a group, with nodes in program order or at given times."""
        before, after = [group.before], [group.after]
        if segments is not None:
            before, after = (
                [timed.runs for timed in one] for one in (segments.before, segments.after)
            )
        key = group.group, len(before), len(after)  # one segment has all nodes in program order
        if key not in self._walks:
            self._walks[key] = _Allocation(self).walk(group, before, after)
        return self._walks[key].through(segments)


def _copied(graph: Graph) -> dict[str, str]:
    """Return the parameters whose next value is not written in place, as the number of the step."""
    makers = {new: graph.producers.get(new) for _, new in graph.updates}
    updated = {
        new
        for new, node in makers.items()
        if node is None or issubclass(operator_class(node.operator), Update)
    }
    return {name: new for name, new in graph.updates if new not in updated}


@dataclass(frozen=True)
class _Changes:
    """What the nodes of a segment do to the live bytes: changes in program order.

    Parameters
    ----------
    nbytes, columns : array
        Bytes that are allocated, negative where they are freed, and their columns.
    names : sequence of str
        The node that runs; empty where buffers are freed.
    is_late : array
        Whether it happens at an end: the last of those of some runs, else at the start of one.
    uses : sequence of (tuple of int)
        These runs of every change, by position in the segment.
    """

    nbytes: Bytes
    columns: Integers
    names: Sequence[str]
    is_late: NDArray[np.bool_]
    uses: Sequence[tuple[int, ...]]

    @classmethod
    def of(cls, changes: Sequence[_Change]) -> "_Changes":
        """Return some changes as arrays."""
        return cls(
            np.array([nbytes for _, nbytes, *_ in changes], np.float64),
            np.array([column for column, *_ in changes], np.intp),
            [name for _, _, name, *_ in changes],
            np.array([is_late for *_, is_late, _ in changes], np.bool_),
            [uses for *_, uses in changes],
        )

    @cached_property
    def _runs(self) -> tuple[Integers, Integers]:
        """These runs, those of one change after the other, and where those of each begin."""
        counts = np.array([*map(len, self.uses)], np.intp)
        return np.array([*chain.from_iterable(self.uses)], np.intp), np.cumsum(counts) - counts

    def rise(self, columns: int, times: Times | None) -> Rise:
        """Return their peak, and what is left after them; in program order without times."""
        if not self.names:
            return Rise(np.zeros(columns), "", np.zeros(columns))
        order = None if times is None else self._by_time(np.array(times))
        nbytes = self.nbytes if order is None else self.nbytes[order]
        own = self.columns if order is None else self.columns[order]
        first = 1 + int(np.cumsum(nbytes).argmax())
        name = self.names[first - 1 if order is None else order[first - 1]]
        sums = (np.bincount(own[:i], nbytes[:i], columns) for i in (first, len(own)))
        peak, left = (one.astype(np.float64) for one in sums)
        return Rise(peak, name, left)

    def _by_time(self, times: Bytes) -> Integers:
        """Return the changes by time; at one time in program order, starts before ends."""
        starts, ends = times.T
        place = np.empty(len(ends), np.intp)  # of the runs by their ends
        by_end = np.argsort(ends, kind="stable")
        place[by_end] = np.arange(len(ends))
        runs, begins = self._runs
        last = by_end[np.maximum.reduceat(place[runs], begins)]
        moments = np.where(self.is_late, ends[last], starts[last])
        return np.lexsort((self.is_late, last, moments))


@dataclass(frozen=True)
class _Walk:
    """What the segments of a device group do to its live bytes, whenever their nodes run.

    Parameters
    ----------
    present, accumulated, dead_after_loop : array
        Bytes of what is there at the start, of accumulators, and of what ends with the loop.
    before, after : sequence of _Changes
        What the segments outside of the loop do.
    loop : mapping of Segment to _Changes
        What those of every micro-batch do.
    order : sequence of Segment
        The segments of the loop, in the order in which they run; empty without a loop.
    """

    present: Bytes
    before: Sequence[_Changes]
    accumulated: Bytes
    loop: Mapping[Segment, _Changes]
    dead_after_loop: Bytes
    after: Sequence[_Changes]
    order: Sequence[Segment]

    def through(self, segments: GroupSegments | None) -> WalkedGroup:
        """Walk through a step, with nodes in program order or at given times."""
        count, found = len(self.present), _Walked(self.present)

        def rises(changes: Sequence[_Changes], timed: Sequence[TimedSegment]) -> Iterator[Rise]:
            times = [one.times for one in timed] or repeat(None)
            return (own.rise(count, at) for own, at in zip(changes, times, strict=False))

        for rise in rises(self.before, segments.before if segments else ()):
            found.add(rise)
        found.now = found.now + self.accumulated
        if self.order:
            own = {
                segment: changes.rise(count, segments.loop[segment].times if segments else None)
                for segment, changes in self.loop.items()
            }
            found.add_loop([own[segment] for segment in self.order])
        found.now = found.now + self.dead_after_loop
        for rise in rises(self.after, segments.after if segments else ()):
            found.add(rise)
        kinds = np.vstack(found.kinds) if found.kinds else np.zeros((0, count))
        return WalkedGroup(found.highest, tuple(found.levels), kinds)


class _Allocation:
    """Counts the live values in each buffer of a device group, as its nodes run."""

    def __init__(self, memory: PipelineMemory) -> None:
        self.memory, self.holders = memory, dict[str, int]()

    def walk(
        self,
        program: GroupProgram,
        before: Sequence[Sequence[Run]],
        after: Sequence[Sequence[Run]],
    ) -> _Walk:
        """Return what a group does, with its nodes outside of the loop in some segments."""
        pipeline = self.memory.pipeline
        actions = pipeline.schedule.actions[program.group] if pipeline.loop is not None else ()
        return _Walk(
            self._sum(1, map(self._held, (*program.inputs, *program.parameters))),
            [self._changes(runs) for runs in before],
            self._sum(1, map(self._held, program.accumulated)),
            {segment: self._changes(runs) for segment, runs in program.segments.items()},
            self._sum(-1, map(self._freed, program.dead_after_loop)),
            [self._changes(runs) for runs in after],
            [action.segment for action in actions],
        )

    def _changes(self, runs: Iterable[Run]) -> _Changes:
        """Return what some nodes do.

        A buffer is live from the start of the node that defines it to the end of the last that
        uses it; what is sent, to the end of the segment, and what is received, from its begin.
        """
        changes: list[_Change] = []
        users: dict[str, list[int]] = {}  # of each buffer, so far
        held, columns = self.memory.held, self.memory.columns.of
        live, nodes = held.live, self.memory.pipeline.graph.nodes
        for i, (position, kind, dead) in enumerate(runs):
            node, own = nodes[position], (i,)
            name = node.name
            for result in node.results if kind != "send" else ():
                root = None if live.is_accumulator(result.name) else self._held(result.name)
                if root is not None:
                    changes.append((columns[root], held.sizes[root], name, False, own))
            workspace = held.workspaces.get(name, 0.0) if kind == "run" else 0.0
            changes.append((columns[name], workspace, name, False, own))
            if workspace:
                changes.append((columns[name], -workspace, name, True, own))
            for root in live.touched[position]:
                users.setdefault(root, []).append(i)
            for value in dead:
                root = self._freed(value)
                if root is not None:
                    uses = tuple(users[root])
                    changes.append((columns[root], -held.sizes[root], "", True, uses))
        return _Changes.of(changes)

    def _sum(self, sign: int, buffers: Iterable[str | None]) -> Bytes:
        """Return the bytes of buffers, without those of None."""
        found = [0.0] * self.memory.columns.count
        for name in buffers:
            if name is not None:
                found[self.memory.columns.of[name]] += sign * self.memory.held.sizes[name]
        return np.array(found)

    def _held(self, value: str) -> str | None:
        """Count a value; return its buffer if that is new."""
        root = self.memory.held.live.roots.get(value, value)
        count = self.holders.get(root, 0)
        self.holders[root] = count + 1
        return None if count else root

    def _freed(self, value: str) -> str | None:
        """Forget a value; return its buffer if no other is in it."""
        if value in self.memory.lasting:
            return None
        root = self.memory.held.live.roots.get(value, value)
        count = self.holders.get(root, 0)
        self.holders[root] = count - 1
        return root if count == 1 else None


class _Walked:
    """The live bytes of a device group, as far as the walk has come."""

    def __init__(self, present: Bytes) -> None:
        self.now, self.highest = present, Rise(present, "the start", present)
        self.levels: list[tuple[float, float, float]] = []
        self.kinds: list[Bytes] = []

    def add_loop(self, rises: Sequence[Rise]) -> None:
        """Add what the segments of the loop do, in their order."""
        left = np.array([rise.left for rise in rises])
        levels = np.vstack([self.now, self.now + np.cumsum(left, axis=0)])
        peaks = levels[:-1] + np.array([rise.peak for rise in rises])
        totals, tops = levels.sum(axis=1), peaks.sum(axis=1)
        self.levels += zip(totals[:-1].tolist(), tops.tolist(), totals[1:].tolist(), strict=True)
        self.kinds.append(np.stack([peaks, levels[1:]], axis=1).reshape(-1, levels.shape[1]))
        at = int(tops.argmax())
        if tops[at] > self.highest.peak.sum():
            self.highest = Rise(peaks[at], rises[at].at, self.now)
        self.now = levels[-1]

    def add(self, rise: Rise) -> None:
        """Add what the nodes of a segment do."""
        before, peak = float(self.now.sum()), self.now + rise.peak
        if peak.sum() > self.highest.peak.sum():
            self.highest = Rise(peak, rise.at, self.now)
        self.now = self.now + rise.left
        self.levels.append((before, float(peak.sum()), float(self.now.sum())))
        self.kinds += (peak, self.now)
