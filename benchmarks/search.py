"""Time the exact search on meshes of several shapes: ``python benchmarks/search.py``.

Every compilation is a process of its own, so that nothing is warm.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from machine import machine

GPT = "gpt:layers={},hidden=1024,heads=16,batch=16,sequence=512"
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
HEAD = ("layers", "devices", "mesh", "search s", "compile s", "predicted step ms", "status")


def main() -> None:
    """Measure, and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="compilations of each case (3)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    found = {case: measured(case, arguments.repeat) for case in CASES}
    arguments.out.write_text(document(found))


def measured(case: tuple[int, int, str], repeat: int) -> dict[str, Any]:
    """Return what ``compile --json`` says, with the median of its times."""
    layers, devices, mesh = case
    runs = [compiled(GPT.format(layers), devices, mesh) for _ in range(repeat)]
    times = {key: median(run[key] for run in runs) for key in ("search_seconds", "compile_seconds")}
    print(*case, times, file=sys.stderr)
    return {**runs[0], **times}


def compiled(model: str, devices: int, mesh: str) -> dict[str, Any]:
    """Compile once, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardwright", "compile", model, "--json", "--mesh", mesh]
        command += ["--devices", str(devices), "--out", f"{folder}/plan"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def document(found: dict[tuple[int, int, str], dict[str, Any]]) -> str:
    """Return the page."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for (layers, devices, mesh), run in found.items():
        times = f"{run['search_seconds']:.2f}", f"{run['compile_seconds']:.2f}"
        step = f"{1000 * run['predicted_step_seconds']:.2f}"
        shape = mesh if mesh != "search" else f"search: {best_shape(run)}"
        rows.append((str(layers), str(devices), shape, *times, step, run["status"]))
    few, many = (found[layers, 8, "2x2x2"]["search_seconds"] for layers in (12, 96))
    tried = found[24, 512, "search"]["mesh_shapes"]
    lines = (
        "# The exact search",
        "",
        "Written by `benchmarks/search.py`: a GPT of hidden size 1024 with 16 heads, batch 16,",
        "sequence 512, on devices of `h100-pod`. Every compilation is a process of its own; the",
        "median of several. *Search* is building the problem and solving it, *compile* is all from",
        "the traced model to the emitted and verified program. Where the mesh is `search`, both",
        "are sums over the shapes tried.",
        "",
        f"Measured on {machine()}.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"- 96 layers take {many / few:.2f} times the search of 12.",
        f"- The shapes tried for 512 devices: {', '.join(map(shape_text, tried.items()))}.",
        "",
    )
    return "\n".join(lines)


def best_shape(run: dict[str, Any]) -> str:
    """Return the shape of the cheapest plan."""
    shapes: dict[str, float] = run["mesh_shapes"]
    return min(shapes, key=shapes.__getitem__)


def shape_text(tried: tuple[str, float]) -> str:
    """Return a shape and its step."""
    return f"{tried[0]} {1000 * tried[1]:.2f} ms"


if __name__ == "__main__":
    main()
