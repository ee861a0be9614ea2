"""How commands end: versions, pipes, interrupts, and what a training run saves on the way."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardwright
from shardwright.compiler.plans import plan_timeline
from shardwright.ir.versions import PACKAGES
from shardwright.planner.choice.best_first import BestFirst
from shardwright.runtime import capacity, checkpoint
from shardwright.runtime.executor import Executor
from shardwright.tools.main import main
from tests.extent import first

ROOT = Path(__file__).parents[2]
MLP = "mlp:batch=4,hidden=8"
COMMAND = [sys.executable, "-m", "shardwright"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "plan"
    return shardwright.compile(MLP, 2).write(folder)


@pytest.fixture
def plan(here, written):
    return Path(shutil.copytree(written, here / "plan"))


def run(capsys, *arguments):
    """Return the exit code of a command and what it says, without its beginning."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.err.removeprefix("shardwright: ").rstrip("\n")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_version_and_those_of_what_is_installed(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"shardwright {shardwright.__version__}",
        f"python {platform.python_version()}",
    ]
    assert any(line.startswith(f"numpy {np.__version__}") for line in lines)
    told = " ".join(lines)
    assert [package for package in PACKAGES if package not in told] == []


# Outputs that nobody reads


def shell(command, here):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    text = command.replace("shardwright ", f"{sys.executable} -m shardwright ")
    bash = ["bash", "-c", text]
    return subprocess.run(
        bash, cwd=here, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "command", first(2, ["operators", "compile --help", "compile mlp --devices 2 --gap 0.5"])
)
def test_a_pipe_that_is_closed(command, here):
    # Nothing is read at all, so that the end of the pipe is closed before anything is written.
    done = shell(f"(sleep 0.2; shardwright {command}; echo $? >&2) | true", here)
    ends = ("141\n", "0\n") if "--help" in command else ("141\n",)  # argparse forgives it
    assert done.returncode == 0
    assert done.stderr in ends


def test_no_output_at_all(here):
    done = shell("shardwright models >&- && shardwright nothing 2>&-", here)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_an_output_on_a_full_disk(here):
    done = shell("shardwright models > /dev/full", here)
    assert (done.returncode, done.stderr) == (2, "shardwright: no space left on device\n")


def test_a_terminal_without_the_characters(here):
    done = shell("PYTHONIOENCODING=ascii shardwright models", here)
    assert (done.returncode, done.stderr) == (0, "")


# Interrupts


def interrupting(function, at=1, number=signal.SIGINT):
    """Return the function, with a signal to this process before its call with this number."""
    calls = 0

    def call(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_while_compiling(number, capsys, here, monkeypatch):
    stopped = interrupting(plan_timeline.with_window, number=number)
    monkeypatch.setattr(plan_timeline, "with_window", stopped)
    arguments = ["compile", MLP, "--devices", "2", "--dump-ir", "graphs", "--trace", "step.json"]
    assert run(capsys, *arguments) == (130, "interrupted")
    assert names(here) == []
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_search_writes_the_plan_that_there_is(number, here, capsys, monkeypatch):
    find = BestFirst._next

    def interrupted_with_a_plan(search):
        if search.best is not None:
            os.kill(os.getpid(), number)
        return find(search)

    monkeypatch.setattr(BestFirst, "_next", interrupted_with_a_plan)
    options = ["--mesh", "search", "--micro-batches", "search", "--out", "plan", "--json"]
    code = main(["compile", MLP, "--devices", "2", "--workers", "1", *options])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["interrupted"]) == (130, True)
    assert told["how"].endswith("; interrupted")
    assert told["lower_bound"] <= told["objective"]
    assert shardwright.prove(shardwright.read_plan("plan")).proven


def test_an_interrupt_of_a_run_that_saves_nothing(plan, capsys, monkeypatch):
    monkeypatch.setattr(Executor, "step", interrupting(Executor.step, at=3))
    assert run(capsys, "run", "plan", "--steps", "9") == (130, "interrupted")
    assert names(plan.parent) == ["plan"]


def test_an_interrupt_ends_the_step_and_saves(plan, capsys, monkeypatch):
    assert run(capsys, "run", "plan", "--steps", "3", "--save", "three.npz")[0] == 0
    monkeypatch.setattr(Executor, "step", interrupting(Executor.step, at=3))
    found = run(capsys, "run", "plan", "--steps", "9", "--save", "stopped.npz")
    assert found == (130, "interrupted after step 3, its state is in stopped.npz")
    assert_equal_states("stopped.npz", "three.npz")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_there_is_anything_to_save(plan, capsys, monkeypatch):
    monkeypatch.setattr(Executor, "step", interrupting(Executor.step))
    found = run(capsys, "run", "plan", "--steps", "9", "--save", "state.npz")
    assert found == (130, "interrupted")
    assert names(plan.parent) == ["plan"]


def test_a_second_interrupt_ends_at_once(plan, capsys, monkeypatch):
    monkeypatch.setattr(Executor, "step", interrupting(interrupting(Executor.step, at=2), at=2))
    found = run(capsys, "run", "plan", "--steps", "9", "--save", "state.npz")
    assert found == (130, "interrupted")
    assert names(plan.parent) == ["plan"]


def assert_equal_states(one, other):
    with np.load(one) as first, np.load(other) as second:
        assert set(first.files) == set(second.files)
        assert all(np.array_equal(first[name], second[name]) for name in first.files)


# Checkpoints


def test_a_checkpoint_at_intervals(plan, capsys, monkeypatch):
    assert run(capsys, "run", "plan", "--steps", "4", "--save", "four.npz")[0] == 0
    saved = []
    write = checkpoint.write_arrays
    monkeypatch.setattr(checkpoint, "write_arrays", lambda *a: (saved.append(a[0].name), write(*a)))
    fails = ["run", "plan", "--steps", "9", "--save", "state.npz", "--save-every", "2"]

    def failing(executor, *arguments):
        if len(saved) == 2:
            raise OSError(5, "Input/output error")
        return step(executor, *arguments)

    step = Executor.step
    monkeypatch.setattr(Executor, "step", failing)
    assert run(capsys, *fails) == (2, "input/output error")
    assert saved == ["state.npz", "state.npz"]
    assert_equal_states("state.npz", "four.npz")


def test_the_last_step_is_saved_once(plan, capsys, monkeypatch):
    saved = []
    monkeypatch.setattr(
        checkpoint, "write_arrays", lambda *arguments: saved.append(arguments[0].name)
    )
    for steps in ("4", "5"):
        arguments = ["--steps", steps, "--save", f"{steps}.npz", "--save-every", "2"]
        assert run(capsys, "run", "plan", *arguments) == (0, "")
    assert saved == ["4.npz", "4.npz", "5.npz", "5.npz", "5.npz"]


REFUSED = {
    "no_folder": (
        "none/state.npz",
        "the checkpoint cannot be written: there is no folder `none`",
    ),
    "a_folder": ("plan", "the checkpoint cannot be written: a folder is there (in plan)"),
    "a_file_of_the_user": (
        "model.py",
        "the checkpoint cannot be written: a file that is something else is there (in model.py); "
        "name another file",
    ),
    "another_archive": (
        "arrays.npz",
        "the checkpoint cannot be written: a file that is something else is there (in arrays.npz); "
        "name another file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_a_checkpoint_cannot_be_written(case, plan, here, capsys):
    target, expected = REFUSED[case]
    (here / "model.py").write_text("mine")
    np.savez(here / "arrays.npz", mine=np.arange(3))
    before = (here / "arrays.npz").read_bytes()
    assert run(capsys, "run", "plan", "--steps", "1", "--save", target) == (2, expected)
    assert (here / "model.py").read_text() == "mine"
    assert (here / "arrays.npz").read_bytes() == before
    assert not (plan / "logs").exists()  # it is said before training


def test_a_fast_setting_without_processes(plan, capsys):
    found = run(capsys, "run", "plan", "--fast")
    what = "`--fast` has no effect with `--backend local`; add `--backend mpi`"
    assert found == (2, what)


def test_intervals_without_a_file(plan, capsys):
    found = run(capsys, "run", "plan", "--save-every", "2")
    what = "`--save-every` has no effect without `--save` or `--checkpoints`; add `--save FILE`"
    assert found == (2, what)


# Memory of the machine


def test_a_plan_too_large_for_this_machine(plan, capsys, monkeypatch):
    monkeypatch.setattr(capacity, "available_bytes", lambda: 10_000)
    assert run(capsys, "run", "plan") == (
        2,
        "2 ranks of `mlp` in one process take at least 74.83 KiB, this machine has 9.77 KiB free; "
        "train a smaller model here, or run one process a rank on more machines over MPI",
    )
    assert not (plan / "logs").exists()


def test_memory_that_runs_out(plan, capsys, monkeypatch):
    def failing(executor, *arguments):
        raise MemoryError

    monkeypatch.setattr(Executor, "step", failing)
    found = run(capsys, "run", "plan")
    assert found == (2, "out of memory on this machine")
