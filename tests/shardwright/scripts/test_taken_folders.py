"""A run that goes on takes the folder of its checkpoints before it reads what it continues."""

import shutil

import pytest

import shardwright as sw
from shardwright.ir.errors import OutputError, PlanError
from shardwright.runtime.checkpoints import lease, newest
from shardwright.train import Checkpoints
from tests.shardwright.scripts.test_runs import StopAfter, StopError, train

pytest.importorskip("safetensors")
RUN = "0123456789abcdef"


@pytest.fixture
def one_run(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_RUN", RUN)


@pytest.fixture
def late(tmp_path, monkeypatch):
    """An earlier start completes a checkpoint and removes the one before until it is refused."""

    def write_lease(path, *arguments):
        for newer in (tmp_path / "later").glob("step-*"):
            for older in path.parent.glob("step-*"):
                shutil.rmtree(older)
            newer.rename(path.parent / newer.name)
        real(path, *arguments)

    real = lease.write_file
    return lambda: monkeypatch.setattr(lease, "write_file", write_lease)


def broken(folder, step):
    with pytest.raises(StopError):
        train("arrays", [Checkpoints(folder, step, keep=1), StopAfter(step)])


@pytest.mark.parametrize("resume", ["True", "folder"])
def test_a_script_goes_on_from_what_is_there_when_the_folder_is_taken(
    resume, tmp_path, one_run, late
):
    losses, _ = train("arrays")
    folder = tmp_path / "a"
    broken(folder, 4)
    broken(tmp_path / "later", 6)
    late()
    resumed = True if resume == "True" else folder
    assert train("arrays", [Checkpoints(folder, 4, resume=resumed)])[0] == losses[6:]


def test_a_script_that_begins_again_before_there_is_a_checkpoint_takes_the_folder(
    tmp_path, one_run, monkeypatch
):
    losses, _ = train("arrays")
    monkeypatch.setenv("SHARDWRIGHT_RESTART", "1")
    assert train("arrays", [Checkpoints(tmp_path, every=0)])[0] == losses
    monkeypatch.setenv("SHARDWRIGHT_RESTART", "0")
    with pytest.raises(OutputError, match="a later start of the training run writes there"):
        train("arrays", [Checkpoints(tmp_path, every=0, resume=True)])


def test_a_mistake_takes_the_folder_from_nobody(tmp_path, plan):
    run = under_way(plan, tmp_path / "a")
    other = sw.compile("mlp:batch=4,hidden=16", devices=2)
    with pytest.raises(PlanError, match="it must be of the program"):
        next(sw.run(other, 1, resume=tmp_path / "a", checkpoints=tmp_path / "a"))
    with pytest.raises(OutputError, match="those of another training run are there"):
        next(sw.run(plan, 1, checkpoints=tmp_path / "a"))
    before = newest(tmp_path / "a")
    while newest(tmp_path / "a") == before:
        next(run)


@pytest.fixture
def plan():
    return sw.compile("mlp:batch=4,hidden=8", devices=2)


def under_way(plan, folder):
    """Return a run that has written a checkpoint."""
    run = sw.run(plan, 10_000, checkpoints=folder, save_every=1)
    while not newest(folder):
        next(run)
    return run


def losses_of(*arguments, **named):
    return [record.loss for record in sw.run(*arguments, **named)]


def test_a_plan_goes_on_from_what_is_there_when_the_folder_is_taken(tmp_path, plan, one_run, late):
    folder, losses = tmp_path / "a", losses_of(plan, 8)
    assert losses_of(plan, 3, checkpoints=folder) == losses[:3]
    assert losses_of(plan, 5, checkpoints=tmp_path / "later") == losses[:5]
    late()
    assert losses_of(plan, 3, checkpoints=folder, resume=folder) == losses[5:]


def test_a_start_that_has_lost_the_folder_stays_without_it(tmp_path, plan):
    first = under_way(plan, tmp_path)
    assert losses_of(plan, 4, checkpoints=tmp_path, resume=tmp_path)
    with pytest.raises(OutputError, match="a later start of the training run writes there"):
        list(first)


def test_a_run_from_an_older_checkpoint_writes_elsewhere(tmp_path, plan):
    """What it wrote would be rotated away, or never be continued."""
    folder, losses = tmp_path / "a", losses_of(plan, 6)
    assert losses_of(plan, 4, checkpoints=folder, save_every=1, keep=0) == losses[:4]
    older = {"resume": folder / "step-2", "keep": 1}
    message = "the training goes on from `step-2`, and a later one is there"
    with pytest.raises(OutputError, match=message):
        losses_of(plan, 2, checkpoints=folder, **older)
    assert losses_of(plan, 2, checkpoints=tmp_path / "b", **older) == losses[2:4]
    assert losses_of(plan, 2, checkpoints=folder, resume=folder / "step-4") == losses[4:]
