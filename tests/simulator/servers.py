"""A run with parameter servers in a world: calls are lost and doubled, servers and workers die.

The scheduler, the servers and the workers are those of the product, with their locks and threads,
and so are the messages between them and the checkpoints of the servers. A launcher starts servers
again that have died, and tells the scheduler of deaths, or lets it miss them.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.server import roles, transport
from shardwright.server.client import Client
from shardwright.server.context import SCHEDULER, Roles, Settings
from shardwright.server.member import Member
from shardwright.server.scheduler import SERVER, WORKER, Members
from shardwright.server.security import PLAIN
from shardwright.server.store import Task
from shardwright.server.tables import Table
from tests.simulator.files import DEATH, Fault, Files, intercepted
from tests.simulator.network import Faults, Network
from tests.simulator.replacing import replaced
from tests.simulator.storage import Outcome, folder_in_memory
from tests.simulator.threads import entered
from tests.simulator.world import Process, World

_ADDRESS = "127.0.0.1:7000"
_RATE = 0.5
_SILENCE = 30.0
_ROWS, _WIDTH = 10, 2
_STEPS = 4
# Seconds in which things happen: a run without faults takes some two, and one whose server is
# missed by its silence forty. Half as many would end many faults before the last steps.
_UNTIL = 6.0


@dataclass(frozen=True)
class Shape:
    """What is trained, by how many.

    Parameters
    ----------
    servers, workers : int
        How many there are.
    synchronous : bool
        Whether an update takes a push of every worker.
    interval : int
        Updates from one checkpoint to the next.
    hashed : bool
        Whether rows are divided by hash.
    cached : int
        Rows that a worker keeps.
    """

    servers: int
    workers: int
    synchronous: bool
    interval: int
    hashed: bool
    cached: int

    @property
    def task(self) -> Task:
        """What the servers hold: a table that is pulled whole, and one by rows."""
        rule = ("sgd_update", (("learning_rate", _RATE),))
        dense = Table("w", TensorType("float32", (6, 3)), "data", *rule)
        kind = TensorType("float32", (_ROWS, _WIDTH))
        rows = Table("t", kind, "zeros", *rule, by_rows=True, hashed=self.hashed)
        return Task((dense, rows), self.workers, self.synchronous, 0)

    def rows(self, worker: int, step: int) -> np.ndarray:
        """Return the rows that a step of a worker reads and updates."""
        return np.unique([(3 * step + worker) % _ROWS, (step * step + 5) % _ROWS, worker])

    @property
    def counted(self) -> np.ndarray:
        """How often each row is updated, by all workers in all steps."""
        found = np.zeros(_ROWS)
        for worker in range(self.workers):
            for step in range(_STEPS):
                found[self.rows(worker, step)] += 1
        return found


@dataclass
class Trained:
    """What the workers of a run have found.

    Attributes
    ----------
    losses : dict
        By worker, a sum of what it pulled in each step.
    tables : dict
        By worker, the tables at the end.
    finished : set of int
        The workers that have ended all steps.
    ended : dict
        By worker, why it has ended early.
    """

    finished: set[int] = field(default_factory=set)
    losses: dict[int, list[str]] = field(default_factory=dict)
    tables: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)


class Run:
    """A run in a world.

    Parameters
    ----------
    world : World
        The world.
    files : Files
        The disk of the servers.
    shape : Shape
        What is trained.
    """

    def __init__(self, world: World, files: Files, shape: Shape) -> None:
        self.world, self.files, self.shape = world, files, shape
        self.found = Trained()
        self.members: Members | None = None
        self.killed: Counter[str] = Counter()
        self.stays = self._staying()
        self.how = Settings(
            enable_ps=True,
            synchronous=shape.synchronous,
            checkpoint_dir=files.root / "servers",
            checkpoint_interval=shape.interval,
            heartbeat_timeout=_SILENCE,
        )
        self.processes: dict[tuple[str, int], Process] = {}

    def _roles(self, role: str, number: int | None) -> Roles:
        return Roles(role, _ADDRESS, self.shape.servers, self.shape.workers, number)

    def _staying(self) -> set[int]:
        """Draw which workers look at the tables at the end; the others leave before."""
        workers = range(self.shape.workers)
        stays = {number for number in workers if self.world.draw.random() < 0.6}
        return stays or {self.world.draw.choice(workers)}

    def start(self) -> None:
        """Start all processes."""
        self.processes[SCHEDULER, 0] = self.world.process("scheduler", self._schedule)
        for number in range(self.shape.servers):
            self.start_server(number)
        for number in range(self.shape.workers):
            work = partial(self._worker, number)
            self.processes[WORKER, number] = self.world.process(f"worker {number}", work)

    def _schedule(self) -> None:
        roles.schedule(self.how, self._roles(SCHEDULER, None), PLAIN)

    def start_server(self, number: int) -> None:
        """Start a server, for the first time or again."""

        def work() -> None:
            try:
                roles.serve(self.how, self._roles(SERVER, number), PLAIN)
            except ModelError:
                failed = self.members is not None and self.members.failure
                if self.processes[SCHEDULER, 0].tasks and not failed:
                    raise  # else the run has ended before it came back

        self.processes[SERVER, number] = self.world.process(f"server {number}", work)

    # A worker

    def _worker(self, number: int) -> None:
        try:
            self._train(number)
        except ModelError as error:
            self.found.ended[number] = str(error)
            self.world.note(f"worker {number} ends early: {error}")

    def _train(self, number: int) -> None:
        shape = self.shape
        member = Member(
            WORKER, _ADDRESS, shape.servers, shape.workers, PLAIN, number, silence=_SILENCE
        )
        try:
            self._steps(number, member)
        finally:
            member.leave()

    def _steps(self, number: int, member: Member) -> None:
        shape, losses = self.shape, self.found.losses.setdefault(number, [])
        first = np.arange(18, dtype=np.float32).reshape(6, 3)
        client = Client(member, shape.task, PLAIN, lambda table: first, shape.cached)
        while client.step < _STEPS:
            step = client.step
            w, rows = client.pull([0])[0], shape.rows(number, step)
            t = client.pull_rows(1, rows)
            losses.append(sha256(w.tobytes() + t.tobytes()).hexdigest())
            dense = w * np.float32(0.1) + np.float32(number + step)
            if not shape.synchronous:
                dense = np.full_like(w, -1)
            by_rows = {1: (rows, np.full((len(rows), _WIDTH), -2, np.float32))}
            client.push({0: dense.astype(np.float32)}, by_rows)
        client.settle()
        self.found.finished.add(number)
        if number in self.stays:
            self._wait_for_others()
            w, t = (table.astype(np.float64) for table in client.pull([0, 1]).values())
            self.found.tables[number] = w.tobytes(), t.tobytes()
            if not shape.synchronous and not self.killed[WORKER]:
                pushes = shape.workers * _STEPS
                if (w - first != _RATE * pushes).any() or (t != shape.counted[:, None]).any():
                    self.found.ended[number] = f"{pushes} pushes were not applied once each"
        client.close()

    def _wait_for_others(self) -> None:
        there = self.found.finished
        while not all(n in there or not self._is_alive(n) for n in range(self.shape.workers)):
            self.world.sleep(0.2)
        self.world.sleep(self.world.draw.uniform(0, 2))  # in which servers may die

    def _is_alive(self, worker: int) -> bool:
        process = self.processes[WORKER, worker]
        return process.is_alive and bool(process.tasks) and worker not in self.found.ended

    # What happens to it

    def kill(self, role: str, number: int) -> bool:
        """Kill a process that lives; return whether there was one."""
        process = self.processes[role, number]
        if not process.is_alive or not process.tasks:
            return False
        self.world.kill(process)
        return True

    def launcher(self, victims: int, *, kills_worker: bool) -> None:
        """Kill servers and perhaps a worker at some times, and start servers again."""
        draw = self.world.draw
        for _ in range(victims):
            self.world.sleep(draw.uniform(0, 1.5))
            if kills_worker and draw.random() < 0.5:
                number, kills_worker = draw.randrange(self.shape.workers), False
                if self.kill(WORKER, number):
                    self._tell(WORKER, number)
                continue
            number = draw.randrange(self.shape.servers)
            if draw.random() < 0.5:
                self.files.faults.append(
                    Fault(self.processes[SERVER, number], draw.randrange(30), DEATH)
                )
            elif not self.kill(SERVER, number):
                continue
            process = self.processes[SERVER, number]
            while process.is_alive and process.tasks:
                self.world.sleep(0.3)
            if not process.is_alive:
                self._tell(SERVER, number)
                self.world.sleep(draw.uniform(0, 3))
                if any(self._is_alive(n) for n in range(self.shape.workers)):
                    self.start_server(number)

    def _tell(self, role: str, number: int) -> None:
        self.killed[role] += 1
        scheduler = self.processes[SCHEDULER, 0]
        if self.members is None or self.world.draw.random() < 0.3 or not scheduler.is_alive:
            return  # it misses the process by its silence
        lose = partial(self.members.lose, role, number, "it died by signal 9 (SIGKILL)")
        self.world.spawn(scheduler, lose)


@contextmanager
def _product_in(run: Run, network: Network) -> Iterator[None]:
    """Let the product call over the network, and tell this run what it says."""
    own = {
        (transport, "grpc"): lambda: network.grpc,
        (roles, "_own_host"): lambda roles: "127.0.0.1",
        (roles, "say"): lambda line: run.world.note(line),
        (roles, "note_deaths"): lambda members: setattr(run, "members", members),
    }
    with replaced(own):
        yield


def _run(shape: Shape, seed: int, victims: int, *, faults: bool) -> tuple[Run, list[str], str]:
    """Run a training; return it, what is wrong, and the sum of what happened."""
    with ExitStack() as stack:
        folder = stack.enter_context(folder_in_memory())
        world = stack.enter_context(entered(seed))
        files = stack.enter_context(intercepted(Files(world, folder)))
        often = world.draw.choice((0.0, 0.02, 0.1, 0.2)) if faults else 0.0
        run = Run(world, files, shape)
        network = Network(world, Faults(often, _UNTIL))
        stack.enter_context(_product_in(run, network))
        wrong: list[str] = []
        run.start()
        if victims:
            kills = world.draw.random() < 0.3
            world.process("launcher", partial(run.launcher, victims, kills_worker=kills))
        try:
            world.run()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        wrong += world.errors
        world.end()
        return run, wrong, world.digest


@cache
def _all_unbroken() -> dict[tuple[int, bool], Trained]:
    """Return what runs without faults find; it does not depend on the servers."""
    kinds = [(workers, synchronous) for workers in (1, 2, 3) for synchronous in (True, False)]
    return {kind: _run(Shape(1, *kind, 1, False, 0), 0, 0, faults=False)[0].found for kind in kinds}


def servers(seed: int) -> Outcome:
    """Run a seed."""
    _all_unbroken()
    draw = random.Random(seed)
    shape = Shape(
        draw.choice((1, 2)),
        draw.choice((1, 2, 2, 3)),
        draw.random() < 0.6,
        draw.choice((1, 2, 3)),
        draw.random() < 0.5,
        draw.choice((0, 6)),
    )
    run, wrong, digest = _run(shape, seed, draw.choice((0, 1, 1, 2)), faults=True)
    found, kind = run.found, "synchronous" if shape.synchronous else "asynchronous"
    if run.killed[WORKER]:
        kind += ", a worker dies"
    elif found.ended:
        wrong += [f"worker {n} ends early: {why}" for n, why in found.ended.items()]
    wrong += _compared(shape, found, complete=not run.killed[WORKER])
    return Outcome(kind, tuple(wrong), digest, (str(shape), str(run.killed), str(found.ended)))


def _compared(shape: Shape, found: Trained, *, complete: bool) -> list[str]:
    """Return what is wrong with what the workers found."""
    wrong = []
    expected = _all_unbroken()[shape.workers, shape.synchronous]
    for worker, losses in found.losses.items():
        if shape.synchronous and losses != expected.losses[worker][: len(losses)]:
            wrong.append(f"worker {worker} has other losses than in a run without faults")
    if not complete:
        return wrong
    if len(found.finished) < shape.workers and not found.ended:
        wrong.append(f"{len(found.finished)} of {shape.workers} workers have ended")
    (right,) = set(expected.tables.values())
    for worker, tables in found.tables.items():
        if tables != right:
            wrong.append(f"worker {worker} finds other tables than in a run without faults")
    return wrong
