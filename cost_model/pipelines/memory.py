"""Peak memory of the device groups of a pipeline, by walking the schedule of each.

A segment allocates and frees the same bytes for every micro-batch. So one pass over the nodes of a
group tells for each segment how far it rises above the bytes before it, and what it leaves; the
walk through the schedule adds these up. It is the account of the executor (`runtime.pipeline`):
parameters and inputs, accumulators for the whole loop, and what is in flight.
"""

from collections import Counter
from collections.abc import Iterable
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
from shardwright.cost_model.roofline import value_bytes
from shardwright.dataflow.schedules import Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import Update

Bytes = NDArray[np.float64]  # by kind


@dataclass(frozen=True)
class _Rise:
    """What some nodes do to the live bytes: how far they rise, where, and what is left."""

    peak: Bytes
    at: str
    left: Bytes


def pipeline_memory(pipeline: Pipeline) -> MemoryUseReport:
    """Return the peak memory of the device group that takes most, with that of each."""
    graph, kinds = pipeline.graph, buffer_kinds(pipeline.graph)
    copied = _copied(graph)
    held, mesh = buffers(graph), graph.mesh or Mesh(())
    constants = [name for name, root in held.live.roots.items() if root == name]
    own = (*copied.values(), *constants)
    sizes = {name: value_bytes(graph.values[name], mesh) for name in own}
    held = replace(held, sizes={**held.sizes, **sizes})
    place = {kind: i for i, kind in enumerate(KINDS)}
    numbers = {name: place[kind] for name, kind in kinds.items()}
    lasting = graph.kept() | ({parameter.name for parameter in graph.parameters} - set(copied))
    peaks = [_Walk(pipeline, group, held, numbers, lasting).peak() for group in pipeline.groups]
    totals = tuple(float(peak.peak.sum()) for peak in peaks)
    most = peaks[totals.index(max(totals))]
    by_kind = dict(zip(KINDS, most.peak.tolist(), strict=True))
    return MemoryUseReport(max(totals), by_kind, most.at, totals)


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
    """The live bytes of a device group."""

    pipeline: Pipeline
    program: GroupProgram
    held: Buffers
    kinds: dict[str, int]
    lasting: frozenset[str]
    holders: Counter[str] = field(default_factory=Counter)  # live values in each buffer

    @property
    def graph(self) -> Graph:
        """The program of all groups."""
        return self.pipeline.graph

    def peak(self) -> _Rise:
        """Return the live bytes at their peak."""
        now = self._allocated((*self.program.inputs, *self.program.parameters))
        highest = _Rise(now, "the start", now)
        highest, now = self._after(self._rise(self.program.before), now, highest)
        now = now + self._allocated(self.program.accumulated)
        highest, now = self._through_loop(now, highest)
        now = now - self._freed(self.program.dead_after_loop)
        return self._after(self._rise(self.program.after), now, highest)[0]

    def _through_loop(self, now: Bytes, highest: _Rise) -> tuple[_Rise, Bytes]:
        """Return the peak and the live bytes after all passes."""
        segments = {s: self._rise(runs) for s, runs in self.program.segments.items()}
        order: list[Segment] = []
        if self.pipeline.loop is not None:
            actions = self.pipeline.schedule.actions[self.program.group]
            order = [action.segment for action in actions]
        if not order:
            return highest, now
        left = np.array([segments[segment].left for segment in order])
        before = np.vstack([now, now + np.cumsum(left, axis=0)])
        peaks = before[:-1] + np.array([segments[segment].peak for segment in order])
        at = int(peaks.sum(axis=1).argmax())
        if peaks[at].sum() > highest.peak.sum():
            highest = _Rise(peaks[at], segments[order[at]].at, now)
        return highest, before[-1]

    def _after(self, rise: _Rise, now: Bytes, highest: _Rise) -> tuple[_Rise, Bytes]:
        peak = now + rise.peak
        if peak.sum() > highest.peak.sum():
            highest = _Rise(peak, rise.at, now)
        return highest, now + rise.left

    def _rise(self, runs: Iterable[Run]) -> _Rise:
        """Return what some nodes add to the live bytes."""
        now, peak, at = np.zeros(len(KINDS)), np.zeros(len(KINDS)), ""
        for run in runs:
            node = self.graph.nodes[run.position]
            if run.kind != "send":
                made = [r.name for r in node.results if not self.held.live.is_accumulator(r.name)]
                now = now + self._allocated(made)
            if now.sum() > peak.sum() or not at:
                peak, at = now, node.name
            now = now - self._freed(run.dead)
        return _Rise(peak, at, now)

    def _allocated(self, names: Iterable[str]) -> Bytes:
        """Count values; return the bytes of new buffers."""
        found = np.zeros(len(KINDS))
        for name in names:
            root = self.held.live.roots.get(name, name)
            if not self.holders[root]:
                found[self.kinds[root]] += self.held.sizes[root]
            self.holders[root] += 1
        return found

    def _freed(self, names: Iterable[str]) -> Bytes:
        """Forget values; return the bytes of the buffers that none of the others is in."""
        found = np.zeros(len(KINDS))
        for name in names:
            if name in self.lasting:
                continue
            root = self.held.live.roots.get(name, name)
            self.holders[root] -= 1
            if not self.holders[root]:
                found[self.kinds[root]] += self.held.sizes[root]
        return found
