"""Compile every model of the zoo at its full size, and write a table: ``python benchmarks/zoo.py``.

Every compilation is a process of its own, so that its time and its memory are its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import machine

from shardwright import zoo

# Model, and the batch of each device. Numbers of a thousand million parameters and more are kept
# in half precision.
MODELS = (
    ("lenet5", 32),
    ("resnet18", 32),
    ("resnet18-cifar", 32),
    ("resnet50", 32),
    ("resnet50-32k", 32),
    ("vgg16", 32),
    ("unet", 4),
    ("vit-b16", 32),
    ("bert-base", 8),
    ("bert-large", 8),
    ("gpt2", 4),
    ("gpt2-medium", 4),
    ("gpt2-large", 4),
    ("gpt2-xl", 4),
    ("gpt3-175b:dtype=bfloat16", 1 / 8),
    ("llama3-8b:dtype=bfloat16", 1),
    ("llama3-70b:dtype=bfloat16", 1 / 8),
    ("mixtral-8x7b:dtype=bfloat16", 1),
    ("wide_deep", 2000),
    ("dlrm", 2048),
    ("feature_hash", 512),
)
DEVICES = (8, 64, 1024)
LIMITS = (80, 160, 320, 640)  # GiB of a device; the first is what the cluster's devices have
HEAD = ("model", "parameters", "devices", "batch", "compile s", "compiler MiB")
HEAD = (*HEAD, "step ms", "GiB a device", "of", "gap")


def main() -> None:
    """Measure what is asked for, and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="those whose names begin so (all)")
    parser.add_argument("--devices", type=int, nargs="*", default=DEVICES)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    chosen = [
        item
        for item in MODELS
        if not arguments.models or item[0].startswith(tuple(arguments.models))
    ]
    rows = [row for model, batch in chosen for row in measured(model, batch, arguments.devices)]
    arguments.out.write_text(document(rows))


def measured(model: str, batch: float, devices: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of devices."""
    parameters = zoo.load(model).parameter_count
    for count in devices:
        found = compiled(model, int(batch * count), count)
        print(model, count, "seconds:", found and round(found["seconds"], 1), file=sys.stderr)
        yield (model, f"{parameters:,}", f"{count:,}", f"{int(batch * count):,}", *cells(found))


def compiled(model: str, batch: int, devices: int) -> dict[str, Any] | None:
    """Return what ``compile --json`` says with the first limit that something fits."""
    for limit in LIMITS:
        begin = spent()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "shardwright", "compile", model, "--json"]
            command += ["--figures", "datasheet"]
            command += ["--devices", str(devices), "--batch", str(batch), "--memory", str(limit)]
            command += ["--optimizer", "adam", "--out", f"{folder}/plan"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return {**json.loads(done.stdout), "seconds": spent() - begin, "limit": limit}
        if "GiB on each device" not in done.stderr + done.stdout:
            raise SystemExit(done.stderr)
    return None


def spent() -> float:
    """Return the seconds of the processor that processes begun here have taken."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cells(found: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a row that are measured."""
    if found is None:
        return ("", "", "", "", f"more than {LIMITS[-1]}", "")
    gap = "optimal" if found["status"] == "optimal" else f"{found['gap']:.2%}"
    return (
        f"{found['seconds']:.1f}",
        f"{found['peak_memory_bytes'] / 2**20:.0f}",
        f"{1000 * found['predicted_step_seconds']:.2f}",
        f"{found['memory_bytes_per_device'] / 2**30:.2f}",
        str(found["limit"]),
        gap,
    )


def document(rows: list[tuple[str, ...]]) -> str:
    """Return the page."""
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *rows)]
    return "\n".join(
        (
            "# Compiling the zoo at full size",
            "",
            "Written by `benchmarks/zoo.py`: for `h100-pod`, search `exact`, optimizer Adam.",
            "*Compile* is in seconds of the processor and for the whole command, from the start of",
            "Python to the written plan. *Step* and *GiB a device* are what the plan is predicted",
            "to take; *of* is the limit: what the devices have (80 GiB) or, where nothing fits it,",
            "the first double that does.",
            "",
            f"Measured on {machine()}.",
            "",
            *lines,
            "",
        )
    )


if __name__ == "__main__":
    main()
