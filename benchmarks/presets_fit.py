"""The plans that `fit` finds for the decoders of the table: ``python -m benchmarks.presets_fit``.

Each on the fewest of 8, 64 and 256 devices on which a plan may fit. Seconds are those of a clock on
two cores, with as many processes as `fit --workers 2` has, from the name of the model until its
best plan is known: bounds of all plans, and the evaluations among which it is chosen. What `fit`
tells beside that plan, other numbers of devices say, takes longer. Run it in the repository's root;
with names of models only their rows are made anew.
"""

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from shardwright.compiler.evaluation.evaluated import fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.questions import improved, least_devices
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.zoo.presets import presets

PAGE = Path(__file__).with_suffix(".md")
ROWS = Path(__file__).with_suffix(".jsonl")
CLUSTER, SOFTWARE = "h100-3200g", "megatron-core"
SEQUENCE, BATCH = 4096, 1024
DEVICES = (8, 64, 256)
WORKERS = 2
"""Processes, one for each core of a small machine; with one a model takes up to twice as long."""
LIMIT = 180
"""Seconds after which a model is left, told on the page. With half of it the deepest models are
left, too; twice as many are longer than anybody waits."""


@dataclass(frozen=True)
class Row:
    """The best plan of a model.

    Parameters
    ----------
    model, devices : str, int
        The model and the devices.
    plans, fitting : int
        Plans of the family, and those that may fit by their bounds.
    plan : str
        The best plan.
    step_seconds, memory_gib : float
        What it takes.
    evaluated : int
        Plans that were evaluated.
    seconds : float
        Until it is known.
    bounding : float
        Those of them for the bounds.
    """

    model: str
    devices: int
    plans: int
    fitting: int
    plan: str
    step_seconds: float
    memory_gib: float
    evaluated: int
    seconds: float
    bounding: float


def asked(name: str, batch: int = BATCH, run_by: str = SOFTWARE) -> EvaluatedModel:
    """Return the model of a preset, as it is trained."""
    definition, _ = training_definition(f"{name}:sequence={SEQUENCE}", batch, 1)
    options = CompileOptions(
        optimizer=Optimizer("adam"),
        micro_batches=1,
        precision="bfloat16",
        accumulate_type="float32",
        reduce_type="float32",
    )
    where = cluster(CLUSTER).without_host()
    return EvaluatedModel(definition.graph, where, options, software(run_by))


def row(name: str) -> Row | None:
    """Find the best plan of a model; None where none fits."""
    for devices in DEVICES:
        began = time.perf_counter()
        model = asked(name)
        if least_devices(model) > devices:
            continue
        with model.by_workers(WORKERS):
            found = best_on(model, name, devices, began)
        if found is not None:
            return found
    return None


def best_on(model: EvaluatedModel, name: str, devices: int, began: float) -> Row | None:
    """Find the best plan of a model on a number of devices; None where none fits."""
    plans = family(model, devices)
    fitting = [one for one in plans if model.may_fit(one)]
    bounded = time.perf_counter() - began
    found = fastest(model, plans)
    if found is None:
        return None
    best = improved(found)
    known = [one for one in fitting if model.known(one.plan, devices)]
    return Row(
        name,
        devices,
        len(plans),
        len(fitting),
        best.plan.text,
        best.seconds,
        best.memory_bytes / 2**30,
        len(known),
        time.perf_counter() - began,
        bounded,
    )


def outcome(name: str) -> Row | str:
    """Return the best plan of a model, or why there is none."""
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return row(name) or f"No plan fits on {DEVICES[-1]} devices"
    except TimeoutError:
        return f"Left after {LIMIT} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(*_: object) -> NoReturn:
    raise TimeoutError


def page(outcomes: Mapping[str, Row | str]) -> str:
    """Return the page of the models."""
    rows = {name: one for name, one in outcomes.items() if isinstance(one, Row)}
    missing = defaultdict[str, list[str]](list)
    for name in (name for name in presets() if name not in rows):
        missing[str(outcomes.get(name, "Not run"))].append(f"`{name}`")
    lines = [
        "# Plans that fit finds for the decoders of the table",
        "",
        f"On `{CLUSTER}` as `{SOFTWARE}` runs them, in bfloat16 with Adam, {BATCH:,} sequences of "
        f"{SEQUENCE:,} tokens a step,",
        "each on the fewest of 8, 64 and 256 devices on which a plan fits. Seconds are those until "
        "the best plan is known on two cores, with two",
        "processes; in brackets those for bounds. No plan of the family that was not evaluated is",
        "faster, by its bound. Made by [presets_fit.py](presets_fit.py).",
        "",
        f"{len(rows)} of {len(presets())} presets, of which "
        f"{sum(x.seconds <= 10 for x in rows.values())} took at most 10 s.",
        *(f"{why}: {', '.join(names)}." for why, names in missing.items()),
        "",
        "| model | devices | step | memory, GiB | seconds | plans | evaluated | best plan |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += (
        f"| {one.model} | {one.devices} | {one.step_seconds:.2f} s | {one.memory_gib:.1f} | "
        f"{one.seconds:.0f} ({one.bounding:.0f}) | {one.plans} | {one.evaluated} | `{one.plan}` |"
        for one in (rows[name] for name in presets() if name in rows)
    )
    return "\n".join(lines) + "\n"


def _known() -> dict[str, Row | str]:
    """Return what was made before."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    known = dict(json.loads(line) for line in lines)
    return {name: one if isinstance(one, str) else Row(**one) for name, one in known.items()}


def main() -> None:
    """Make the rows, and write the page after each."""
    for name in sys.argv[1:] or presets():
        found = outcome(name)
        print(name, found, flush=True)
        known = _known() | {name: found}
        lines = [
            (name, one if isinstance(one, str) else asdict(one)) for name, one in known.items()
        ]
        ROWS.write_text("".join(json.dumps(line) + "\n" for line in lines))
        PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
