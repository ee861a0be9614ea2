import math
import random

import pytest

from shardwright.cost_model.schedule import Scheduler, schedule
from shardwright.cost_model.streams import COMPUTE, Placement, Task
from tests.extent import first, long_after

IN_LINE = ("compute", "blocking")
KINDS = (
    *(Placement(queue) for queue in ("compute", "gathers", "reductions")),
    *(
        Placement(queue, levels)
        for queue in ("blocking", "gathers", "reductions")
        for levels in (("node",), ("rack",), ("node", "rack"))
    ),
)


def random_tasks(seed: int, computing: float = 0.0) -> list[Task]:
    draw = random.Random(seed)
    count = draw.randint(1, 30)
    return [
        Task(
            KINDS[0] if draw.random() < computing else draw.choice(KINDS),
            float(draw.choice([0, 1, 1, 2, 3, 5])),
            tuple(sorted(draw.sample(range(i), min(i, draw.choice([0, 0, 1, 1, 2]))))),
            float(draw.choice([0, 1, 2, 4])),
            in_loop=draw.random() < 0.5,
        )
        for i in range(count)
    ]


class Plain:
    """The rules of a schedule as they are written, without any bookkeeping."""

    def __init__(self, tasks: list[Task], window: float, yields: bool = False) -> None:
        self.tasks, self.window, self.now, self.yields = tasks, window, 0.0, yields
        self.starts = [math.nan] * len(tasks)
        self.ended: set[int] = set()

    def run(self) -> list[float]:
        while True:
            while self.start_some():
                pass
            running = [self.end(i) for i in self.running()]
            if not running:
                return self.starts
            self.now = min(running)
            self.ended |= {i for i in self.running() if self.end(i) == self.now}

    def end(self, i: int) -> float:
        return self.starts[i] + self.tasks[i].seconds

    def running(self) -> list[int]:
        return [i for i, at in enumerate(self.starts) if not math.isnan(at) and i not in self.ended]

    def left(self) -> list[int]:
        return [i for i, at in enumerate(self.starts) if math.isnan(at)]

    def is_ready(self, i: int) -> bool:
        return self.ended.issuperset(self.tasks[i].after)

    def place(self) -> int:
        """Return the next task in line."""
        line = [i for i in self.left() if self.tasks[i].placement.queue in IN_LINE]
        return line[0] if line else len(self.tasks)

    def start_some(self) -> bool:
        taken = {r for i in self.running() for r in self.tasks[i].placement.resources}
        for lane in range(len(self.lanes())):
            i = self.lanes()[lane]()
            if i is None or (self.yields and self.is_in_the_way(i)):
                continue
            resources = self.tasks[i].placement.resources
            if taken.isdisjoint(resources):
                self.starts[i] = self.now
                if not self.tasks[i].seconds:
                    self.ended.add(i)
                    return True
            taken |= set(resources)
        return False

    def is_in_the_way(self, i: int) -> bool:
        """Return whether the next blocking collective could start before a task would end."""
        line = [k for k, task in enumerate(self.tasks) if task.placement.queue in IN_LINE]
        busy = [k for k in line if k in self.running()]
        links = set(self.tasks[i].placement.resources)
        if not busy or i in line or COMPUTE in links:
            return False
        moment = self.end(busy[0])
        for k in (k for k in line if k in self.left()):
            if not links.isdisjoint(self.tasks[k].placement.resources):
                is_needed = self.tasks[i].placement.queue == "gathers" and i < k
                return not is_needed and moment < self.now + self.tasks[i].seconds
            moment += self.tasks[k].seconds
        return False

    def lanes(self) -> list:
        def resources(queue: str) -> list[str]:
            of = [t.placement for t in self.tasks if t.placement.queue == queue]
            return list(dict.fromkeys(r for p in of for r in p.resources if r != COMPUTE))

        return [
            lambda: self.gather(COMPUTE),
            lambda: self.local(is_early=True),
            self.in_line,
            *(lambda r=r: self.gather(r) for r in resources("gathers")),
            lambda: self.local(is_early=False),
            *(lambda r=r: self.first_of("reductions", r) for r in resources("reductions")),
        ]

    def first_of(self, queue: str, resource: str) -> int | None:
        """Return the first task of a resource that is ready and the first of all its own."""
        of = [i for i in self.left() if self.tasks[i].placement.queue == queue]
        if queue == "reductions":
            of = [i for i in of if self.tasks[i].placement.levels]
        firsts = {
            r: next((i for i in of if r in self.tasks[i].placement.resources), None)
            for i in of
            for r in self.tasks[i].placement.resources
        }
        i = firsts.get(resource)
        if i is None or not self.is_ready(i):
            return None
        needed = self.tasks[i].placement.resources
        return i if needed[0] == resource and all(firsts[r] == i for r in needed) else None

    def gather(self, resource: str) -> int | None:
        i, place = self.first_of("gathers", resource), self.place()
        if i is None or i < place:
            return i
        ahead = [t for t in self.tasks[place : i + 1] if t.placement.queue == "gathers"]
        return i if sum(task.nbytes for task in ahead) <= self.window else None

    def local(self, *, is_early: bool) -> int | None:
        kind = Placement("reductions")
        found = [i for i in self.left() if self.tasks[i].placement == kind and self.is_ready(i)]
        return next((i for i in found if self.is_early(i) == is_early), None)

    def is_early(self, i: int) -> bool:
        """Return whether local work is in the loop, or a further reduction waits for it."""
        return self.tasks[i].in_loop or self.feeds(i)

    def feeds(self, i: int) -> bool:
        """Return whether a reduction waits for local work."""
        readers = [k for k, task in enumerate(self.tasks) if i in task.after]
        of = [k for k in readers if self.tasks[k].placement.queue == "reductions"]
        return any(self.tasks[k].placement.levels or self.feeds(k) for k in of)

    def in_line(self) -> int | None:
        place = self.place()
        behind = [
            task.nbytes
            for i, task in enumerate(self.tasks[:place])
            if task.placement.queue == "reductions" and i not in self.ended
        ]
        free = place < len(self.tasks) and self.is_ready(place) and sum(behind) <= self.window
        return place if free else None


@pytest.mark.parametrize("window", long_after(2, [0.5, 2.0, 5.0, math.inf]))
def test_schedules_follow_the_rules(window: float) -> None:
    for seed in first(60, range(150)):
        tasks = random_tasks(seed, computing=seed % 3 / 3)
        scheduler = Scheduler(tasks)
        for yields in (False, True):
            found = scheduler.greedy_starts(window, yields=yields)
            expected = Plain(tasks, window, yields).run()
            assert found == pytest.approx(expected, nan_ok=True)


def test_one_scheduler_has_many_windows() -> None:
    tasks = random_tasks(3)
    scheduler = Scheduler(tasks)
    found = [scheduler.starts(window) for window in (2.0, 0.0, math.inf, 2.0)]
    assert found[0] == found[3] == schedule(tasks, 2.0)
    assert found[2] == schedule(tasks, math.inf)


def test_the_shorter_schedule_is_taken() -> None:
    shorter = 0
    for seed in range(150):
        scheduler = Scheduler(random_tasks(seed))
        ends = [
            max(
                start + seconds
                for start, seconds in zip(starts, scheduler.seconds, strict=True)
                if not math.isnan(start)
            )
            for starts in (
                scheduler.starts(4.0),
                scheduler.greedy_starts(4.0),
                scheduler.greedy_starts(4.0, yields=True),
            )
        ]
        assert ends[0] == pytest.approx(min(ends[1:]))
        shorter += ends[2] < ends[1]
    assert shorter > 3


def test_a_blocking_collective_does_not_wait_for_what_could_follow_it() -> None:
    node = ("node",)
    tasks = [
        Task(Placement("compute"), 1.0, ()),
        Task(Placement("reductions", node), 5.0, (0,)),
        Task(Placement("compute"), 1.0, (0,)),
        Task(Placement("blocking", node), 1.0, (2,)),
        Task(Placement("compute"), 9.0, (3,)),
    ]
    assert Scheduler(tasks).greedy_starts(math.inf) == [0, 1, 1, 6, 7]
    assert schedule(tasks, math.inf) == [0, 3, 1, 2, 3]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_what_follows_work_without_duration_comes_before_reductions(seconds: float) -> None:
    node = ("node",)
    tasks = [
        Task(Placement("compute"), 1.0, ()),
        Task(Placement("reductions", node), 5.0, (0,)),
        Task(Placement("compute"), 0.0, (0,)),  # a view
        Task(Placement("compute"), seconds, (2,)),
        Task(Placement("blocking", node), 1.0, (3,)),
        Task(Placement("compute"), 9.0, (4,)),
    ]
    first = 1.0 + seconds
    assert schedule(tasks, math.inf) == [0, first + 1, 1, 1, first, first + 1]


def test_gradients_are_packed_for_a_reduction_before_further_computation() -> None:
    node, rack = ("node",), ("rack",)
    tasks = [
        Task(Placement("compute"), 1.0, ()),
        Task(Placement("reductions", node), 1.0, (0,)),
        Task(Placement("reductions"), 1.0, (1,)),  # packs what was reduced once
        Task(Placement("reductions", rack), 5.0, (2,)),
        Task(Placement("reductions"), 1.0, (3,)),  # an update
        Task(Placement("compute"), 1.0, (0,)),
        Task(Placement("compute"), 6.0, (5,)),
    ]
    assert schedule(tasks, math.inf) == [0, 1, 2, 3, 9, 1, 3]


def test_without_a_window_tasks_run_in_order() -> None:
    tasks = random_tasks(5)
    starts = schedule(tasks, 0.0)
    ends = [start + task.seconds for start, task in zip(starts, tasks, strict=True)]
    assert starts == [0.0, *ends[:-1]]
