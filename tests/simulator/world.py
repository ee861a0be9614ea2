"""A world with its own clock, whose tasks run a step at a time in an order that a seed draws.

One task at a time runs: it goes on until it waits, or until a draw says that another one is next.
Time passes only where all wait. What a process does after its death has no effect: each of its
tasks ends at the next step by `Died`.
"""

import heapq
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

# Steps after which a run counts as one that never ends; most have some thousand. Half as many would
# do for all that were seen; twice as many only delay the message.
_MOST_STEPS = 50_000

# How often another task goes on after a step that need not wait: each seed has one of them, since
# some orders take many changes and others take long stretches without one.
_SWITCHES = (0.03, 0.1, 0.3, 0.8)

# One in so many steps that only take a lock lets another task run: with every one a seed takes
# twice as long, and orders that matter are hardly more.
_LOCKS = 4


class Died(BaseException):
    """The process is dead: its tasks end here."""


class StuckError(Exception):
    """All tasks wait for ever, or a run does not end."""


@dataclass(eq=False)
class Process:
    """A process: its tasks, what interrupts the first one, and what happens at the end of all."""

    name: str
    is_alive: bool = True
    is_halted: bool = False
    interrupts: list[Callable[[], object]] = field(default_factory=list)
    tasks: "list[Task]" = field(default_factory=list)
    buried: list[Callable[[], object]] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """A thread of a process."""

    world: "World"
    process: Process
    work: Callable[[], object]
    carrier: "_Carrier"
    is_done: bool = False
    is_ready: bool = False
    timer: int = 0  # the number of the timer that it waits for
    timed_out: bool = False


class _Carrier:
    """What runs one task after the other: a thread of the operating system."""

    def __init__(self, *, is_main: bool = False) -> None:
        self._baton = threading.Lock()
        self._baton.acquire()
        self.task: Task | None = None
        if not is_main:
            threading.Thread(target=self._begin, daemon=True).start()

    def _begin(self) -> None:
        self._baton.acquire()
        self.run()

    def run(self) -> None:
        """Run the tasks that are given to it."""
        while True:
            assert self.task is not None
            self.go_to(self.task.world.carry(self.task))

    def go_to(self, other: "_Carrier") -> None:
        """Let another one run, and wait for the turn of this one."""
        other._baton.release()
        self._baton.acquire()


_IDLE: list[_Carrier] = []


class World:
    """A world.

    Parameters
    ----------
    seed : int
        Decides about everything that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.current: Task | None = None
        self.processes: list[Process] = []
        self.errors: list[str] = []
        self.steps = 0
        self._digest = sha256()
        self._ready: list[Task] = []
        self._held: list[Task] = []  # of processes that are halted
        self._dying: list[Task] = []
        self._timers: list[tuple[float, int, Task]] = []
        self._count = 0
        self._often = self.draw.choice(_SWITCHES)
        self._main = _Carrier(is_main=True)
        self._stuck = ""

    # What happened

    def note(self, what: str) -> None:
        """Note an event, by which two runs of a seed are compared."""
        self._digest.update(f"{self.now:.6f} {what}\n".encode())

    @property
    def digest(self) -> str:
        """A sum of all that was noted, and of how often was drawn."""
        found = self._digest.copy()
        found.update(f"{self.steps} {self.now!r} {self.draw.getstate()}".encode())
        return found.hexdigest()

    # Processes

    def process(self, name: str, work: Callable[[], object]) -> Process:
        """Start a process."""
        made = Process(name)
        self.processes.append(made)
        self.spawn(made, work)
        return made

    def spawn(self, process: Process, work: Callable[[], object]) -> Task:
        """Start a task of a process."""
        carrier = _IDLE.pop() if _IDLE else _Carrier()
        task = Task(self, process, work, carrier)
        carrier.task = task
        process.tasks.append(task)
        self._make_ready(task)
        return task

    def kill(self, process: Process) -> None:
        """End a process at once; where it is the one that runs, at its next step."""
        if not process.is_alive:
            return
        self.resume(process)
        process.is_alive = False
        self.note(f"{process.name} dies")
        for task in process.tasks:
            if not task.is_done and task is not self.current:
                self._dying.append(task)
        if not process.tasks:
            self._bury(process)

    def halt(self, process: Process) -> None:
        """Let none of the tasks of a process go on."""
        process.is_halted = True
        self._held += [task for task in self._ready if task.process is process]
        self._ready = [task for task in self._ready if task.process is not process]

    def resume(self, process: Process) -> None:
        """Let the tasks of a process go on."""
        process.is_halted = False
        self._ready += [task for task in self._held if task.process is process]
        self._held = [task for task in self._held if task.process is not process]

    def interrupt(self, process: Process, act: Callable[[], object]) -> None:
        """Let the first task of a process act at its next step, even if it waits."""
        process.interrupts.append(act)
        if process.tasks:
            self.wake(process.tasks[0])

    def _bury(self, process: Process) -> None:
        for act in process.buried:
            act()
        process.buried.clear()

    def run(self) -> None:
        """Run until all tasks have ended.

        Raises
        ------
        StuckError
            If they do not.
        """
        self._main.go_to(self._following())
        self.current = None
        if self._stuck:
            why, self._stuck = self._stuck, ""
            raise StuckError(why)

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            self.kill(process)
        if self._dying:
            self.steps = 0
            self.run()

    @contextmanager
    def to_its_end(self, wrong: list[str]) -> Iterator[None]:
        """Add what the block raises to what is wrong, and end all processes after it."""
        try:
            yield
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        finally:
            with suppress(Exception):
                self.end()

    # Steps

    def step(self) -> None:
        """Let another task run, where the draw says so."""
        task = self.current
        if task is None:
            return
        self._check(task)
        self.steps += 1
        if self.steps > _MOST_STEPS or (self._ready and self.draw.random() < self._often):
            self._make_ready(task)
            self._hand_over(task)

    def step_at_lock(self) -> None:
        """Let another task run, more rarely."""
        if self.current is not None and self.draw.randrange(_LOCKS) == 0:
            self.step()

    def block(self, seconds: float | None = None) -> bool:
        """Wait until this task is woken; return False where the time is over before."""
        task = self.current
        assert task is not None
        self._check(task)
        self._count += 1
        task.timer, task.timed_out = self._count, False
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + max(0.0, seconds), task.timer, task))
        self._hand_over(task)
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a task go on that waits."""
        if not (task.is_ready or task.is_done or task is self.current):
            self._make_ready(task)

    def check(self) -> None:
        """End here if the process of the running task is dead."""
        if self.current is not None:
            self._check(self.current)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.current is not None and self.block(end - self.now):
            pass  # it was interrupted

    def _check(self, task: Task) -> None:
        process = task.process
        if not process.is_alive:
            raise Died
        while process.interrupts and process.tasks[0] is task:
            process.interrupts.pop(0)()

    def _make_ready(self, task: Task) -> None:
        task.timer, task.is_ready = 0, True
        (self._held if task.process.is_halted else self._ready).append(task)

    def _hand_over(self, task: Task) -> None:
        """Let the next task run, and wait until it is the turn of this one again."""
        following = self._following()
        if following is not task.carrier:
            task.carrier.go_to(following)
            self._check(task)

    def _following(self) -> _Carrier:
        """Return who runs next: a task, or the begin of all where none is left."""
        task = self._next()
        if task is None:
            return self._main
        self.current = task
        return task.carrier

    def _next(self) -> Task | None:
        self.steps += 1
        while self._dying:
            task = self._dying.pop()
            if not task.is_done:
                self._leave_ready(task)
                return task
        if self.steps > _MOST_STEPS:
            self._stuck = f"no end after {_MOST_STEPS:,} steps"
            return None
        while not self._ready and self._timers:
            moment, number, task = heapq.heappop(self._timers)
            if task.timer == number and not task.is_done:
                self.now = max(self.now, moment)
                task.timed_out = True
                self._make_ready(task)
        if not self._ready:
            waiting = [t for p in self.processes for t in p.tasks if not t.is_done]
            if waiting:
                names = ", ".join(sorted({task.process.name for task in waiting}))
                self._stuck = f"all tasks of {names} wait for ever"
            return None
        place = self.draw.randrange(len(self._ready))
        self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
        task = self._ready.pop()
        task.is_ready = False
        return task

    def _leave_ready(self, task: Task) -> None:
        if task.is_ready:
            self._ready.remove(task)
            task.is_ready = False

    def carry(self, task: Task) -> _Carrier:
        """Run a task to its end, and return who is next."""
        try:
            self._check(task)
            task.work()
        except Died:
            pass
        except SystemExit:
            pass
        except BaseException as error:
            if task.process.is_alive:
                self.errors.append(f"{task.process.name}: {type(error).__name__}: {error}")
        task.is_done = True
        task.process.tasks.remove(task)
        if not task.process.is_alive and not task.process.tasks:
            self._bury(task.process)
        _IDLE.append(task.carrier)
        return self._following()
