"""Peak memory of the device groups of a pipeline, by walking the schedule of each.

A segment allocates and frees the same bytes for every micro-batch. So one pass over the nodes of a
group tells for each segment how far it rises above the bytes before it, and what it leaves; the
walk through the schedule adds these up. It is the account of the executor (`runtime.pipeline`):
parameters and inputs, accumulators for the whole loop, and what is in flight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter

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
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import Update
from shardwright.operators.views import buffers_of

Bytes = NDArray[np.float64]  # by kind
_Change = tuple[int, float, str]  # of the live bytes: the column, the bytes, and the node


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
        self._buffers: dict[int, tuple[str, ...]] = {}

    def buffers_at(self, position: int) -> tuple[str, ...]:
        """Return the buffers that a node reads or defines, by its position."""
        if position not in self._buffers:
            node = self.pipeline.graph.nodes[position]
            self._buffers[position] = buffers_of(node, self.held.live.roots)
        return self._buffers[position]

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
        self.now = self._sum(self._allocated((*program.inputs, *program.parameters)))
        self.highest = Rise(self.now, "the start", self.now)
        for rise in self._rises(program.before, segments.before if segments else None):
            self._add(rise)
        self.now = self.now + self._sum(self._allocated(program.accumulated))
        self._add_loop(self._of_loop(segments))
        self.now = self.now + self._sum(self._freed(program.dead_after_loop))
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
        changes: list[_Change] = []
        for run in runs:
            changes += self._begun(run)
            changes += self._ended(run)
            changes += self._freed(run.dead)
        return self._rise_by(changes)

    def _rise_in_time(self, timed: TimedSegment) -> Rise:
        """Return what the nodes of a segment do at their times.

        A buffer is live from the start of the node that defines it to the end of the last that
        uses it; what is sent, to the end of the segment, and what is received, from its begin.
        """
        found: list[tuple[float, int, int, list[_Change]]] = []
        ends: dict[str, tuple[float, int]] = {}  # the last use of each buffer
        roots = self.memory.held.live.roots
        for i, (run, (start, end)) in enumerate(zip(timed.runs, timed.times, strict=True)):
            found.append((start, i, 0, self._begun(run)))
            found.append((end, i, 1, self._ended(run)))
            for name in self.memory.buffers_at(run.position):
                ends[name] = max(ends.get(name, (0.0, 0)), (end, i))
            for name in run.dead:
                moment, last = ends[roots.get(name, name)]
                found.append((moment, last, 1, self._freed((name,))))
        found.sort(key=itemgetter(0, 1, 2))
        return self._rise_by([change for *_, changes in found for change in changes])

    def _rise_by(self, changes: Sequence[_Change]) -> Rise:
        """Return the peak of some changes of the live bytes, and what is left after them."""
        if not changes:
            return Rise(self._none(), "", self._none())
        first = 1 + int(np.cumsum([nbytes for _, nbytes, _ in changes]).argmax())
        *_, name = changes[first - 1]
        return Rise(self._sum(changes[:first]), name, self._sum(changes))

    def _none(self) -> Bytes:
        """Return no bytes in any column."""
        return np.zeros(self.memory.columns.count)

    def _sum(self, changes: Iterable[_Change]) -> Bytes:
        found = [0.0] * self.memory.columns.count
        for column, nbytes, _ in changes:
            found[column] += nbytes
        return np.array(found)

    def _node(self, run: Run) -> Node:
        return self.memory.pipeline.graph.nodes[run.position]

    def _begun(self, run: Run) -> list[_Change]:
        """Count what a node defines, and return the bytes that it takes while it runs."""
        name = self._node(run).name
        made = self._allocated(self._made(run), name)
        return [*made, (self.memory.columns.of[name], self._workspace(run, name), name)]

    def _ended(self, run: Run) -> list[_Change]:
        """Return the bytes that a node holds no longer once it has run."""
        name = self._node(run).name
        workspace = self._workspace(run, name)
        return [(self.memory.columns.of[name], -workspace, name)] if workspace else []

    def _workspace(self, run: Run, name: str) -> float:
        return self.memory.held.workspaces.get(name, 0.0) if run.kind == "run" else 0.0

    def _made(self, run: Run) -> list[str]:
        """Return the values that a node defines, but for accumulators."""
        if run.kind == "send":
            return []
        live = self.memory.held.live
        return [r.name for r in self._node(run).results if not live.is_accumulator(r.name)]

    def _allocated(self, names: Iterable[str], at: str = "") -> list[_Change]:
        """Count values; return the bytes of new buffers."""
        found: list[_Change] = []
        for name in names:
            root = self.memory.held.live.roots.get(name, name)
            if not self.holders[root]:
                found.append((self.memory.columns.of[root], self.memory.held.sizes[root], at))
            self.holders[root] += 1
        return found

    def _freed(self, names: Iterable[str]) -> list[_Change]:
        """Forget values; return the bytes, negative, of the buffers that no other is in."""
        found: list[_Change] = []
        for name in names:
            if name in self.memory.lasting:
                continue
            root = self.memory.held.live.roots.get(name, name)
            self.holders[root] -= 1
            if not self.holders[root]:
                found.append((self.memory.columns.of[root], -self.memory.held.sizes[root], ""))
        return found
