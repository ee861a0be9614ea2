"""Compare plans of the least overlapped step with all plans: ``python benchmarks/overlap.py``.

Random small programs, meshes and memory limits. Every assignment of the search space is emitted,
and simulated with its fastest buckets. The best of them that fits must not be below the lower
bound, nor above the answer of the compiler; how often it equals the answer is what is measured.
With ``--attained`` devices and links attain random shares of their peaks, links send in several
ways, and every plan is also timed with random times of a host, which the bound must not exceed.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import machine

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, Level, cluster, mesh_for
from shardwright.cost_model.efficiency.attained import (
    COLLECTIVES,
    CollectiveRate,
    DeviceEfficiency,
    LinkEfficiency,
    Protocol,
)
from shardwright.cost_model.efficiency.figures import Count, Figure, MessageTimes, PerSecond, Rate
from shardwright.cost_model.efficiency.software import Software, software
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.redistribution.moves import PACKED
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import NotFoundError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.buckets import fastest_fusion
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN, Problem
from tests.random_graphs import random_graph

MOST = 4_000  # assignments of a program that is compared
EXACT = 1 + 1e-9
_MOST_SKEW = 1e-5
_ATTAINED = (
    "Devices and links attain random shares of their peaks, products go in waves of tiles, links",
    "send in up to three ways, and ranks begin at different times. Every plan is also timed with a",
    "host that launches each operator and collective; the bound is not above the best of these.",
    "",
)


@dataclass(frozen=True)
class Plan:
    """A plan that was emitted, and its memory."""

    program: Graph
    peak_bytes: float


@dataclass(frozen=True)
class Case:
    """One program within one limit: the best of all plans, the bound and the answer, in seconds."""

    seed: int
    plans: int
    best: float
    bound: float
    answer: float
    status: str
    launched: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the best lies between bound and answer; the answer may have better paths.

        Nor is the bound above the best plan that a host launches.
        """
        least = min(self.best, self.answer, self.launched)
        return self.bound <= least * EXACT

    @property
    def is_best(self) -> bool:
        """Whether the answer is as good as the best of all plans."""
        return self.answer <= self.best * EXACT


def cases(seeds: Iterable[int], links: float = 1.0, attained: bool = False) -> Iterator[Case]:
    """Yield the cases of the programs with these seeds that are small enough."""
    for seed in seeds:
        yield from _cases(seed, links, attained)


def _cases(seed: int, links: float, attained: bool) -> Iterator[Case]:
    random = np.random.default_rng(seed)
    graph = Canonicalize().run(random_graph(seed, nodes=1 + seed % 3))
    devices = int(random.choice([2, 4]))
    described = _cluster(str(random.choice(["cpu", "h100-pod:figures=datasheet"])), links)
    run_by = None
    if attained:
        described, run_by = attaining(described, random), launching(random)
    mesh = mesh_for(described, devices, (devices,))
    options = CompileOptions(
        optimizer=Optimizer(str(random.choice(["sgd", "adam"]))),  # type: ignore[arg-type]
        gap=0.0,
        micro_batches=(1, 2, 4)[seed // 9 % 3],
    )
    try:
        plans = list(all_plans(graph, described, mesh, options))
    except OptionError:  # the batch is not divisible
        return
    if not plans:
        return
    peaks = sorted({plan.peak_bytes for plan in plans})
    limits = [peaks[0], peaks[len(peaks) // 2], 2 * peaks[-1]]
    limit = float(limits[seed // 3 % 3])
    fitting = [plan for plan in plans if plan.peak_bytes <= limit]
    best = min(fastest_fusion(plan.program, described, limit)[1].step_seconds for plan in fitting)
    launched = math.inf
    if run_by is not None:
        hosted = described.run_by(run_by)
        launched = min(simulate(plan.program, hosted).step_seconds for plan in fitting)
    try:
        found = compile_graph(graph, described, devices, replace(options, memory_limit=limit), mesh)
    except NotFoundError:
        yield Case(seed, len(plans), best, 0.0, math.inf, "unknown", launched)
        return
    assert found.result is not None
    result = found.result
    yield Case(seed, len(plans), best, result.lower_bound, result.cost, result.status, launched)


def _share(value: float) -> Rate:
    return Rate(value=value, tag="assumed", source="at random")


def _rate(value: float) -> PerSecond:
    return PerSecond(value=value, tag="assumed", source="at random")


def _figure(value: float) -> Figure:
    return Figure(value=value, tag="assumed", source="at random")


def attaining(described: Cluster, random: np.random.Generator) -> Cluster:
    """Return a cluster whose devices and links attain random shares of their peaks."""

    def share() -> Rate:
        return _share(float(random.uniform(0.1, 1)))

    efficiency = DeviceEfficiency(
        matmul=share(),
        attention=share(),
        memory=share(),
        multiprocessors=Count(
            value=int(random.integers(1, 200)), tag="assumed", source="at random"
        ),
        tile=Count(value=int(random.choice([1, 16, 128])), tag="assumed", source="at random"),
        depth=_figure(float(random.choice([0, 128]))),
    )
    levels = tuple(
        level.model_copy(
            update={
                "efficiency": LinkEfficiency(
                    bandwidth=share(),
                    several=share() if random.random() < 0.5 else None,
                    skew=_figure(float(random.choice([0, _MOST_SKEW]))),
                    protocols=tuple(
                        Protocol(
                            name=name,
                            bandwidth=_share(part),
                            latency=_figure(
                                level.send_seconds(0.0) * float(random.uniform(0, 2)) / most
                            ),
                        )
                        for name, part, most in (
                            ("short", 0.3, 4),
                            ("middle", 0.7, 2),
                            ("long", 1, 1),
                        )
                        if random.random() < 0.7
                    ),
                    collectives=_collectives(level, random),
                )
            }
        )
        for level in described.levels
    )
    device = described.device.model_copy(update={"efficiency": efficiency})
    return described.model_copy(update={"device": device, "levels": levels})


def _collectives(level: Level, random: np.random.Generator) -> dict[str, CollectiveRate]:
    """Return random figures of some kinds, with steps between messages, on half of the levels."""
    if level.shared_by > 1 or random.random() < 0.5:
        return {}
    return {
        kind: CollectiveRate(
            latency=_figure(level.send_seconds(0.0) * float(random.uniform(0, 2))),
            bandwidth=_rate(level.bandwidth * float(random.uniform(0.1, 1))),
            messages=_messages(level, random),
            packing=_messages(level, random) if kind in PACKED else None,
        )
        for kind in COLLECTIVES
        if kind != "send" and random.random() < 0.7
    }


def _messages(level: Level, random: np.random.Generator) -> MessageTimes:
    """Return messages of random sizes that take random times, larger ones no less."""
    sizes = np.sort(np.unique(np.exp(random.uniform(3, 16, 6))))
    seconds = np.maximum.accumulate(sizes / level.bandwidth * random.uniform(0.5, 20, len(sizes)))
    points = tuple(zip(sizes.tolist(), seconds.tolist(), strict=True))
    return MessageTimes(points=points, tag="assumed", source="at random")


def launching(random: np.random.Generator) -> Software:
    """Return a software that changes nothing but adds random times of the host."""
    own = software("megatron")
    assert own is not None
    times = ("host", "collective", "transfer", "step")
    alone = ("pointwise", "copies", "updates")
    return own.model_copy(
        update={
            **{name: _figure(float(random.choice([0, 1e-6, 1e-4]))) for name in times},
            **dict.fromkeys(alone, _figure(1)),
            **dict.fromkeys(("exposed_parameters", "exposed_activations"), _share(1)),
            "skew": _figure(_MOST_SKEW),
            "attention": "fused",
            "recompute": "reads",
            "transfers": "whole",
        }
    )


def _cluster(name: str, links: float) -> Cluster:
    """Return a cluster with faster links, or slower ones."""
    described = cluster(name)
    levels = tuple(
        level.model_copy(update={"bandwidth": level.bandwidth * links})
        for level in described.levels
    )
    return described.model_copy(update={"levels": levels})


def assignments(problem: Problem) -> Iterable[Sequence[int]]:
    """Return all assignments of a problem; none where there are more than `MOST`."""
    return product(*map(range, problem.sizes)) if prod(problem.sizes) <= MOST else ()


def all_plans(
    graph: Graph,
    described: Cluster,
    mesh: Mesh,
    options: CompileOptions,
    space_of: Callable[[SearchRequest], SearchSpace] = lambda request: request.space,
    assignments_of: Callable[[Problem], Iterable[Sequence[int]]] = assignments,
) -> Iterator[Plan]:
    """Yield the distinct programs of all assignments; none where there are too many."""
    lowering = LowerRedistributions(described)
    request = SearchRequest(graph, described, lowering.planner(mesh), options)
    space = space_of(request)
    seen = set()
    for assignment in assignments_of(space.problem):
        if evaluate(space.problem, assignment).cost >= FORBIDDEN:
            continue
        decisions = space.decisions(assignment)
        if request.micro is not None:
            decisions = request.micro.lifted(decisions)
        passes = PassManager(verify_later=True)
        passes.run_all(partitioned(options, decisions, lowering), graph)
        program = passes.after("clean_up")
        text = to_text(program)
        if text not in seen:
            seen.add(text)
            yield Plan(program, peak_memory(program).peak_bytes)


def main() -> None:
    """Measure, in slices if a file keeps the cases, and write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="cases (200)")
    parser.add_argument("--attained", action="store_true", help="shares of peaks, and a host")
    parser.add_argument("--out", type=Path, help="the page")
    parser.add_argument("--kept", type=Path, help="a file of cases, to which more are added")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor, at most")
    arguments = parser.parse_args()
    kept = arguments.kept
    lines = kept.read_text().splitlines() if kept and kept.exists() else []
    records = [json.loads(line) for line in lines]
    found = [Case(**case) for record in records for case in record["cases"]]
    spent = sum(record["seconds"] for record in records)
    seed, begin = len(records), time.process_time()
    while len(found) < arguments.cases and time.process_time() - begin < arguments.seconds:
        before = time.process_time()
        more = list(cases(range(seed, seed + 1), attained=arguments.attained))
        seconds = time.process_time() - before
        found, spent, seed = found + more, spent + seconds, seed + 1
        if kept:
            record = {"seconds": seconds, "cases": [asdict(case) for case in more]}
            with kept.open("a") as file:
                file.write(json.dumps(record) + "\n")
    if len(found) >= arguments.cases:
        name = "overlap_attained.md" if arguments.attained else "overlap.md"
        out = arguments.out or Path(__file__).with_name(name)
        out.write_text(document(found, spent, arguments.attained))


def document(found: list[Case], seconds: float, attained: bool) -> str:
    """Return the page."""
    wrong = [case for case in found if not case.holds]
    best = sum(case.is_best for case in found)
    proven = sum(case.status == "optimal" for case in found)
    answered = [case for case in found if math.isfinite(case.answer)]
    gaps = sorted((case.answer - case.bound) / case.answer for case in answered)
    worst = max(case.answer / case.best - 1 for case in answered)
    plans = sorted(case.plans for case in found)
    count = len(found)
    missed = sum(math.isinf(case.answer) for case in found)
    lines = (
        "# Plans of the least overlapped step, against all plans",
        "",
        f"Written by `benchmarks/overlap.py{' --attained' * attained}`: {count} random programs of",
        "one to three operators with their optimizer, on 2 or 4 devices, in 1, 2 or 4",
        "micro-batches, within the least memory that any plan takes, a median, or no limit. All",
        f"plans of a case ({plans[0]} to {plans[-1]}, median {plans[len(plans) // 2]}) are",
        "emitted and simulated with their fastest buckets.",
        "",
        *(_ATTAINED if attained else ()),
        f"Measured on {machine()}; {seconds:.0f} s of the processor.",
        "",
        "| | cases |",
        "| --- | --- |",
        f"| the best plan is not below the lower bound | {count - len(wrong)} of {count} |",
        f"| the answer is as fast as the best plan | {best} of {count} |",
        f"| the answer is proven optimal | {proven} of {count} |",
        f"| no plan was found although one fits | {missed} of {count} |",
        "",
        f"- The slowest answer takes {100 * worst:.1f} % more than the best plan.",
        f"- The gap between answer and bound is {100 * gaps[len(gaps) // 2]:.1f} % in the median.",
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
