"""Predicted and measured steps of a GPU, in three commands.

``python benchmarks/gpu/steps.py make FOLDER MODEL ...`` compiles the models for one device and
writes a package of each, and what the plans predict; ``python benchmarks/gpu/measure.py FOLDER
FOLDER MODEL ...``, on a machine with a GPU, runs them; ``python benchmarks/gpu/steps.py compare
FOLDER`` prints the tables of ``h200.md``, and ``... calibrate FOLDER`` that of ``h100.md``, with
steps predicted by the operators of some models.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import torch

import shardwright as sw
from shardwright.exports.table import write_export
from shardwright.exports.torch import export

CALIBRATED = ("llama", "gpt2_medium", "bert")
OPTIONS = {"precision": "bfloat16", "optimizer": "adam", "recompute": "none"}
WAYS = {"plan": "package", "plan compiled": "compiled", "pytorch": "PyTorch"}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("make", "compare", "calibrate"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--cluster", default="h100-pod", help="the devices (h100-pod)")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.folder, arguments.models, arguments.cluster)
    else:
        found = json.loads((arguments.folder / "measured.json").read_text())
        print(f"{found['gpu']}, PyTorch {found['torch']}\n")
        steps = {name: row for name, row in found.items() if isinstance(row, dict)}
        if arguments.command == "compare":
            compare(arguments.folder, steps)
        else:
            calibrate(arguments.folder, steps, arguments.cluster)


def make(folder: Path, names: list[str], cluster: str) -> None:
    """Write a package for each model, and what their plans say."""
    predicted = {}
    for name in names:
        plan = planned(name, cluster)
        write_export(folder / name, export(plan))
        predicted[name] = said(plan)
    (folder / "predicted.json").write_text(json.dumps(predicted, indent=1))


def planned(name: str, cluster: str) -> Any:
    """Return the plan of a model, whose weights have no values yet."""
    with torch.device("meta"):
        module, inputs = getattr(models, name)()
    return sw.compile(module, 1, example_inputs=inputs, cluster=cluster, **OPTIONS).plan


def said(plan: Any) -> dict[str, float]:
    """Return the step in milliseconds and the memory in GiB that a plan predicts."""
    document = plan.document
    return {
        "ms": 1e3 * document.predicted_step_seconds,
        "gib": document.memory.peak_bytes / 2**30,
    }


def compare(folder: Path, steps: dict[str, Any]) -> None:
    """Print the steps and the memory of all models, and what models with experts could take."""
    predicted = json.loads((folder / "predicted.json").read_text())
    print(f"| step, ms | plan | {' | '.join(WAYS.values())} | compiled / PyTorch |")
    print("|---|---|---|---|---|---|")
    for name, row in steps.items():
        times = [row[way]["ms"] for way in WAYS]
        cells = [f"{ms:.1f}" for ms in (predicted[name]["ms"], *times)]
        print(f"| {' | '.join([name, *cells])} | {times[1] / times[2]:.2f} |")
    print(f"\n| memory, GiB | plan | {' | '.join(WAYS.values())} |")
    print("|---|---|---|---|---|")
    for name, row in steps.items():
        plan = predicted[name]["gib"]
        cells = [f"{row[way]['gib']:.2f} ({row[way]['gib'] / plan - 1:+.1%})" for way in WAYS]
        print(f"| {' | '.join([name, f'{plan:.2f}', *cells])} |")
    print("\n| with experts, ms | PyTorch bf16 | its update | float32 update | sum | compiled |")
    print("|---|---|---|---|---|---|")
    for name, row in steps.items():
        if low := row.get("pytorch bf16"):
            update = row["plan compiled"]["update_ms"]
            total = low["ms"] - low["update_ms"] + update
            own = row["plan compiled"]["ms"]
            cells = [f"{ms:.1f}" for ms in (low["ms"], low["update_ms"], update, total)]
            print(f"| {' | '.join([name, *cells])} | {own:.1f} ({own / total:.2f}) |")


def calibrate(folder: Path, steps: dict[str, Any], cluster: str) -> None:
    """Print the steps that are predicted with the operators of some models, and without."""
    times, file = folder / "operators.csv", folder / "calibrated.yaml"
    rows = [(folder / f"{name}.csv").read_text().splitlines() for name in CALIBRATED]
    times.write_text("\n".join([*rows[0], *(line for more in rows[1:] for line in more[1:]), ""]))
    arguments = ("calibrate", "--out", file, "--cluster", cluster, "--csv", times)
    subprocess.run([sys.executable, "-m", "shardwright", *map(str, arguments)], check=True)
    print("| model | step | operators | data sheet | calibrated | PyTorch | memory | plan |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in steps.items():
        sheet, ours = (said(planned(name, str(cluster))) for cluster in (cluster, file))
        print(f"| {' | '.join(cells(name, folder, row, sheet, ours))} |")


def cells(
    name: str, folder: Path, found: dict[str, Any], sheet: dict[str, float], ours: dict[str, float]
) -> list[str]:
    """Return the cells of a model's row."""
    step = found["plan"]["ms"]
    with (folder / f"{name}.csv").open() as file:
        total = 1e3 * sum(float(row["seconds"]) for row in csv.DictReader(file))
    return [
        *(name, f"{step:.1f} ms", f"{total:.1f} ms"),
        *(f"{plan['ms']:.1f} ms ({plan['ms'] / step - 1:+.1%})" for plan in (sheet, ours)),
        f"{found['pytorch']['ms']:.1f} ms",
        f"{found['plan']['gib']:.2f} GiB",
        f"{ours['gib']:.2f} GiB",
    ]


if __name__ == "__main__":
    main()
