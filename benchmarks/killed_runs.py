"""Signals to every process of training runs: launchers, schedulers, servers, and ranks.

    python benchmarks/killed_runs.py [--seed N] [FORM ...]

One process of a run gets a signal at a random step. What the run has started must have ended when
the grace period and ten more seconds are over, unless the run goes on to its end in spite of the
signal; shared memory must be as before; and the same command, given again, must end with the losses
of a run that was never broken. Writes the page `killed_runs.md`, if all forms are run.
"""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from faults import ROOT, SCRIPT, processes_in

PAGE = Path(__file__).with_suffix(".md")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EPOCHS, SLEEP = 3, 0.05  # seconds between two steps
GRACE, AFTER = 5.0, 10.0  # seconds: to save in, and in which all must have ended after that
LONGEST = 180.0  # seconds that a run may take to its end on a busy machine
TRAINING = """
import time
import numpy as np
import shardwright.mindspore as ms
from shardwright.mindspore import nn
from shardwright.mindspore.communication import get_group_size, get_rank, init

CONTEXT
init()
random = np.random.default_rng(0)
x = random.normal(size=(320, 16)).astype(np.float32)
data = {"x": x, "y": (x.sum(1) > 0).astype(np.int32)}
shard = {"num_shards": int(get_group_size()), "shard_id": int(get_rank())}
dataset = ms.dataset.NumpySlicesDataset(data, shuffle=False, **shard).batch(8)
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(16, 32, activation="relu"), nn.Dense(32, 2))
SERVED
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
model = ms.Model(net, nn.CrossEntropyLoss(), optimizer)


class Tell(ms.train.Callback):
    def step_end(self, run):
        time.sleep(SLEEP)
        loss = float(np.asarray(run.original_args().net_outputs))
        print(f"step {run.original_args().cur_step_num} {loss.hex()}", flush=True)


model.train(EPOCHS, dataset, callbacks=[Tell()])
"""
SERVED = TRAINING.replace("CONTEXT", "ms.set_ps_context(enable_ps=True)").replace(
    "SERVED", "net.set_param_ps()"
)


RESUMED = SCRIPT.replace("keep=2", "keep=2, resume=True")


@dataclass(frozen=True)
class Process:
    """A process of a run: its command line, its environment, and the command of its parent."""

    pid: int
    command: str
    variables: str
    parent: str


@dataclass(frozen=True)
class Form:
    """A way in which a run is started.

    Parameters
    ----------
    script : str
        What is trained.
    launchers : tuple of str
        The arguments of each launcher; PORT stands for the port of the scheduler.
    victims : mapping of str to callable
        The kinds of its processes, and which process is of that kind.
    """

    script: str
    launchers: tuple[str, ...]
    victims: Mapping[str, Callable[[Process], bool]]


def _role(role: str) -> Callable[[Process], bool]:
    return lambda process: f"MS_ROLE={role}\0" in process.variables


_WORKER = "tools.launch.worker\0"
_RANKS: Mapping[str, Callable[[Process], bool]] = {
    "watcher of a rank": lambda p: _WORKER in p.command and _WORKER not in p.parent,
    "rank": lambda p: _WORKER in p.command and _WORKER in p.parent,
}
_LAUNCHER: Mapping[str, Callable[[Process], bool]] = {
    "launcher": lambda p: "shardwright\0launch\0" in p.command
}
_SCHEDULED = "-n 2 --local_worker_num 1 --master_port PORT --node_rank"
FORMS = {
    "one host, by MPI": Form(
        RESUMED,
        ("-n 2",),
        {
            **_LAUNCHER,
            "launcher of MPI": lambda p: "bin/mpiexec\0" in p.command and _WORKER not in p.parent,
            **_RANKS,
        },
    ),
    "parameter servers": Form(
        SERVED,
        ("-n 2 --server_num 1 --master_port PORT",),
        {
            **_LAUNCHER,
            "scheduler": _role("MS_SCHED"),
            "server": _role("MS_PSERVER"),
            "worker": _role("MS_WORKER"),
        },
    ),
    "two hosts, by a scheduler": Form(
        RESUMED,
        (f"{_SCHEDULED} 0", f"{_SCHEDULED} 1"),
        {
            "launcher with the scheduler": lambda p: "node_rank\x000\0" in p.command,
            "other launcher": lambda p: "node_rank\x001\0" in p.command,
            **_RANKS,
        },
    ),
}


@dataclass
class Result:
    """What came of a signal.

    Parameters
    ----------
    form, victim, signal : str
        What was ended, and how.
    step : int
        The step that the first worker had done.
    went_on : bool
        Whether the run went on to its end in spite of the signal.
    seconds : float
        From the signal until nothing of the run was left, or it was given up.
    left, segments : int
        Processes, and segments of shared memory, that were left; the latter after the next start.
    right : bool
        Whether the losses are those of the unbroken run: of this start where it went on, and of the
        next one.
    said : str
        What the launchers said.
    """

    form: str
    victim: str
    signal: str
    step: int = 0
    went_on: bool = False
    seconds: float = 0.0
    left: int = 0
    segments: int = 0
    right: bool = False
    said: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing was left, and the losses are right."""
        in_time = self.went_on or self.seconds <= GRACE + AFTER
        return in_time and self.right and not self.left and not self.segments


class Training:
    """A run in a folder, from its start to its end.

    Parameters
    ----------
    folder : Path
        Where it runs; checkpoints of an earlier run there are continued.
    form : Form
        How it is started.
    """

    def __init__(self, folder: Path, form: Form) -> None:
        self.folder, self.form = folder, form
        code = form.script.replace("EPOCHS", str(EPOCHS)).replace("SLEEP", str(SLEEP))
        (folder / "train.py").write_text(code)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.launchers = [
            subprocess.Popen(
                [sys.executable, "-m", "shardwright", "launch"]
                + words.replace("PORT", port).split()
                + ["--grace", str(GRACE), "--log_dir", f"logs{i}", "train.py"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"said{i}").open("w"),
            )
            for i, words in enumerate(form.launchers)
        ]

    def losses(self) -> dict[int, str]:
        """Return the losses that the first worker has printed, by step."""
        log = self.folder / "logs0" / "worker_0.log"
        text = log.read_text() if log.exists() else ""
        return {int(step): loss for step, loss in re.findall(r"step (\d+) (0x\S+)\n", text)}

    def runs(self) -> bool:
        """Return whether a launcher runs."""
        return any(launcher.poll() is None for launcher in self.launchers)

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds; return whether it does after so many seconds."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def ended(self) -> bool:
        """Return whether the run has come to its end, with its last step and code 0."""
        done = self.wait(lambda: not self.runs(), LONGEST)
        return done and not any(launcher.returncode for launcher in self.launchers)

    def victim(self, kind: str) -> int:
        """Return the process of a kind; one of several by chance."""
        found = [p for p in map(_process, processes_in(self.folder)) if p is not None]
        return random.choice([p.pid for p in found if self.form.victims[kind](p)])

    def said(self) -> str:
        """Return what the launchers said."""
        said = "".join(path.read_text() for path in sorted(self.folder.glob("said*")))
        lines = said.replace(f"{self.folder}/", "").splitlines()
        return "; ".join(line.removeprefix("shardwright: ") for line in lines)


def _process(pid: int) -> Process | None:
    """Return a process; None where it has ended."""
    try:
        place = Path(f"/proc/{pid}")
        above = (place / "stat").read_text().rpartition(")")[2].split()[1]
        return Process(
            pid,
            (place / "cmdline").read_text(),
            (place / "environ").read_text(),
            Path(f"/proc/{above}/cmdline").read_text(),
        )
    except OSError:
        return None


def _segments(folder: Path) -> set[str]:
    """Return the segments of shared memory that the processes of a run have mapped."""
    found = set()
    for pid in processes_in(folder):
        with suppress(OSError):  # it has ended
            found |= set(re.findall(r"/dev/shm/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
    return found


def trial(
    name: str, victim: str, number: signal.Signals, expected: Mapping[int, str], folder: Path
) -> Result:
    """End one process of a run by a signal, start the run again, and return what came of it."""
    form, result = FORMS[name], Result(name, victim, number.name)
    run = Training(folder, form)
    wanted = random.randrange(3, len(expected) - 10)
    run.wait(lambda: wanted in run.losses() or not run.runs(), LONGEST)
    result.step = max(run.losses(), default=0)
    sent = time.monotonic()
    shared = _segments(folder)
    os.kill(run.victim(victim), number)
    run.wait(lambda: not processes_in(folder), GRACE + AFTER)
    before = len(run.losses())
    if run.wait(lambda: len(run.losses()) > before, 1.0):  # it goes on
        run.wait(lambda: not processes_in(folder), LONGEST)
    result.seconds = time.monotonic() - sent
    result.left = len(processes_in(folder))
    result.went_on = run.losses() == expected and not any(p.returncode for p in run.launchers)
    result.said = run.said()
    for pid in processes_in(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    again = Training(folder, form)
    done, losses = again.ended(), again.losses()
    same = all(expected[step] == loss for step, loss in losses.items())
    result.right = done and same and (result.went_on or max(losses, default=0) == len(expected))
    result.segments = len(shared & set(os.listdir("/dev/shm")))
    return result


def page(results: Sequence[Result]) -> str:
    """Return the page of the results, a line for each kind of process."""
    lines = [
        "# Signals to processes of training runs",
        "",
        f"`python benchmarks/killed_runs.py`: {len(results)} runs of 60 steps, in which one "
        "process gets SIGKILL, SIGTERM,",
        "SIGINT or SIGHUP at a random step. *Right*: nothing of the run is left "
        f"{AFTER:g} s after the {GRACE:g} s of grace, or it goes on to its",
        "end; shared memory is as before; and the same command, given again, ends with the losses "
        "of an unbroken run, to the bit.",
        "",
        "| how it is started | process | signals | right | went on | processes left "
        "| segments left | losses wrong | longest, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for form, victim in dict.fromkeys((one.form, one.victim) for one in results):
        rows = [one for one in results if (one.form, one.victim) == (form, victim)]
        ended = [one.seconds for one in rows if not one.went_on]
        counts = (
            len(rows),
            sum(one.passed for one in rows),
            sum(one.went_on for one in rows),
            sum(one.left for one in rows),
            sum(one.segments for one in rows),
            sum(not one.right for one in rows),
        )
        cells = (form, victim, *map(str, counts), f"{max(ended, default=0.0):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all trials of the forms, and print what came of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=[s.name for s in SIGNALS], help="writes no page")
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    for number in SIGNALS[1:]:  # in the background a shell lets them be ignored, by children, too
        signal.signal(number, signal.SIG_DFL)
    results = []
    for name in arguments.forms or FORMS:
        with tempfile.TemporaryDirectory() as place:
            unbroken = Training(Path(place), FORMS[name])
            assert unbroken.ended(), unbroken.said()
            expected = unbroken.losses()
        for victim in FORMS[name].victims:
            for number in SIGNALS:
                if arguments.signal not in (None, number.name):
                    continue
                with tempfile.TemporaryDirectory() as place:
                    result = trial(name, victim, number, expected, Path(place))
                results.append(result)
                print("right" if result.passed else "WRONG", result, flush=True)
    if not arguments.forms and not arguments.signal:
        PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
