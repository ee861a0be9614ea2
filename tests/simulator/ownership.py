"""Starts of a training run in a world: ranks die or stand still, and orphans go on beside new ones.

Two ranks train and write checkpoints, each in a process. A launcher starts them again where one has
died or stands still, and ends those of before, as far as it reaches them: others go on later. The
checkpoints, their lease and their rotation are those of the product.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.errors import ShardwrightError
from shardwright.runtime import LocalCommunicator
from shardwright.runtime.checkpoints import (
    Progress,
    begin_writing,
    lease,
    load_slices,
    newest,
    open_checkpoint,
    runs,
    take_folder,
    writing,
)
from tests.simulator.files import DEATH, STOP, Fault, Files, intercepted
from tests.simulator.replacing import replaced
from tests.simulator.storage import PROGRAM, Outcome, folder_in_memory, state_of
from tests.simulator.threads import Condition, entered
from tests.simulator.world import Process, World

_RUN = "0123456789abcdef"
_STEPS = 4
_RANKS = 2
# Starts of a run; with half as many no orphan of a start would meet the second one after it, and
# with twice as many a seed takes twice as long.
_STARTS = 3
# Calls of a process among which it dies or stands still; a rank makes some 150 in a run.
_CALLS = 120
_STILL = 3.0  # seconds after which the launcher gives up a start: more than a rank waits for others
_PAUSE = 0.2
_PATIENCE = 60.0  # seconds after which a rank ends that waits for one that has gone


class PartedError(Exception):
    """Another rank of the start has gone."""


class Meeting:
    """Where the ranks of a start exchange values."""

    def __init__(self) -> None:
        self._changed, self._turns = Condition(), Counter[int]()
        self._given: dict[int, dict[int, Any]] = {}

    def collect(self, rank: int, value: Any) -> dict[int, Any]:
        """Wait for the values of all ranks, and return them."""
        turn = self._turns[rank]
        self._turns[rank] += 1
        with self._changed:
            given = self._given.setdefault(turn, {})
            given[rank] = value
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(given) == _RANKS, _PATIENCE):
                raise PartedError
        return given


class Ranks(LocalCommunicator):
    """A rank, which meets the others of its start."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(PROGRAM.mesh)
        self.ranks = (rank,)
        self._meeting = meeting

    def collect(self, parts: Any) -> Any:
        return self._meeting.collect(self.ranks[0], parts[self.ranks[0]])


@dataclass
class Run:
    """A run in a world, and who owns its checkpoints."""

    world: World
    files: Files
    owner: int = 0
    steps: int = _STEPS
    ended: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    starts: dict[int, list[Process]] = field(default_factory=dict)

    def rank(self, start: int, rank: int, meeting: Meeting) -> None:
        """Train to the end, from the newest checkpoint on."""
        try:
            self._train(start, Ranks(rank, meeting))
        except PartedError:
            self.world.note(f"start {start} rank {rank} has waited long enough")
        except (ShardwrightError, FileNotFoundError) as error:
            text = str(error).replace(str(self.files.root), "")
            self.refused.append(text)
            self.world.note(f"start {start} rank {rank} is refused: {text}")
            if self.owner == start and not self._may_fail(start):
                self.wrong.append(f"the owner, start {start}, is refused: {text}")

    def _may_fail(self, start: int) -> bool:
        return any(not p.is_alive for p in self.starts[start])

    def _train(self, start: int, communicator: Ranks) -> None:
        (rank,) = communicator.ranks
        mine = (take_folder(self.files.root), newest(self.files.root)) if rank == 0 else None
        own, found = communicator.collect({rank: mine})[0]
        resumed = None if found is None else open_checkpoint(found)
        step = 0 if resumed is None else resumed.manifest.progress.step
        if resumed is not None:
            load_slices(resumed, PROGRAM, communicator)
        how = {"keep": 1, "asynchronous": bool(start % 2), "resumed": resumed, "run": _RUN}
        how["start"] = own
        writer = begin_writing(self.files.root, PROGRAM, communicator, **how)
        while step < self.steps:
            step += 1
            communicator.collect({rank: step})
            state = {name: {rank: parts[rank]} for name, parts in state_of(start).items()}
            writer.save(state, Progress(step=step))
        writer.settle()
        self.ended[start] += 1

    # The launcher

    def launch(self, *, faults: bool) -> None:
        """Start the ranks again until all have ended."""
        draw = self.world.draw
        first = max(self.starts, default=0) + 1
        self.steps += not faults  # the last start has a checkpoint to write, whatever is there
        for start in range(first, first + (_STARTS if faults else 1)):
            is_last = not faults or start == first + _STARTS - 1
            meeting, ranks = Meeting(), list[Process]()
            self.starts[start] = ranks
            for rank in range(_RANKS):
                work = partial(self.rank, start, rank, meeting)
                ranks.append(self.world.process(f"start {start} rank {rank}", work))
            if not is_last:
                self._draw_fault(draw.choice(ranks))
            self._watch(start)
            if self.ended[start] == _RANKS:
                break
            for process in ranks:
                if is_last or draw.random() < 0.5:  # else it is out of reach, and goes on later
                    self.world.kill(process)

    def _draw_fault(self, process: Process) -> None:
        draw = self.world.draw
        kind = draw.choice((DEATH, STOP, STOP))
        self.files.faults.append(Fault(process, draw.randrange(_CALLS), kind))

    def _watch(self, start: int) -> None:
        """Wait until all ranks of a start have ended, or one has died or all stand still."""
        ranks, patience = self.starts[start], self.world.now + _STILL
        while self.world.now < patience and any(p.tasks for p in ranks):
            if any(not p.is_alive for p in ranks):
                return
            self.world.sleep(_PAUSE)

    # What must hold

    def taken(self, start: int) -> None:
        """Note that a start has the lease."""
        self.owner = start
        self.world.note(f"start {start} has the lease")

    def changes(self, start: int, what: str) -> None:
        """Note that a start completes or removes a checkpoint."""
        self.world.note(f"start {start} {what}")
        if start != self.owner:
            self.wrong.append(f"start {start} {what}, and start {self.owner} has the lease")

    def own_start(self) -> int:
        """Return the start of the process that runs."""
        task = self.world.current
        found = [s for s, ranks in self.starts.items() if task and task.process in ranks]
        return found[0] if found else 0


@contextmanager
def _watched(run: Run) -> Iterator[None]:
    """Tell a run what the product does with checkpoints."""
    real_take, real_commit, real_remove = runs.take, writing.commit, writing._remove

    def take(folder: Path, start: lease.Start) -> None:
        real_take(folder, start)
        run.taken(run.own_start())

    def commit(path: Path, target: Path) -> None:
        run.changes(run.own_start(), f"completes {target.name}")
        real_commit(path, target)

    def remove(path: Path, name: str) -> None:
        run.changes(run.own_start(), f"removes {path.name}")
        real_remove(path, name)

    def new_start(attempt: int) -> lease.Start:
        return lease.Start(attempt, "launcher", run.own_start())

    own = {
        (runs, "take"): take,
        (writing, "commit"): commit,
        (writing, "_remove"): remove,
        (runs, "_new_start"): new_start,
    }
    with replaced(own):
        yield


def _check_end(run: Run) -> None:
    """Check what is there when all has ended, of a last start alone."""
    last, root = max(run.starts), run.files.root
    found = newest(root)
    if run.ended[last] != _RANKS or found is None:
        run.wrong.append(f"{run.ended[last]} of {_RANKS} ranks of the last start have ended")
        return
    checkpoint = open_checkpoint(found)
    checkpoint.check()
    if checkpoint.manifest.progress.step != run.steps:
        run.wrong.append(f"the newest checkpoint is {found.name}, expected step-{run.steps}")
    state = load_slices(checkpoint, PROGRAM, LocalCommunicator(PROGRAM.mesh))
    started = {s for s in run.starts if _is_equal(state, state_of(s))}
    if not started:
        run.wrong.append("the newest checkpoint has slices of several starts")
    left = {path.name for path in root.iterdir()} - {lease.LEASE, found.name}
    if left:
        run.wrong.append(f"left: {sorted(left)}")


def _is_equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[n][r], other[n][r]) for n in other for r in other[n])


def ownership(seed: int) -> Outcome:
    """Run a seed."""
    with folder_in_memory() as folder, entered(seed) as world:
        files = Files(world, folder)
        run = Run(world, files)
        with intercepted(files), _watched(run), world.to_its_end(run.wrong):
            world.process("launcher", partial(run.launch, faults=True))
            world.run()
            world.process("launcher", partial(run.launch, faults=False))
            world.run()
            _check_end(run)
        run.wrong += world.errors
        kind = f"{max(run.starts) - 1} starts before the last"
        return Outcome(kind, tuple(run.wrong), world.digest, tuple(run.refused))
