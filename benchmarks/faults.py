"""Kill and stop ranks of training runs at random moments, and damage checkpoints.

    python benchmarks/faults.py --kills 50 --stops 20 --damages 200

Every run is started by ``shardwright launch --restarts 1``. It must end in time, say in one
sentence which rank died or did not answer, leave no process, and go on from its last checkpoint
with the losses of a run that was never broken, to the bit. Of every damaged checkpoint the file
must be named.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwright.ir.errors import PlanError
from shardwright.runtime.checkpoints import open_checkpoint
from shardwright.runtime.faults import Board, board_path

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
import time
import numpy as np
import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.communication import get_group_size, get_rank, init
from shardwright.parallel import AutoParallel
from shardwright.train import Callback, Checkpoints

init()
random = np.random.default_rng(0)
x = random.normal(size=(320, 16)).astype(np.float32)
data = {"x": x, "y": (x.sum(1) > 0).astype(np.int32)}
dataset = ds.ArrayDataset(data, get_group_size(), get_rank(), shuffle=True).batch(8)
net = nn.SequentialCell(
    nn.Dense(16, 32, activation="relu"), nn.Dropout(p=0.1), nn.Dense(32, 2)
)
network = AutoParallel(net, "data_parallel", cluster="cpu")
network.hsdp()
model = sw.Model(network, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.01))


class Tell(Callback):
    def step_end(self, run):
        time.sleep(SLEEP)
        print(f"step {run.total_steps} {run.loss.hex()}", flush=True)


model.train(EPOCHS, dataset, [Tell(), Checkpoints("checkpoints", every=7, keep=2)])
"""


class Run:
    """A training run under the launcher.

    Parameters
    ----------
    folder : Path
        An empty folder.
    ranks : int
        Number of ranks.
    timeout : float
        Seconds that a rank may stand still.
    """

    def __init__(self, folder: Path, ranks: int, timeout: float, epochs: int) -> None:
        self.folder, self.ranks, self.begin = folder, ranks, time.monotonic()
        code = SCRIPT.replace("EPOCHS", str(epochs)).replace("SLEEP", "0.02")
        (folder / "train.py").write_text(code)
        command = [sys.executable, "-m", "shardwright", "launch", "-n", str(ranks)]
        command += ["--log_dir", "logs", "--restarts", "1", "--timeout", str(timeout), "train.py"]
        paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self) -> dict[int, int]:
        """Return the processes of the ranks that have started."""
        paths = {
            rank: board_path(self.folder / "logs" / ".ranks", rank) for rank in range(self.ranks)
        }
        return {rank: Board(path).pid for rank, path in paths.items() if path.exists()}

    def is_at(self, moment: float, step: int | None) -> bool:
        """Return whether all ranks have started, and so many seconds or steps have passed."""
        folder = self.folder / "logs" / ".ranks"
        paths = [board_path(folder, rank) for rank in range(self.ranks)]
        if not all(path.exists() for path in paths):
            return False
        if step is None:
            return time.monotonic() - self.begin >= moment
        return Board(paths[0]).steps >= step

    def end(self, seconds: float) -> tuple[int, str]:
        """Wait for the end; return the exit code, and what the launcher has said."""
        _, said = self.process.communicate(timeout=seconds)
        return self.process.returncode, said

    def losses(self) -> dict[int, str]:
        """Return the loss of every step, in the last start that has run it."""
        text = (self.folder / "logs" / "worker_0.log").read_text()
        return {int(step): loss for step, loss in re.findall(r"step (\d+) (\S+)", text)}


def processes_in(folder: Path) -> list[int]:
    """Return the processes that run in a folder."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdecimal() and (path / "cwd").resolve() == folder.resolve():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def broken(
    number: int, ranks: int, timeout: float, epochs: int, seconds: float, expected: dict[int, str]
) -> dict[str, Any]:
    """Send a signal to a random rank at a random moment, and return what happened."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run(folder, ranks, timeout, epochs)
        rank, moment = random.randrange(ranks), random.uniform(0, seconds)
        step = random.randrange(len(expected)) if random.randrange(4) else None
        while run.process.poll() is None and not run.is_at(moment, step):
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.05))
        sent, pids = time.monotonic(), run.pids()
        if run.process.poll() is None and rank in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pids[rank], number)
        code, said = run.end(600)
        after = folder / "logs" / ".ranks"
        died = r"died by signal 9 \(SIGKILL\) "
        verb = died if number == signal.SIGKILL else "did not answer"
        ended = " died" not in said and "did not answer" not in said
        resumed = re.search(r"the newest checkpoint is \S*/step-(\d+)", said)
        return {
            "rank": rank,
            "moment": f"step {step}" if step is not None else f"{moment:.1f} s",
            "seconds": round(time.monotonic() - sent, 1),
            "code": code,
            "said": said.splitlines()[0] if said else "",
            "named": ended or re.search(rf"\brank {rank} {verb}", said) is not None,
            "in_start": "died while MPI started" in said,
            "too_late": ended,  # the run was over before the signal
            "checkpoint": int(resumed[1]) if resumed else None,
            "equal": run.losses() == expected,
            "left": len(processes_in(folder)),
            "boards": len(list(after.iterdir())),
        }


def damages(folder: Path, count: int) -> Iterator[bool]:
    """Damage files of a checkpoint; yield whether the file was named."""
    checkpoint = open_checkpoint(folder)
    files = sorted(checkpoint.path.iterdir())
    for _ in range(count):
        path = random.choice(files)
        before = path.read_bytes()
        place = random.randrange(len(before))
        if random.randrange(2):
            after = before[:place]
        else:
            after = (
                before[:place]
                + bytes([before[place] ^ 1 << random.randrange(8)])
                + before[place + 1 :]
            )
        path.write_bytes(after)
        try:
            open_checkpoint(folder).check()
            yield False
        except PlanError as error:
            yield error.where == str(path)
        path.write_bytes(before)


def summary(kind: str, rows: list[dict[str, Any]]) -> str:
    """Return a line that counts what happened."""
    counts = {
        "before the end": sum(not row["too_late"] for row in rows),
        "right rank named": sum(row["named"] for row in rows),
        "no rank named, while MPI started": sum(row["in_start"] for row in rows),
        "ended with code 0": sum(row["code"] == 0 for row in rows),
        "losses equal": sum(row["equal"] for row in rows),
        "from a checkpoint": sum(row["checkpoint"] is not None for row in rows),
        "processes left": sum(row["left"] for row in rows),
    }
    texts = [f"{name} {count}" for name, count in counts.items()]
    longest = max((row["seconds"] for row in rows), default=0.0)
    return f"{kind}: {len(rows)}; {', '.join(texts)}; the longest took {longest:.1f} s to its end"


def main() -> None:
    """Run all of it, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    found: dict[str, list[dict[str, Any]]] = {"kills": [], "stops": []}
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        run = Run(Path(name), arguments.ranks, arguments.timeout, arguments.epochs)
        code, said = run.end(600)
        assert code == 0, said
        seconds, expected = time.monotonic() - begin, run.losses()
        named = list(damages(Path(name) / "checkpoints", arguments.damages))
    print(f"unbroken: {len(expected)} steps, {seconds:.1f} s")
    print(f"damaged files: {len(named)}, named {sum(named)}", flush=True)
    for kind, number, count in (
        ("kills", signal.SIGKILL, arguments.kills),
        ("stops", signal.SIGSTOP, arguments.stops),
    ):
        for i in range(count):
            result = broken(
                number, arguments.ranks, arguments.timeout, arguments.epochs, seconds, expected
            )
            found[kind].append(result)
            print(kind, i, json.dumps(result), flush=True)
        print(summary(kind, found[kind]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
