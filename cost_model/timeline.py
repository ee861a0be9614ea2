"""The overlapped step: the simulated schedule of the nodes of a program on a rank.

The serial step is the sum of the seconds of all nodes; here deferrable communication runs
concurrently with computation (`streams`). All ranks run the same program in lockstep, so one rank
stands for all. The schedule is greedy, and nothing is interrupted:

- Computation and blocking communication run in program order.
- Gathers of parameters run ahead, in program order, as far as the window of bytes allows: a gather
  runs early where all gathers between computation and it fit the window.
- Reductions of gradients run behind, in program order on each level; computation waits for them
  only where the gradients that are still to be reduced exceed a window as large. The updates start
  after the backward computation, each as soon as its gradient is reduced.
- Where blocking communication would wait for deferrable communication that is issued just before
  it, the program may issue that later: both schedules are made, and the shorter one is taken.
- Where several wait for a resource, local work on parameters comes first, then the accumulation of
  gradients over micro-batches and what packs them to be reduced further, then computation and
  blocking communication, then gathers, then reductions.

Of many passes over micro-batches some are simulated: where the same work is done, is running and
is ahead when two passes in a row begin, the passes between them are repeated.

So every resource serves one node at a time, and the step is at least the load of each
(`streams.loads`). A window of no bytes is the serial step.

For a cluster with a training software the timeline is that of the software: operators in program
order, each no earlier than the host has launched it, and communication of which a share is exposed.
Then it is no result of a search, and bounds of the search do not speak of it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shardwright.cost_model.buffers import Buffers, MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.events import Event, Record, Timeline, in_least_window
from shardwright.cost_model.live_bytes import Floats, LiveRanges, host_peak
from shardwright.cost_model.pipelines.mixed import AnyCluster, of_one_kind
from shardwright.cost_model.pipelines.step import (
    MemoryLimit,
    least_limit,
    pipeline_narrowed,
    pipeline_seconds,
    pipeline_timeline,
    pipeline_with_window,
)
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.streams import COMPUTE
from shardwright.cost_model.tasks import Repeated, TaskMaker, Tasks, repeated_pass
from shardwright.cost_model.weighted.loads import seconds_in_buckets
from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import loop_of

_ONE_STAGE = "a program in one stage runs on one kind of device"
_HALVINGS = range(11)  # of the window, where not all deferrable bytes fit; of a large program even
_SMALL = 600  # most nodes of a program for which every window is tried
_MOST_TASKS = 4_000  # most tasks for which every pass over micro-batches is simulated
_FEWEST_PASSES = 4  # passes that are simulated at least, where there are more
_MOST_PASSES = 16  # passes after which one waits no longer for two equal ones


def simulate(graph: Graph, cluster: AnyCluster, memory_limit: MemoryLimit = math.inf) -> Timeline:
    """Return the fastest timeline found of a program, lowered to collectives, within a limit.

    The window is as large as the memory allows: of all bytes, or what the serial step leaves of the
    memory, halved until the peak is within the limit. Where not even the serial step is, it is the
    serial step.

    Parameters
    ----------
    graph : Graph
        The program; without a mesh it runs whole on one device.
    cluster : Cluster or MixedCluster
        Its devices and links.
    memory_limit : float or tuple of float
        Peak memory of the rank, in bytes; of a program with stages, maybe of each device group.

    Raises
    ------
    ClusterError
        If an axis of the mesh belongs to a level that the cluster lacks.
    """
    if cluster.software is not None:
        return _as_run(graph, cluster, cluster.software)
    pipeline = pipeline_of(graph)
    if pipeline is not None:
        return pipeline_timeline(pipeline, cluster, memory_limit)
    memory_limit = least_limit(memory_limit)
    program = _alone(graph, cluster)
    widest = program.timeline(program.widest)
    if widest is not None and widest.peak_bytes <= memory_limit:
        return widest
    serial = program.serial_timeline()
    if serial.peak_bytes > memory_limit:
        return serial
    halvings = _HALVINGS if len(graph) <= _SMALL else _HALVINGS[::2]
    first = min(memory_limit - serial.peak_bytes, program.widest)
    windows = [first / 2**i for i in halvings] if first else []
    found: dict[float, Timeline | None] = {0.0: serial}
    low, high = 0, len(windows)
    while low < high:  # more bytes in the window take more memory, but for a few anomalies
        middle = (low + high) // 2
        timeline = found[windows[middle]] = program.timeline(windows[middle])
        fits = timeline is not None and timeline.peak_bytes <= memory_limit
        low, high = (low, middle) if fits else (middle + 1, high)
    if len(graph) <= _SMALL:
        found |= {w: program.timeline(w) for w in windows if w not in found}
    known = [timeline for timeline in found.values() if timeline is not None]
    fitting = [timeline for timeline in known if timeline.peak_bytes <= memory_limit]
    return min(fitting, key=lambda timeline: timeline.step_seconds)


def with_window(graph: Graph, cluster: AnyCluster, window: float) -> Timeline:
    """Return the timeline of a program with a window.

    Parameters
    ----------
    graph, cluster
        The program and its devices.
    window : float
        Bytes that gathers ahead may take, and as many the gradients that wait to be reduced; of a
        timeline of this program. A training software has none.
    """
    if cluster.software is not None:
        return _as_run(graph, cluster, cluster.software)
    pipeline = pipeline_of(graph)
    if pipeline is not None:
        return pipeline_with_window(pipeline, cluster, window)
    program = _alone(graph, cluster)
    return program.timeline(window) or program.serial_timeline()


def _as_run(graph: Graph, cluster: AnyCluster, software: Software) -> Timeline:
    """Return the timeline of a program as a training software runs it."""
    in_line = serial_timeline(graph, cluster)
    step = in_line.step_seconds + software.step.value
    # Computation also waits for the host.
    exposed = min(in_line.exposed_communication_seconds, in_line.communication_seconds)
    return replace(in_line, step_seconds=step, exposed_communication_seconds=exposed)


def seconds_by_software(graph: Graph, cluster: AnyCluster, software: Software) -> float:
    """Return the step of the timeline as a training software runs it; no memory is followed."""
    pipeline = pipeline_of(graph)
    if pipeline is None:
        in_line = _alone(graph, cluster).executed(0.0)
        assert in_line is not None  # without any overlap passes repeat
        return in_line.step_seconds + software.step.value
    return pipeline_seconds(pipeline, cluster) + software.step.value


def narrowed(
    graph: Graph, cluster: AnyCluster, timeline: Timeline, least_bytes: float, tolerance: float
) -> Timeline:
    """Return the timeline of the least memory whose step is about as short as that of another.

    Parameters
    ----------
    graph, cluster
        The program and its devices.
    timeline : Timeline
        Its fastest timeline.
    least_bytes : float
        Peak memory of the serial step.
    tolerance : float
        Relative length by which the step may exceed the shortest one.
    """
    pipeline = pipeline_of(graph)
    if pipeline is not None:
        return pipeline_narrowed(pipeline, cluster, timeline, least_bytes, tolerance)
    program = _alone(graph, cluster)
    return in_least_window(timeline, program.timeline, least_bytes, tolerance)


def seconds_in_any_memory(graph: Graph, cluster: AnyCluster) -> float:
    """Return the step of a program of one stage in the widest window, however much that takes."""
    if cluster.software is not None or pipeline_of(graph) is not None:
        return serial_timeline(graph, cluster).step_seconds
    program = _alone(graph, cluster)
    return (program.timeline(program.widest) or program.serial_timeline()).step_seconds


def seconds_in_best_buckets(graph: Graph, cluster: AnyCluster, window: float) -> float:
    """Return about the least step of a program whose gradients are reduced in buckets, in a window.

    Each gradient is reduced alone, without latency. Nothing is known of pipelines, nor of what
    training software does: 0.
    """
    if cluster.software is not None or pipeline_of(graph) is not None:
        return 0.0
    program = _alone(graph, cluster)
    seconds = seconds_in_buckets(graph, program.cluster, program.maker.seconds)
    found = program.executed(window, seconds)
    return 0.0 if found is None else found.step_seconds


def serial_timeline(graph: Graph, cluster: AnyCluster) -> Timeline:
    """Return the timeline without any overlap; pipeline stages run side by side."""
    pipeline = pipeline_of(graph)
    if pipeline is not None:
        return pipeline_timeline(pipeline, cluster, 0.0)
    return _alone(graph, cluster).serial_timeline()


def serial_seconds(graph: Graph, cluster: AnyCluster) -> float:
    """Return the step without any overlap; pipeline stages run side by side.

    Without stages it is the sum of the seconds of all nodes (`roofline.program_seconds`).
    """
    pipeline = pipeline_of(graph)
    if pipeline is None:
        return program_seconds(graph, of_one_kind(cluster, _ONE_STAGE))
    return pipeline_seconds(pipeline, cluster)


def _alone(graph: Graph, cluster: AnyCluster) -> "_Program":
    """Return the timelines of a program in one stage, which share its tasks."""
    one = of_one_kind(cluster, _ONE_STAGE)
    return _Program(graph, one)


class _Program:
    """The timelines of a program; of many equal passes over micro-batches some stand for all."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        self.maker = graph.analysed(("tasks", cluster), lambda: TaskMaker(graph, cluster))
        loop = loop_of(graph)
        self.passes = 1 if loop is None else loop.passes
        body = 0 if loop is None else loop.stop - loop.start
        self.fewest = min(self.passes, max(_FEWEST_PASSES, _MOST_TASKS // max(body, 1)))

    @property
    def widest(self) -> float:
        """The widest window: as many bytes as would be early or late if everything were.

        Of passes over micro-batches those of one: work that is further ahead or behind takes
        memory, makes the step hardly shorter, and may never repeat itself. A window of no bytes
        would be the serial step.
        """
        return max(self._tasks_of(self.fewest).deferrable_bytes, 1.0)

    def timeline(self, window: float) -> Timeline | None:
        """Return the timeline with a window, of all passes; None if they do not repeat."""
        found = self.executed(window)
        return None if found is None else found.timeline()

    def executed(
        self, window: float, seconds: Sequence[float] | None = None
    ) -> "_Execution | None":
        """Return when all passes run; None if they do not repeat.

        Parameters
        ----------
        window : float
            The bytes that may be early, and late.
        seconds : sequence of float, optional
            Other durations of the nodes.
        """
        most = max(self.fewest, min(self.passes, _MOST_PASSES))
        passes = self.fewest
        while True:
            tasks = self._tasks_of(passes)
            tasks = tasks if seconds is None else tasks.lasting(seconds)
            starts = tasks.starts(window)
            skipped = self._skipped(passes, tasks, starts)
            if skipped is not None:
                live = partial(self._live_ranges, passes)
                return _Execution(self.graph, tasks, live, starts, window, skipped)
            if passes == most:
                return None
            passes = min(2 * passes, most)

    def serial_timeline(self) -> Timeline:
        """Return the timeline without any overlap: its passes repeat."""
        timeline = self.timeline(0.0)
        assert timeline is not None
        return timeline

    def _skipped(self, passes: int, tasks: Tasks, starts: Floats) -> "_Skipped | None":
        """Return the passes that some stand for; None where they do not repeat."""
        if passes == self.passes:
            return _NONE_SKIPPED
        repeated = repeated_pass(tasks, starts)
        return None if repeated is None else _Skipped(self.passes - passes, repeated)

    def _tasks_of(self, passes: int) -> Tasks:
        return self.maker.in_passes(self.graph, passes)

    def _live_ranges(self, passes: int) -> LiveRanges:
        def ranges() -> LiveRanges:
            tasks = self._tasks_of(passes)
            positions = [position for position, _ in tasks.order]
            return LiveRanges(self.graph, tasks.buffers, positions)

        return self.graph.analysed(("live ranges", passes), ranges)


@dataclass(frozen=True)
class _Skipped:
    """Passes over micro-batches that are like one that was simulated.

    Parameters
    ----------
    count : int
        Number of passes.
    like : Repeated
        The pass before which they run.
    """

    count: int
    like: Repeated

    @property
    def seconds(self) -> float:
        """Seconds that they take."""
        return self.count * self.like.seconds

    def shifted(self, moment: float) -> float:
        """Return a simulated moment, later by these passes where it comes after them."""
        return moment + self.seconds if moment >= self.like.start else moment


_NONE_SKIPPED = _Skipped(0, Repeated(0, math.inf, 0.0))


@dataclass(frozen=True)
class _Execution:
    """The nodes of a program, with the times at which they run.

    Parameters
    ----------
    graph : Graph
        The program.
    tasks : Tasks
        Its tasks.
    live : callable
        Returns its buffers.
    starts : array
        When each task starts, in seconds.
    window : float
        The bytes that may be early, and late.
    skipped : _Skipped
        Further passes over micro-batches.
    """

    graph: Graph
    tasks: Tasks
    live: Callable[[], LiveRanges]
    starts: Floats
    window: float
    skipped: _Skipped

    @property
    def ends(self) -> Floats:
        """When each task ends, in seconds."""
        return self.starts + self.tasks.seconds

    @property
    def step_seconds(self) -> float:
        """When the last task of the last pass ends, in seconds."""
        return float(self.ends.max(initial=0.0)) + self.skipped.seconds

    def timeline(self) -> Timeline:
        """Return the timeline."""
        step, (compute, total) = self.step_seconds, self._busy(self.skipped)
        # Moments are added up one by one and loads at once: the difference has a rounding error.
        exposed = min(max(0.0, step - compute), total - compute)
        return Timeline(
            step_seconds=step,
            compute_seconds=compute,
            communication_seconds=total - compute,
            exposed_communication_seconds=exposed,
            peak_bytes=self.live().peak_bytes(self.starts, self.ends),
            window_bytes=self.window,
            make_record=lambda: self._record(self.skipped),
            make_memory=self._memory,
        )

    def _memory(self) -> MemoryUseReport:
        """Return the peak memory by kind of tensor."""
        found = self.live().memory(self.graph, self.starts, self.ends)
        if self.tasks.buffers.hosted:
            hosted = host_peak(self.graph, self.tasks.buffers, [*self._events()])
            found = replace(found, host_bytes=hosted)
        return replace(found, window_bytes=self.window)

    def _busy(self, skipped: _Skipped) -> tuple[float, float]:
        """Return the seconds of computation, and of all nodes."""
        (compute, total), once = self.tasks.busy, self.tasks.busy_in_second_pass
        return compute + skipped.count * once[0], total + skipped.count * once[1]

    def _record(self, skipped: _Skipped) -> Record:
        events = tuple(self._events())
        later = tuple(self._events(skipped)) if skipped.count else events
        return Record(
            later,
            tuple((skipped.shifted(moment), nbytes) for moment, nbytes in self._live_bytes()),
            simulated=events if skipped.count else (),
        )

    def _events(self, skipped: _Skipped = _NONE_SKIPPED) -> Iterator[Event]:
        starts = map(skipped.shifted, self.starts.tolist())
        for (position, number), task, start in zip(
            self.tasks.order, self.tasks.tasks, starts, strict=True
        ):
            node = self.graph.nodes[position]
            nbytes = _allocated(node, self.tasks.buffers)
            after = skipped.count * (number >= skipped.like.number)
            where, seconds = task.placement, task.seconds
            yield Event(node, where, start, seconds, nbytes, number + after, task.computing)

    def _live_bytes(self) -> list[tuple[float, float]]:
        """Return the changes of the live bytes over time, and the bytes from then on."""
        changes = self.live().changes(self.starts, self.ends)
        moments = [0.0, *changes.moments.tolist()]
        return list(zip(moments, self.live().totals(changes).tolist(), strict=True))


def _allocated(node: Node, held: Buffers) -> float:
    """Return the bytes that are allocated for a node; those of accumulators once, before a loop."""
    names = (result.name for result in node.results)
    return sum(held.sizes[name] for name in names if not held.live.is_accumulator(name))


# The format of chrome://tracing and https://ui.perfetto.dev


def to_chrome_trace(timeline: Timeline) -> str:
    """Return the timeline as JSON for ``chrome://tracing`` and Perfetto.

    Computation is a thread, and so is every queue of a level. The live bytes are a counter. A
    device group of a pipeline is a process. Times are microseconds.
    """
    record = timeline.record
    threads = {name: number for number, name in enumerate(_thread_names(record))}
    groups = record.group_live_bytes or (record.live_bytes,)
    records = [_process(group) for group in range(len(groups)) if record.group_live_bytes]
    for group in range(len(groups)):
        records += [_thread(name, number, group) for name, number in threads.items()]
    for event in record.events:
        if event.seconds:
            records += [_slice(event, threads[name]) for name in _threads(event)]
    for group, live in enumerate(groups):
        for moment, nbytes in live:
            counter = {"name": "live bytes", "ph": "C", "ts": moment * 1e6, "pid": group}
            records.append({**counter, "args": {"bytes": nbytes}})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": records}, indent=1) + "\n"


def _process(group: int) -> Mapping[str, object]:
    name = f"device group {group}"
    return {"name": "process_name", "ph": "M", "pid": group, "args": {"name": name}}


def _thread_names(record: Record) -> list[str]:
    """Return the threads of a trace: computation, then the queues of each level."""
    found = dict.fromkeys(name for event in record.events for name in _threads(event))
    return [COMPUTE, *(name for name in found if name != COMPUTE)]


def _threads(event: Event) -> tuple[str, ...]:
    """Return the threads that show an event: one for each level and queue that it is in."""
    placed = event.placement
    return tuple(f"{level}: {placed.queue}" for level in placed.levels) or (COMPUTE,)


def _thread(name: str, number: int, group: int) -> Mapping[str, object]:
    args = {"name": name}
    return {"name": "thread_name", "ph": "M", "pid": group, "tid": number, "args": args}


def _slice(event: Event, thread: int) -> Mapping[str, object]:
    node, origin = event.node, event.node.provenance
    return {
        "name": f"{node.operator} {node.name}",
        "cat": node.operator,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": event.seconds * 1e6,
        "pid": event.group,
        "tid": thread,
        "args": {
            "scope": node.scope,
            "from": origin.operator,
            "as": origin.role,
            "bytes": event.nbytes,
            **({"micro_batch": event.micro_batch} if event.micro_batch else {}),
        },
    }
