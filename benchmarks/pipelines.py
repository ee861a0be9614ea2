"""Compare searched pipelines with all pipelines, and with published ones.

``python benchmarks/pipelines.py exactness``: random small programs in two stages, with several
micro-batches and memory limits. Every cut and every assignment of the stages is emitted and
simulated. The best of them that fits must not be below the lower bound, nor above the answer; how
often it equals the answer is what is measured.

``python benchmarks/pipelines.py published``: the plans of Korthikanti et al., Table 5, each beside
the plan that is found for as many stages, chunks and micro-batches on the same mesh, under one cost
model.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import machine

from shardwright.api import compile
from shardwright.search.named_plan import NamedPlan
from tests.enumerated_pipelines import CLUSTER, cases


@dataclass(frozen=True)
class Published:
    """A row of Korthikanti et al., Table 5: A100s, a model, its degrees, and measured steps.

    Parameters
    ----------
    model : str
        The model.
    devices, pipeline, chunks : int
        Devices, pipeline stages of a device group each, and chunks; the rest are 8 tensor ranks.
    batch, micro_batch : int
        Samples of a step and of a micro-batch.
    full, selective : float
        Measured seconds: of full recomputation, and of selective recomputation with sequence
        parallelism.
    """

    model: str
    devices: int
    pipeline: int
    chunks: int
    batch: int
    micro_batch: int
    full: float
    selective: float

    def plan(self, rest: str) -> NamedPlan:
        """Return the plan with a way to recompute."""
        degrees = f"tensor=8,pipeline={self.pipeline},chunks={self.chunks}"
        return NamedPlan.parse(f"{degrees},micro_batch={self.micro_batch},{rest}")


PUBLISHED = (
    Published("megatron-22b", 8, 1, 1, 4, 4, 1.42, 1.10),
    Published("gpt3-175b:vocabulary=51200", 64, 8, 3, 64, 1, 18.13, 13.75),
    Published("megatron-530b", 280, 35, 3, 280, 1, 49.05, 37.83),
    Published("megatron-1t", 512, 64, 1, 512, 1, 94.42, 71.49),
)
WAYS = ("recompute=full", "recompute=selective,sequence_parallel")
"""The ways to recompute."""


def published_row(row: Published, effort: float) -> str:
    """Return the row of a table: measured and simulated steps of its plans, and what is found."""
    own: dict[str, Any] = {"stages": row.pipeline, "chunks": row.chunks} if row.pipeline > 1 else {}
    where: dict[str, Any] = {"cluster": CLUSTER, "batch": row.batch}
    steps = []
    for rest in WAYS:
        named = compile(row.model, row.devices, plan=row.plan(rest), memory_limit=math.inf, **where)
        assert named.compiled.result is not None
        steps.append(named.compiled.result.cost)
    begin = time.process_time()
    passes = row.batch // row.micro_batch
    found = compile(row.model, row.devices, micro_batches=passes, effort=effort, **own, **where)
    seconds = time.process_time() - begin
    result = found.compiled.result
    assert result is not None
    cells = [
        row.model.partition(":")[0],
        str(row.devices),
        f"8, {row.pipeline}, {row.chunks}",
        *(f"{one:.2f}" for one in (row.full, steps[0], row.selective, steps[1], result.cost)),
        f"{1 - result.lower_bound / result.cost:.1%}",
        f"{found.compiled.memory.peak_bytes / 2**30:.1f}",
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def exactness(seeds: int) -> None:
    """Print what differs, and the summary, of the cases of the first seeds."""
    found = []
    for case in cases(range(seeds)):
        found.append(case)
        if not case.holds or not case.is_best:
            print(case, f"{case.answer / case.best:.4f} of the best", flush=True)
    held, best = (sum(map(flag, found)) for flag in (lambda c: c.holds, lambda c: c.is_best))
    plans = sum(case.plans for case in found)
    print(f"{len(found)} cases, {plans} pipelines: {held} hold, {best} answers are the best")


def main() -> None:
    """Print the measurement that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("exactness", "published"))
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--rows", type=int, nargs="*", default=range(len(PUBLISHED)))
    parser.add_argument("--effort", type=float, default=1.0)
    arguments = parser.parse_args()
    print(machine())
    if arguments.what == "exactness":
        exactness(arguments.seeds)
        return
    for row in arguments.rows:
        print(published_row(PUBLISHED[row], arguments.effort), flush=True)


if __name__ == "__main__":
    main()
