"""Compare evaluations of plans with compiled programs: ``python benchmarks/evaluations.py``.

Every model of the zoo, at a size of seconds, is compiled by named plans on 8 devices; each
evaluation must have the same step, memory by kind, and traffic. So must plans that searches find:
their programs as the planner makes them, with copies of most of the equal layers. Then evaluations
of large models are timed.
"""

import argparse
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from machine import machine

import shardwright
from shardwright.arguments import asked_options, with_own_options
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.compiler.plans.accounting import traffic
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.ir.errors import NoPlanError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.models import training_definition
from shardwright.passes.annotate import Annotate
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.simulated_step import (
    SimulatedStep,
    simulated_step,
    tolerance_of,
)
from shardwright.planner.evaluation.tiles import shortened
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
_WIDE = {"mesh": "search", "micro_batches": "search", "stages": "search", "effort": 0.05}
_LLAMA = f"hidden=64,kv_heads=4,inner=128,{_TEXT}"
_ON_64: dict[str, object] = {"mesh": "8x8", "effort": 0.02}
FOUND: tuple[tuple[str, int, dict[str, object]], ...] = (
    (MODELS[0], 8, {}),
    (MODELS[0], 8, _WIDE),
    ("two_matmul:batch=32", 8, _WIDE),
    ("lenet5:batch=32", 8, _WIDE),
    ("resnet18-cifar:batch=32", 8, {}),
    ("wide_deep:batch=32", 8, {}),
    ("dlrm:batch=32,rows=200", 8, {}),
    ("feature_hash:batch=32", 8, {}),
    (f"gpt:layers=12,hidden=64,{_TEXT},dropout=0.1", 8, {"mesh": "2x4"}),
    (f"gpt:layers=12,hidden=64,{_TEXT},dropout=0.1", 8, {"memory_limit": 1.6e6}),
    (f"gpt:layers=24,hidden=64,{_TEXT}", 8, {"stages": 2, "micro_batches": 4}),
    (f"bert:layers=12,hidden=64,{_TEXT}", 8, {"micro_batches": 4}),
    ("vit:layers=12,hidden=64,heads=4,batch=32,side=32,patch=8", 8, _WIDE),
    (f"llama:layers=16,{_LLAMA}", 8, {"mesh": "2x2x2"}),
    (f"llama:layers=16,{_LLAMA}", 8, _WIDE),
    (f"llama:layers=32,{_LLAMA}", 8, {"stages": 2, "chunks": 2, "micro_batches": 8}),
    (f"llama:layers=32,{_LLAMA}", 8, {"stages": 2, "schedule": "zero_bubble", "micro_batches": 4}),
    (f"mixtral:layers=12,experts=8,{_LLAMA}", 8, {"mesh": "2x4", "micro_batches": 2}),
    (f"mixtral:layers=24,experts=8,{_LLAMA}", 8, {"stages": 2, "micro_batches": 4}),
    ("llama3-8b:batch=8", 8, {"mesh": "2x4", "effort": 0.02}),
    ("gpt3-175b:batch=64", 64, _ON_64 | {"stages": 8, "mesh": "8", "micro_batches": 64}),
    ("mixtral-8x7b:batch=64", 64, _ON_64),
    ("llama3-70b:batch=64", 64, _ON_64 | {"micro_batches": 4}),
)
"""Models, devices, and what is searched: one stage and several, within little memory, mixtures."""
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


def compare(
    program: Graph, step: SimulatedStep, built: shardwright.Compilation, seconds: float
) -> Difference:
    """Return how far an evaluated program and its step are from a compiled program of a step."""
    own = {kind: volume.bytes for kind, volume in traffic(program).items()}
    its = {kind: volume.bytes for kind, volume in traffic(built.plan.program).items()}
    return Difference(
        abs(step.seconds / seconds - 1),
        _differ(step.memory.by_kind, built.plan.document.memory.by_kind),
        _differ(own, its),
    )


def _differ(own: Mapping[str, float], its: Mapping[str, float]) -> float:
    if own.keys() != its.keys():
        return inf
    whole = max(sum(its.values()), 1.0)
    return max((abs(own[kind] - its[kind]) / whole for kind in its), default=0.0)


def named() -> Iterator[tuple[str, str, bool, Difference]]:
    """Yield models and plans that both can do, whether these fit, and their differences.

    Raises
    ------
    AssertionError
        If one of them refuses what the other does not.
    """
    where = cluster("h100-pod:figures=datasheet")
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
            seconds = built.plan.document.objective
            seconds = seconds if found.fits else built.timeline_within(inf).step_seconds
            yield model, text, found.fits, compare(found.program, found.step, built, seconds)


def found() -> Iterator[tuple[str, int, str, str, Difference]]:
    """Yield models, devices, what was searched, the operators evaluated, and differences."""
    for model, devices, asked in FOUND:
        given = {"cluster": "h100-pod:figures=datasheet", "precision": "bfloat16"}
        given |= {"optimizer": "adam", **asked}
        built = shardwright.compile(model, devices, **given)
        size, program = _by_copies(built)
        limit = given.get("memory_limit", CompileOptions().memory_on(built.cluster))
        tolerance = tolerance_of(CompileOptions().gap)
        step = simulated_step(program, built.cluster, limit, overlaps=True, tolerance=tolerance)
        difference = compare(program, step, built, built.plan.document.objective)
        yield model, devices, _words(asked), f"{size:,} of {len(program):,}", difference


def _words(asked: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items()) or "layouts"


def _by_copies(built: shardwright.Compilation) -> tuple[int, Graph]:
    """Return the program of a plan as the planner makes it, and how many operators it emits.

    Of equal layers with equal plans few go through the passes, and copies stand for the others.
    """
    records = built.compiled.passes.records
    begin = next(i for i, record in enumerate(records) if isinstance(record.work, Annotate))
    source, (annotate, *works) = records[begin].before, (r.work for r in records[begin:])
    assert isinstance(annotate, Annotate)
    end = works.index(CleanUp()) + 1
    few = shortened(source, annotate.decisions)
    if few is not None:
        with suppress(NotRepeatedError):
            clean = PassManager().run_all((Annotate(few.decisions), *works[:end]), few.graph)
            return len(clean), PassManager().run_all(tuple(works[end:]), few.lengthened(clean))
    program = PassManager().run_all((annotate, *works), source)
    return len(program), program


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
        evaluator = evaluator_of(definition, cluster("h100-pod:figures=datasheet"), devices)
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
    by_model: dict[str, list[Difference]] = {model: [] for model in MODELS}
    for model, text, fits, difference in named():
        told = "fits" if fits else "does not fit"
        print(f"{model} `{text}` {told}: {difference.largest:.1e}", flush=True)
        by_model[model].append(difference)
    searched = []
    for model, devices, asked, size, difference in found():
        print(f"{model} {devices} {asked}: {difference.largest:.1e}", flush=True)
        searched.append((f"`{model}`", str(devices), asked, size, *_cells([difference])))
    lines = [
        "# Evaluations against compiled programs",
        "",
        f"Written by `python benchmarks/evaluations.py` on {machine()}.",
        "",
        f"{sum(map(len, by_model.values()))} named plans of {len(MODELS)} models on 8",
        "devices of `h100-pod`, bfloat16 and Adam: largest relative difference of an evaluation",
        "(`compiler/evaluation`) and the compiled program. Plans that a model has not are refused",
        "by both with the same sentence.",
        "",
        *_table(
            ("model", "plans", "step", "memory by kind", "traffic"),
            [(f"`{m}`", str(len(each)), *_cells(each)) for m, each in by_model.items()],
        ),
        "",
        f"{len(searched)} plans that `compile` finds: of equal layers with equal plans the planner",
        "sends few through the passes and puts copies for the others, and takes the step and the",
        "memory of that program. *Operators* tells how many it emits of how many. The step and the",
        "memory are compared with those that the plan says, the traffic with that of its program.",
        "",
        *_table(
            ("model", "devices", "searched", "operators", "step", "memory by kind", "traffic"),
            searched,
        ),
        "",
        "Processor seconds of an evaluation: of the first, which brings the model to canonical",
        "form, and of another. The machine was busy with other work, which makes them longer.",
        "",
        *_table(("model", "devices", "plan", "operators", "first", "next", "a second"), timed()),
    ]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(each: Sequence[Difference]) -> tuple[str, str, str]:
    """Return the largest differences."""
    return (
        f"{max(one.step for one in each):.1e}",
        f"{max(one.memory for one in each):.1e}",
        f"{max(one.traffic for one in each):.1e}",
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
