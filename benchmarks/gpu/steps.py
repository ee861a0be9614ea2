"""Predicted and measured steps of a GPU, in three commands.

``python benchmarks/gpu/steps.py make FOLDER`` compiles the models for one device and writes a
package of each; ``python benchmarks/gpu/measure.py FOLDER FOLDER MODEL ...``, on a machine with a
GPU, runs them; ``python benchmarks/gpu/steps.py compare FOLDER`` calibrates with the operators of
some models, predicts the steps of all, and prints the table of ``h100.md``.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODELS = (
    *("llama", "gpt2_medium", "bert"),
    *("llama_wide", "qwen", "gpt2_padded", "bert_padded", "vit"),
)
CALIBRATED = ("llama", "gpt2_medium", "bert")
HERE = Path(__file__).parent
OPTIONS = ("--precision", "bfloat16", "--optimizer", "adam", "--recompute", "none")


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("make", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", default="h100-pod", help="the devices (h100-pod)")
    arguments = parser.parse_args()
    (make if arguments.command == "make" else compare)(arguments.folder, arguments.cluster)


def make(folder: Path, cluster: str) -> None:
    """Write a plan and a package for each model."""
    for name in MODELS:
        planned(name, cluster, folder / name)


def compare(folder: Path, cluster: str) -> None:
    """Print the table."""
    measured = json.loads((folder / "measured.json").read_text())
    times, file = folder / "operators.csv", folder / "calibrated.yaml"
    rows = [(folder / f"{name}.csv").read_text().splitlines() for name in CALIBRATED]
    times.write_text("\n".join([*rows[0], *(line for more in rows[1:] for line in more[1:]), ""]))
    shardwright("calibrate", "--out", file, "--cluster", cluster, "--csv", times)
    print(f"{measured['gpu']}, PyTorch {measured['torch']}\n")
    print("| model | step | operators | data sheet | calibrated | PyTorch | memory | plan |")
    print("|---|---|---|---|---|---|---|---|")
    for name in (name for name in MODELS if name in measured):
        sheet, ours = planned(name, cluster), planned(name, str(file))
        print(f"| {' | '.join(cells(name, folder, measured[name], sheet, ours))} |")


def cells(
    name: str, folder: Path, found: dict[str, Any], sheet: dict[str, Any], ours: dict[str, Any]
) -> list[str]:
    """Return the cells of a model's row."""
    step = found["plan"]["ms"]
    with (folder / f"{name}.csv").open() as file:
        total = 1e3 * sum(float(row["seconds"]) for row in csv.DictReader(file))
    predictions = [1e3 * plan["predicted_step_seconds"] for plan in (sheet, ours)]
    return [
        *(name, f"{step:.1f} ms", f"{total:.1f} ms"),
        *(f"{ms:.1f} ms ({ms / step - 1:+.1%})" for ms in predictions),
        f"{found['pytorch']['ms']:.1f} ms",
        f"{found['plan']['gib']:.2f} GiB",
        f"{ours['memory_bytes_per_device'] / 2**30:.2f} GiB",
    ]


def planned(name: str, cluster: str, package: Path | None = None) -> dict[str, Any]:
    """Compile a model, and return what the command says of it; export it where a folder is given.

    Plans have the weights, some 10 GB in all, so they are not kept.
    """
    source = f"{HERE / 'models.py'}:{name}"
    with TemporaryDirectory() as folder:
        plan = Path(folder, "plan")
        options = ("--devices", 1, "--cluster", cluster, *OPTIONS, "--out", plan, "--json")
        document: dict[str, Any] = json.loads(shardwright("compile", source, *options))
        if package is not None:
            shardwright("export", plan, "--to", "torch", "--out", package)
    return document


def shardwright(*arguments: object) -> str:
    """Run a command, and return what it prints."""
    command = [sys.executable, "-m", "shardwright", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
