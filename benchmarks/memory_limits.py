"""Compile within ever more memory: ``python benchmarks/memory_limits.py``.

For every model, the limits run from what the leanest plan takes to what the best plan takes without
a limit. More memory may not cost more (beyond the gap asked for), and no bound may be above the
cost of a plan that was found within less memory; a case where that fails is an error.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import machine

import shardwright
from shardwright.ir.errors import InfeasibleError, NoPlanError
from shardwright.ir.units import bytes_text, seconds_text

GAP = 1e-3
CASES = (
    # model, devices, optimizer
    ("llama3-70b:dtype=bfloat16,sequence=8192,batch=8", 64, "adam"),
    ("llama3-70b:dtype=bfloat16,sequence=8192,batch=16", 64, "adam"),
    ("mixtral-8x7b:batch=64", 64, "adam"),
    ("gpt3-175b:batch=512", 1024, "adam"),
    ("bert-large:batch=256", 64, "adam"),
    ("resnet50:batch=512", 8, "momentum"),
    ("unet:batch=32", 8, "momentum"),
)
HEAD = ("model", "devices", "limit", "memory", "step", "lower bound", "gap", "seconds")


@dataclass(frozen=True)
class Answer:
    """What compiling within a limit says; without a plan, cost and memory are infinite."""

    limit: float
    cost: float
    bound: float
    memory: float
    seconds: float


def main() -> None:
    """Measure, check, and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=int, default=6, help="limits of each model (6)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a search (60)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    rows = []
    for model, devices, optimizer in CASES:
        found = list(answers(model, devices, optimizer, arguments.limits, arguments.time_limit))
        check(model, found)
        rows += [row(model, devices, answer) for answer in found]
        print(*map(" | ".join, rows[-len(found) :]), sep="\n", flush=True)
    arguments.out.write_text(document(rows))


def answers(
    model: str, devices: int, optimizer: str, count: int, seconds: float
) -> Iterator[Answer]:
    """Yield what compiling says, from a limit below every plan to one above the best."""

    def compiled(limit: float) -> Answer:
        begin = time.perf_counter()
        try:
            found = shardwright.compile(
                model, devices, optimizer=optimizer, memory_limit=limit, gap=GAP, time_limit=seconds
            )
        except NoPlanError as error:
            bound = math.inf if isinstance(error, InfeasibleError) else 0.0
            return Answer(limit, math.inf, bound, math.inf, time.perf_counter() - begin)
        result = found.compiled.result
        assert result is not None
        taken = found.compiled.memory.peak_bytes
        return Answer(limit, result.cost, result.lower_bound, taken, time.perf_counter() - begin)

    free = compiled(math.inf)
    try:
        shardwright.compile(model, devices, optimizer=optimizer, memory_limit=1.0)
    except NoPlanError as error:
        least = error.least_memory_bytes
    assert least is not None
    for limit in np.linspace(0.95 * least, free.memory, count):
        yield compiled(float(limit))


def check(model: str, found: list[Answer]) -> None:
    """Raise if more memory costs more, or a bound is above a plan within less memory."""
    best = math.inf
    for answer in found:
        if answer.cost > best * (1 + GAP):
            raise SystemExit(f"{model}: more memory costs more at {bytes_text(answer.limit)}")
        best = min(best, answer.cost)
        if math.isfinite(best) and answer.bound > best * (1 + 1e-9):
            raise SystemExit(f"{model}: the bound at {bytes_text(answer.limit)} is false")
        if math.isfinite(answer.memory) and answer.memory > answer.limit:
            raise SystemExit(f"{model}: the plan within {bytes_text(answer.limit)} takes more")


def row(model: str, devices: int, answer: Answer) -> tuple[str, ...]:
    """Return a row of the table."""
    start = (model, str(devices), bytes_text(answer.limit))
    seconds = f"{answer.seconds:.1f}"
    if math.isinf(answer.cost):
        proof = "none, proven" if math.isinf(answer.bound) else "none found"
        return (*start, proof, "", "", "", seconds)
    gap = f"{1 - answer.bound / answer.cost:.3%}"
    times = seconds_text(answer.cost), seconds_text(answer.bound)
    return (*start, bytes_text(answer.memory), *times, gap, seconds)


def document(rows: list[tuple[str, ...]]) -> str:
    """Return the page."""
    table = [HEAD, tuple("---" for _ in HEAD), *rows]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return (
        "# Plans within ever more memory\n\n"
        f"`python benchmarks/memory_limits.py` on {machine()}.\n\n"
        "The search stops at a gap of 0.1 %, or when its time is over. The step is the serial one. "
        "More memory never costs more, beyond that gap, and no bound is above the cost of a plan "
        "found within less memory.\n\n" + lines + "\n"
    )


if __name__ == "__main__":
    main()
