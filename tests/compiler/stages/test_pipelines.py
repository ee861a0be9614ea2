"""Pipelines that the search finds: right, within memory, no worse than others, bounded."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NotFoundError, OptionError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.proof import prove
from shardwright.solver.evaluate import evaluate
from shardwright.solver.work import Budget
from shardwright.verification.comparison import verify_plan
from tests.extent import ANY_PLAN, first
from tests.random_graphs import random_graph
from tests.random_micro_batches import random_assignment
from tests.zoo_sizes import SMALL

POD = cluster("a100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 2),))


def searched(
    graph: Graph, stages: int, passes: int, memory: float | None, objective: str = "serial"
) -> PipelinePartitioning:
    options = CompileOptions(
        stages=stages,
        micro_batches=passes,
        optimizer=Optimizer("adam"),
        memory_limit=memory,
        objective=objective,  # type: ignore[arg-type]
        gap=1e-9,
    )
    source = Canonicalize().run(graph)
    return PipelinePartitioning(source, POD, MESH, options, PassManager(), None, Budget(60), 0)


def random_pipelines(
    search: PipelinePartitioning, random: np.random.Generator, count: int
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield the steps of pipelines of random cuts and decisions, with the memory of each group."""
    blocks = len(search.blocks)
    for _ in range(count):
        inner = random.choice(range(1, blocks), search.schedule.stages - 1, replace=False)
        cut = (0, *sorted(inner.tolist()), blocks)
        parts = [search.blocks.stretch(*pair) for pair in pairwise(cut)]
        plans: list[Decisions] = []
        counted: list[float] = []
        sent: dict[str, Layout] = {}
        try:
            for stage, part in enumerate(parts):
                flight = search.bounds.in_flight[stage]
                request = search.problems[0].request_of(cut[stage], cut[stage + 1], flight)
                received = search.builder.received(part, sent)
                options = replace(request.options, input_layouts=received)
                space = replace(request, options=options).space
                assignment = random_assignment(space, random, most=2)
                counted.append(float(evaluate(space.problem, assignment).peak_usage))
                plans.append(space.decisions(assignment))
                sent.update((name, plans[-1].stored[name]) for name in part.sent)
        except PassError:  # strategies between which a tensor cannot be redistributed
            continue
        step = search.builder.emitted(cut, plans).step
        assert all(
            own <= most * (1 + 1e-9)
            for own, most in zip(counted, step.memory.by_group, strict=True)
        )
        yield step.seconds, step.memory.by_group


@pytest.mark.long
@pytest.mark.parametrize(
    ("objective", "passes"),
    first(
        2,
        [
            *(("overlapped", 2), ("serial", 4), ("overlapped", 1)),
            *(("serial", 1), ("serial", 2), ("overlapped", 4)),
        ],
    ),
)
def test_random_programs(passes: int, objective: str) -> None:
    """No random pipeline is faster than the answer, or than the bound."""
    count = 0
    for seed in (*first(4, range(12)), 33):  # of 33, two blocks read what is computed everywhere
        search = searched(random_graph(seed, 4), 2, passes, None, objective)
        try:
            found = search.emit()
        except OptionError:  # no cut, or no micro-batches
            continue
        assert found.result is not None
        pipelines = list(random_pipelines(search, np.random.default_rng(seed), 6))
        best = min((seconds for seconds, _ in pipelines), default=np.inf)
        assert found.result.lower_bound <= min(best, found.result.cost) * (1 + 1e-9)
        assert found.result.cost <= best * (1 + 1e-9)
        count += 1
    assert count >= 4


@pytest.mark.long
def test_memory_limits() -> None:
    """An answer fits; where nothing is found, no random pipeline fits either."""
    outcomes = []
    for seed in first(3, (0, 2, 9, 10, 13)):
        graph = random_graph(seed, 4)
        try:
            free = searched(graph, 2, 2, None)
            most = max(free.emit().memory.by_group)
        except OptionError:
            continue
        for share in (0.9, 0.6):
            search = searched(graph, 2, 2, share * most)
            pipelines = random_pipelines(free, np.random.default_rng(seed), 6)
            fitting = [seconds for seconds, held in pipelines if max(held) <= share * most]
            try:
                found = search.emit()
            except InfeasibleError:
                outcomes.append("infeasible")
                assert not fitting
                continue
            except NotFoundError:
                outcomes.append("not found")
                continue
            outcomes.append("found")
            assert max(found.memory.by_group) <= share * most
            assert found.result is not None
            assert found.result.lower_bound <= min([found.result.cost, *fitting]) * (1 + 1e-9)
    assert "found" in outcomes


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "stages", "chunks", "schedule"),
    first(
        2, [("gpt", 2, 1, "gpipe"), ("mlp", 2, 2, None), ("llama", 2, 1, None), ("gpt", 4, 1, None)]
    ),
)
def test_models(model: str, stages: int, chunks: int, schedule: str | None) -> None:
    found = compile(
        SMALL[model],
        2 * stages,
        cluster="a100-pod:figures=datasheet",
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        micro_batches=4,
        optimizer="adam",
        effort=0.02,
        **ANY_PLAN,
    )
    assert found.plan.program.stages == stages * chunks
    assert prove(found.plan).proven
    assert verify_plan(found.plan, 1).equal
    result = found.compiled.result
    assert result is not None
    assert 0 < result.lower_bound <= result.cost


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stages": 3},
            "`stages` is 3, and 8 devices cannot be divided into so many groups; use a number of "
            "stages that divides the number of devices",
        ),
        ({"chunks": 2}, "`chunks` has no effect without a pipeline; give `stages` too"),
        (
            {"stages": 2, "mode": "data_parallel"},
            "`stages` is 2, which is not supported with `mode` data_parallel; leave one of them "
            "out",
        ),
        (
            {"stages": 2, "plan": "tensor=2"},
            "`stages` has no effect with `plan`, which decides it; write `pipeline=2` in the plan",
        ),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        compile(SMALL["mlp"], 8, cluster="a100-pod:figures=datasheet", **options)
    assert str(caught.value) == message


@pytest.mark.long
@pytest.mark.parametrize("passes", first(1, [2, 1]))
def test_statistics_of_a_batch(passes: int) -> None:
    """Each micro-batch has its own, and what runs once does not end what can be cut."""
    model = "resnet:layers=18,small=true,side=8,classes=8,batch=4,width=4"
    options: dict[str, Any] = {"micro_batches": passes, "cluster": "a100-pod:figures=datasheet"}
    found = compile(model, 2, stages=2, effort=0.05, **options, **ANY_PLAN)
    named = compile(model, 2, plan="pipeline=2", **options)
    assert verify_plan(found.plan, 1).equal
    assert found.compiled.result is not None
    assert named.compiled.result is not None
    assert found.compiled.result.lower_bound <= named.compiled.result.cost
    assert found.compiled.result.cost <= named.compiled.result.cost


@pytest.mark.long
def test_many_cuts_are_no_worse_than_even_ones() -> None:
    model = (
        "gpt:layers=3,hidden=16,heads=4,batch=4,sequence=8,vocabulary=32,tied=false,dtype=float32"
    )
    options: dict[str, Any] = {"optimizer": "adam", "objective": "serial"}
    even = compile(model, 3, plan="pipeline=3,micro_batch=2", **options)
    found = compile(model, 3, stages=3, micro_batches=2, gap=0.02, **options)
    assert "cuts between 65 blocks" in found.plan.document.how
    assert found.plan.document.objective <= even.plan.document.objective


def test_a_pipeline_says_where_the_budget_ended_the_search_for_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = random_graph(0, 4)
    free = searched(graph, 2, 2, None, "overlapped").emit().result
    assert free is not None
    assert "budget" not in free.how
    for share, said in (
        ("_SHARE_OF_BOUND", "; a share of the budget ended .*the search for a bound"),
        ("_SHARE_OF_WEIGHTS", "; a share of the budget ended the search by weights"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(f"shardwright.compiler.stages.partitioning.{share}", 0.0)
            ended = searched(graph, 2, 2, None, "overlapped").emit().result
        assert ended is not None
        assert re.search(said + r" after \S+ s; \S+ of 60 s of work were spent$", ended.how)
        assert ended.lower_bound <= free.cost
