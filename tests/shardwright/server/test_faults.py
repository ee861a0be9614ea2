"""Servers and workers that die: what comes back, and what goes on without them."""

import numpy as np
import pytest

from shardwright.ir.errors import ModelError, OutputError, ShardwrightError
from shardwright.server import checkpoints
from shardwright.server.checkpoints import Checkpoints
from shardwright.server.store import Push
from tests.shardwright.server.runs import launched, needs_grpc, table, task
from tests.shardwright.server.test_training import numbers, script

ADAM = ("adam_update", (("learning_rate", 0.1),))
KILL = """
import signal, shardwright.server.store as store
push = store.Store.push
def dying(self, one, seconds):
    push(self, one, seconds)
    if {when} and self.server == 1 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
store.Store.push = dying
"""


def pushes(store, steps):
    for step in steps:
        rows = np.array([1, 4, 9])
        gradient = np.full((3, 2), step + 1, np.float32)
        dense = np.full((40, 3), step - 1, np.float32)
        store.push(Push(0, step, {0: dense}, {1: (rows, gradient)}))


def state(store):
    return [
        array.tobytes()
        for shard in store.shards
        for array in (shard.values, *shard.states, shard.versions)
    ]


@pytest.fixture
def work():
    adam = {"rule": ADAM, "states": ("zeros", "zeros")}
    return task(table("w", (40, 3), **adam), table("t", (20, 2), by_rows=True))


def test_a_server_continues_from_its_checkpoint_to_the_bit(tmp_path, work):
    where = Checkpoints(tmp_path, 0, 1, run=5, interval=2)
    unbroken = where.begin(work)
    pushes(unbroken, range(3))
    assert unbroken.durable == [2]
    again = where.begin(work)
    assert (again.clock, again.applied) == (2, [2])
    pushes(again, range(2, 5))
    pushes(unbroken, range(3, 5))
    assert state(again) == state(unbroken)


def test_a_server_that_wakes_up_beside_its_successor_is_refused(tmp_path, work):
    first = Checkpoints(tmp_path, 0, 1, run=5, interval=1)
    second = Checkpoints(tmp_path, 0, 1, run=5, interval=1)
    asleep = first.begin(work)
    pushes(asleep, range(2))
    awake = second.begin(work)
    pushes(awake, range(2, 4))
    with pytest.raises(OutputError) as caught:
        asleep.save()
    assert str(caught.value) == (
        "the checkpoint cannot be written: a later start of the training run writes there (in "
        f"{tmp_path / '.server_0'}); end this process, or name another folder"
    )
    assert second.begin(work).clock == 4


def test_a_server_begins_with_what_is_there_when_the_file_is_its_own(tmp_path, work, monkeypatch):
    earlier = Checkpoints(tmp_path, 0, 1, run=5, interval=1).begin(work)
    pushes(earlier, range(2))
    real = checkpoints.take

    def late(*arguments):
        pushes(earlier, range(2, 3))
        real(*arguments)

    monkeypatch.setattr(checkpoints, "take", late)
    assert Checkpoints(tmp_path, 0, 1, run=5, interval=1).begin(work).clock == 3


def test_a_server_of_another_run_takes_no_file(tmp_path, work):
    store = Checkpoints(tmp_path, 0, 1, run=5, interval=1).begin(work)
    pushes(store, range(1))
    with pytest.raises(ModelError, match="is of another run"):
        Checkpoints(tmp_path, 0, 1, run=6).begin(work)
    pushes(store, range(1, 2))
    assert store.durable == [2]


def test_checkpoints_of_others_are_refused(tmp_path, work):
    pushes(Checkpoints(tmp_path, 0, 1, run=5, interval=1).begin(work), range(1))
    with pytest.raises(ModelError, match="of another run; remove it, or continue it"):
        Checkpoints(tmp_path, 0, 1, run=6).begin(work)
    assert Checkpoints(tmp_path, 0, 1, run=6, resumes=True).begin(work).clock == 1
    with pytest.raises(ModelError, match="of another model, optimizer or number of workers"):
        Checkpoints(tmp_path, 0, 1, run=5).begin(task(table("w", (40, 3))))


def test_damaged_checkpoints_are_refused_by_name(tmp_path, work):
    where = Checkpoints(tmp_path, 0, 1, run=5, interval=1)
    pushes(where.begin(work), range(1))
    whole = where.path.read_bytes()
    random = np.random.default_rng(0)
    before, named = state(where.begin(work)), 0
    for _ in range(20):
        damaged = bytearray(whole)
        if random.random() < 0.5:
            damaged = damaged[: random.integers(1, len(whole))]
        else:
            damaged[random.integers(len(whole))] ^= 1 << random.integers(8)
        where.path.write_bytes(damaged)
        try:
            found = state(where.begin(work))
        except ShardwrightError as error:
            named += str(where.path) in str(error)
        else:
            named += found == before  # the bit is not read
    assert named == 20


@pytest.mark.long
@needs_grpc
def test_a_server_that_is_killed_comes_back_and_nothing_changes(tmp_path):
    (tmp_path / "whole").mkdir()
    settings = "checkpoint_dir='saved', checkpoint_interval=3, heartbeat_timeout=20.0"
    code = script(settings=settings, epochs=2)
    expected = launched(code, tmp_path / "whole", 2, 2)
    kill = KILL.format(when="self.clock == 4")
    logs = launched("import os" + kill + code, tmp_path, 2, 2, "--server_restarts", "1")
    assert (tmp_path / "died").exists()
    for log, other in zip(logs, expected, strict=True):
        assert numbers(log) == numbers(other)
        assert numbers(log, "sum") == numbers(other, "sum")


@pytest.mark.long
@needs_grpc
def test_a_worker_that_dies_does_not_stop_the_others_in_asynchronous_mode(tmp_path):
    code = script(settings="synchronous=False, heartbeat_timeout=20.0", epochs=6)
    code = code.replace("losses = ", "exit(3) if rank == 1 else None\nlosses = ")
    first, second = launched(code, tmp_path, 1, 2, fails=True)
    losses = numbers(first)
    assert len(losses) == 24
    assert losses[-1] < 0.7 * losses[0]
    assert "losses" not in second


@pytest.mark.long
@needs_grpc
def test_a_worker_that_dies_ends_the_others_in_synchronous_mode(tmp_path):
    code = script(settings="heartbeat_timeout=20.0")
    code = code.replace("losses = ", "1 / 0 if rank == 1 else None\nlosses = ")
    says = "shardwright: the worker 1: it ended with the code 1; the logs are in "
    first, second = launched(code, tmp_path, 1, 2, fails=True, says=says)
    assert "the worker 1 has ended early: ZeroDivisionError: division by zero" in first
    printed = (first + second).splitlines()
    assert not [line for line in printed if line.startswith("losses")]  # a trace quotes the script
