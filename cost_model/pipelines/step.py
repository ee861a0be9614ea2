"""The simulated step of a pipeline: the segments of all device groups by their schedule.

The work is that of the segments, not of the nodes of every micro-batch: equal segments are timed
once (`segments`), and the schedule is simulated with their seconds and those of the transfers
(`dataflow.schedule_paths`). A transfer has the link from its group to the other for itself, beside
the collectives of both groups. A group runs one segment at a time, and a micro-batch passes the
stages one after the other, also where one needs nothing of the stage before: so the paths of the
schedule bound the step of every program.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from shardwright.cost_model.events import (
    Event,
    Record,
    SegmentEvent,
    Timeline,
    in_least_window,
)
from shardwright.cost_model.pipelines.beside import beside
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.segments import GroupSegments, SegmentTimes, TimedSegment
from shardwright.cost_model.pipelines.stage_memory import (
    Columns,
    PipelineMemory,
    Rise,
    WalkedGroup,
    memory_by_kind,
)
from shardwright.dataflow.schedule_paths import (
    Pair,
    SimulatedSchedule,
    Transfer,
    chain_transfers,
    pairs_of,
    segments_of,
    simulate_in_step,
    simulate_schedule,
)
from shardwright.dataflow.schedules import Action
from shardwright.dataflow.stages import GroupProgram, Pipeline
from shardwright.ir.graph import Node

_HALVINGS = (0, 1, 2, 4, 6, 8)  # halvings of a window whose deferrable bytes do not fit
_MOST_EVENTS = 20_000  # above this, only nodes of the first micro-batches are listed
_FEWEST_LISTED = 2  # micro-batches that are listed at least


MemoryLimit = float | tuple[float, ...]
"""Bytes that a rank may take: of every device group, or of each."""


def least_limit(limit: MemoryLimit) -> float:
    """Return the limit that holds for every device group."""
    return min(limit) if isinstance(limit, tuple) else limit


def limits_of_groups(limit: MemoryLimit, groups: int) -> tuple[float, ...]:
    """Return the limit of each device group."""
    return limit if isinstance(limit, tuple) else (limit,) * groups


def pipeline_timeline(
    pipeline: Pipeline, cluster: AnyCluster, memory_limit: MemoryLimit
) -> Timeline:
    """Return the timeline of a pipeline within a memory limit.

    The window of bytes that gathers ahead may take, and as many the gradients that wait to be
    reduced, is that of all bytes, or what the serial order leaves of the memory, halved until every
    device group is within the limit. Where not even the serial order is, it is that.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline, lowered to collectives.
    cluster : Cluster or MixedCluster
        Its devices and links.
    memory_limit : float or tuple of float
        Peak memory of a rank, in bytes, or that of each device group; 0 for the serial order.

    Raises
    ------
    ClusterError
        If an axis of the mesh belongs to a level that the cluster lacks.
    """
    steps = _steps(pipeline, cluster)
    limits = limits_of_groups(memory_limit, len(pipeline.groups))
    for window in steps.windows(limits) if min(limits) > 0 else ():
        step = steps.step(window)
        if step.excess(limits) <= 0:
            return step.timeline()
    return steps.serial.timeline()


def pipeline_with_window(pipeline: Pipeline, cluster: AnyCluster, window: float) -> Timeline:
    """Return the timeline of a pipeline with a window of bytes early, and as many late."""
    return _steps(pipeline, cluster).step(window).timeline()


def pipeline_narrowed(
    pipeline: Pipeline,
    cluster: AnyCluster,
    timeline: Timeline,
    least_bytes: float,
    tolerance: float,
) -> Timeline:
    """Return the timeline of the least memory whose step is about as short; see `narrowed`."""
    steps = _steps(pipeline, cluster)
    return in_least_window(
        timeline, lambda window: steps.step(window).timeline(), least_bytes, tolerance
    )


def group_peaks(
    pipeline: Pipeline, cluster: AnyCluster, window: float, columns: Columns
) -> list[Rise]:
    """Return the peak of every device group in the timeline of a window, by the given columns.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline, lowered to collectives.
    cluster : Cluster or MixedCluster
        Its devices and links.
    window : float
        The bytes early, and as many late, of the timeline.
    columns : Columns
        What the bytes are divided by.
    """
    return [walked.peak for walked in _steps(pipeline, cluster, columns).step(window).walked]


def _steps(pipeline: Pipeline, cluster: AnyCluster, columns: Columns | None = None) -> "_Steps":
    if columns is None:
        return _steps_by_kind(pipeline, cluster)
    times = SegmentTimes(pipeline, cluster)
    return _Steps(times, PipelineMemory(pipeline, times.buffers, columns))


@lru_cache(maxsize=2)  # a step is simulated, and then narrowed; a pipeline is compared by identity
def _steps_by_kind(pipeline: Pipeline, cluster: AnyCluster) -> "_Steps":
    times = SegmentTimes(pipeline, cluster)
    return _Steps(times, memory_by_kind(pipeline, times.buffers))


def pipeline_seconds(pipeline: Pipeline, cluster: AnyCluster) -> float:
    """Return the step of a pipeline whose segments have no overlap.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline, lowered to collectives.
    cluster : Cluster or MixedCluster
        Its devices and links.
    """
    times = SegmentTimes(pipeline, cluster)
    step = _Step(times, 0.0, [times.of_group(group, 0.0) for group in pipeline.groups], ())
    step.simulate()
    return step.seconds


@dataclass
class _Steps:
    """The steps of a pipeline with windows of several sizes."""

    times: SegmentTimes
    memory: PipelineMemory

    @cached_property
    def serial(self) -> "_Step":
        """The step in which nothing is early or late."""
        return self.step(0.0)

    def windows(self, limits: Sequence[float]) -> Iterator[float]:
        """Yield the windows to try, the largest first; none where the serial order is too large."""
        yield max(self.times.deferrable_bytes, 1.0)
        left = -self.serial.excess(limits)
        if left > 0:
            yield from (left / 2**i for i in _HALVINGS)

    def step(self, window: float) -> "_Step":
        """Return the step with a window."""
        groups = self.times.pipeline.groups
        segments = [self.times.of_group(group, window) for group in groups]
        walked = [self.memory.walked(g, s) for g, s in zip(groups, segments, strict=True)]
        if not window:  # nodes are in program order
            serial = [self.memory.walked(group).peak for group in groups]
            walked = [replace(w, peak=peak) for w, peak in zip(walked, serial, strict=True)]
        return _Step(self.times, window, segments, walked)


@dataclass
class _Step:
    """One step: the segments of every group, and when they begin."""

    times: SegmentTimes
    window: float
    segments: Sequence[GroupSegments]
    walked: Sequence[WalkedGroup]
    # Of each group, the begin and the micro-batch of every segment that it runs, in order.
    runs: list[list[tuple[float, int, TimedSegment]]] = field(default_factory=list)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.times.pipeline

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the group that takes most."""
        return max(float(walked.peak.peak.sum()) for walked in self.walked)

    def excess(self, limits: Sequence[float]) -> float:
        """Return the most bytes by which a group exceeds its limit; negative where none does."""
        pairs = zip(self.walked, limits, strict=True)
        return max(float(walked.peak.peak.sum()) - limit for walked, limit in pairs)

    def timeline(self) -> Timeline:
        """Return the timeline."""
        self.simulate()
        count, step = len(self.segments), self.seconds
        busy = sum(map(_busy_seconds, self.runs)) / count
        compute = sum(s.compute_seconds for runs in self.runs for _, _, s in runs) / count
        moved = sum(s.communication_seconds for runs in self.runs for _, _, s in runs) / count
        return Timeline(
            step_seconds=step,
            compute_seconds=compute,
            communication_seconds=moved + self._sent_seconds() / count,
            exposed_communication_seconds=max(0.0, busy - compute),
            peak_bytes=self.peak_bytes,
            window_bytes=self.window,
            make_record=self._record,
            bubble_seconds=max(0.0, step - busy),
            group_peak_bytes=tuple(float(walked.peak.peak.sum()) for walked in self.walked),
        )

    def _record(self) -> Record:
        live = [_live_bytes(*pair) for pair in zip(self.runs, self.walked, strict=True)]
        peaks = [float(walked.peak.peak.sum()) for walked in self.walked]
        most = live[peaks.index(max(peaks))]
        return Record(
            tuple(self._events()),
            most,
            tuple(live),
            segments=tuple(self._segments()),
            group_kinds=tuple(walked.kinds for walked in self.walked),
        )

    # The simulation

    @property
    def seconds(self) -> float:
        """The end of the last segment, once simulated."""
        ends = (begin + timed.seconds for runs in self.runs for begin, _, timed in runs)
        return max(ends, default=0.0)

    def simulate(self) -> None:
        """Find when every segment begins."""
        count = len(self.segments)
        self.runs = [[] for _ in range(count)]
        ready = self._outside([s.before for s in self.segments], "before", [0.0] * count)
        ends = list(ready)
        if self.pipeline.loop is not None:
            found = self._loop(ready)
            of_pairs = dict(self._of_pairs())
            for action, start, end in zip(found.order, found.starts, found.ends, strict=True):
                group = self.pipeline.schedule.group_of(action.stage)
                timed = of_pairs.get(action) or self.segments[group].loop[action.segment]
                self.runs[group].append((start, action.micro_batch, timed))
                ends[group] = end
        self._outside([s.after for s in self.segments], "after", ends)

    @cached_property
    def beside(self) -> dict[Pair, tuple[TimedSegment, ...]]:
        """The segments that run beside each other; none where the software has no pairs."""
        software, schedule = self.times.cluster.software, self.pipeline.schedule
        if software is None or software.pairs != "beside" or self.pipeline.loop is None:
            return {}
        found: dict[Pair, tuple[TimedSegment, ...]] = {}
        for pair in pairs_of(schedule):
            loop = self.segments[schedule.group_of(pair[0][0])].loop
            found[pair] = beside(*(loop[segment] for segment in pair))
        return found

    def _of_pairs(self) -> Iterator[tuple[Action, TimedSegment]]:
        """Yield the actions of pairs that run beside each other, with the segments of both."""
        for one, others in self.pipeline.schedule.pairs.items() if self.beside else ():
            yield from zip((one, *others), self.beside[segments_of(one, others)], strict=True)

    def _loop(self, ready: Sequence[float]) -> SimulatedSchedule:
        durations = {s: t.seconds for g in self.segments for s, t in g.loop.items()}
        software = self.times.cluster.software
        if software is not None and software.stages == "in_step":
            return simulate_in_step(self.pipeline.schedule, durations, ready)
        delays: dict[Transfer, float] = dict.fromkeys(chain_transfers(self.pipeline.schedule), 0.0)
        nodes = self.pipeline.graph.nodes
        for position, transfer in self.pipeline.transfers.items():
            target = self.pipeline.schedule.group_of(transfer[1][0])
            waits = self.times.waits
            seconds = 0.0 if waits else self.times.transfer_seconds(nodes[position], target)
            delays[transfer] = delays.get(transfer, 0.0) + seconds
        both = {pair: max(t.seconds for t in own) for pair, own in self.beside.items()} or None
        return simulate_schedule(self.pipeline.schedule, durations, delays, ready, both)

    def _outside(
        self, segments: Sequence[Sequence[TimedSegment]], place: str, ready: Sequence[float]
    ) -> list[float]:
        """Run the segments before or after the loop; return when each group is ready."""
        ready = list(ready)
        arrivals: dict[tuple[int, str], float] = {}  # of values, by group
        links: dict[tuple[int, int], float] = {}
        for number in range(max(map(len, segments), default=0)):
            for group, own in enumerate(segments):
                if number >= len(own):
                    continue
                timed = own[number]
                begin = max([ready[group], *self._received(timed, group, arrivals)])
                self.runs[group].append((begin, 0, timed))
                ready[group] = begin + timed.seconds
                self._send(timed, group, ready[group], arrivals, links)
        return ready

    def _received(
        self, timed: TimedSegment, group: int, arrivals: dict[tuple[int, str], float]
    ) -> Iterator[float]:
        for run in timed.runs:
            if run.kind == "receive":
                yield arrivals[group, self.pipeline.graph.nodes[run.position].name]

    def _send(
        self,
        timed: TimedSegment,
        group: int,
        now: float,
        arrivals: dict[tuple[int, str], float],
        links: dict[tuple[int, int], float],
    ) -> None:
        for run in timed.runs:
            if run.kind != "send":
                continue
            node = self.pipeline.graph.nodes[run.position]
            for target in self._targets(node):
                waits = self.times.waits or target == group
                seconds = 0.0 if waits else self.times.transfer_seconds(node, target)
                sent = max(now, links.get((group, target), 0.0)) if seconds else now
                arrivals[target, node.name] = sent + seconds
                if seconds:
                    links[group, target] = sent + seconds

    def _targets(self, node: Node) -> Sequence[int]:
        stage = self.pipeline.graph.stage_of(node)
        if stage is None:
            return range(len(self.segments))
        return (self.pipeline.schedule.group_of(stage),)

    def _sent_seconds(self) -> float:
        """Return the seconds of all transfers between groups."""
        count, loop, total = len(self.segments), self.pipeline.loop, 0.0
        for group in self.pipeline.groups:
            for run in group.runs():
                if run.kind == "send":
                    node = self.pipeline.graph.nodes[run.position]
                    times = loop.times(run.position) if loop else 1
                    for target in self._targets(node):
                        if target != group.group:
                            total += times * self.times.transfer_seconds(node, target)
        return total if count > 1 else 0.0

    # Events

    def _events(self) -> Iterator[Event]:
        """Yield the nodes of all groups; of many, those of the first micro-batches."""
        of_pass = sum(len(t.tasks) for g in self.segments for t in g.loop.values())
        most = max(_MOST_EVENTS // max(of_pass, 1), _FEWEST_LISTED)
        for group, runs in zip(self.pipeline.groups, self.runs, strict=True):
            for begin, micro_batch, timed in runs:
                if micro_batch < most:
                    yield from self._events_of(group, begin, micro_batch, timed)

    def _segments(self) -> Iterator[SegmentEvent]:
        """Yield the segments of all groups."""
        for group, (own, runs) in enumerate(zip(self.segments, self.runs, strict=True)):
            names: dict[int, tuple[int | None, str]] = {id(t): (None, "before") for t in own.before}
            names |= {id(t): (None, "after") for t in own.after}
            names |= {id(timed): segment for segment, timed in own.loop.items()}
            for pair, both in self.beside.items():
                names |= {id(timed): s for s, timed in zip(pair, both, strict=True)}
            for begin, number, timed in runs:
                where = names[id(timed)]
                spent = begin, timed.seconds, timed.compute_seconds
                yield SegmentEvent(group, *where, number, *spent)

    def _events_of(
        self, group: GroupProgram, begin: float, micro_batch: int, timed: TimedSegment
    ) -> Iterator[Event]:
        graph, held = self.pipeline.graph, self.times.buffers
        executed = (run for run in timed.runs if run.kind == "run")
        for run, task, start in zip(executed, timed.tasks, timed.starts, strict=True):
            node = graph.nodes[run.position]
            made = [r.name for r in node.results if not held.live.is_accumulator(r.name)]
            nbytes = sum(held.sizes[name] for name in made)
            yield Event(
                node,
                task.placement,
                begin + start,
                task.seconds,
                nbytes,
                micro_batch,
                task.computing,
                group.group,
            )


def _busy_seconds(runs: Sequence[tuple[float, int, TimedSegment]]) -> float:
    """Return the seconds in which segments run, of which two may be beside each other."""
    busy = last = 0.0
    for begin, _, timed in runs:
        end = max(last, begin + timed.seconds)
        busy += end - max(last, begin)
        last = end
    return busy


def _live_bytes(
    runs: Sequence[tuple[float, int, TimedSegment]], walked: WalkedGroup
) -> tuple[tuple[float, float], ...]:
    """Return the live bytes over time: at most in each segment from its begin, and after it."""
    found: list[tuple[float, float]] = []
    for (begin, _, timed), (_, most, left) in zip(runs, walked.levels, strict=True):
        found += [(begin, most), (begin + timed.seconds, left)]
    return tuple(found)
