"""Greedy schedules of tasks on the resources of a rank: one node at a time on each, uninterrupted.

Knows tasks, resources and bytes, and how tasks follow from a program; see `timeline` for the rules.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate

from shardwright.cost_model.buffers import Buffers, buffers
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import computing_seconds, node_cost, second_prices
from shardwright.cost_model.streams import COMPUTE, Placement, placements
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import Loop, execution_order
from shardwright.ir.mesh import Mesh
from shardwright.operators.views import buffers_of


@dataclass(frozen=True, slots=True)
class Task:
    """One node of a program.

    Parameters
    ----------
    placement : Placement
        Its queue and its resources.
    seconds : float
        Its duration.
    after : tuple of int
        The tasks that it waits for, by position.
    nbytes : float
        For a gather the bytes that it takes, early where it runs ahead; for a reduction the bytes
        that wait for it, late where it runs behind.
    computing : float
        Seconds for which it computes.
    in_loop : bool
        Whether it is run in every pass over micro-batches.
    """

    placement: Placement
    seconds: float
    after: tuple[int, ...]
    nbytes: float = 0.0
    computing: float = 0.0
    in_loop: bool = False

    @property
    def in_line(self) -> bool:
        """Whether it runs in program order, with all others of this kind."""
        return self.placement.queue in ("compute", "blocking")


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
    """

    tasks: tuple[Task, ...]
    buffers: Buffers
    order: tuple[tuple[int, int], ...]
    loop: Loop | None = None

    @cached_property
    def deferrable_bytes(self) -> float:
        """Bytes that would be early or late if everything were, in one pass over micro-batches."""
        pairs = zip(self.tasks, self.order, strict=True)
        return sum(task.nbytes for task, (_, number) in pairs if number == 0)


class TaskMaker:
    """Makes the tasks of nodes of a program, lowered to collectives.

    Parameters
    ----------
    graph : Graph
        The program.
    cluster : Cluster
        Its devices and links.
    """

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.graph, self.buffers = graph, buffers(graph)
        self.placed = placements(graph, cluster)
        self.written = _written_in_place(graph, self.buffers)
        mesh = graph.mesh or Mesh(())
        prices = second_prices(mesh, cluster)
        operands = [graph.operand_values(node) for node in graph.nodes]
        pairs = list(zip(graph.nodes, operands, strict=True))
        self.seconds = [node_cost(node, read, mesh, prices) for node, read in pairs]
        self.computing = [computing_seconds(node, read, mesh, cluster) for node, read in pairs]
        self._uses: dict[int, _Uses] = {}

    def in_passes(self, passes: int) -> Tasks:
        """Return the tasks of so many passes over micro-batches."""
        order = tuple(execution_order(self.graph, passes))
        return Tasks(self.tasks(order), self.buffers, order, self.buffers.live.loop)

    def tasks(self, order: Sequence[tuple[int, int]]) -> tuple[Task, ...]:
        """Return the tasks of nodes that run in an order, each with its pass."""
        producer: dict[str, int] = {}  # the task that makes a value, the last so far
        readers: dict[str, list[int]] = {}  # of buffers
        tasks: list[Task] = []
        line = -1
        for i, (position, _) in enumerate(order):
            uses = self._uses_of(position)
            after = [producer[name] for name in uses.waits_for if name in producer]
            for name in uses.written:
                after += readers.get(name, ())
            producer.update(dict.fromkeys(uses.made, i))
            if uses.is_update and line >= 0:
                after.append(line)
            for name in uses.buffers:
                readers.setdefault(name, []).append(i)
            tasks.append(uses.task_after(tuple(dict.fromkeys(after))))
            line = i if uses.task.in_line else line
        return tuple(tasks)

    def _uses_of(self, position: int) -> "_Uses":
        if position not in self._uses:
            self._uses[position] = self._make_uses(position)
        return self._uses[position]

    def _in_loop(self, position: int) -> bool:
        loop = self.buffers.live.loop
        return loop is not None and loop.start <= position < loop.stop

    def _make_uses(self, position: int) -> "_Uses":
        node, where, held = self.graph.nodes[position], self.placed[position], self.buffers
        seconds = self.seconds[position]
        busy = self.computing[position] if where.levels else seconds
        made = tuple(result.name for result in node.results)
        accumulates = any(map(held.live.is_accumulator, made))
        nbytes = _deferrable_bytes(node, where, self.graph, held)
        return _Uses(
            Task(where, seconds, (), nbytes, busy, self._in_loop(position)),
            (*node.operands, *((node.name,) if accumulates else ())),
            tuple(self.written.get(position, ())),
            made,
            tuple(buffers_of(node, held.live.roots)),
            node.provenance.role == "update",
        )


@dataclass(frozen=True, slots=True)
class _Uses:
    """What the task of a node waits for, and what later tasks wait for.

    Parameters
    ----------
    task : Task
        The task, which waits for nothing yet.
    waits_for : tuple of str
        Values that it reads; an accumulator also waits for itself of the pass before.
    written : tuple of str
        Parameters that it overwrites.
    made : tuple of str
        Values that it makes.
    buffers : tuple of str
        The buffers that it touches.
    is_update : bool
        Whether it updates a parameter.
    """

    task: Task
    waits_for: tuple[str, ...]
    written: tuple[str, ...]
    made: tuple[str, ...]
    buffers: tuple[str, ...]
    is_update: bool

    def task_after(self, after: tuple[int, ...]) -> Task:
        """Return the task, that waits for others."""
        task = self.task
        return Task(task.placement, task.seconds, after, task.nbytes, task.computing, task.in_loop)


def _written_in_place(graph: Graph, held: Buffers) -> dict[int, list[str]]:
    """Return for each position the parameters that its node overwrites."""
    position = {result.name: i for i, node in enumerate(graph.nodes) for result in node.results}
    written: dict[int, list[str]] = {}
    for parameter, new in graph.updates:
        if new in position and held.live.roots.get(new, new) != parameter:
            written.setdefault(position[new], []).append(parameter)
    return written


def _deferrable_bytes(node: Node, where: Placement, graph: Graph, held: Buffers) -> float:
    if where.queue == "gathers":
        return sum(held.sizes[result.name] for result in node.results)
    if where.queue != "reductions" or node.provenance.role == "update":
        return 0.0
    lasting = held.live.lasting
    roots = {held.live.roots.get(name, name) for name in node.operands}
    return sum(held.sizes[name] for name in roots - lasting)


def schedule(tasks: Sequence[Task], window: float) -> list[float]:
    """Return when each task starts.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks, in program order; each waits for earlier ones only.
    window : float
        Bytes that may be early at once, and as many that may be late; 0 runs everything in program
        order. One window for both would be taken by what is early, and what is late would wait.
        What is early counts with all gathers before it that computation has not reached: where a
        parameter is gathered over one level and then over another, the first gathers would take
        the room of the second ones.
    """
    if window <= 0:
        starts, now = [], 0.0
        for task in tasks:
            starts.append(now)
            now += task.seconds
        return starts
    return _Simulation(tasks, window).run()


@dataclass
class _Simulation:
    """The state of a schedule: what has started, what is busy, and the bytes in the windows."""

    tasks: Sequence[Task]
    window: float
    now: float = 0.0
    starts: list[float] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    running: list[tuple[float, int]] = field(default_factory=list)  # ends and positions
    ready_sums: list[int] = field(default_factory=list)  # work on reduced gradients of a pass
    ready_locals: list[int] = field(default_factory=list)  # the same outside of the loop
    bytes_reached: float = 0.0  # of gathers before the place of computation
    bytes_behind: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.tasks)
        self.starts = [math.nan] * count
        self.done = [False] * count
        gathered = (task.nbytes if task.placement.queue == "gathers" else 0 for task in self.tasks)
        self.bytes_until = list(accumulate(gathered))  # of gathers up to each task
        self.waiting = [len(task.after) for task in self.tasks]
        self.dependents: list[list[int]] = [[] for _ in range(count)]
        self.line: deque[int] = deque()
        self.gathers: dict[str, deque[int]] = {}
        self.reductions: dict[str, deque[int]] = {}
        for i, task in enumerate(self.tasks):
            for before in task.after:
                self.dependents[before].append(i)
            self._enqueue(i, task)
        self.passed = 0  # tasks before this position are behind computation, or done
        self._pass()

    def _enqueue(self, i: int, task: Task) -> None:
        queue, resources = task.placement.queue, task.placement.resources
        if task.in_line:
            self.line.append(i)
        elif queue == "gathers":
            for resource in resources:
                self.gathers.setdefault(resource, deque()).append(i)
        elif task.placement.levels:
            for resource in resources:
                self.reductions.setdefault(resource, deque()).append(i)
        elif not task.after:
            heappush(self._locals_of(task), i)

    def run(self) -> list[float]:
        """Return the starts of all tasks."""
        while True:
            while self._start_some():
                pass
            if not self.running:
                return self.starts
            self.now = self.running[0][0]
            while self.running and self.running[0][0] == self.now:
                self._finish(heappop(self.running)[1])

    def _start_some(self) -> bool:
        """Start what may start, by priority; return whether a task ended at once."""
        taken = set(self.busy)
        again = False
        for i in self._candidates():
            resources = self.tasks[i].placement.resources
            if taken.isdisjoint(resources):
                again = self._start(i) or again
            taken.update(resources)  # a task that waits keeps its resources from later ones
        return again

    def _candidates(self) -> Iterator[int]:
        """Yield the tasks that wait for nothing but resources, by priority."""
        local = self._head_gather(COMPUTE)
        if local is not None:
            yield local
        if self.ready_sums:
            yield self.ready_sums[0]
        if self.line and not self.waiting[self.line[0]] and self.bytes_behind <= self.window:
            yield self.line[0]
        for resource in self.gathers:
            i = self._head_gather(resource) if resource != COMPUTE else None
            if i is not None:
                yield i
        if self.ready_locals:
            yield self.ready_locals[0]
        for resource, queue in self.reductions.items():
            if queue and self._is_head(queue[0], resource, self.reductions):
                yield queue[0]

    def _head_gather(self, resource: str) -> int | None:
        queue = self.gathers.get(resource)
        if not queue or not self._is_head(queue[0], resource, self.gathers):
            return None
        reached = queue[0] < self.passed
        room = self.bytes_until[queue[0]] - self.bytes_reached <= self.window
        return queue[0] if reached or room else None

    def _is_head(self, i: int, resource: str, queues: dict[str, deque[int]]) -> bool:
        """Return whether a task is ready and the first of all its queues, seen from the first."""
        resources = self.tasks[i].placement.resources
        first = resources[0] == resource
        return first and not self.waiting[i] and all(queues[r][0] == i for r in resources)

    def _start(self, i: int) -> bool:
        """Start a task; return whether it ended at once."""
        task = self.tasks[i]
        self.starts[i] = self.now
        self._dequeue(i, task)
        if task.seconds > 0:
            self.busy.update(task.placement.resources)
            heappush(self.running, (self.now + task.seconds, i))
            return False
        self._finish(i)
        return True

    def _dequeue(self, i: int, task: Task) -> None:
        if task.in_line:
            self.line.popleft()
            self._pass()
        elif task.placement.queue == "gathers":
            for resource in task.placement.resources:
                self.gathers[resource].popleft()
        elif task.placement.levels:
            for resource in task.placement.resources:
                self.reductions[resource].popleft()
        else:
            heappop(self._locals_of(task))

    def _locals_of(self, task: Task) -> list[int]:
        return self.ready_sums if task.in_loop else self.ready_locals

    def _finish(self, i: int) -> None:
        task = self.tasks[i]
        self.done[i] = True
        if task.seconds > 0:
            self.busy.difference_update(task.placement.resources)
        if task.placement.queue == "reductions" and i < self.passed:
            self.bytes_behind -= task.nbytes
        for dependent in self.dependents[i]:
            self.waiting[dependent] -= 1
            if not self.waiting[dependent] and self._is_local_reduction(self.tasks[dependent]):
                heappush(self._locals_of(self.tasks[dependent]), dependent)

    def _is_local_reduction(self, task: Task) -> bool:
        return task.placement.queue == "reductions" and not task.placement.levels

    def _pass(self) -> None:
        """Pass on to the next task in line: what comes before it is no longer ahead, but behind."""
        end = self.line[0] if self.line else len(self.tasks)
        for i in range(self.passed, end):
            task = self.tasks[i]
            if task.placement.queue == "reductions" and not self.done[i]:
                self.bytes_behind += task.nbytes
        self.passed = end
        self.bytes_reached = self.bytes_until[end - 1] if end else 0
        if not self.bytes_behind > 0:
            self.bytes_behind = 0.0
