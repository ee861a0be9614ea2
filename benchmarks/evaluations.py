"""Compare evaluations of named plans with compiled programs: ``python benchmarks/evaluations.py``.

Every model of the zoo, at a size of seconds, is compiled by named plans on 8 devices; each
evaluation must have the same step, memory by kind, and traffic. Then evaluations of large models
are timed.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from machine import machine

import shardwright
from shardwright.arguments import asked_options, with_own_options
from shardwright.compiler.accounting import traffic
from shardwright.compiler.evaluation.evaluator import Evaluation, Evaluator
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.ir.errors import NoPlanError, ShardwrightError
from shardwright.models import training_definition
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.tracing import Definition

_TEXT = "heads=4,sequence=32,vocabulary=96,batch=32"
MODELS = (
    "mlp:batch=32,inputs=64,hidden=128,classes=8,layers=12",
    "two_matmul:batch=32",
    "lenet5:batch=32",
    "resnet18-cifar:batch=32",
    "resnet50:batch=32,side=64,width=8",
    "vgg16:batch=32,side=32,width=8",
    "unet:batch=32,side=32,width=4",
    f"gpt:layers=12,hidden=64,{_TEXT},dropout=0.1",
    f"bert:layers=12,hidden=64,{_TEXT}",
    "vit:layers=12,hidden=64,heads=4,batch=32,side=32,patch=8",
    f"llama:layers=16,hidden=64,kv_heads=4,inner=128,{_TEXT}",
    f"mixtral:layers=12,hidden=64,kv_heads=4,inner=128,experts=8,{_TEXT}",
    "wide_deep:batch=32",
    "dlrm:batch=32,rows=200",
    "feature_hash:batch=32",
)
PLANS = (
    "data=8",
    "data=8,zero=1,micro_batch=1",
    "data=8,zero=2,micro_batch=2",
    "data=8,zero=3,recompute=full",
    "data=8,zero=3,micro_batch=1,recompute=selective",
    "data=8,zero=3,shard=4,recompute=operators",
    "data=8,expert=8",
    "tensor=2,data=4,zero=1,sequence_parallel",
    "tensor=4,data=2,micro_batch=4",
    "tensor=2,context=2,data=2,sequence_parallel",
    "pipeline=2,data=4,micro_batch=2,zero=1",
    "pipeline=4,tensor=2,data=1,micro_batch=4,recompute=full",
    "pipeline=2,data=4,chunks=2,schedule=interleaved,micro_batch=2,zero=2",
    "pipeline=2,data=4,schedule=zero_bubble,micro_batch=2",
)
"""More than twelve, of all degrees, ZeRO stages, schedules and ways to recompute."""
TIMED = (
    ("llama3-70b", 64, "tensor=8,data=8,micro_batch=1,zero=1,sequence_parallel"),
    ("llama3-70b", 64, "data=64,micro_batch=1,zero=3,recompute=full"),
    ("llama3-70b", 64, "tensor=8,pipeline=4,data=2,micro_batch=1,zero=1,sequence_parallel"),
)
_AGAIN = 3  # evaluations that are timed, the first of which brings the model to canonical form


@dataclass(frozen=True)
class Difference:
    """The largest relative difference of an evaluation and a compiled program."""

    step: float
    memory: float
    traffic: float

    @property
    def largest(self) -> float:
        """The largest of them."""
        return max(self.step, self.memory, self.traffic)


def evaluator_of(definition: Definition, where: Cluster, devices: int) -> Evaluator:
    """Return what evaluates plans of a model, in bfloat16 by Adam."""
    given = {"precision": "bfloat16", "optimizer": "adam"}
    asked: CompileOptions = with_own_options(asked_options(given, None, ()), definition, given)
    return Evaluator(definition.graph, where.used_by(devices), devices, asked)


def compare(found: Evaluation, built: shardwright.Compilation) -> Difference:
    """Return how far an evaluation is from a compiled program."""
    document, program = built.plan.document, built.plan.program
    own = {kind: volume.bytes for kind, volume in traffic(found.program).items()}
    its = {kind: volume.bytes for kind, volume in traffic(program).items()}
    step = document.objective if found.fits else built.timeline_within(inf).step_seconds
    return Difference(
        abs(found.step.seconds / step - 1),
        _differ(found.step.memory.by_kind, document.memory.by_kind),
        _differ(own, its),
    )


def _differ(own: Mapping[str, float], its: Mapping[str, float]) -> float:
    if own.keys() != its.keys():
        return inf
    whole = max(sum(its.values()), 1.0)
    return max((abs(own[kind] - its[kind]) / whole for kind in its), default=0.0)


def compared() -> Iterator[tuple[str, str, Evaluation, Difference]]:
    """Yield the models and plans that both can do, and their differences.

    Raises
    ------
    AssertionError
        If one of them refuses what the other does not.
    """
    where = cluster("h100-pod")
    for model in MODELS:
        evaluator = evaluator_of(shardwright.zoo.load(model), where, 8)
        for text in PLANS:
            plan = NamedPlan.parse(text)
            given = {"cluster": where, "precision": "bfloat16", "optimizer": "adam"}
            try:
                built = shardwright.compile(model, 8, plan=plan, **given)
            except NoPlanError:
                free = {"memory_limit": inf, "objective": "serial"}
                built = shardwright.compile(model, 8, plan=plan, **given, **free)
            except ShardwrightError as refused:
                _check_refused(evaluator, plan, str(refused))
                continue
            found = evaluator.evaluation(plan)
            yield model, text, found, compare(found, built)


def _check_refused(evaluator: Evaluator, plan: NamedPlan, sentence: str) -> None:
    said = ""
    try:
        evaluator.evaluation(plan)
    except ShardwrightError as error:
        said = str(error)
    assert said == sentence, f"{plan} is refused by `{said}`, by the compiler by `{sentence}`"


def timed() -> Iterator[tuple[str, ...]]:
    """Yield rows of large models: evaluations a second, after the first."""
    for model, devices, text in TIMED:
        definition, _ = training_definition(model, devices, 1)
        evaluator = evaluator_of(definition, cluster("h100-pod"), devices)
        plan, seconds = NamedPlan.parse(text), []
        for _ in range(_AGAIN):
            begin = time.process_time()
            found = evaluator.evaluation(plan)
            assert found.seconds > 0  # it is simulated when it is asked for
            seconds.append(time.process_time() - begin)
        again = min(seconds[1:])
        yield (
            *(model, str(devices), f"`{text}`", f"{len(found.program):,}"),
            *(f"{seconds[0]:.2f}", f"{again:.2f}", f"{1 / again:.1f}"),
        )


def main() -> None:
    """Compare and time all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    worst: dict[str, tuple[int, Difference]] = {}
    for model, text, found, difference in compared():
        fits = "fits" if found.fits else "does not fit"
        print(f"{model} `{text}` {fits}: {difference.largest:.1e}", flush=True)
        count, before = worst.get(model, (0, Difference(0.0, 0.0, 0.0)))
        parts = ("step", "memory", "traffic")
        most = {name: max(getattr(before, name), getattr(difference, name)) for name in parts}
        worst[model] = count + 1, replace(before, **most)
    lines = [
        "# Evaluations against compiled programs",
        "",
        f"Written by `python benchmarks/evaluations.py` on {machine()}.",
        "",
        f"{sum(count for count, _ in worst.values())} named plans of {len(MODELS)} models on 8",
        "devices of `h100-pod`, bfloat16 and Adam: largest relative difference of an evaluation",
        "(`compiler/evaluation`) and the compiled program. Plans that a model has not are refused",
        "by both with the same sentence.",
        "",
        *_table(
            ("model", "plans", "step", "memory by kind", "traffic"),
            [
                (f"`{model}`", str(count), *(f"{v:.1e}" for v in (d.step, d.memory, d.traffic)))
                for model, (count, d) in worst.items()
            ],
        ),
        "",
        "Processor seconds of an evaluation: of the first, which brings the model to canonical",
        "form, and of another. The machine was busy with other work, which makes them longer.",
        "",
        *_table(("model", "devices", "plan", "operators", "first", "next", "a second"), [*timed()]),
    ]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
