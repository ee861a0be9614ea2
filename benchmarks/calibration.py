"""Compare predicted with measured steps of plans on this machine, after ``shardwright calibrate``.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --write

calibrates with one process and with two, compares 20 plans of each model on as many, and writes the
table of calibration.md; that takes 6 to 10 minutes of a quiet machine of two cores. A cluster file
that is there already is compared by

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --cluster machine.yaml --processes 2

For every model plans are made with random strategies of one operator to all, the others follow (the
exact search with these pins); on one process by micro-batches, recomputation and memory limits. One
plan is chosen by the search alone. The objective is the serial step: these processes move messages
inside calls of MPI alone. Plans run over MPI, on one BLAS thread, in turn. Printed are Spearman's
rank correlation, the median relative error of the predicted serial step, and how much longer the
chosen plan is than the best measured.

A measured step is the least of `--steps` in several starts. `--busy` is for a machine with other
work: then it is the sum of the least times of its nodes, of collectives those of the rank that
comes last.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shardwright as sw
from shardwright.api import as_plan
from shardwright.compilation import Compilation
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.optional import optional
from shardwright.operators.info import info_of
from shardwright.runtime import MpiCommunicator
from shardwright.runtime.flat.timeline import RunTimeline

_PAGE = Path(__file__).with_suffix(".md")
_STARTS = 5
_HEAD = """\
| model | processes | plans | measured ms | predicted ms | Spearman | error | chosen over best |
|---|---|---|---|---|---|---|---|"""
MODELS = (
    "mlp:batch=96,hidden=768",
    "gpt:layers=2,hidden=128,heads=4,batch=8,sequence=48,vocabulary=512",
    "lenet5:batch=32",
    "resnet18-cifar:batch=8,side=16,width=12",
)
"""The models; their sizes are not those that `calibrate` measures."""


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


def measured(folders: list[Path], processes: int, steps: int, busy: bool) -> list[float]:
    """Return the least seconds of a step of each plan over several starts of as many processes."""
    command = [sys.executable, __file__, "--worker", *map(str, folders), "--steps", str(steps)]
    command = [*_mpiexec(processes), *command, *["--busy"] * busy]
    starts = [
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(_STARTS)
    ]
    found: list[list[float]] = [json.loads(start.stdout.splitlines()[-1]) for start in starts]
    return [min(of_plan) for of_plan in zip(*found, strict=True)]


def _mpiexec(processes: int) -> list[str]:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    return [str(mpiexec), "-n", str(processes)] if processes > 1 else []


def work(folders: list[str], steps: int, busy: bool) -> None:
    """Run plans in turn as one of the processes; the first prints their seconds."""
    seconds = [_seconds(folder, steps, busy) for folder in folders]
    if _mpi().COMM_WORLD.rank == 0:
        print(json.dumps(seconds))


def _mpi() -> Any:
    return optional("mpi4py.MPI", extra="mpi", need="comparing plans")


def _seconds(folder: str, steps: int, busy: bool) -> float:
    plan, timeline = as_plan(folder), RunTimeline() if busy else None
    if timeline is not None:
        timeline.steps = deque(maxlen=steps)
    with MpiCommunicator(plan.mesh) as communicator:
        records = list(sw.run(plan, steps + 1, communicator=communicator, timeline=timeline))
    if timeline is None:
        return min(record.seconds for record in records[1:])
    least: dict[tuple[str, str], float] = {}
    for step in timeline.steps:
        taken: Counter[tuple[str, str]] = Counter()
        for span in step:
            taken[span.kind, span.name] += span.end - span.begin
        for key, seconds in taken.items():
            least[key] = min(least.get(key, seconds), seconds)
    everywhere = _mpi().COMM_WORLD.allgather(least)
    computed = [sum(v for (kind, _), v in own.items() if kind == "compute") for own in everywhere]
    others = {key for own in everywhere for key in own if key[0] not in ("compute", "under way")}
    return max(computed) + sum(min(own.get(key, 0.0) for own in everywhere) for key in others)


def spearman(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


class Row(NamedTuple):
    """What was found of a model."""

    model: str
    predicted: list[float]
    real: list[float]

    def line(self, processes: int) -> str:
        """Return its line of the table."""
        errors = [abs(p / r - 1) for p, r in zip(self.predicted, self.real, strict=True)]
        rank = f"{spearman(self.predicted, self.real):.2f}" if len(self.real) > 2 else "-"
        return (
            f"| {self.model} | {processes} | {len(self.real)} | {_span(self.real)} "
            f"| {_span(self.predicted)} | {rank} | {statistics.median(errors):.1%} "
            f"| {self.real[0] / min(self.real) - 1:.1%} |"
        )


def _span(seconds: list[float]) -> str:
    return f"{min(seconds) * 1e3:.3g} to {max(seconds) * 1e3:.3g}"


def row(model: str, cluster: str, processes: int, arguments: argparse.Namespace) -> Row:
    """Compare the plans of one model."""
    plans = plans_of(model, cluster, processes, arguments.plans)
    with tempfile.TemporaryDirectory() as folder:
        places = [plan.write(Path(folder, str(i))) for i, plan in enumerate(plans)]
        real = measured(places, processes, arguments.steps, arguments.busy)
    return Row(model, [plan.plan.document.predicted_step_seconds for plan in plans], real)


def table(cluster: str, processes: int, arguments: argparse.Namespace) -> list[str]:
    """Return the lines of all models on a number of processes, and of all plans together."""
    rows, lines = [], []
    for model in arguments.models:
        rows.append(row(model, cluster, processes, arguments))
        lines.append(rows[-1].line(processes))
        print(lines[-1], flush=True)
    predicted = [seconds for r in rows for seconds in r.predicted]
    every = Row("all", predicted, [seconds for r in rows for seconds in r.real])
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
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", nargs="*")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.steps, arguments.busy)
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
