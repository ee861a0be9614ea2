"""The tasks of a program: what is scheduled, made of its nodes; and passes that repeat.

Of passes over micro-batches that repeat one stands for all that follow it, until the last ones.
A schedule is greedy, so what follows a moment depends on the work that is left then. Where the same
work is left when two passes in a row begin, the second is like the first, and further passes
between them are like both. The last passes must not be felt yet: nothing of the last pass may be
ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import Buffers, buffers, deferrable_bytes, written_in_place
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.as_run import launch_seconds, run_by, seconds_as_run
from shardwright.cost_model.efficiency.rings import computing_seconds
from shardwright.cost_model.efficiency.unread import unread_recomputation
from shardwright.cost_model.schedule import Scheduler
from shardwright.cost_model.streams import IN_LINE, Placement, Task, placements
from shardwright.dataflow.kinds import kinds_of
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import Loop, execution_order
from shardwright.ir.rounding import EQUAL

Floats = NDArray[np.float64]
_Measures = tuple[Placement, float, float, float]  # its seconds, of computing, of its launch
_Key = tuple[bool, float, _Measures, tuple[_Measures, ...]]


@dataclass(frozen=True)
class Tasks:
    """The tasks of a program, in program order.

    Parameters
    ----------
    tasks : tuple of Task
        One for each node, and for each pass over micro-batches that runs it.
    buffers : Buffers
        The buffers of the program.
    order : tuple of (int, int)
        The position of the node of each task, and its pass.
    loop : Loop or None
        The loop over micro-batches.
    durations : sequence of float, optional
        Other durations than those of the tasks.
    """

    tasks: tuple[Task, ...]
    buffers: Buffers
    order: tuple[tuple[int, int], ...]
    loop: Loop | None = None
    durations: Sequence[float] | None = None
    _starts: dict[float, Floats] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def starts(self, window: float) -> Floats:
        """Return when each starts with a window of bytes that may be early, and late.

        It is kept: the search for the least window comes by windows of the one for the fastest.
        """
        if window not in self._starts:
            self._starts[window] = np.array(self.scheduler.starts(window))
        return self._starts[window]

    @cached_property
    def scheduler(self) -> "Scheduler":
        """Schedules them."""
        return Scheduler(self.tasks)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """The duration of each."""
        found = self.durations or [task.seconds for task in self.tasks]
        return np.array(found, np.float64)

    @cached_property
    def busy(self) -> tuple[float, float]:
        """The seconds of computation, and of all tasks."""
        return _busy(self.tasks)

    @cached_property
    def busy_in_second_pass(self) -> tuple[float, float]:
        """The same of the second pass over micro-batches alone, as in any but the first."""
        pairs = zip(self.tasks, self.order, strict=True)
        return _busy([task for task, (_, number) in pairs if number == 1])

    def lasting(self, seconds: Sequence[float]) -> "Tasks":
        """Return the tasks with other durations, those of the nodes of the program."""
        durations = [seconds[position] for position, _ in self.order]
        found = replace(self, durations=durations)
        vars(found)["scheduler"] = self.scheduler.lasting(durations)
        return found

    @cached_property
    def deferrable_bytes(self) -> float:
        """Bytes that would be early or late if everything were, in one pass over micro-batches."""
        pairs = zip(self.tasks, self.order, strict=True)
        return sum(task.nbytes for task, (_, number) in pairs if number == 0)


def _busy(tasks: Sequence[Task]) -> tuple[float, float]:
    return sum(task.computing for task in tasks), sum(task.seconds for task in tasks)


class TaskMaker:
    """Makes the tasks of nodes of a program, lowered to collectives.

    It does not hold the program, so that a program may hold it.

    Parameters
    ----------
    graph : Graph
        The program.
    cluster : Cluster
        Its devices and links.
    """

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.buffers = buffers(graph)
        self.placed, self.software = placements(graph, cluster), cluster.software
        self.written = written_in_place(graph, self.buffers)
        self.seconds = seconds_as_run(graph, cluster, self.placed)
        self.computing = [
            computing_seconds(node, graph, cluster) if where.levels else seconds
            for node, where, seconds in zip(graph.nodes, self.placed, self.seconds, strict=True)
        ]
        recomputes = self.software is not None and self.software.recompute == "blocks"
        self.unread = unread_recomputation(graph) if recomputes else {}
        kinds = kinds_of(graph)
        hosts = [launch_seconds(graph.nodes[i], graph, self.software) for i in kinds.firsts]
        self.hosts = [hosts[kind] for kind in kinds.of_nodes]
        self._known: dict[_Key, Task] = {}
        self._tasks = [self._task_of(graph, position) for position in range(len(graph))]
        self._is_in_line = [task.in_line for task in self._tasks]
        self._joins = self._find_joins(graph)
        self._in_passes: dict[int, Tasks] = {}

    def in_passes(self, graph: Graph, passes: int) -> Tasks:
        """Return the tasks of so many passes over micro-batches of the program."""
        if passes not in self._in_passes:
            order, loop = tuple(execution_order(graph, passes)), self.buffers.live.loop
            self._in_passes[passes] = Tasks(self.tasks(order), self.buffers, order, loop)
        return self._in_passes[passes]

    def tasks(self, order: Sequence[tuple[int, int]]) -> tuple[Task, ...]:
        """Return the tasks of nodes of the program that run in an order, each with its pass.

        What computes in line comes after all that is in line before it, and waits for what is
        beside the line alone. Others wait for the last of their tasks in line.
        """
        producer: dict[str, int] = {}  # the task that makes a value, the last so far
        readers: dict[str, list[int]] = {}  # of buffers that are written
        tasks = [self._tasks[position] for position, _ in order]
        line = -1
        for i, (position, _) in enumerate(order):
            join = self._joins[position]
            if join is not None:
                after = [producer[name] for name in join.waits_for if name in producer]
                for name in join.written:
                    after += readers.get(name, ())
                if join.is_update and line >= 0:
                    after.append(line)
                producer.update(dict.fromkeys(join.made, i))
                for name in join.buffers:
                    readers.setdefault(name, []).append(i)
                if needed := _needed(after, tasks, tasks[i]):
                    tasks[i] = tasks[i].waiting_for(needed)
            if self._is_in_line[position]:
                line = i
        return tuple(tasks)

    def _find_joins(self, graph: Graph) -> list["_Join | None"]:
        """Return what each node waits for, and what waits for it, if that is not the line alone."""
        live, rewritten = self.buffers.live, {n for names in self.written.values() for n in names}
        pairs = list(zip(graph.nodes, self.placed, strict=True))
        read = rewritten | {view for view, root in live.roots.items() if root in rewritten}
        awaited = set(read)
        for node, where in pairs:
            if where.queue != "compute":
                awaited.update(node.operands)
            if where.queue not in IN_LINE:
                read.update([result.name for result in node.results])
        found: list[_Join | None] = []
        for i, (node, where) in enumerate(pairs):
            made = tuple([result.name for result in node.results])
            alone = read.isdisjoint(node.operands) and awaited.isdisjoint(made)
            if alone and where.queue == "compute":
                found.append(None)
                continue
            itself = made[:1] if any(map(live.is_accumulator, made)) else ()
            touched = (name for name in live.touched[i] if name in rewritten)
            written, is_update = tuple(self.written.get(i, ())), node.provenance.role == "update"
            found.append(_Join((*node.operands, *itself), written, made, (*touched,), is_update))
        return found

    def _in_loop(self, position: int) -> bool:
        loop = self.buffers.live.loop
        return loop is not None and loop.start <= position < loop.stop

    def _task_of(self, graph: Graph, position: int) -> Task:
        """Return the task of a node, which waits for nothing yet; one object for equal ones."""
        queue, held = self.placed[position].queue, self.buffers
        nbytes = deferrable_bytes(graph.nodes[position], queue, graph, held)
        in_loop, own = self._in_loop(position), self._measures(position)
        unread = tuple([self._measures(i) for i in self.unread.get(position, ())])
        key = in_loop, nbytes, own, unread
        if key not in self._known:
            self._known[key] = self._made(*key)
        return self._known[key]

    def _measures(self, position: int) -> _Measures:
        where, seconds = self.placed[position], self.seconds[position]
        return where, seconds, self.computing[position], self.hosts[position]

    def _made(
        self, in_loop: bool, nbytes: float, own: _Measures, unread: Sequence[_Measures]
    ) -> Task:
        """Return the task of a node with its measures, after which others run in its place."""
        where, seconds, busy, host = own
        task = Task(where, seconds, (), nbytes, busy, in_loop, host)
        if self.software is None:
            return task
        others = [Task(where, s, (), 0.0, busy, in_loop, host) for where, s, busy, host in unread]
        return run_by(self.software, [task, *others], self.buffers.live.loop is not None)


@dataclass(frozen=True, slots=True)
class _Join:
    """What the task of a node waits for, and what later tasks wait for.

    Parameters
    ----------
    waits_for : tuple of str
        Values that it reads; an accumulator also waits for itself of the pass before.
    written : tuple of str
        Parameters that it overwrites.
    made : tuple of str
        Values that it makes.
    buffers : tuple of str
        The buffers that it touches, of those that are overwritten.
    is_update : bool
        Whether it updates a parameter.
    """

    waits_for: tuple[str, ...]
    written: tuple[str, ...]
    made: tuple[str, ...]
    buffers: tuple[str, ...]
    is_update: bool


def _needed(after: Sequence[int], tasks: Sequence[Task], task: Task) -> tuple[int, ...]:
    """Return the tasks for which one waits, without those that are in line before others of them.

    What computes in line is after all of these.
    """
    found = dict.fromkeys(i for i in after if not tasks[i].in_line)
    if task.placement.queue != "compute":
        line = [i for i in after if tasks[i].in_line]
        found |= {max(line): None} if line else {}
    return tuple(found)


@dataclass(frozen=True)
class Repeated:
    """A pass that repeats the one before.

    Parameters
    ----------
    number : int
        The pass.
    start : float
        The moment at which it begins, in seconds.
    seconds : float
        By how much it is later than the pass before.
    """

    number: int
    start: float
    seconds: float


def repeated_pass(tasks: Tasks, starts: Floats) -> Repeated | None:
    """Return the first pass that repeats the one before; None if there is none.

    Parameters
    ----------
    tasks : Tasks
        The tasks of a program with a loop over micro-batches.
    starts : array
        When they start, in seconds.
    """
    loop = tasks.loop
    if loop is None:
        return None
    moments = _Moments.of(tasks, starts, loop)
    for number in range(2, len(moments.begins) - 1):
        if moments.repeats(number):
            begin = moments.begins[number]
            return Repeated(number, begin, begin - moments.begins[number - 1])
    return None


@dataclass(frozen=True)
class _Moments:
    """When the tasks of a program start and end.

    Parameters
    ----------
    before_end, after_start : float
        The end of all work before the loop, and the start of the first after it.
    starts, ends : array
        The starts and ends of the nodes of each pass.
    begins : list of float
        The start of the first computation of each pass.
    """

    before_end: float
    after_start: float
    starts: Floats
    ends: Floats
    begins: list[float]

    @classmethod
    def of(cls, tasks: Tasks, starts: Floats, loop: Loop) -> "_Moments":
        """Divide the tasks into those of each pass, before and after the loop."""
        length = loop.stop - loop.start
        start, end = starts, starts + tasks.seconds
        passes = 1 + max(number for _, number in tasks.order)
        stop = loop.start + passes * length
        of_passes = start[loop.start : stop].reshape(passes, length)
        body = tasks.tasks[loop.start : loop.start + length]
        first = next((i for i, task in enumerate(body) if task.in_line), 0)
        return cls(
            float(end[: loop.start].max(initial=0.0)),
            float(start[stop:].min(initial=np.inf)),
            of_passes,
            end[loop.start : stop].reshape(passes, length),
            of_passes[:, first].tolist(),
        )

    def repeats(self, number: int) -> bool:
        """Return whether the same work is left when a pass begins as when the one before began."""
        last, now = self.begins[number - 1], self.begins[number]
        if self.before_end > last or self.after_start < now:
            return False
        earlier, later = self._left(last), self._left(now)
        is_done, is_left = not later[0].any(), bool(np.isinf(earlier[-1]).all())
        close = np.isclose(earlier[:-1], later[1:], rtol=0.0, atol=EQUAL * now)
        return is_done and is_left and bool(close.all())

    def _left(self, moment: float) -> Floats:
        """Return the seconds that are left of each task; infinity if it has not started."""
        rounding = EQUAL * moment
        left = np.where(self.starts < moment - rounding, self.ends - moment, np.inf)
        return np.where(self.ends <= moment + rounding, 0.0, left)
