"""The bytes of `plan.json`: of ten models, by every executor, beside other work, without a cache.

    python benchmarks/same_plan.py run
    python benchmarks/same_plan.py table > benchmarks/same_plan.md

Each plan is compiled by the command line in a process of its own; its digest is appended to
`same_plan.jsonl`. It needs the extras `mpi` and `dask`. Large models are searched with little
effort: what is left undone when the work is spent is the same, too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import distributed
from machine import machine

HERE = Path(__file__)
ROOT = HERE.parent.parent
MEASURED = HERE.with_suffix(".jsonl")
SEARCHED = (
    *("--mesh", "search", "--micro-batches", "search", "--stages", "search", "--effort", "0.02"),
)
LAYERS = "hidden=64,heads=4,batch=8,sequence=32,vocabulary=128"
# Name, arguments of the command.
RUNS = {
    "mlp on 8": ("mlp", "--devices", "8", "--mesh", "search"),
    "lenet5 on 16": ("lenet5", "--devices", "16", "--mesh", "search"),
    "wide_deep on 64": ("wide_deep", "--devices", "64", "--mesh", "search", "--effort", "0.2"),
    "dlrm on 8": ("dlrm", "--devices", "8", "--mesh", "search", "--effort", "0.2"),
    "feature_hash on 64": ("feature_hash", "--devices", "64", "--mesh", "search"),
    "gpt of 16 layers on 8": (f"gpt:layers=16,{LAYERS}", "--devices", "8", *SEARCHED),
    "bert of 4 layers on 8": (f"bert:layers=4,{LAYERS}", "--devices", "8", *SEARCHED),
    "llama of 16 layers on 8": (
        f"llama:layers=16,{LAYERS},kv_heads=2",
        "--devices",
        "8",
        *SEARCHED,
    ),
    "mixtral of 4 layers on 8": (
        *(f"mixtral:layers=4,{LAYERS},kv_heads=2,experts=4", "--devices", "8", *SEARCHED),
    ),
    "llama3-8b on 8": ("llama3-8b", "--batch", "8", "--devices", "8", *SEARCHED),
    "two_matmul on 64": ("two_matmul", "--devices", "64", "--mesh", "search"),
    "llama3-70b on 64": ("llama3-70b", "--devices", "64", *SEARCHED),
}
BUSY = "beside two busy loops, 2 workers"
_BUSY_ALREADY = 3.0  # for each core, that wait to run: no loops are added then
FIRST, SECOND = "nothing is kept yet", "with what that kept"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run loops that never wait, beside what is measured, unless the machine is as busy."""
    loops = 0 if os.getloadavg()[0] > _BUSY_ALREADY * (os.cpu_count() or 1) else loops
    begun = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in begun:
            one.kill()
            one.wait()


@contextmanager
def dask_cluster() -> Iterator[str]:
    """Begin a Dask cluster of two processes; yield the executor."""
    sys.path.insert(0, str(ROOT))  # the workers are spawned with this path
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def variants(stack: ExitStack) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the words before `python`, and the options, of each variant."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    dask = stack.enter_context(dask_cluster())
    return {
        "in this process": ((), ("--workers", "1")),
        "2 workers": ((), ("--workers", "2")),
        "4 workers": ((), ("--workers", "4")),
        BUSY: ((), ("--workers", "2")),
        "MPI, 2 workers": ((mpiexec or "mpiexec", "-n", "3"), ("--executor", "mpi")),
        "Dask, 2 workers": ((), ("--executor", dask)),
        FIRST: ((), ("--workers", "1")),
        SECOND: ((), ("--workers", "1")),
    }


def measured(
    name: str, launcher: tuple[str, ...], options: tuple[str, ...], kept: str
) -> dict[str, Any]:
    """Return the digest of the plan of a run; it keeps fronts in a folder, or none without."""
    module = ("-m", "mpi4py.futures") if launcher else ()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        words = [*launcher, sys.executable, *module, "-m", "shardwright", "compile", *RUNS[name]]
        words += ["--figures", "datasheet"]
        place = f"{folder}/plan"
        ended = subprocess.run(
            [*words, *options, "--out", place],
            cwd=ROOT,
            env={**os.environ, "SHARDWRIGHT_CACHE": kept},
            check=True,
            capture_output=True,
            text=True,
        )
        content = Path(place, "plan.json").read_bytes()
    document = json.loads(content)
    return {
        "run": name,
        "digest": sha256(content).hexdigest(),
        "bytes": len(content),
        "step_seconds": document["objective"],
        "lower_bound": document["lower_bound"],
        "seconds": time.perf_counter() - begin,
        "told": [line for line in ended.stderr.splitlines() if "again" in line],
    }


def run(names: list[str]) -> None:
    """Measure what is not measured yet."""
    lines = MEASURED.read_text().splitlines() if MEASURED.exists() else []
    known = {(row["run"], row["variant"]) for row in map(json.loads, lines)}
    with ExitStack() as stack:
        by_name = variants(stack)
        for name in names or RUNS:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for variant, words in by_name.items():
                if (name, variant) in known:
                    continue
                kept = folder if variant in (FIRST, SECOND) else ""
                with busy(2 if variant == BUSY else 0):
                    found = measured(name, *words, kept)
                load = os.getloadavg()[0]
                row = {**found, "variant": variant, "load": load, "machine": machine()}
                with MEASURED.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(name, variant, row["digest"][:8], f"{row['seconds']:.0f} s", flush=True)


PAGE = """# The same bytes of a plan

Written by `benchmarks/same_plan.py`: the first digits of the SHA-256 digest of `plan.json`, by who
runs the search. Each plan is compiled by the command line in a process of its own, on a machine
where much else ran ({loads}).
*Nothing is kept yet* and *with what that kept* are the first and the second search with a new
folder of kept fronts ([fronts](../docs/how-plans-are-found.md#fronts)); elsewhere nothing was
kept. An empty cell was not run. No loops are added where more than six processes wanted to run.
All digests of a row are of one state of shardwright, rows may be of several.

{table}

Measured on {machine}.
"""


def page() -> str:
    """Return what was measured, as Markdown."""
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    loads = [row["load"] for row in rows if "load" in row]
    told = f"up to {max(loads):.0f} processes wanted to run"
    return PAGE.format(loads=told, table=table(), machine=rows[-1]["machine"])


def table() -> str:
    """Return the table of digests."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in map(json.loads, MEASURED.read_text().splitlines()):
        found.setdefault(row["run"], {})[row["variant"]] = row
    columns = list(dict.fromkeys(variant for rows in found.values() for variant in rows))
    lines = [
        f"| run | step | {' | '.join(columns)} | same |",
        f"| --- | --- | {' | '.join('---' for _ in columns)} | --- |",
    ]
    for name, rows in found.items():
        digests = [rows[one]["digest"] if one in rows else "" for one in columns]
        step = f"{1e3 * next(iter(rows.values()))['step_seconds']:.4g} ms"
        told = " | ".join(f"`{digest[:8]}`" if digest else "" for digest in digests)
        found_by = [digest for digest in digests if digest]
        same = "yes" if len(set(found_by)) == 1 else "**no**"
        same = same if len(found_by) > 1 else ""
        lines.append(f"| {name} | {step} | {told} | {same} |")
    return "\n".join(lines)


def main() -> None:
    """Measure runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("runs", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "table":
        print(page(), end="")
    else:
        run(arguments.runs)


if __name__ == "__main__":
    main()
