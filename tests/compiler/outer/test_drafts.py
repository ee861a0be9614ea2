"""Drafts of one stage: a plan that fits, with the step of its program, found by one search."""

from math import inf

import pytest

from shardwright.compiler.outer import drafts
from shardwright.compiler.outer.drafts import Drafting
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import serial_seconds, simulate
from shardwright.ir.errors import NotFoundError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions

POD = cluster("a100-pod")
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))


def search(memory: float = inf, objective: str = "overlapped") -> Drafting:
    options = CompileOptions(
        micro_batches=2,
        optimizer=Optimizer("adam"),
        memory_limit=memory,
        objective=objective,  # type: ignore[arg-type]
    )
    gpt = load_model(
        "gpt:layers=2,hidden=64,heads=4,batch=16,sequence=16,vocabulary=512,dtype=float32"
    )
    source = Canonicalize().run(gpt.graph)
    return Drafting(source, POD, MESH, options, PassManager(), None)


@pytest.mark.parametrize("objective", ["overlapped", "serial"])
def test_a_draft_costs_what_its_program_does_and_no_less_than_the_bound(objective: str) -> None:
    draft, full = search(objective=objective).draft(), search(objective=objective).emit()
    assert draft.result is not None
    assert full.result is not None
    step = simulate(draft.program, POD).step_seconds
    cost = step if objective == "overlapped" else serial_seconds(draft.program, POD)
    assert draft.result.cost == pytest.approx(cost, rel=2e-3)
    assert draft.result.lower_bound == 0.0
    assert full.result.lower_bound <= draft.result.cost


def test_a_draft_fits_where_memory_is_short() -> None:
    free = search().draft()
    limit = 0.6 * free.memory.peak_bytes
    within = search(limit).draft()
    assert peak_memory(within.program).peak_bytes <= within.memory.peak_bytes <= limit
    assert within.result is not None
    assert free.result is not None
    assert free.result.cost <= within.result.cost


@pytest.mark.parametrize("objective", ["overlapped", "serial"])
def test_a_large_problem_is_drafted_near_its_plan_without_a_limit(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "_SIZE", 0)
    free = search(objective=objective).draft()
    limit = 0.6 * free.memory.peak_bytes
    within = search(limit, objective).draft()
    assert peak_memory(within.program).peak_bytes <= within.memory.peak_bytes <= limit
    assert within.result is not None
    step = simulate(within.program, POD, limit).step_seconds
    cost = step if objective == "overlapped" else serial_seconds(within.program, POD)
    assert within.result.cost == pytest.approx(cost, rel=2e-3)
    assert free.result is not None
    assert free.result.cost <= within.result.cost
    with pytest.raises(NotFoundError, match="no draft fits"):
        search(1000.0, objective).draft()


def test_where_nothing_fits_there_is_no_draft() -> None:
    with pytest.raises(NotFoundError, match="no draft fits"):
        search(1000.0).draft()
