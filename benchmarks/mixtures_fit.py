"""The plans that `fit` finds for mixtures of experts: ``python -m benchmarks.mixtures_fit``.

Seconds are those of one core until the best plan is known: bounds of all, and the evaluations
among which it is chosen. What `fit` tells beside that plan takes as long again. Run it in the
repository's root; with names of models only their rows are made anew.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright.compiler.evaluation.evaluated import fastest
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.evaluation.model import EvaluatedModel
from shardwright.compiler.fit.questions import improved
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions

PAGE = Path(__file__).with_suffix(".md")
ROWS = Path(__file__).with_suffix(".jsonl")
CLUSTER, SOFTWARE = "h100-3200g", "megatron-core"
SEQUENCE, BATCH = 4096, 1024
CASES = (
    ("gpt-oss-20b", 8),
    ("deepseek-v2-lite", 8),
    ("qwen3-30b-a3b", 16),
    ("nemotron-3-nano", 16),
    ("qwen3-next-80b-a3b", 64),
    ("gpt-oss-120b", 64),
    ("glm-4.5-air", 64),
    ("mixtral-8x22b", 64),
    ("llama4-scout", 64),
    ("qwen3-235b-a22b", 256),
    ("deepseek-v3", 256),
    ("kimi-k2", 256),
)


@dataclass(frozen=True)
class Row:
    """The best plan of a model on a number of devices.

    Parameters
    ----------
    model, devices : str, int
        The model and the devices.
    plans, fitting : int
        Plans of the family, and those that may fit by their bounds.
    plan : str
        The best plan; why there is none where no step is given.
    step_seconds, memory_gib : float or None
        What it takes.
    seconds : float
        Of one core, until it is known.
    bounding : float
        Those of them for the bounds.
    """

    model: str
    devices: int
    plans: int
    fitting: int
    plan: str
    step_seconds: float | None
    memory_gib: float | None
    seconds: float
    bounding: float


def row(name: str, devices: int) -> Row:
    """Find the best plan of a model."""
    began = time.process_time()
    definition, _ = training_definition(f"{name}:sequence={SEQUENCE}", BATCH, 1)
    options = CompileOptions(
        optimizer=Optimizer("adam"),
        micro_batches=1,
        precision="bfloat16",
        accumulate_type="float32",
        reduce_type="float32",
    )
    where = cluster(CLUSTER).without_host()
    model = EvaluatedModel(definition.graph, where, options, software(SOFTWARE))
    plans = family(model, devices)
    bounded = time.process_time() - began
    found = fastest(model, plans)
    best = found and improved(found)
    return Row(
        name,
        devices,
        len(plans),
        sum(map(model.may_fit, plans)),
        "none fits" if best is None else best.plan.text,
        None if best is None else best.seconds,
        None if best is None else best.memory_bytes / 2**30,
        time.process_time() - began,
        bounded,
    )


def page(rows: list[Row]) -> str:
    """Return the page of the rows."""
    lines = [
        "# Plans that fit finds for mixtures of experts",
        "",
        f"On `{CLUSTER}` as `{SOFTWARE}` runs them, in bfloat16 with Adam, {BATCH:,} sequences of "
        f"{SEQUENCE:,} tokens a step. Seconds are those of one core until the best plan is",
        "known, of them in brackets those for bounds; the machine ran other programs beside, so "
        "they are upper bounds. Made by [mixtures_fit.py](mixtures_fit.py).",
        "",
        "| model | devices | step | memory, GiB | seconds | plans | best plan |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        step = "" if one.step_seconds is None else f"{one.step_seconds:.2f} s"
        memory = "" if one.memory_gib is None else f"{one.memory_gib:.1f}"
        lines.append(
            f"| {one.model} | {one.devices} | {step} | {memory} | {one.seconds:.0f} "
            f"({one.bounding:.0f}) | {one.plans} | `{one.plan}` |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the rows, and write the page after each."""
    known = {}
    if ROWS.exists():
        read = (Row(**json.loads(line)) for line in ROWS.read_text().splitlines())
        known = {(one.model, one.devices): one for one in read}
    for case in CASES:
        if len(sys.argv) == 1 or case[0] in sys.argv[1:]:
            known[case] = row(*case)
            print(known[case], flush=True)
        rows = [known[one] for one in CASES if one in known]
        ROWS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows))
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
