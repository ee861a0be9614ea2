"""The segments of a pipeline on a rank of their device group: their seconds, and when nodes run.

Within a segment the streams of the rank run as in a step of one stage: collectives of activations
in line, those of parameters beside the computation, as far as the window of bytes allows. A segment
begins when all that it receives has arrived, and ends with its last node; what it sends leaves at
its end. Before and after the loop, the nodes of a group form a segment up to those that need
something sent by another group, these the next, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from shardwright.cost_model.pipelines.mixed import AnyCluster, groups_on
from shardwright.cost_model.schedule import Scheduler
from shardwright.cost_model.streams import Sent, Task, transfer_seconds
from shardwright.cost_model.tasks import TaskMaker
from shardwright.dataflow.schedules import Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh


@dataclass(frozen=True)
class TimedSegment:
    """The nodes of a segment, with the times at which they run after it begins.

    Parameters
    ----------
    runs : tuple of Run
        The nodes, in program order; what is sent and received takes no time of the segment.
    tasks : tuple of Task
        The tasks of those that run on the rank alone.
    starts : tuple of float
        When each of these starts.
    received : float
        Seconds for which it receives first, where a stage waits for that.
    """

    runs: tuple[Run, ...]
    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    received: float = 0.0

    @cached_property
    def seconds(self) -> float:
        """Time from its begin to the end of its last node."""
        pairs = zip(self.starts, self.tasks, strict=True)
        return max((start + task.seconds for start, task in pairs), default=self.received)

    @cached_property
    def compute_seconds(self) -> float:
        """Time of computation."""
        return sum(task.computing for task in self.tasks)

    @cached_property
    def communication_seconds(self) -> float:
        """Time of all collectives; of a ring the time in which it does not compute."""
        return sum(task.seconds - task.computing for task in self.tasks)

    @cached_property
    def times(self) -> tuple[tuple[float, float], ...]:
        """Start and end of every node: what is received at the begin, what is sent at the end."""
        executed = iter(zip(self.starts, self.tasks, strict=True))
        last, found = self.seconds, []
        for run in self.runs:
            if run.kind == "run":
                start, task = next(executed)
                found.append((start, start + task.seconds))
            else:
                found.append((last, last) if run.kind == "send" else (0.0, 0.0))
        return tuple(found)


@dataclass(frozen=True)
class GroupSegments:
    """The segments of a device group.

    Parameters
    ----------
    before, after : tuple of TimedSegment
        Those outside of the loop, in order; each may wait for transfers.
    loop : mapping of (int, str) to TimedSegment
        Those of every micro-batch.
    """

    before: tuple[TimedSegment, ...]
    loop: Mapping[Segment, TimedSegment]
    after: tuple[TimedSegment, ...]


@dataclass
class SegmentTimes:
    """Times the segments of a pipeline; equal ones once.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    cluster : Cluster or MixedCluster
        Its devices and links.
    """

    pipeline: Pipeline
    cluster: AnyCluster
    _starts: dict[tuple[int, float], tuple[float, ...]] = field(default_factory=dict)
    _equal: dict[tuple[Task, ...], Scheduler] = field(default_factory=dict)
    _of_runs: dict[tuple[int, tuple[Run, ...]], Scheduler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.pipeline.graph
        self.groups = groups_on(self.cluster, graph.mesh or Mesh(()))
        self.makers = {n: TaskMaker(graph, part) for n, part in self.groups.by_part.items()}
        self.buffers = self.makers[0].buffers
        loop, nodes = self.pipeline.loop, graph.nodes
        begin, end = (loop.start, loop.stop) if loop else (len(nodes), len(nodes))
        self.depth = _depths(nodes[:begin], graph) | _depths(nodes[end:], graph)

    @property
    def deferrable_bytes(self) -> float:
        """Bytes that would be early or late if everything were, in the largest segment."""
        tasks = (
            self._scheduler_of(runs, group.group).tasks
            for group in self.pipeline.groups
            for runs in _all(group)
        )
        return max((sum(task.nbytes for task in found) for found in tasks), default=0.0)

    def of_group(self, group: GroupProgram, window: float) -> GroupSegments:
        """Return the segments of a group, with a window of bytes early or late."""
        timed = partial(self._timed, group=group.group, window=window)
        return GroupSegments(
            tuple(map(timed, self._outside(group.before))),
            {segment: timed(runs) for segment, runs in group.segments.items()},
            tuple(map(timed, self._outside(group.after))),
        )

    def transfer_seconds(self, node: Node, target: int) -> float:
        """Return the seconds of a transfer to a group: each rank sends over links of its own."""
        graph = self.pipeline.graph
        mesh, layout = graph.mesh or Mesh(()), graph.values[node.operands[0]].layout
        sender = self.groups.sending(None if layout is None else layout.stage, target)
        return transfer_seconds(Sent.of(node.results[0], mesh), self.groups.level, mesh, sender)

    def _timed(self, runs: tuple[Run, ...], group: int, window: float) -> TimedSegment:
        scheduler = self._scheduler_of(runs, group)
        key, tasks = (id(scheduler), window), tuple(scheduler.tasks)
        if key not in self._starts:
            self._starts[key] = tuple(scheduler.starts(window))
        wait = self._receiving_seconds(runs, group)
        starts = self._starts[key]
        return TimedSegment(runs, tasks, tuple(wait + s for s in starts) if wait else starts, wait)

    @property
    def waits(self) -> bool:
        """Whether a stage waits for its transfers, as software runs it; else links do alone."""
        return self.cluster.software is not None

    def _receiving_seconds(self, runs: tuple[Run, ...], group: int) -> float:
        """Return the seconds for which a segment receives before it computes."""
        if not self.waits:
            return 0.0
        nodes = self.pipeline.graph.nodes
        received = (nodes[run.position] for run in runs if run.kind == "receive")
        return sum(self.transfer_seconds(node, group) for node in received)

    def _scheduler_of(self, runs: tuple[Run, ...], group: int) -> Scheduler:
        """Return what schedules the nodes that run on the devices of a group alone.

        It is one object for equal tasks, which are compared once.
        """
        key = self.groups.parts[group], runs
        if key not in self._of_runs:
            order = [(run.position, 0) for run in runs if run.kind == "run"]
            tasks = self.makers[key[0]].tasks(order)
            if tasks not in self._equal:
                self._equal[tasks] = Scheduler(tasks)
            self._of_runs[key] = self._equal[tasks]
        return self._of_runs[key]

    def _outside(self, runs: Sequence[Run]) -> tuple[tuple[Run, ...], ...]:
        """Divide nodes outside of the loop by the number of transfers that they wait for."""
        nodes = self.pipeline.graph.nodes
        found: dict[int, list[Run]] = {}
        for run in runs:
            depth = self.depth[nodes[run.position].name] - (run.kind == "send")
            found.setdefault(depth, []).append(run)
        most = max(found, default=-1)
        return tuple(tuple(found.get(depth, ())) for depth in range(most + 1))


def _all(group: GroupProgram) -> Sequence[tuple[Run, ...]]:
    return (group.before, *group.segments.values(), group.after)


def _depths(nodes: Sequence[Node], graph: Graph) -> dict[str, int]:
    """Return for each value that some nodes make the most transfers on a way to it from others.

    What is computed again waits for the nodes before it, too: its operands are there long before,
    and run so early it would be kept as if it had been saved.
    """
    depth: dict[str, int] = {}
    reached: dict[int | None, int] = {}  # by the nodes of each stage so far
    for node in nodes:
        own = max((depth.get(name, 0) for name in node.operands), default=0)
        layout = graph.values[node.operands[0]].layout if node.operator == "transfer" else None
        own += layout is not None and layout.stage is not None
        stage = graph.stage_of(node)
        if node.provenance.role == "recompute":
            own = max(own, reached.get(stage, 0))
        reached[stage] = max(own, reached.get(stage, 0))
        depth.update((result.name, own) for result in node.results)
    return depth
