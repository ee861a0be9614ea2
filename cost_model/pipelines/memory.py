"""Peak memory of the device groups of a pipeline, by walking the schedule of each.

A segment allocates and frees the same bytes for every micro-batch. So one pass over the nodes of a
group tells for each segment how far it rises above the bytes before it, and what it leaves; the
walk through the schedule adds these up. It is the account of the executor (`runtime.pipeline`):
parameters and inputs, accumulators for the whole loop, and what is in flight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import (
    KINDS,
    Buffers,
    MemoryUseReport,
    buffer_kinds,
    buffers,
)
from shardwright.cost_model.pipelines.segments import GroupSegments, TimedSegment
from shardwright.cost_model.roofline import value_bytes
from shardwright.dataflow.schedules import Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import Update
from shardwright.operators.views import buffers_of

Bytes = NDArray[np.float64]  # by kind


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
        return cls(len(KINDS), {name: place[kind] for name, kind in buffer_kinds(graph).items()})


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


def pipeline_memory(pipeline: Pipeline, held: Buffers | None = None) -> MemoryUseReport:
    """Return the peak memory of the device group that takes most, with that of each."""
    memory = PipelineMemory(pipeline, held)
    peaks = [memory.walked(group).peak for group in pipeline.groups]
    totals = tuple(float(peak.peak.sum()) for peak in peaks)
    most = peaks[totals.index(max(totals))]
    by_kind = dict(zip(KINDS, most.peak.tolist(), strict=True))
    return MemoryUseReport(max(totals), by_kind, most.at, totals)


class PipelineMemory:
    """The live bytes of the device groups of a pipeline.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    held : Buffers, optional
        Its buffers.
    columns : Columns, optional
        What the bytes are divided by, instead of kinds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        held: Buffers | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.pipeline, graph = pipeline, pipeline.graph
        copied = _copied(graph)
        held, mesh = held or buffers(graph), graph.mesh or Mesh(())
        constants = [name for name, root in held.live.roots.items() if root == name]
        own = (*copied.values(), *constants)
        sizes = {name: value_bytes(graph.values[name], mesh) for name in own}
        self.held = replace(held, sizes={**held.sizes, **sizes})
        self.columns = columns or Columns.of_kinds(graph)
        parameters = {parameter.name for parameter in graph.parameters}
        self.lasting = graph.kept() | (parameters - set(copied))

    def walked(self, group: GroupProgram, segments: GroupSegments | None = None) -> WalkedGroup:
        """Return the live bytes of a group, with nodes in program order or at given times."""
        return _Walk(self, group).through(segments)


def _copied(graph: Graph) -> dict[str, str]:
    """Return the parameters whose next value is not written in place, as the number of the step."""
    makers = {new: graph.producers.get(new) for _, new in graph.updates}
    updated = {
        new
        for new, node in makers.items()
        if node is None or issubclass(operator_class(node.operator), Update)
    }
    return {name: new for name, new in graph.updates if new not in updated}


@dataclass
class _Walk:
    """The live bytes of a device group, as far as the walk has come."""

    memory: PipelineMemory
    program: GroupProgram
    holders: Counter[str] = field(default_factory=Counter)  # live values in each buffer
    levels: list[tuple[float, float, float]] = field(default_factory=list)
    kinds: list[Bytes] = field(default_factory=list)

    def through(self, segments: GroupSegments | None) -> WalkedGroup:
        """Walk through a step."""
        program = self.program
        self.now = self._allocated((*program.inputs, *program.parameters))
        self.highest = Rise(self.now, "the start", self.now)
        for rise in self._rises(program.before, segments.before if segments else None):
            self._add(rise)
        self.now = self.now + self._allocated(program.accumulated)
        self._add_loop(self._of_loop(segments))
        self.now = self.now - self._freed(program.dead_after_loop)
        for rise in self._rises(program.after, segments.after if segments else None):
            self._add(rise)
        kinds = np.vstack(self.kinds) if self.kinds else np.zeros((0, self.memory.columns.count))
        return WalkedGroup(self.highest, tuple(self.levels), kinds)

    def _rises(self, runs: Iterable[Run], timed: Sequence[TimedSegment] | None) -> Iterator[Rise]:
        """Yield what the nodes outside of the loop do, in one segment or in several."""
        if timed is None:
            yield self._rise(runs)
        else:
            yield from (self._rise_in_time(segment) for segment in timed)

    def _of_loop(self, segments: GroupSegments | None) -> dict[Segment, Rise]:
        if segments is None:
            return {s: self._rise(runs) for s, runs in self.program.segments.items()}
        return {s: self._rise_in_time(timed) for s, timed in segments.loop.items()}

    def _add_loop(self, rises: Mapping[Segment, Rise]) -> None:
        pipeline = self.memory.pipeline
        if pipeline.loop is None:
            return
        order = [action.segment for action in pipeline.schedule.actions[self.program.group]]
        left = np.array([rises[segment].left for segment in order])
        levels = np.vstack([self.now, self.now + np.cumsum(left, axis=0)])
        peaks = levels[:-1] + np.array([rises[segment].peak for segment in order])
        totals, tops = levels.sum(axis=1), peaks.sum(axis=1)
        self.levels += zip(totals[:-1].tolist(), tops.tolist(), totals[1:].tolist(), strict=True)
        self.kinds.append(np.stack([peaks, levels[1:]], axis=1).reshape(-1, levels.shape[1]))
        at = int(tops.argmax())
        if tops[at] > self.highest.peak.sum():
            self.highest = Rise(peaks[at], rises[order[at]].at, self.now)
        self.now = levels[-1]

    def _add(self, rise: Rise) -> None:
        before, peak = float(self.now.sum()), self.now + rise.peak
        if peak.sum() > self.highest.peak.sum():
            self.highest = Rise(peak, rise.at, self.now)
        self.now = self.now + rise.left
        self.levels.append((before, float(peak.sum()), float(self.now.sum())))
        self.kinds += (peak, self.now)

    def _rise(self, runs: Iterable[Run]) -> Rise:
        """Return what some nodes do in program order."""
        now, peak, at = self._none(), self._none(), ""
        for run in runs:
            now = now + self._allocated(self._made(run))
            most = now + self._workspace(run)
            if most.sum() > peak.sum() or not at:
                peak, at = most, self._node(run).name
            now = now - self._freed(run.dead)
        return Rise(peak, at, now)

    def _rise_in_time(self, timed: TimedSegment) -> Rise:
        """Return what the nodes of a segment do at their times.

        A buffer is live from the start of the node that defines it to the end of the last that
        uses it; what is sent, to the end of the segment, and what is received, from its begin.
        """
        changes: list[tuple[float, int, int, Bytes, str]] = []
        ends: dict[str, tuple[float, int]] = {}  # the last use of each buffer
        for i, (run, (start, end)) in enumerate(zip(timed.runs, timed.times, strict=True)):
            node = self._node(run)
            workspace = self._workspace(run)
            changes.append((start, i, 0, self._allocated(self._made(run)) + workspace, node.name))
            changes.append((end, i, 1, -workspace, ""))
            for name in buffers_of(node, self.memory.held.live.roots):
                ends[name] = max(ends.get(name, (0.0, 0)), (end, i))
            for name in run.dead:
                root = self.memory.held.live.roots.get(name, name)
                moment, last = ends[root]
                changes.append((moment, last, 1, -self._freed((name,)), ""))
        now, peak, at = self._none(), self._none(), ""
        for _, _, _, change, name in sorted(changes, key=lambda one: one[:3]):
            now = now + change
            if now.sum() > peak.sum() or not at:
                peak, at = now, name or at
        return Rise(peak, at, now)

    def _none(self) -> Bytes:
        """Return no bytes in any column."""
        return np.zeros(self.memory.columns.count)

    def _node(self, run: Run) -> Node:
        return self.memory.pipeline.graph.nodes[run.position]

    def _made(self, run: Run) -> list[str]:
        """Return the values that a node defines, but for accumulators."""
        if run.kind == "send":
            return []
        live = self.memory.held.live
        return [r.name for r in self._node(run).results if not live.is_accumulator(r.name)]

    def _workspace(self, run: Run) -> Bytes:
        """Return the bytes that a node holds only while it runs."""
        found, node = self._none(), self._node(run)
        if run.kind == "run":
            workspace = self.memory.held.workspaces.get(node.name, 0.0)
            found[self.memory.columns.of[node.name]] = workspace
        return found

    def _allocated(self, names: Iterable[str]) -> Bytes:
        """Count values; return the bytes of new buffers."""
        found = self._none()
        for name in names:
            root = self.memory.held.live.roots.get(name, name)
            if not self.holders[root]:
                found[self.memory.columns.of[root]] += self.memory.held.sizes[root]
            self.holders[root] += 1
        return found

    def _freed(self, names: Iterable[str]) -> Bytes:
        """Forget values; return the bytes of the buffers that none of the others is in."""
        found = self._none()
        for name in names:
            if name in self.memory.lasting:
                continue
            root = self.memory.held.live.roots.get(name, name)
            self.holders[root] -= 1
            if not self.holders[root]:
                found[self.memory.columns.of[root]] += self.memory.held.sizes[root]
        return found
