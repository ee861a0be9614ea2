"""Greedy schedules of tasks on the resources of a rank: one node at a time on each, uninterrupted.

Knows tasks, resources and bytes; see `timeline` for the rules.
"""

import math
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate

from shardwright.cost_model.efficiency.as_run import in_line
from shardwright.cost_model.streams import COMPUTE, Placement, Task
from shardwright.ir.rounding import EQUAL


def schedule(tasks: Sequence[Task], window: float) -> list[float]:
    """Return when each task starts; see `Scheduler`, which has more windows for the same tasks."""
    return Scheduler(tasks).starts(window)


class Scheduler:
    """Schedules tasks, within any window of bytes.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks, in program order; each waits for earlier ones only.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks, self.seconds = tasks, [task.seconds for task in tasks]
        self.lanes = _Lanes(tasks)
        self.waiting = [len(task.after) for task in tasks]
        self.dependents: list[list[int]] = [[] for _ in tasks]
        for i, task in enumerate(tasks):
            for before in task.after:
                self.dependents[before].append(i)
        early = (task.nbytes if task.placement.queue == "gathers" else 0.0 for task in tasks)
        self.bytes_until = list(accumulate(early, initial=0.0))  # of gathers before each task
        self.late = [t.nbytes if t.placement.queue == "reductions" else 0.0 for t in tasks]

    def lasting(self, seconds: Sequence[float]) -> "Scheduler":
        """Return what schedules the same tasks with other durations."""
        found = copy(self)
        found.seconds = list(seconds)
        for name in ("seconds_before", "least_seconds"):
            vars(found).pop(name, None)
        return found

    @cached_property
    def runs_on(self) -> list[bool]:
        """For each task, whether neither its end nor the start of the next changes another lane.

        Both are in line, and what is behind them, so that nothing is passed; and nothing but what
        is in line waits for the first.
        """
        line = [lanes == (_LINE,) for lanes in self.lanes.of]
        found = [False] * len(line)
        for i in range(len(line) - 2):
            if line[i] and line[i + 1] and line[i + 2]:
                found[i] = all(line[k] for k in self.dependents[i])
        return found

    @cached_property
    def seconds_before(self) -> list[float]:
        """For each place in line, the seconds of the tasks in line before it."""
        line = self.lanes.queues[_LINE]
        return list(accumulate((self.seconds[i] for i in line), initial=0.0))

    @cached_property
    def blocking(self) -> dict[int, list[int]]:
        """For each set of links and place in line, the place of the next task that needs one.

        The sets are those of deferrable communication; where none follows, it is the end.
        """
        line, masks, computes = self.lanes.queues[_LINE], self.lanes.masks, self.lanes.computes
        found = {}
        for links in {mask for mask in masks if not mask & computes}:
            following = [len(line)]
            for place in range(len(line) - 1, -1, -1):
                follows = masks[line[place]] & links
                following.append(place if follows else following[-1])
            found[links] = following[::-1]
        return found

    @cached_property
    def least_seconds(self) -> float:
        """The seconds of all that computes or blocks computation: every schedule takes as long."""
        masks, computes = self.lanes.masks, self.lanes.computes
        return sum(s for s, mask in zip(self.seconds, masks, strict=True) if mask & computes)

    def starts(self, window: float) -> list[float]:
        """Return when each task starts: where communication yields or not, whichever is shorter.

        Parameters
        ----------
        window : float
            Bytes that may be early at once, and as many that may be late; 0 runs everything in
            program order. One window for both would be taken by what is early, and what is late
            would wait. What is early counts with all gathers before it that computation has not
            reached: where a parameter is gathered over one level and then over another, the first
            gathers would take the room of the second ones.
        """
        if window <= 0:
            return in_line(self.tasks)
        simulation = _Simulation(self, window)
        greedy = simulation.run()
        other = simulation.yielding
        if other is None or self._end(greedy) <= self.least_seconds * (1 + EQUAL):
            return greedy
        return min(greedy, other.run(), key=self._end)

    def greedy_starts(self, window: float, *, yields: bool = False) -> list[float]:
        """Return when each task starts, as soon as it can.

        Parameters
        ----------
        window : float
            See `starts`.
        yields : bool
            Whether deferrable communication is not issued where the next blocking collective would
            wait for it.
        """
        return _Simulation(self, window, yields).run()

    def _end(self, starts: list[float]) -> float:
        ends = (start + seconds for start, seconds in zip(starts, self.seconds, strict=True))
        return max(ends, default=0.0)


_LOCAL_GATHERS, _SUMS, _LINE = range(3)  # the first lanes
_LOCAL_REDUCTION = Placement("reductions")


class _Lanes:
    """Where tasks wait, by priority.

    Local work for gathers comes first, then work on reduced gradients in the loop or for further
    reductions, then what runs in line, the gathers of each link, other work on reduced gradients,
    and the reductions of each link. A collective over several links is in a lane of each, and
    starts from the first.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        early = _feeding_reductions(tasks)
        of_each = [(t.placement, t.in_loop or i in early) for i, t in enumerate(tasks)]
        kinds = list(dict.fromkeys(of_each))
        links = [r for r in _resources(kinds, "gathers") if r != COMPUTE]
        self.locals = _LINE + 1 + len(links)  # the lane of other work on reduced gradients
        self._gathers = {COMPUTE: _LOCAL_GATHERS} | {r: _LINE + 1 + i for i, r in enumerate(links)}
        reduced = [r for r in _resources(kinds, "reductions") if r != COMPUTE]
        self._reductions = {r: self.locals + 1 + i for i, r in enumerate(reduced)}
        bits = {r: 1 << i for i, r in enumerate(dict.fromkeys([COMPUTE, *links, *reduced]))}
        self.computes = bits[COMPUTE]
        for kind, _ in kinds:
            for resource in kind.resources:
                bits.setdefault(resource, 1 << len(bits))
        found = {
            kind: (self._of_kind(*kind), sum(bits[r] for r in kind[0].resources)) for kind in kinds
        }
        each = [found[kind] for kind in of_each]
        self.of, self.masks = [lanes for lanes, _ in each], [mask for _, mask in each]
        self.sorts = [lane in (_SUMS, self.locals) for lane in range(self._count)]
        self.gathers = [lane in self._gathers.values() for lane in range(self._count)]
        self.queues: list[list[int]] = [[] for _ in range(self._count)]
        for i, lanes in enumerate(self.of):
            for lane in lanes:
                if not self.sorts[lane] or not tasks[i].after:
                    self.queues[lane].append(i)

    @property
    def _count(self) -> int:
        return self.locals + 1 + len(self._reductions)

    def _of_kind(self, placement: Placement, is_early: bool) -> tuple[int, ...]:
        if placement.queue in ("compute", "blocking"):
            return (_LINE,)
        if placement.queue == "gathers":
            return tuple(self._gathers[resource] for resource in placement.resources)
        if placement.levels:
            return tuple(self._reductions[resource] for resource in placement.resources)
        return (_SUMS,) if is_early else (self.locals,)


def _feeding_reductions(tasks: Sequence[Task]) -> set[int]:
    """Return the local work on reduced gradients that further reductions wait for.

    Links would be idle while it waited for computation: as where gradients are packed into buckets.
    """
    found: set[int] = set()
    for i in range(len(tasks) - 1, -1, -1):
        placed = tasks[i].placement
        if placed.queue == "reductions" and (placed.levels or i in found):
            found.update(j for j in tasks[i].after if tasks[j].placement == _LOCAL_REDUCTION)
    return found


def _resources(kinds: Sequence[tuple[Placement, bool]], queue: str) -> dict[str, None]:
    """Return the resources of a queue, in the order in which tasks first need them."""
    return dict.fromkeys(r for kind, _ in kinds if kind.queue == queue for r in kind.resources)


class _Simulation:
    """The state of a schedule: what has started, what is busy, and the bytes in the windows.

    `heads` has for each lane the task that waits for nothing but resources and the window, or -1.
    `yielding` is the state in which communication yields for the first time, where it does not.
    """

    def __init__(self, plan: Scheduler, window: float, yields: bool = False) -> None:
        self.plan, self.lanes, self.window, self.yields = plan, plan.lanes, window, yields
        self.yielding: _Simulation | None = None
        self.first = 0, 0  # the lane at which the next look at all lanes begins, and what is taken
        self.line_end = 0.0  # of the last task in line that has started
        self.seconds, self.masks = plan.seconds, plan.lanes.masks
        self.now, self.busy = 0.0, 0
        self.starts = [math.nan] * len(plan.seconds)
        self.done = [False] * len(plan.seconds)
        self.running: list[tuple[float, int]] = []  # ends and positions
        self.waiting = list(plan.waiting)
        sorts = plan.lanes.sorts
        self.queues = [list(q) if s else q for q, s in zip(plan.lanes.queues, sorts, strict=True)]
        self.at = [0] * len(sorts)  # the first of each queue; of sorted ones those before are gone
        self.heads = [-1] * len(sorts)
        for lane in range(len(sorts)):
            self._find_head(lane)
        self.bytes_reached = 0.0  # of gathers before the place of computation
        self.bytes_behind = 0.0
        self.passed = 0  # tasks before this position are behind computation, or done
        self._pass()

    def _where_it_yields(self, lane: int, taken: int) -> "_Simulation":
        """Return another schedule, that is like this one until now: what is in a lane yields."""
        found = copy(self)
        for name in ("starts", "done", "running", "waiting", "at", "heads"):
            setattr(found, name, list(getattr(self, name)))
        sorts = self.lanes.sorts
        found.queues = [list(q) if s else q for q, s in zip(self.queues, sorts, strict=True)]
        found.yields, found.first = True, (lane + 1, taken)
        return found

    def run(self) -> list[float]:
        """Return the starts of all tasks."""
        running = self.running
        while True:
            while self._start_some():
                pass
            if not running:
                return self.starts
            if self.plan.runs_on[running[0][1]]:
                self._run_on()
            self.now = now = running[0][0]
            while running and running[0][0] == now:
                i = heappop(running)[1]
                self.busy &= ~self.masks[i]
                self._finish(i)

    def _run_on(self) -> None:
        """Run what follows the task in line that ends next, as long as nothing else can start.

        Until something beside the line ends, the line alone moves. What comes before it is not
        ready, or has no room. What else uses links may start when a collective in line ends, so
        there is none where any task waits for links; and what waits for one of its links keeps the
        others until it yields.
        """
        heads, masks = self.heads, self.masks
        gather, beside = heads[_LOCAL_GATHERS], [i for i in heads[_LINE + 1 :] if i >= 0]
        if heads[_SUMS] >= 0 or self.bytes_behind > self.window:
            return
        if gather >= 0 and self._has_room(gather):
            return
        if any(masks[i] & masks[i] - 1 for i in beside):
            return
        end, i = heappop(self.running)
        first, runs_on, seconds, waiting = i, self.plan.runs_on, self.seconds, self.waiting
        until = self.running[0][0] if self.running else math.inf
        others = self.busy & ~masks[i]
        links = ~self.lanes.computes if beside else others
        while runs_on[i] and end < until:
            dependents = self.plan.dependents[i]
            if waiting[i + 1] > (i + 1 in dependents) or (masks[i] | masks[i + 1]) & links:
                break
            for dependent in dependents:
                waiting[dependent] -= 1
            i += 1
            self.starts[i] = end
            end += seconds[i]
        heappush(self.running, (end, i))
        self.busy, self.line_end = others | masks[i], end
        self.at[_LINE] += i - first
        self.passed += i - first
        self._find_head(_LINE)

    def _start_some(self) -> bool:
        """Start what may start, by priority; return whether a task ended at once.

        What comes next after that task may have a higher priority than all that is left.
        """
        masks, gathers, heads = self.masks, self.lanes.gathers, self.heads
        first, taken = self.first
        self.first = 0, 0
        taken |= self.busy
        for lane in range(first, len(heads)):  # the heads change meanwhile
            i = heads[lane]
            if i < 0 or (lane == _LINE and self.bytes_behind > self.window):
                continue
            mask = masks[i]
            if mask and mask & taken == mask:  # most tasks wait for what is busy
                continue
            if gathers[lane] and not self._has_room(i):
                continue
            if self.yielding is None and self._is_in_the_way(i, lane):
                if self.yields:
                    continue
                self.yielding = self._where_it_yields(lane, taken)
            if not taken & mask and self._start(i, lane, mask):
                return True
            taken |= mask  # a task that waits keeps its resources from later ones
        return False

    def _has_room(self, i: int) -> bool:
        """Return whether computation has reached a gather, or the window has room for it."""
        return i < self.passed or self.plan.bytes_until[i + 1] - self.bytes_reached <= self.window

    def _is_in_the_way(self, i: int, lane: int) -> bool:
        """Return whether the next blocking collective would wait for a task that starts now.

        That is known while a task in line runs, if none until there waits. A gather before it in
        the program is not in the way: one of them may wait for it.
        """
        following = self.plan.blocking.get(self.masks[i])
        if following is None or self.line_end <= self.now:
            return False
        at, line = self.at[_LINE], self.lanes.queues[_LINE]
        place = following[at]
        if place == len(line) or (self.lanes.gathers[lane] and i < line[place]):
            return False
        begin = self.line_end + self.plan.seconds_before[place] - self.plan.seconds_before[at]
        return begin < (self.now + self.seconds[i]) * (1 - EQUAL)

    def _start(self, i: int, lane: int, mask: int) -> bool:
        """Start a task; return whether it ended at once."""
        self.starts[i] = self.now
        if self.lanes.sorts[lane]:
            heappop(self.queues[lane])
            self._find_head(lane)
        else:
            lanes = self.lanes.of[i]
            for each in lanes:
                self.at[each] += 1
            for each in lanes:
                self._find_head(each)
            if lane == _LINE:
                self._pass()
        if lane == _LINE:
            self.line_end = self.now + self.seconds[i]
        if self.seconds[i] > 0:
            self.busy |= mask
            heappush(self.running, (self.now + self.seconds[i], i))
            return False
        self._finish(i)
        return True

    def _find_head(self, lane: int) -> None:
        """Find the head of a lane, and that of the lane from which its first task starts."""
        self.heads[lane] = -1
        queue, at = self.queues[lane], self.at[lane]
        if at < len(queue) and not self.waiting[queue[at]]:
            self._raise(queue[at])

    def _raise(self, i: int) -> None:
        """Make a task that waits for no other the head of its lane, if it is first everywhere."""
        lanes = self.lanes.of[i]
        for lane in lanes:
            if self.queues[lane][self.at[lane]] != i:
                return
        self.heads[lanes[0]] = i

    def _finish(self, i: int) -> None:
        self.done[i] = True
        if i < self.passed:
            self.bytes_behind -= self.plan.late[i]
        waiting, lanes = self.waiting, self.lanes
        for dependent in self.plan.dependents[i]:
            waiting[dependent] -= 1
            if not waiting[dependent]:
                lane = lanes.of[dependent][0]
                if lanes.sorts[lane]:
                    heappush(self.queues[lane], dependent)
                    dependent = self.queues[lane][0]
                self._raise(dependent)

    def _pass(self) -> None:
        """Pass on to the next task in line: what comes before it is no longer ahead, but behind."""
        line, at = self.queues[_LINE], self.at[_LINE]
        end = line[at] if at < len(line) else len(self.seconds)
        late, done = self.plan.late, self.done
        for i in range(self.passed, end):
            if late[i] and not done[i]:
                self.bytes_behind += late[i]
        self.passed = end
        self.bytes_reached = self.plan.bytes_until[end]
        if not self.bytes_behind > 0:
            self.bytes_behind = 0.0
