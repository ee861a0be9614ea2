"""Compare predicted with measured steps of plans on this machine, after ``shardwright calibrate``.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --write

calibrates with one process and with two, compares 20 plans of each model on as many, and writes the
table of calibration.md; that takes 10 minutes of a quiet machine of two cores. A cluster file
that is there already is compared by

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --cluster machine.yaml --processes 2

For every model plans are made with random strategies of one operator to all, the others follow (the
exact search with these pins); on one process by micro-batches, recomputation and memory limits. One
plan is chosen by the search alone. The objective is the serial step: these processes move messages
inside calls of MPI alone. Plans run over MPI, on one BLAS thread, in turn. Printed are Spearman's
rank correlation, the median relative error of the predicted serial step, and how much longer the
chosen plan is than the best measured.

Plans are measured in rounds, in each of which all run in another order; see `in_rounds`. `Again` is
the rank correlation of one half of the rounds with the other: what predictions can reach.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import shardwright as sw
from shardwright.api import as_plan
from shardwright.compilation import Compilation
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.optional import optional
from shardwright.operators.info import info_of
from shardwright.runtime import MpiCommunicator

_PAGE = Path(__file__).with_suffix(".md")
_STARTS = 5
_STEPS = 3  # of a plan in a round; the fastest counts
_HEAD = """\
| model | processes | plans | measured ms | predicted ms | Spearman | again | error | over best |
|---|---|---|---|---|---|---|---|---|"""
Floats = NDArray[np.float64]
MODELS = (
    "mlp:batch=192,hidden=1152",
    "gpt:layers=2,hidden=256,heads=4,batch=8,sequence=64,vocabulary=512,dtype=float32",
    "lenet5:batch=160",
    "resnet18-cifar:batch=16,side=32,width=12",
)
"""The models; their sizes are not those that `calibrate` measures.

Steps take 10 ms and more: of shorter ones, cores that others share tell no order. Halves of the
rounds of a GPT whose steps take 8 to 13 ms agree by 0.5, of this one by 0.99.
"""


def plans_of(model: str, cluster: str, processes: int, count: int) -> list[Compilation]:
    """Return different plans; the first is the one that the search chooses."""
    found = [_compiled(model, processes, cluster, gap=0.01)]
    draw, seen = random.Random(0), {_key(found[0])}
    for _ in range(4 * count):
        if len(found) == count:
            break
        options = _pins(found[0], draw) if processes > 1 else _variant(found[0], draw)
        try:
            plan = _compiled(model, processes, cluster, gap=0.1, **options)
        except ShardwrightError:
            continue  # a strategy that does not divide, or no plan
        if _key(plan) not in seen:
            seen.add(_key(plan))
            found.append(plan)
    return found


def _compiled(model: str, processes: int, cluster: str, **options: Any) -> Compilation:
    return sw.compile(model, processes, cluster=cluster, objective="serial", **options)


def _key(plan: Compilation) -> str:
    return str(plan.plan.program.nodes)


def _pins(chosen: Compilation, draw: random.Random) -> dict[str, object]:
    """Return random strategies of some operators."""
    source, mesh = chosen.compiled.source, chosen.compiled.mesh.of_ranks
    pins = {}
    for node in draw.sample(source.nodes, int(len(source) ** draw.random())):
        info = info_of(source, node)
        strategies = info.rule.strategies(mesh)
        pins[node.name] = info.split_counts(draw.choice(strategies), mesh)
    return {"strategies": pins}


def _variant(chosen: Compilation, draw: random.Random) -> dict[str, object]:
    """Return what plans of one process differ in."""
    peak = chosen.plan.document.memory.peak_bytes
    share = draw.choice((None, None, None, 0.5, 0.7, 0.9, 1.1, 1.4))
    return {
        "micro_batches": draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32)),
        "recompute": draw.choice(("none", "search", "search", "full")),
        **({} if share is None else {"memory_limit": peak * share}),
    }


def measured(folders: list[Path], processes: int, rounds: int) -> Floats:
    """Return the seconds of a step of each plan in every round of several starts, as a table."""
    command = [sys.executable, __file__, "--worker", *map(str, folders), "--rounds", str(rounds)]
    command = [*_mpiexec(processes), *command]
    starts = [
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(_STARTS)
    ]
    return np.hstack([json.loads(start.stdout.splitlines()[-1]) for start in starts])


def in_rounds(table: Floats) -> list[float]:
    """Return the seconds of each plan as if all had run in the fastest round.

    A core is slow for seconds at a time, since others share it: for one plan, then for the next.
    So plans are compared within a round: a plan counts by its ratio to the mean of the round, in
    the median over all rounds.
    """
    means = np.exp(np.log(table).mean(axis=0))
    seconds: list[float] = (np.median(table / means, axis=1) * means.min()).tolist()
    return seconds


def _mpiexec(processes: int) -> list[str]:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    return [str(mpiexec), "-n", str(processes)] if processes > 1 else []


def work(folders: list[str], rounds: int) -> None:
    """Run plans in turn as one of the processes; the first prints the seconds of each round."""
    plans, draw = [as_plan(folder) for folder in folders], random.Random(0)
    table = np.full((len(plans), rounds), np.inf)
    with ExitStack() as stack:
        groups = [stack.enter_context(MpiCommunicator(plan.mesh)) for plan in plans]
        steps = 1 + rounds * (1 + _STEPS)
        runs = [sw.run(p, steps, communicator=c) for p, c in zip(plans, groups, strict=True)]
        for run in runs:
            next(run)
        for number in range(rounds):
            for i in draw.sample(range(len(plans)), len(plans)):
                next(runs[i])  # the first one finds the caches of another plan
                table[i, number] = min(next(runs[i]).seconds for _ in range(_STEPS))
    if optional("mpi4py.MPI", extra="mpi", need="comparing plans").COMM_WORLD.rank == 0:
        print(json.dumps(table.tolist()))


def spearman(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


class Row(NamedTuple):
    """What was found of a model."""

    model: str
    predicted: list[float]
    real: list[float]
    halves: tuple[list[float], list[float]]

    def line(self, processes: int) -> str:
        """Return its line of the table."""
        errors = [abs(p / r - 1) for p, r in zip(self.predicted, self.real, strict=True)]
        ranks = "- | -"
        if len(self.real) > 2:
            ranks = f"{spearman(self.predicted, self.real):.2f} | {spearman(*self.halves):.2f}"
        return (
            f"| {self.model} | {processes} | {len(self.real)} | {_span(self.real)} "
            f"| {_span(self.predicted)} | {ranks} | {statistics.median(errors):.1%} "
            f"| {self.real[0] / min(self.real) - 1:.1%} |"
        )


def _span(seconds: list[float]) -> str:
    return f"{min(seconds) * 1e3:.3g} to {max(seconds) * 1e3:.3g}"


def row(model: str, cluster: str, processes: int, arguments: argparse.Namespace) -> Row:
    """Compare the plans of one model."""
    plans = plans_of(model, cluster, processes, arguments.plans)
    with tempfile.TemporaryDirectory() as folder:
        places = [plan.write(Path(folder, str(i))) for i, plan in enumerate(plans)]
        table = measured(places, processes, arguments.rounds)
    predicted = [plan.plan.document.predicted_step_seconds for plan in plans]
    halves = in_rounds(table[:, ::2]), in_rounds(table[:, 1::2])
    return Row(model, predicted, in_rounds(table), halves)


def table(cluster: str, processes: int, arguments: argparse.Namespace) -> list[str]:
    """Return the lines of all models on a number of processes, and of all plans together."""
    rows, lines = [], []
    for model in arguments.models:
        rows.append(row(model, cluster, processes, arguments))
        lines.append(rows[-1].line(processes))
        print(lines[-1], flush=True)
    predicted = [seconds for r in rows for seconds in r.predicted]
    first, second = ([seconds for r in rows for seconds in r.halves[i]] for i in (0, 1))
    every = Row("all", predicted, [seconds for r in rows for seconds in r.real], (first, second))
    cells = every.line(processes).split("|")
    cells[-2] = f" {max(r.real[0] / min(r.real) - 1 for r in rows):.1%} at most "
    print("|".join(cells), flush=True)
    return [*lines, "|".join(cells)]


def calibrated(processes: int, folder: str) -> str:
    """Return the cluster file of this machine for a number of processes."""
    path = str(Path(folder, f"machine{processes}.yaml"))
    command = [*_mpiexec(processes), sys.executable, "-m", "shardwright"]
    subprocess.run([*command, "calibrate", "--out", path], check=True)
    return path


def main() -> None:
    """Print the table, or run as one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", nargs="*")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.rounds)
        return
    print(_HEAD)
    lines = [_HEAD]
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.processes:
            lines += table(arguments.cluster or calibrated(count, folder), count, arguments)
    if arguments.write:
        text = _PAGE.read_text()
        begin, end = text.index(_HEAD), text.index("\n\n", text.index(_HEAD))
        _PAGE.write_text(text[:begin] + "\n".join(lines) + text[end:])


if __name__ == "__main__":
    main()
