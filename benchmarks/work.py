"""Counted work beside processor seconds: how well the rates of `solver.work` fit.

    python benchmarks/work.py run llama3-70b-64 mlp-8
    python benchmarks/work.py table

A row is a row of `whole_plans_rows.py`, compiled with one worker in a process of its own, and
appended to `work.jsonl`: processor seconds of the compilation and its peak memory, the work that it
counted, and which functions charged it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from machine import machine
from whole_plans_rows import rows

import shardwright
from shardwright.solver.work import Work

HERE = Path(__file__)
MEASURED = HERE.with_suffix(".jsonl")
TRAINED = {"optimizer": "adam", "precision": "bfloat16"}
CHARGED = Counter[str]()


def charge(work: Work, seconds: float) -> None:
    """Count work by the function that charges it; what tasks spent is charged again by none."""
    place = sys._getframe(2).f_code.co_qualname.removesuffix(".<lambda>")
    if place != "BestFirst._take_answer":
        CHARGED[place] += seconds
    work._done += seconds


def measure(name: str) -> dict[str, object]:
    """Compile a row with one worker."""
    row = rows()[name]
    Work.charge = charge  # type: ignore[method-assign]
    begin = time.process_time()
    found = shardwright.compile(
        row.model,
        row.devices,
        cluster=row.sheets,
        batch=row.batch,
        workers=1,
        **{**TRAINED, **row.options},
    )
    seconds = time.process_time() - begin
    document = found.plan.document
    return {
        "row": name,
        "processor_seconds": seconds,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "work_seconds": CHARGED.total(),
        "by_place": dict(CHARGED.most_common()),
        "step_seconds": document.objective,
        "lower_bound": document.lower_bound,
        "machine": machine(),
    }


def table() -> str:
    """Return what was measured, as Markdown."""
    found = {row["row"]: row for row in map(json.loads, MEASURED.read_text().splitlines())}
    lines = [
        "| row | processor s | peak GB | counted s | counted / processor | most of it |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        spent, counted = row["processor_seconds"], row["work_seconds"]
        most = ", ".join(f"`{p}` {s:.3g}" for p, s in list(row["by_place"].items())[:4])
        peak = f"{row['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in row else ""
        ratio = counted / spent
        lines.append(f"| {name} | {spent:.3g} | {peak} | {counted:.3g} | {ratio:.2f} | {most} |")
    return "\n".join(lines)


def main() -> None:
    """Measure rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "task", "table"))
    parser.add_argument("rows", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "table":
        print(table())
    for name in arguments.rows:
        if arguments.what == "run":
            subprocess.run([sys.executable, str(HERE), "task", name], check=True)
        else:
            with MEASURED.open("a") as file:
                file.write(json.dumps(measure(name)) + "\n")


if __name__ == "__main__":
    main()
