"""Estimates of `fit` beside the plans once they are built: ``python -m benchmarks.fit_estimates``.

Of every model, plans that fit by their estimates are built: those of the front of step and memory,
and others at random. Steps are of the cluster as the software runs it, memory is that of the
program or as the software keeps tensors, whichever is more. Takes some minutes of one core.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from shardwright.api import compile
from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.family import family, fastest, front
from shardwright.compiler.fit.model import FitModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.memory_as_run import memory_as_run
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import NoPlanError
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.tools.documents import timeline_of

_PAGE = Path(__file__).with_suffix(".md")
_CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
_OF_FRONT, _AT_RANDOM = 6, 6
_SEED = 0
_TYPES = {"precision": "bfloat16", "accumulate_type": "float32", "reduce_type": "float32"}


@dataclass(frozen=True)
class Case:
    """A model on devices."""

    model: str
    batch: int
    devices: int
    cluster: str
    software: str | None = None


CASES = (
    Case("llama3-70b", 512, 64, "h100-3200g", "megatron-core"),
    Case(f"{_CONFIGS / 'llama2-13b.json'}:sequence=4096", 512, 64, "h100-3200g", "megatron-core"),
    Case(f"{_CONFIGS / 'llama3-8b.json'}:sequence=32768", 128, 64, "h100-3200g", "megatron-core"),
    Case(f"{_CONFIGS / 'llama3-8b.json'}:sequence=8192", 64, 16, "h100-3200g", "torchtitan"),
    Case(f"{_CONFIGS / 'llama3-8b.json'}:sequence=8192", 128, 32, "h100-3200g", "nanotron"),
    Case(f"{_CONFIGS / 'llama3-8b.json'}:sequence=8192", 128, 32, "h100-pod"),
    Case(
        "gpt:layers=24,hidden=2048,heads=16,sequence=2048,vocabulary=51200",
        256,
        16,
        "a100-800g",
        "megatron",
    ),
    Case(
        "gpt:layers=12,hidden=768,heads=12,sequence=1024,vocabulary=50304",
        64,
        8,
        "a100-800g",
        "megatron-core",
    ),
)


@dataclass(frozen=True)
class Built:
    """An estimate, and its plan once it is built.

    Parameters
    ----------
    estimate : Estimate
        The estimate.
    seconds, memory_bytes : float
        Of the built plan.
    """

    estimate: Estimate
    seconds: float
    memory_bytes: float

    @property
    def of_step(self) -> float:
        """The estimated step over the built one."""
        return self.estimate.refined_seconds / self.seconds

    @property
    def of_memory(self) -> float:
        """The estimated memory over the built one."""
        return self.estimate.memory_bytes / self.memory_bytes


def main() -> int:
    """Write the page."""
    lines = [
        "# Estimates of `fit` beside built plans",
        "",
        f"`python -m benchmarks.fit_estimates`: of each model {_OF_FRONT} plans of the front of",
        f"step and memory and {_AT_RANDOM} others that fit, at random, are built. Ratios are of",
        "the estimate to the built plan: least, median, most. Memory is without what a program",
        "gathers ahead where memory is free. The choice is the built step of the plan that `fit`",
        "prefers over the least built one of all of them.",
        "",
        "| model | devices | software | plans | step | memory | choice |",
        "|---|---|---|---|---|---|---|",
    ]
    worst = list[str]()
    for case in CASES:
        found = list(_built(case))
        lines.append(_row(case, found))
        print(lines[-1], flush=True)
        worst += _worst(found)
    lines += ["", "The plans whose steps are estimated worst, one of each model:", "", *worst]
    _PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _built(case: Case) -> Iterator[Built]:
    own, where = training_definition(case.model, case.batch, 1)[0], cluster(case.cluster)
    run_by = software(case.software) if case.software else None
    asked = CompileOptions(optimizer=Optimizer("adam", {}), **_TYPES)
    model = FitModel(own.graph, where.without_host().run_by(run_by), asked)
    for one in _chosen(family(model, case.devices)):
        try:
            built = compile(
                own,
                case.devices,
                cluster=where.for_programs_of(run_by),
                plan=one.plan,
                optimizer="adam",
                **_TYPES,
            )
        except NoPlanError:
            print(f"not built: {one.plan}", file=sys.stderr)
            continue
        timed = replace(built, cluster=where.used_by(case.devices).run_by(run_by))
        memory = peak_memory(built.plan.program).peak_bytes
        if run_by is not None and run_by.memory is not None:
            kept = memory_as_run(built.plan.program, run_by, where.device)
            memory = max(memory, kept.peak_bytes)
        yield Built(one, timeline_of(timed, model.limit_bytes).step_seconds, memory)


def _chosen(plans: list[Estimate]) -> list[Estimate]:
    """Return the plan that is preferred, others of the front, and others at random."""
    fitting = [one for one in plans if one.fits]
    ends = front(fitting)
    count = min(_OF_FRONT, len(ends))
    found = [
        *fastest(fitting),
        *(ends[i * (len(ends) - 1) // max(count - 1, 1)] for i in range(count)),
    ]
    others = random.Random(_SEED).sample(fitting, min(_AT_RANDOM, len(fitting)))
    return list({one.plan: one for one in (*found, *others)}.values())


def _row(case: Case, found: list[Built]) -> str:
    choice = found[0].seconds / min(one.seconds for one in found)
    name = Path(case.model.split(":sequence")[0]).stem if "/" in case.model else case.model
    cells = (
        f"{name}, batch {case.batch}",
        f"{case.devices} of {case.cluster}",
        case.software or "none",
        str(len(found)),
        _range([one.of_step for one in found]),
        _range([one.of_memory for one in found]),
        f"{choice:.3f}",
    )
    return f"| {' | '.join(cells)} |"


def _range(ratios: list[float]) -> str:
    return f"{min(ratios):.3f}, {median(ratios):.3f}, {max(ratios):.3f}"


def _worst(found: list[Built]) -> list[str]:
    one = max(found, key=lambda one: abs(one.of_step - 1))
    return [f"- {one.of_step:.3f} of {one.seconds:.3g} s: `{one.estimate.plan}`"]


if __name__ == "__main__":
    sys.exit(main())
