"""What product code takes for clocks, threads, locks and secrets while a world is entered.

Product code runs unchanged: in its modules the names `time`, `threading`, `secrets` and
`ThreadPoolExecutor`, and what was imported from them, stand for what is here.
"""

import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.simulator.replacing import replaced
from tests.simulator.world import Task, World

_PACKAGE = "shardwright."
_WORLD: list[World] = []


def world() -> World:
    """Return the world that was entered."""
    return _WORLD[-1]


class Lock:
    """A lock; the same task may take it again only if it is `reentrant`."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._taken = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        here.step_at_lock()
        while self._taken and not (self.reentrant and self._owner is here.current):
            if not blocking:
                return False
            assert here.current is not None
            self._waiting.append(here.current)
            here.block()
        self._owner, self._taken = here.current, self._taken + 1
        return True

    def release(self) -> None:
        here = world()
        if self._owner is not here.current and not self._is_dead(here):
            raise RuntimeError("cannot release un-acquired lock")
        self._taken = max(0, self._taken - 1)
        if not self._taken:
            self._owner = None
            self._wake()

    def _is_dead(self, here: World) -> bool:
        return here.current is not None and not here.current.process.is_alive

    def _wake(self) -> None:
        for task in self._waiting:
            world().wake(task)
        self._waiting.clear()

    def leave(self) -> int:
        """Give it up, however often it was taken; return how often."""
        taken, self._taken, self._owner = self._taken, 0, None
        self._wake()
        return taken

    def take_again(self, taken: int) -> None:
        """Take it as often as before."""
        self.acquire()
        self._taken = taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that a task may take again."""

    reentrant = True


class Condition:
    """A condition."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        here = world()
        assert here.current is not None
        task, taken = here.current, self._lock.leave()
        self._waiting.append(task)
        woken = here.block(timeout)
        if task in self._waiting:
            self._waiting.remove(task)
        self._lock.take_again(taken)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        here = world()
        end = None if timeout is None else here.now + timeout
        found = predicate()
        while not found:
            left = None if end is None else end - here.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            found = predicate()
        return found

    def notify(self, n: int = 1) -> None:
        for task in self._waiting[:n]:
            world().wake(task)
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Thread:
    """A thread: a task of the process that starts it."""

    def __init__(
        self,
        target: Callable[..., object],
        args: Iterable[Any] = (),
        name: str = "",
        daemon: bool = False,
    ) -> None:
        self._work = lambda: target(*args)
        self._has_begun = self._has_ended = False
        self._ended = Condition()

    def start(self) -> None:
        here = world()
        assert here.current is not None
        self._has_begun = True
        here.spawn(here.current.process, self._run)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._has_ended = True
            with self._ended:
                self._ended.notify_all()

    def is_alive(self) -> bool:
        return self._has_begun and not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        with self._ended:
            self._ended.wait_for(lambda: self._has_ended, timeout)


class Pool:
    """A pool of threads, one for each item."""

    def __init__(self, most: int = 0, thread_name_prefix: str = "") -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        threads = [_Calling(work, item) for item in items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
            if thread.error is not None:
                raise thread.error
            yield thread.found

    def shutdown(self, wait: bool = True) -> None:
        pass


class _Calling(Thread):
    def __init__(self, work: Callable[[Any], Any], item: Any) -> None:
        super().__init__(lambda: self._call(work, item))
        self.found: Any = None
        self.error: Exception | None = None

    def _call(self, work: Callable[[Any], Any], item: Any) -> None:
        try:
            self.found = work(item)
        except Exception as error:
            self.error = error


def _clock() -> SimpleNamespace:
    return SimpleNamespace(
        monotonic=lambda: world().now,
        monotonic_ns=lambda: int(world().now * 1e9),
        time=lambda: world().now,
        perf_counter=lambda: world().now,
        sleep=lambda seconds: world().sleep(seconds),
    )


def _threads() -> SimpleNamespace:
    return SimpleNamespace(
        Condition=Condition,
        Lock=Lock,
        RLock=RLock,
        Thread=Thread,
        current_thread=lambda: world().current,
        main_thread=lambda: world().current.process.tasks[0],
    )


def _secrets(draw: random.Random) -> SimpleNamespace:
    return SimpleNamespace(
        token_bytes=draw.randbytes,
        token_hex=lambda count: draw.randbytes(count).hex(),
        randbits=draw.getrandbits,
        randbelow=draw.randrange,
    )


@cache
def _names(modules: int) -> list[tuple[Any, str, Any]]:
    """Return the names in modules of the product that are replaced, while so many are imported."""
    drawn = (secrets.token_bytes, secrets.token_hex, secrets.randbits, secrets.randbelow)
    clocks = (time, time.sleep, time.monotonic)
    wanted = set(map(id, (*clocks, threading, ThreadPoolExecutor, secrets, *drawn)))
    return [
        (module, name, value)
        for key, module in list(sys.modules.items())
        if key.startswith(_PACKAGE)
        for name, value in list(vars(module).items())
        if id(value) in wanted
    ]


@contextmanager
def entered(seed: int) -> Iterator[World]:
    """Enter a world: product code that runs in the block runs in it."""
    made, clock = World(seed), _clock()
    stand_ins = {
        id(time): clock,
        id(time.sleep): clock.sleep,
        id(time.monotonic): clock.monotonic,
        id(threading): _threads(),
        id(ThreadPoolExecutor): Pool,
        id(secrets): _secrets(made.draw),
    }
    stand_ins |= {
        id(getattr(secrets, name)): drawn for name, drawn in vars(_secrets(made.draw)).items()
    }
    names = _names(len(sys.modules))
    with replaced({(module, name): stand_ins[id(value)] for module, name, value in names}):
        _WORLD.append(made)
        try:
            yield made
        finally:
            made.end()
            _WORLD.pop()
