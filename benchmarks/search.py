"""Time the exact search on meshes of several shapes: ``python benchmarks/search.py``.

The plain space is searched for the serial step, without recomputation; the whole space is that of
the default options. Every compilation is a process of its own, so that nothing is warm.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

from machine import machine

GPT = "gpt:layers={},hidden=1024,heads=16,batch=16,sequence=512,dtype=float32"
PLAIN = ("--objective", "serial", "--recompute", "none")
WHOLE: tuple[str, ...] = ()
CASES = (
    # layers, devices, mesh
    (12, 8, "2x2x2"),
    (24, 8, "2x2x2"),
    (96, 8, "2x2x2"),
    (24, 64, "8x8"),
    (24, 64, "search"),
    (24, 64, "2x4x2x4"),
    (24, 64, "2x2x2x2x2x2"),
    (24, 512, "64x8"),
    (24, 512, "search"),
)
BY_HAND = "\n## Beside an early version\n"  # from here on the page is kept as it is
DEPTHS = (CASES[0], CASES[2])
HEAD = ("layers", "devices", "mesh", "search s", "compile s", "CPU s", "GiB", "serial ms", "status")
TIMES = ("search_seconds", "compile_seconds", "cpu_seconds")
Case = tuple[int, int, str]
Run = dict[str, Any]


def main() -> None:
    """Measure, and write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="compilations of each case (3)")
    parser.add_argument("--depth", type=int, default=7, help="compilations of each depth (7)")
    parser.add_argument("--note", default="", help="a sentence on the machine, for the page")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    spaces = {
        "The plain space": PLAIN,
        "The whole space": WHOLE,
    }
    tables = {
        title: {case: measured([case], options, arguments.repeat)[case] for case in CASES}
        for title, options in spaces.items()
    }
    depths = {title: measured(DEPTHS, spaces[title], arguments.depth) for title in spaces}
    page = arguments.out.read_text() if arguments.out.exists() else ""
    _, heading, kept = page.partition(BY_HAND)
    arguments.out.write_text(document(tables, depths, arguments.note) + heading + kept)


def measured(cases: Any, options: tuple[str, ...], repeat: int) -> dict[Case, Run]:
    """Return what ``compile --json`` says of cases in turn, with the medians of its times."""
    runs: dict[Case, list[Run]] = {case: [] for case in cases}
    for _ in range(repeat):
        for case, found in runs.items():
            found.append(compiled(case, options))
    result = {}
    for case, found in runs.items():
        times = {key: median(run[key] for run in found) for key in TIMES}
        print(*case, times, file=sys.stderr, flush=True)
        result[case] = {**found[0], **times}
    return result


def compiled(case: Case, options: tuple[str, ...]) -> Run:
    """Compile once, in a process of its own; with the CPU seconds of all its processes."""
    layers, devices, mesh = case
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardwright", "compile", GPT.format(layers), "--json"]
        command += ["--figures", "datasheet"]
        command += ["--mesh", mesh, "--devices", str(devices), "--out", f"{folder}/plan", *options]
        before = cpu_seconds()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        seconds = cpu_seconds() - before
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Run = json.loads(done.stdout)
    return {**found, "cpu_seconds": seconds}


def cpu_seconds() -> float:
    """Return the CPU seconds of the processes that have ended."""
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def document(
    tables: dict[str, dict[Case, Run]], depths: dict[str, dict[Case, Run]], note: str
) -> str:
    """Return the page."""
    lines = [
        "# The exact search",
        "",
        "Written by `benchmarks/search.py`: a GPT of hidden size 1024 with 16 heads, batch 16,",
        "sequence 512, on devices of `h100-pod`. Every compilation is a process of its own; the",
        "median of several. *Search* is building the problem and solving it, *compile* is all from",
        "the traced model to the emitted and verified program. Where the mesh is `search`, the",
        "search is the sum over the shapes tried, in several processes at once. *CPU* is of all",
        "processes, from their start; *GiB* is the peak memory of the process; *serial* the step",
        "of the plan without overlap.",
        "",
        f"Measured on {machine()}. {note}".rstrip(),
        "",
    ]
    said = {
        "The plain space": f"The serial step, without recomputation: `{' '.join(PLAIN)}`.",
        "The whole space": "The overlapped step, with recomputation: the default options.",
    }
    for title, runs in tables.items():
        rows = [HEAD, ("---",) * len(HEAD), *(row(case, run) for case, run in runs.items())]
        lines += [f"## {title}", "", said[title], ""]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
        lines += [f"- {depth_text(depths[title])}"]
        tried = runs[24, 512, "search"]["mesh_shapes"].items()
        step = "overlapped" if title == "The whole space" else "serial"
        shapes = ", ".join(map(shape_text, tried))
        lines += [f"- The {step} step of each shape tried for 512 devices: {shapes}.", ""]
    return "\n".join(lines)


def row(case: Case, run: Run) -> tuple[str, ...]:
    """Return the row of a case."""
    layers, devices, mesh = case
    times = (f"{run[key]:.2f}" for key in TIMES)
    step = f"{1000 * run['predicted_step_seconds']:.2f}"
    shape = mesh if mesh != "search" else f"search: {best_shape(run)}"
    memory = f"{run['peak_memory_bytes'] / 2**30:.2f}"
    return (str(layers), str(devices), shape, *times, memory, step, run["status"])


def depth_text(runs: dict[Case, Run]) -> str:
    """Return how much longer the search of many layers takes than that of few."""
    few, many = (runs[case] for case in DEPTHS)
    ratios = (f"{many[key] / few[key]:.2f}" for key in TIMES)
    search, compilation, cpu = ratios
    return (
        f"96 layers take {search} times the search of 12, {compilation} times the compilation, and "
        f"{cpu} times the CPU seconds (compiled in turn)."
    )


def best_shape(run: Run) -> str:
    """Return the shape of the cheapest plan."""
    shapes: dict[str, float] = run["mesh_shapes"]
    return min(shapes, key=shapes.__getitem__)


def shape_text(tried: tuple[str, float]) -> str:
    """Return a shape and its step."""
    return f"{tried[0]} {1000 * tried[1]:.2f} ms"


if __name__ == "__main__":
    main()
