"""Peak memory of the device groups of a pipeline, by walking the schedule of each.

A segment allocates and frees the same bytes for every micro-batch. So one pass over the nodes of a
group tells for each segment how far it rises above the bytes before it, and what it leaves; the
walk through the schedule adds these up. It is the account of the executor (`runtime.pipeline`):
parameters and inputs, accumulators for the whole loop, and what is in flight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
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
from shardwright.cost_model.roofline import value_bytes
from shardwright.dataflow.schedules import Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.graph import Graph
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
    uses : array
        These runs of every change, by position in the segment, one after the other.
    begins : array
        Where those of each change begin.
    """

    nbytes: Bytes
    columns: Integers
    names: Sequence[str]
    is_late: NDArray[np.bool_]
    uses: Integers
    begins: Integers

    @classmethod
    def of(cls, changes: Sequence[_Change]) -> "_Changes":
        """Return some changes as arrays."""
        uses = [own for *_, own in changes]
        counts = np.array([*map(len, uses)], np.intp)
        return cls(
            np.array([nbytes for _, nbytes, *_ in changes], np.float64),
            np.array([column for column, *_ in changes], np.intp),
            [name for _, _, name, *_ in changes],
            np.array([is_late for *_, is_late, _ in changes], np.bool_),
            np.array([*chain.from_iterable(uses)], np.intp),
            np.cumsum(counts) - counts,
        )

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
        last = by_end[np.maximum.reduceat(place[self.uses], self.begins)]
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
        self.memory, self.holders = memory, Counter[str]()

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
            self._sum(self._allocated((*program.inputs, *program.parameters))),
            [self._changes(runs) for runs in before],
            self._sum(self._allocated(program.accumulated)),
            {segment: self._changes(runs) for segment, runs in program.segments.items()},
            self._sum(self._freed(program.dead_after_loop)),
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
            if kind != "send":
                made = [r.name for r in node.results if not live.is_accumulator(r.name)]
                changes += [(c, n, name, False, own) for c, n in self._allocated(made)]
            workspace = held.workspaces.get(name, 0.0) if kind == "run" else 0.0
            changes.append((columns[name], workspace, name, False, own))
            if workspace:
                changes.append((columns[name], -workspace, name, True, own))
            for root in live.touched[position]:
                users.setdefault(root, []).append(i)
            for value in dead:
                ended = self._freed((value,))
                if ended:
                    uses = tuple(users[live.roots.get(value, value)])
                    changes += [(c, n, "", True, uses) for c, n in ended]
        return _Changes.of(changes)

    def _sum(self, changes: Iterable[tuple[int, float]]) -> Bytes:
        found = [0.0] * self.memory.columns.count
        for column, nbytes in changes:
            found[column] += nbytes
        return np.array(found)

    def _allocated(self, names: Iterable[str]) -> list[tuple[int, float]]:
        """Count values; return the columns and bytes of new buffers."""
        found, held = list[tuple[int, float]](), self.memory.held
        for name in names:
            root = held.live.roots.get(name, name)
            if not self.holders[root]:
                found.append((self.memory.columns.of[root], held.sizes[root]))
            self.holders[root] += 1
        return found

    def _freed(self, names: Iterable[str]) -> list[tuple[int, float]]:
        """Forget values; return the bytes, negative, of the buffers that no other is in."""
        found, held = list[tuple[int, float]](), self.memory.held
        for name in names:
            if name in self.memory.lasting:
                continue
            root = held.live.roots.get(name, name)
            self.holders[root] -= 1
            if not self.holders[root]:
                found.append((self.memory.columns.of[root], -held.sizes[root]))
        return found


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
