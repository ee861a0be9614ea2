"""A program without its operators: timed again under other rates, and with more equal blocks.

Its work has what the timeline of a training software needs: of every node in program order the work
and the bytes that it moves, which do not depend on rates. Equal nodes share one entry. So rates are
fitted to many programs that are compiled once. Of a model of equal blocks it also holds with other
numbers of them, of stages and of micro-batches: the middle block and the middle stage stand for
all. It times what `timeline.simulate` times for the same program and software.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import add

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.as_run import (
    kernel_work,
    run_by,
    softmax_seconds,
)
from shardwright.cost_model.efficiency.fused import kernel_of
from shardwright.cost_model.efficiency.rings import (
    RingWork,
    ring_computing,
    ring_seconds,
    ring_work,
)
from shardwright.cost_model.efficiency.unread import block_of, unread_recomputation
from shardwright.cost_model.efficiency.work import Work, work_seconds
from shardwright.cost_model.redistribution.exchange import Choices
from shardwright.cost_model.redistribution.seconds import move_seconds, packing_seconds
from shardwright.cost_model.roofline import node_cost, operator_work, takes_nothing
from shardwright.cost_model.streams import Placement, Sent, Task, placements, transfer_seconds
from shardwright.dataflow.schedule_paths import (
    Path,
    chain_transfers,
    simulate_in_step,
    simulate_schedule,
)
from shardwright.dataflow.schedules import BACKWARD, FORWARD, Schedule, make_schedule
from shardwright.dataflow.stages import Run, pipeline_of
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_SIMULATED = 4  # passes over micro-batches, where communication runs concurrently


@dataclass(frozen=True)
class Moved:
    """Bytes that a communication operator moves over some axes.

    `further`: what it takes further where its parts are copied, not the move itself. `choices`:
    those of the tokens whose rows it exchanges.
    """

    operator: str
    axes: tuple[str, ...]
    nbytes: float
    further: bool = False
    choices: Choices | None = None


Call = Work | RingWork | Moved
"""What a node runs."""


@dataclass(frozen=True)
class Entry:
    """What the time of a node depends on.

    Parameters
    ----------
    calls : tuple of Call
        What it computes and moves.
    placement : Placement
        Its queue and links.
    in_loop : bool
        Whether it is run in every pass over micro-batches.
    unread : tuple of Entry
        What a software that recomputes whole blocks runs after it.
    """

    calls: tuple[Call, ...]
    placement: Placement
    in_loop: bool
    unread: tuple["Entry", ...] = ()


@dataclass(frozen=True)
class Part:
    """Nodes that run one after the other.

    Parameters
    ----------
    entries : tuple of int
        The entry of each node.
    blocks : tuple of str
        The block of each node, empty outside of blocks.
    received : tuple of Sent
        What is received from other stages first.
    """

    entries: tuple[int, ...] = ()
    blocks: tuple[str, ...] = ()
    received: tuple[Sent, ...] = ()

    def repeated(self, blocks: int) -> Integers:
        """Return the entries with so many blocks: the middle one of three stands for more."""
        return _repeated(self, blocks)


@lru_cache(maxsize=4096)
def _repeated(part: Part, blocks: int) -> Integers:
    names = sorted({name for name in part.blocks if name}, key=_number)
    if len(names) == blocks or not names:
        return np.array(part.entries, dtype=np.int64)
    middle, found = names[len(names) // 2], list[int]()
    pairs = zip(part.blocks, part.entries, strict=True)
    for name, group in groupby(pairs, key=lambda pair: pair[0]):
        entries = [entry for _, entry in group]
        found += entries * (blocks - len(names) + 1 if name == middle else 1)
    return np.array(found, dtype=np.int64)


def _number(name: str) -> int:
    return int("".join(filter(str.isdigit, name)) or 0)


@dataclass(frozen=True)
class Repetition:
    """How often the parts of a program run.

    Parameters
    ----------
    blocks : int or tuple of int
        Blocks of each stage.
    passes : int
        Micro-batches.
    groups, chunks : int
        Device groups of a pipeline, and stages of each.
    level : int
        The level of the cluster whose links connect the stages.
    """

    blocks: int | tuple[int, ...]
    passes: int = 1
    groups: int = 1
    chunks: int = 1
    level: int = 0

    def of(self, stage: int) -> int:
        """Return the blocks of a stage."""
        return self.blocks if isinstance(self.blocks, int) else self.blocks[stage]


@dataclass(frozen=True)
class ProgramWork:
    """The nodes of a program, without rates.

    Parameters
    ----------
    mesh : Mesh
        The mesh of a stage.
    entries : tuple of Entry
        The different nodes.
    parts : tuple of mapping of str to Part
        Of each stage what it runs ``before`` the loop over micro-batches, in each of its segments,
        and ``after`` it.
    in_passes : bool
        Whether there is such a loop.
    """

    mesh: Mesh
    entries: tuple[Entry, ...]
    parts: tuple[Mapping[str, Part], ...]
    in_passes: bool

    def stage(self, stage: int, stages: int) -> int:
        """Return the stage that stands for one of so many."""
        last = len(self.parts) - 1
        assert last > 1 or stages <= last + 1, "no stage is a middle one"
        return 0 if stage == 0 else last if stage == stages - 1 else min(1, last)

    def seconds(self, cluster: Cluster, repetition: Repetition) -> float:
        """Return the step on a cluster with a training software."""
        return ProgramTimes(self, cluster).step(repetition)


@dataclass
class ProgramTimes:
    """The times of a program under the rates of a cluster with a training software.

    Parameters
    ----------
    work : ProgramWork
        Its work.
    cluster : Cluster
        The rates.
    """

    work: ProgramWork
    cluster: Cluster
    tasks: list[Task] = field(default_factory=list)
    _known: dict[tuple[bool, tuple[Call, ...]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        software = self.cluster.software
        assert software is not None
        self.software, self.bare = software, self.cluster.without_latencies()
        whole = software.recompute == "blocks"
        for entry in self.work.entries:
            unread = entry.unread if whole else ()
            found = [self._task(one) for one in (entry, *unread)]
            self.tasks.append(run_by(software, found, self.work.in_passes))
        self.task_seconds = np.array([task.seconds for task in self.tasks])
        self.task_host = np.array([task.host for task in self.tasks])
        self.beside = np.array([task.exposed < 1 for task in self.tasks], dtype=bool)

    def step(self, repetition: Repetition) -> float:
        """Return the seconds of a step."""
        return self.step_and_path(repetition)[0]

    def step_and_path(
        self, repetition: Repetition, path: Path | None = None
    ) -> tuple[float, Path | None]:
        """Return the seconds of a step, and of a pipeline the critical path of its schedule.

        Along a given path the step is no longer than that of the schedule, and as long under the
        rates that the path is of: so derivatives need no further simulation.
        """
        once = self.software.step.value
        if len(self.work.parts) == 1:
            return once + self._alone(repetition), None
        seconds, path = self._pipeline(repetition, path)
        return once + seconds, path

    def _task(self, entry: Entry) -> Task:
        bare = entry.placement.is_deferrable
        key = bare, entry.calls
        if key not in self._known:
            cluster = self.bare if bare else self.cluster
            self._known[key] = sum(self._call(call, cluster) for call in entry.calls)
        works = (call for call in entry.calls if isinstance(call, Work))
        host = sum(softmax_seconds(work, self.software) for work in works)
        rings = (call for call in entry.calls if isinstance(call, RingWork))
        computing = sum(ring_computing(ring, self.cluster) for ring in rings)
        return Task(entry.placement, self._known[key], (), 0.0, computing, entry.in_loop, host)

    def _call(self, call: Call, cluster: Cluster) -> float:
        if isinstance(call, Work):
            return work_seconds(call, cluster)
        if isinstance(call, RingWork):
            return ring_seconds(call, self.work.mesh, cluster)
        sizes, mesh = np.array([call.nbytes]), self.work.mesh
        where = call.operator, call.axes, sizes, mesh, cluster
        found = packing_seconds(*where) if call.further else move_seconds(*where, call.choices)
        return float(found[0])

    def _line(self, entries: Integers) -> float:
        """Return the end of tasks in line, each no earlier than the host has launched it."""
        if not len(entries):
            return 0.0
        seconds, host = self.task_seconds[entries], self.task_host[entries]
        beside = np.flatnonzero(self.beside[entries])
        if len(beside):
            return self._beside(entries, seconds, host, beside)
        left = np.cumsum(seconds[::-1])[::-1]
        launched = np.where(host > 0, np.cumsum(host), 0.0)
        return float(np.max(launched + left))

    def _beside(self, entries: Integers, seconds: Floats, host: Floats, beside: Integers) -> float:
        """Return the end of tasks in line with exposed communication: `in_line`, by runs of it.

        Tasks between two of its kind end after their seconds, or those left after a launch.
        """
        until = np.concatenate([[0.0], np.cumsum(seconds)])
        launched = np.where(host > 0, np.cumsum(host) - until[:-1], -np.inf)
        launched[beside] = -np.inf
        begins = np.concatenate([[0], beside])  # each run with the communication before it
        latest = np.maximum.reduceat(launched, begins)
        if beside[0] == 0:
            latest[0] = -np.inf
        ends = np.concatenate([beside, [len(entries)]])
        until_end, until_begin = until[ends].tolist(), until[np.concatenate([[0], beside + 1])]
        runs = zip(until_begin.tolist(), until_end, latest.tolist(), strict=True)
        now, last = 0.0, 0.0
        free: dict[str, float] = {}
        for (first, end, late), i in zip(runs, [*entries[beside].tolist(), -1], strict=True):
            now = max(now + end - first, late + end)
            if i >= 0:
                task = self.tasks[i]
                links = task.placement.levels
                start = max([now, *(free.get(link, 0.0) for link in links)])
                last = max(last, start + task.seconds)
                free.update(dict.fromkeys(links, start + task.seconds))
                now = start + task.seconds * task.exposed
        return max(now, last)

    # One stage

    def _alone(self, repetition: Repetition) -> float:
        """Return the step without a pipeline: all passes in one line."""
        parts, passes = self.work.parts[0], repetition.passes
        names = ("before", "loop", "after")
        before, body, after = (parts[name].repeated(repetition.of(0)) for name in names)
        if not self.beside[body].any() or passes <= _SIMULATED:
            return self._line(np.concatenate([before, *[body] * passes, after]))
        ends = [
            self._line(np.concatenate([before, *[body] * count, after]))
            for count in (_SIMULATED - 1, _SIMULATED)
        ]
        return ends[1] + (passes - _SIMULATED) * (ends[1] - ends[0])

    # A pipeline

    def _pipeline(self, shape: Repetition, path: Path | None) -> tuple[float, Path]:
        """Return the step of a pipeline, and its critical path."""
        schedule = _schedule(shape)
        count = schedule.stages
        kept = [(self.work.stage(stage, count), shape.of(stage)) for stage in range(count)]
        timed = {
            (kind, name): self._segment(kind, name, shape)
            for kind in set(kept)
            for name in (*_PARTS, *_OUTSIDE)
        }
        durations = {
            (stage, part): timed[kept[stage], part] for part in _PARTS for stage in range(count)
        }
        groups = [schedule.stages_on(group) for group in range(shape.groups)]
        begin, end = (
            [sum(timed[kept[stage], name] for stage in stages) for stages in groups]
            for name in _OUTSIDE
        )
        if path is not None:
            return begin[0] + path.seconds(durations) + end[0], path
        if self.software.stages == "in_step":
            found = simulate_in_step(schedule, durations, begin)
        else:
            delays = dict.fromkeys(chain_transfers(schedule), 0.0)
            found = simulate_schedule(schedule, durations, delays, begin)
        ends = [0.0] * shape.groups
        for action, moment in zip(found.order, found.ends, strict=True):
            group = schedule.group_of(action.stage)
            ends[group] = max(ends[group], moment)
        return max(map(add, ends, end)), found.path

    def _segment(self, kind: tuple[int, int], name: str, shape: Repetition) -> float:
        stage, blocks = kind
        part = self.work.parts[stage].get(name)
        if part is None:
            return 0.0
        where = shape.level, self.work.mesh, self.cluster
        received = sum(transfer_seconds(sent, *where) for sent in part.received)
        return received + self._line(part.repeated(blocks))


@lru_cache(maxsize=256)
def _schedule(shape: Repetition) -> Schedule:
    name = "interleaved" if shape.chunks > 1 else "1f1b"
    return make_schedule(name, shape.groups, shape.chunks, shape.passes)


_PARTS = (FORWARD, BACKWARD)
_OUTSIDE = ("before", "after")


# From a program


class _Recorder:
    """Records the work and the moves of a node in place of pricing them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.calls: list[Call] = []

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Record the work of an operator."""
        if not takes_nothing(info, operands, results, self.mesh):
            self.calls.append(
                ring_work(info, operands, self.mesh)
                if isinstance(info, RingOperator)
                else operator_work(info, operands, results, self.mesh)
            )
        return 0.0

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Record a move."""
        self.calls += [Moved(operator, axes, float(nbytes)) for nbytes in local_bytes]
        return np.zeros_like(local_bytes)

    def exchange_costs(
        self, axes: tuple[str, ...], local_bytes: Floats, choices: Choices
    ) -> Floats:
        """Record an exchange of the rows of experts."""
        moved = partial(Moved, "all_to_all", axes, choices=choices)
        self.calls += [moved(float(nbytes)) for nbytes in local_bytes]
        return np.zeros_like(local_bytes)

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Record what a move takes further."""
        self.calls += [Moved(operator, axes, float(nbytes), further=True) for nbytes in local_bytes]
        return np.zeros_like(local_bytes)


@dataclass
class _Recording:
    """The entries of a program so far."""

    graph: Graph
    cluster: Cluster

    def __post_init__(self) -> None:
        graph = self.graph
        self.mesh = graph.mesh or Mesh(())
        self.placed = placements(graph, self.cluster)
        self.unread = unread_recomputation(graph)
        self.loop = loop_of(graph)
        self.known: dict[Entry, int] = {}

    def part(self, runs: Sequence[Run]) -> Part:
        """Return the part of some nodes."""
        nodes = self.graph.nodes
        own = [run.position for run in runs if run.kind == "run"]
        entries = [self._entry(i, self.unread.get(i, ())) for i in own]
        received = [
            Sent.of(nodes[run.position].results[0], self.mesh)
            for run in runs
            if run.kind == "receive"
        ]
        numbers = (self.known.setdefault(entry, len(self.known)) for entry in entries)
        return Part(tuple(numbers), tuple(block_of(nodes[i]) for i in own), tuple(received))

    def _entry(self, position: int, unread: Sequence[int] = ()) -> Entry:
        graph, recorder = self.graph, _Recorder(self.mesh)
        node, kernel = graph.nodes[position], kernel_of(graph).get(position)
        if kernel is None:
            node_cost(node, graph.operand_values(node), self.mesh, recorder)
        elif position == kernel.positions[0]:
            recorder.calls.append(kernel_work(graph, kernel))
        in_loop = self.loop is not None and self.loop.start <= position < self.loop.stop
        others = tuple(self._entry(i) for i in unread)
        calls = tuple(recorder.calls)
        return Entry(calls, self.placed[position], in_loop, others)


def program_work(graph: Graph, cluster: Cluster) -> ProgramWork:
    """Return the work of a program, lowered to collectives.

    Parameters
    ----------
    graph : Graph
        The program. In a pipeline every device group has one stage.
    cluster : Cluster
        Its links, by name alone.
    """
    recording, pipeline, loop = _Recording(graph, cluster), pipeline_of(graph), loop_of(graph)
    parts: list[dict[str, Part]] = []
    if pipeline is None:
        begin, end = (loop.start, loop.stop) if loop else (0, len(graph.nodes))
        places = {"before": (0, begin), "loop": (begin, end), "after": (end, len(graph.nodes))}
        own = {n: recording.part([Run(i) for i in range(*ends)]) for n, ends in places.items()}
        parts.append(own)
    else:
        for group in pipeline.groups:
            own = {name: recording.part(runs) for (_, name), runs in group.segments.items()}
            own |= {"before": recording.part(group.before), "after": recording.part(group.after)}
            parts.append(own)
    return ProgramWork(recording.mesh, tuple(recording.known), tuple(parts), loop is not None)
