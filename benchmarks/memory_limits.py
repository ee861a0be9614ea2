"""Compile random programs within ever more memory: ``python benchmarks/memory_limits.py``.

For every program, the limits run from less than the least that any plan takes to more than the plan
without a limit takes. More memory must not take a plan away, nor make it cost more (beyond the gap
asked for), and no bound may be above the cost of a plan that was found within less memory.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import machine

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import InfeasibleError, NoPlanError, OptionError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.random_graphs import random_graph

CPU = cluster("cpu")
KINDS: Mapping[str, dict[str, Any]] = {
    "serial": {"objective": "serial", "recompute": "none"},
    "overlapped": {},
    "micro-batches": {"micro_batches": 2, "recompute": "search"},
    "stages": {"stages": 2, "micro_batches": 2},
}
SCHEDULES = ("gpipe", "1f1b", "zero_bubble")
ROUNDING = 1e-9


@dataclass(frozen=True)
class Answer:
    """What compiling within a limit says; without a plan, the cost is infinite."""

    limit: float
    cost: float
    bound: float  # infinite where it is proven that no plan fits
    peak: float = 0.0


@dataclass(frozen=True)
class Program:
    """The answers for one program; `least` is the memory that every plan is said to take."""

    kind: str
    seed: int
    gap: float
    seconds: float
    least: float
    answers: list[Answer] = field(default_factory=list)

    def faults(self) -> Iterator[tuple[str, float]]:
        """Yield what does not hold, with how far the cost rose."""
        best = math.inf
        for answer in self.answers:
            if math.isfinite(best) and math.isinf(answer.cost):
                yield "lost", 0.0
            if answer.cost > best * (1 + self.gap + ROUNDING):
                yield "dearer", answer.cost / best - 1
            best = min(best, answer.cost)
            if math.isfinite(best) and answer.bound > best * (1 + ROUNDING):
                yield "false bound", 0.0
            if answer.peak > answer.limit:
                yield "too large", 0.0
            if math.isfinite(answer.cost) and answer.limit < self.least * (1 - ROUNDING):
                yield "false least memory", 0.0


def program(kind: str, seed: int, count: int, gap: float, nodes: int) -> Program | None:
    """Return the answers for a random program; None where it does not have the stages."""
    random = np.random.default_rng(seed)
    graph = random_graph(seed, nodes=1 + seed % nodes)
    devices = 4 if kind == "stages" else int(random.choice([2, 4]))
    options = {"optimizer": Optimizer(str(random.choice(["sgd", "adam"]))), **KINDS[kind]}  # type: ignore[arg-type]
    if kind == "stages":
        options["schedule"] = str(random.choice(SCHEDULES))
    begin = time.process_time()

    def compiled(limit: float) -> Answer:
        try:
            found = compile_graph(
                graph, CPU, devices, CompileOptions(memory_limit=limit, gap=gap, **options)
            )
        except NoPlanError as error:
            return Answer(limit, math.inf, math.inf if isinstance(error, InfeasibleError) else 0.0)
        assert found.result is not None
        peak = found.memory.peak_bytes
        return Answer(limit, found.result.cost, found.result.lower_bound, peak)

    try:
        most = compiled(math.inf).peak
        compile_graph(graph, CPU, devices, CompileOptions(memory_limit=1.0, gap=gap, **options))
    except OptionError:
        return None
    except NoPlanError as error:
        least = error.least_memory_bound or 0.0
    lowest = 0.9 * (least or 0.3 * most)
    limits = sorted([*np.linspace(lowest, 1.02 * most, count - 1), most])
    answers = [compiled(float(limit)) for limit in limits]
    return Program(kind, seed, gap, time.process_time() - begin, least, answers)


def main() -> None:
    """Measure, in slices if a file keeps the programs, and write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--programs", type=int, default=200, help="of each kind (200)")
    parser.add_argument("--limits", type=int, default=12, help="of each program (12)")
    parser.add_argument("--nodes", type=int, default=4, help="operators of a program, at most (4)")
    parser.add_argument("--gap", type=float, default=0.0, help="that is asked for (0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--kept", type=Path, help="a file of answers, to which more are added")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor, at most")
    arguments = parser.parse_args()
    kept = arguments.kept
    lines = kept.read_text().splitlines() if kept and kept.exists() else []
    found = [_read(line) for line in lines]
    begin = time.process_time()
    for kind in arguments.kinds:
        seed = max((one.seed + 1 for one in found if one.kind == kind), default=0)
        while (
            sum(one.kind == kind for one in found) < arguments.programs
            and time.process_time() - begin < arguments.seconds
        ):
            one = program(kind, seed, arguments.limits, arguments.gap, arguments.nodes)
            seed += 1
            if one is None:
                continue
            found.append(one)
            for fault, rise in one.faults():
                print(f"{kind} {one.seed}: {fault} {rise:.4f}", flush=True)
            if kept:
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    arguments.out.write_text(document(found))


def _read(line: str) -> Program:
    record = json.loads(line)
    return Program(**{**record, "answers": [Answer(**answer) for answer in record["answers"]]})


def document(found: list[Program]) -> str:
    """Return the page."""
    head = "objective", "programs", "plans", "proven that none fits", "none found"
    head += "false", "lost", "dearer", "by at most", "processor"
    rows = [head, tuple("---" for _ in head)]
    for kind in KINDS:
        programs = [one for one in found if one.kind == kind]
        if programs:
            rows.append(_row(kind, programs))
    lines = (
        "# Plans within ever more memory",
        "",
        f"Written by `benchmarks/memory_limits.py` on {machine()}: random programs of one to four",
        "operators with their optimizer, on 2 or 4 devices, within 12 limits each, from less than",
        "any plan takes to more than the plan without a limit takes; the gap asked for is 0.",
        "",
        "*False* counts answers that contradict another one: a lower bound above a plan that was",
        "found within less memory, a plan within less memory than every plan was said to take, or",
        "one that takes more than its limit. *Lost* counts limits without a plan although one was",
        "found within less memory, *dearer* plans that cost more than one within less memory.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
        "With the serial step, the search is exact. The overlapped step has a bound by weights of",
        "the resources; where the gap to it stays wide, the plans of tighter limits by the first",
        "weights are candidates, too (`planner/whole/search.py`), of problems of up to 600",
        "options. So are pipelines (`compiler/stages/tighter_limits.py`) whose stages have in all",
        "cuts, up to 600 options. Beyond that size nothing is promised.",
    )
    return "\n".join(lines) + "\n"


def _row(kind: str, programs: list[Program]) -> tuple[str, ...]:
    answers = [answer for one in programs for answer in one.answers]
    faults = [fault for one in programs for fault in one.faults()]
    rises = [rise for fault, rise in faults if fault == "dearer"]
    lost = sum(fault == "lost" for fault, _ in faults)
    counts = (
        len(programs),
        sum(math.isfinite(answer.cost) for answer in answers),
        sum(math.isinf(answer.bound) for answer in answers),
        sum(math.isinf(answer.cost) and answer.bound == 0 for answer in answers),
        len(faults) - lost - len(rises),
        lost,
        len(rises),
    )
    seconds = sum(one.seconds for one in programs)
    return (kind, *map(str, counts), f"{max(rises, default=0):.1%}", f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
