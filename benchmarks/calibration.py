"""Compare predicted with measured steps of plans on this machine, after ``shardwright calibrate``.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --cluster machine.yaml --processes 2

`machine.yaml` is that of ``mpiexec -n 2 shardwright calibrate --out machine.yaml``. For every model
plans are made with random strategies of a few operators, the others follow (the exact search with
these pins); one plan is chosen by the search alone. Each runs over MPI, on one BLAS thread, and the
least step of each counts. Printed are Spearman's rank correlation, the median relative error of the
predicted serial step, and how much longer the chosen plan is than the best measured. On one
process plans differ by micro-batches and recomputation.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import shardwright as sw
from shardwright.api import as_plan
from shardwright.compilation import Compilation
from shardwright.ir.errors import ShardwrightError
from shardwright.operators.info import info_of
from shardwright.runtime import MpiCommunicator

MODELS = (
    "mlp:batch=96,hidden=768",
    "gpt:layers=2,hidden=128,heads=4,batch=8,sequence=48,vocabulary=512",
    "lenet5:batch=32",
    "resnet18-cifar:batch=8,side=16,width=12",
)
"""The models; their sizes are not those that `calibrate` measures."""


def plans_of(model: str, cluster: str, processes: int, count: int) -> list[Compilation]:
    """Return different plans; the first is the one that the search chooses."""
    found = [sw.compile(model, processes, cluster=cluster, gap=0.01)]
    draw, seen = random.Random(0), {_key(found[0])}
    for _ in range(4 * count):
        if len(found) == count:
            break
        try:
            options = _pins(found[0], draw) if processes > 1 else _variant(draw)
            plan = sw.compile(model, processes, cluster=cluster, gap=0.1, **options)
        except ShardwrightError:
            continue  # a strategy that does not divide, or no plan
        if _key(plan) not in seen:
            seen.add(_key(plan))
            found.append(plan)
    return found


def _key(plan: Compilation) -> str:
    return str(plan.plan.program.nodes)


def _pins(chosen: Compilation, draw: random.Random) -> dict[str, object]:
    """Return random strategies of some operators."""
    source, mesh = chosen.compiled.source, chosen.compiled.mesh.of_ranks
    pins = {}
    for node in draw.sample(source.nodes, min(len(source), draw.randint(1, 4))):
        info = info_of(source, node)
        strategies = info.rule.strategies(mesh)
        pins[node.name] = info.split_counts(draw.choice(strategies), mesh)
    return {"strategies": pins}


def _variant(draw: random.Random) -> dict[str, object]:
    return {
        "micro_batches": draw.choice((1, 2, 4, 8)),
        "recompute": draw.choice(("none", "full")),
    }


def measured(folders: list[Path], processes: int, steps: int) -> list[float]:
    """Return the least step of each plan, run by as many processes, in seconds."""
    command = [sys.executable, __file__, "--worker", *map(str, folders), "--steps", str(steps)]
    if processes > 1:
        mpiexec = Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec), "-n", str(processes), *command]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    found: list[float] = json.loads(run.stdout.splitlines()[-1])
    return found


def work(folders: list[str], steps: int) -> None:
    """Run plans as one of the processes; the first prints the least step of each."""
    least = []
    for folder in folders:
        plan = as_plan(folder)
        with MpiCommunicator(plan.mesh) as communicator:
            records = list(sw.run(plan, steps, communicator=communicator))
        least.append(min(record.seconds for record in records[1:]))
    if not communicator.ranks[0]:
        print(json.dumps(least))


def spearman(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def row(model: str, cluster: str, processes: int, count: int, steps: int) -> str:
    """Return the line of the table of one model."""
    plans = plans_of(model, cluster, processes, count)
    with tempfile.TemporaryDirectory() as folder:
        places = [plan.write(Path(folder, str(i))) for i, plan in enumerate(plans)]
        real = measured(places, processes, steps)
    predicted = [plan.plan.document.predicted_step_seconds for plan in plans]
    errors = [abs(p / r - 1) for p, r in zip(predicted, real, strict=True)]
    rank = f"{spearman(predicted, real):.2f}" if len(plans) > 2 else "-"
    regret = real[0] / min(real) - 1
    return (
        f"| {model} | {processes} | {len(plans)} | {min(real) * 1e3:.3g} to {max(real) * 1e3:.3g} "
        f"| {rank} | {statistics.median(errors):.1%} | {regret:.1%} |"
    )


def main() -> None:
    """Print the table, or run as one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--worker", nargs="*")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.steps)
        return
    print(
        "| model | processes | plans | measured ms | Spearman | median error | chosen over best |"
    )
    print("|---|---|---|---|---|---|---|")
    for model in arguments.models:
        where = arguments.cluster, arguments.processes, arguments.plans, arguments.steps
        print(row(model, *where), flush=True)


if __name__ == "__main__":
    main()
