"""Plans that `fit` finds beside the published degrees: ``python -m benchmarks.published_degrees``.

Both are evaluated by the same model, in bfloat16, as Megatron-Core runs them with the exchange of
DeepEP. The published degrees have their fastest way to recompute, and are where the search for a
faster plan begins, so that none that is found is slower. Run it in the repository's root; with
numbers of cases only their rows are made anew.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.presets_fit import CLUSTER, SEQUENCE, asked
from shardwright.compiler.evaluation.evaluated import Evaluated, evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.questions import improved
from shardwright.search.named_plan import NamedPlan

PAGE = Path(__file__).with_suffix(".md")
ROWS = Path(__file__).with_suffix(".jsonl")
SOFTWARE = "megatron-core+deepep"


@dataclass(frozen=True)
class Case:
    """A training that was published.

    Parameters
    ----------
    model : str
        The model.
    devices, batch : int
        Devices, and sequences of a step.
    plan : str
        The published degrees.
    source : str
        Where they were published.
    pairs : tuple of str
        Plans whose passes run beside each other in a schedule that the family has not.
    """

    model: str
    devices: int
    batch: int
    plan: str
    source: str
    pairs: tuple[str, ...] = ()


CASES = (
    Case(
        "qwen3-30b-a3b",
        16,
        1024,
        "data=16,expert=16,micro_batch=1,zero=1",
        "Megatron-Bridge, performance summary (fp8)",
    ),
    Case(
        "gpt-oss-120b",
        64,
        1280,
        "pipeline=4,data=16,expert=8,micro_batch=1,zero=1",
        "Megatron-Bridge, performance summary",
    ),
    Case(
        "qwen3-235b-a22b",
        256,
        8192,
        "tensor=2,pipeline=8,chunks=4,data=16,expert=32,expert_tensor=1,micro_batch=1,zero=1,"
        "sequence_parallel",
        "Megatron-Bridge, performance summary (fp8)",
    ),
    Case(
        "deepseek-v3",
        256,
        512,
        "pipeline=4,chunks=8,data=64,expert=64,micro_batch=1,zero=1",
        "NeMo AutoModel, performance summary (states in bfloat16)",
    ),
    Case(
        "deepseek-v3",
        1024,
        8192,
        "pipeline=4,chunks=8,data=256,expert=64,micro_batch=1,zero=1",
        "NeMo AutoModel, performance summary (states in bfloat16)",
    ),
    Case(
        "deepseek-v3",
        2048,
        15360,
        "pipeline=16,data=128,expert=64,micro_batch=1,zero=1",
        "DeepSeek-AI, 2024 (H800, DualPipe, fp8)",
        (
            "pipeline=16,data=128,expert=64,micro_batch=1,schedule=1f1b_pairs,recompute=full,zero=1",
            "pipeline=16,data=128,expert=16,micro_batch=1,schedule=1f1b_pairs,recompute=full,zero=1",
            "pipeline=8,data=256,expert=16,micro_batch=1,schedule=1f1b_pairs,recompute=full,zero=1",
        ),
    ),
)


@dataclass(frozen=True)
class Row:
    """The published plan of a case, and the one that is found.

    Parameters
    ----------
    case : int
        The number of the case.
    published, found : str
        The plans.
    published_seconds, found_seconds : float or None
        Their steps; None where the published degrees do not fit.
    published_gib, found_gib : float
        Their memory.
    seconds : float
        Of one core.
    pairs : list
        Plans, steps (None where one does not fit) and memory in GiB of the pairs of the case.
    """

    case: int
    published: str
    found: str
    published_seconds: float | None
    found_seconds: float
    published_gib: float
    found_gib: float
    seconds: float
    pairs: list[tuple[str, float | None, float]]


def _as_published(model: EvaluatedModel, case: Case) -> Evaluated:
    """Return the published degrees with the fastest way to recompute, or the smallest."""
    plan = NamedPlan.parse(case.plan)
    plans = (replace(plan, recompute=rule) for rule in model.ways)
    known = [x for x in (evaluated(model, one, case.devices) for one in plans) if x is not None]
    fitting = [one for one in known if one.fits]
    if fitting:
        return min(fitting, key=lambda one: one.seconds)
    return min(known, key=lambda one: one.memory_bytes)


def row(number: int) -> Row:
    """Evaluate the published plan of a case, and find a faster one."""
    case, began = CASES[number], time.process_time()
    model = asked(case.model, case.batch, SOFTWARE)
    given = _as_published(model, case)
    plans = family(model, case.devices)
    best = fastest(model, plans, best=given if given.fits else None)
    assert best is not None, "no plan fits"
    best = improved(best)
    return Row(
        number,
        given.plan.text,
        best.plan.text,
        given.seconds if given.fits else None,
        best.seconds,
        given.memory_bytes / 2**30,
        best.memory_bytes / 2**30,
        time.process_time() - began,
        list(_pairs(model, case)),
    )


def _pairs(model: EvaluatedModel, case: Case) -> Iterator[tuple[str, float | None, float]]:
    for one in (evaluated(model, NamedPlan.parse(text), case.devices) for text in case.pairs):
        assert one is not None, "a plan of pairs is none of the model"
        yield one.plan.text, one.seconds if one.fits else None, one.memory_bytes / 2**30


def page(rows: list[Row]) -> str:
    """Return the page of the rows."""
    lines = [
        "# Plans that fit finds beside published degrees",
        "",
        f"On `{CLUSTER}`, in bfloat16 with Adam and sequences of {SEQUENCE:,} tokens, as "
        f"`{SOFTWARE}` runs them: the published degrees with their fastest way to",
        "recompute, and the fastest plan of Megatron's family, or a change of it that is faster. "
        "Seconds are those of one core of a machine that ran other "
        "programs beside, so they are upper bounds. What was published in fp8, or "
        "with states of Adam in bfloat16,",
        "takes more time or memory here, where parameters and states are kept in float32: degrees "
        "that ran may not fit. Pairs of passes of one chunk, which DualPipe has, are not in the "
        "family. Made by [published_degrees.py](published_degrees.py).",
        "",
        "| model, devices, batch | degrees | step | memory, GiB | seconds |",
        "|---|---|---|---|---|",
    ]
    for one in rows:
        case = CASES[one.case]
        lines += [
            f"| {case.model}, {case.devices:,}, {case.batch:,} | {case.source}: "
            f"`{one.published}` | {_step(one.published_seconds)} | {one.published_gib:.1f} | |",
            f"| | found: `{one.found}` | {one.found_seconds:.2f} s | {one.found_gib:.1f} | "
            f"{one.seconds:.0f} |",
            *(f"| | in pairs: `{p}` | {_step(s)} | {gib:.1f} | |" for p, s, gib in one.pairs),
        ]
    return "\n".join(lines) + "\n"


def _step(seconds: float | None) -> str:
    return f"{seconds:.2f} s" if seconds else "does not fit"


def main() -> None:
    """Make the rows, and write the page after each."""
    known: dict[int, Row] = {}
    if ROWS.exists():
        read = (Row(**json.loads(line)) for line in ROWS.read_text().splitlines())
        known = {one.case: one for one in read}
    for number in map(int, sys.argv[1:]) if sys.argv[1:] else range(len(CASES)):
        known[number] = row(number)
        print(known[number], flush=True)
        rows = [known[one] for one in sorted(known)]
        ROWS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows))
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
