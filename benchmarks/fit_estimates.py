"""Estimates of `fit` beside evaluations of their plans: ``python -m benchmarks.fit_estimates``.

Of every model, plans of the least estimates are evaluated, and others at random. Steps are of the
cluster as the software runs it, memory is that of the program or as the software keeps tensors,
whichever is more. Takes some minutes of one core.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.evaluated import EVALUATED, Evaluated, evaluated, may_fit
from shardwright.compiler.fit.family import family
from shardwright.compiler.fit.model import FitModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import IDEAL, software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions

_PAGE = Path(__file__).with_suffix(".md")
_BEST, _AT_RANDOM = 6, 4
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
    Case(
        "gpt:layers=12,hidden=768,heads=12,sequence=1024,vocabulary=50304",
        64,
        8,
        "a100-800g",
        "megatron-core",
    ),
)


@dataclass(frozen=True)
class Both:
    """An estimate, and the evaluation of its plan."""

    estimate: Estimate
    found: Evaluated

    @property
    def of_step(self) -> float:
        """The estimated step over the evaluated one."""
        return self.estimate.refined_seconds / self.found.seconds

    @property
    def of_memory(self) -> float:
        """The estimated memory over what decides whether the plan fits, without gathers ahead."""
        return self.estimate.memory_bytes / self.found.evaluation.fitted_bytes


def main() -> int:
    """Write the page."""
    lines = [
        "# Estimates of `fit` beside evaluations",
        "",
        f"`python -m benchmarks.fit_estimates`: of each model {_BEST} plans of the least estimates",
        f"that may fit and {_AT_RANDOM} others, at random, are evaluated, which gives the numbers",
        "of their compiled programs ([evaluations.md](evaluations.md)). Ratios are of the estimate",
        "to the evaluation: least, median, most. The choice is the step of the plan that `fit`",
        f"prefers after {EVALUATED} evaluations over the least of all of them.",
        "",
        "| model | devices | software | plans | step | memory | choice |",
        "|---|---|---|---|---|---|---|",
    ]
    worst = list[str]()
    for case in CASES:
        found = list(_evaluated(case))
        lines.append(_row(case, found))
        print(lines[-1], flush=True)
        worst += _worst(found)
    lines += ["", "The plans whose steps are estimated worst, one of each model:", "", *worst]
    _PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _evaluated(case: Case) -> Iterator[Both]:
    """Yield the plans that `fit` would evaluate first, then others."""
    definition, _ = training_definition(case.model, case.batch, 1)
    asked = CompileOptions(optimizer=Optimizer("adam", {}), **_TYPES)
    where, run_by = cluster(case.cluster).without_host(), software(case.software or IDEAL)
    plans = family(FitModel(definition.graph, where, asked, run_by), case.devices)
    possible = sorted(filter(may_fit, plans), key=lambda one: one.refined_seconds)
    others = random.Random(_SEED).sample(possible[_BEST:], min(_AT_RANDOM, len(possible) - _BEST))
    for one in (*possible[:_BEST], *others):
        found = evaluated(one.model, one.plan, one.devices)
        if found is not None:
            yield Both(one, found)


def _row(case: Case, found: list[Both]) -> str:
    fitting = [one.found.seconds for one in found if one.found.fits]
    choice = min(o.found.seconds for o in found[:EVALUATED] if o.found.fits) / min(fitting)
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


def _worst(found: list[Both]) -> list[str]:
    one = max(found, key=lambda one: abs(one.of_step - 1))
    return [f"- {one.of_step:.3f} of {one.found.seconds:.3g} s: `{one.estimate.plan}`"]


if __name__ == "__main__":
    sys.exit(main())
