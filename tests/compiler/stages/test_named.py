"""Named plans among the candidates of a pipeline: equal to the plans of the whole program."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from shardwright.api import compile
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.solver.work import Budget
from tests.extent import ANY_PLAN, first
from tests.zoo_sizes import SMALL

POD = cluster("a100-pod:figures=datasheet")
DEEP = "gpt:layers=4,hidden=16,heads=4,batch=8,sequence=8,vocabulary=32,dtype=float32"


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("gpt", "tensor=2,pipeline=2,data=2,zero=1,sequence_parallel,micro_batch=1"),
        ("gpt", "tensor=2,pipeline=2,data=2,micro_batch=1"),
        ("llama", "pipeline=2,data=4,zero=3,micro_batch=1"),
    ],
)
def test_stages_of_a_named_plan(model: str, text: str) -> None:
    """The plans of the stages of a named plan are those of the plan of the whole program."""
    plan = NamedPlan.parse(text)
    given = compile(SMALL[model], 8, cluster=POD, plan=plan, optimizer="adam")
    passes = given.plan.program.mesh.passes
    options = CompileOptions(stages=2, micro_batches=passes, optimizer=Optimizer("adam"))
    source = given.compiled.source
    mesh = plan.mesh(POD, 8)
    search = PipelinePartitioning(source, POD, mesh, options, PassManager(), None, Budget(60), 0)
    (plans,) = [
        stages
        for degrees in search.named[0].plans(mesh)
        for stages in degrees
        if replace(stages.named.plan, pipeline=2, micro_batch=1) == plan
    ]
    cut = search.even_cut
    assert cut is not None
    (level, *_) = plans.problems.levels
    staged = search.builder.staged(cut, (plans.at_level(level),) * 2, [inf, inf])
    assert staged is not None
    step = search.builder.emitted(cut, [one.decisions for one in staged]).step
    assert step.seconds == pytest.approx(given.compiled.result.cost, rel=1e-9)
    assert step.memory.by_group == pytest.approx(given.compiled.memory.by_group, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stages", "chunks", "schedule"),
    first(1, [(2, 1, "zero_bubble"), (4, 1, "zero_bubble"), (2, 2, None)]),
)
def test_no_slower_than_named_plans(stages: int, chunks: int, schedule: str | None) -> None:
    options: dict[str, Any] = {"cluster": POD, "optimizer": "adam", "micro_batches": 4}
    numbers = {"stages": stages, "chunks": chunks, "schedule": schedule, **ANY_PLAN}
    found = compile(DEEP, 2 * stages, **numbers, **options)
    keys = [f"chunks={chunks}"] * (chunks > 1) + [f"schedule={schedule}"] * bool(schedule)
    for text in ("tensor=2,sequence_parallel", "data=2,zero=1"):
        plan = ",".join([text, f"pipeline={stages}", *keys])
        named = compile(DEEP, 2 * stages, plan=plan, **options)
        assert found.compiled.result.cost <= named.compiled.result.cost * (1 + 1e-9)


@pytest.mark.long
def test_a_named_plan_answers_where_searches_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a limit for recomputed blocks a plan of them is emitted, whatever searches find."""
    options: dict[str, Any] = {"cluster": POD, "optimizer": "adam", "stages": 2}
    options |= {"micro_batches": 4, "effort": 0.02, **ANY_PLAN}
    monkeypatch.setattr(
        "shardwright.planner.fronts.problem.StageProblems.plan", lambda *_, **__: None
    )
    shallow = DEEP.replace("layers=4", "layers=2")
    free = compile(shallow, 4, **options)
    tight = 0.8 * free.compiled.memory.peak_bytes
    found = compile(shallow, 4, memory_limit=tight, **options)
    assert found.compiled.memory.peak_bytes <= tight
    assert not free.plan.program.recomputed
