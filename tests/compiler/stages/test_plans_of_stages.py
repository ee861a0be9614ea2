"""Plans of stages: within memory, and of the problems that they are from."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.schedules import most_in_flight
from shardwright.ir.errors import NotFoundError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.choice.questions import NotFasterError
from shardwright.planner.fronts.front import BlockFront
from shardwright.planner.fronts.narrow import narrowed
from shardwright.planner.fronts.site import Site
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.partitioned import Emitted
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget
from tests.equivalence import assert_equal, trained
from tests.extent import first

POD = cluster("a100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
PAIR = Mesh((MeshAxis("x", 2),))  # has whole plans in a fraction of the time


def pipeline(
    memory: float | None = None, chunks: int = 1, schedule: str | None = None, mesh: Mesh = MESH
) -> PipelinePartitioning:
    options = CompileOptions(
        stages=2,
        micro_batches=4,
        chunks=chunks,
        optimizer=Optimizer("adam"),
        memory_limit=memory,
        schedule=schedule,
    )
    gpt = load_model(
        "gpt:layers=8,hidden=64,heads=4,batch=16,sequence=16,vocabulary=512,dtype=float32"
    )
    source = Canonicalize().run(gpt.graph)
    return PipelinePartitioning(source, POD, mesh, options, PassManager(), None, Budget(60), 0)


@cache
def drafts(chunks: int, schedule: str | None, mesh: Mesh) -> tuple[Emitted, Emitted]:
    """Return the draft without a limit, and the one within four fifths of its memory."""
    free = pipeline(chunks=chunks, schedule=schedule, mesh=mesh).draft()
    return free, pipeline(0.8 * free.memory.peak_bytes, chunks, schedule, mesh).draft()


@pytest.mark.long
@pytest.mark.parametrize(
    ("chunks", "schedule", "mesh"),
    first(2, [(2, None, MESH), (1, "zero_bubble", PAIR), (1, "1f1b", MESH)]),
)
def test_a_draft_fits_where_memory_is_short_and_costs_no_less(
    chunks: int, schedule: str | None, mesh: Mesh
) -> None:
    free, within = drafts(chunks, schedule, mesh)
    assert within.memory.peak_bytes <= 0.8 * free.memory.peak_bytes
    assert free.result is not None
    assert within.result is not None
    assert within.result.cost >= free.result.cost * (1 - 1e-9)
    assert free.result.lower_bound == 0.0


@pytest.mark.long
def test_a_draft_computes_what_the_model_computes() -> None:
    search, highs = pipeline(chunks=2), {"tokens": 512, "labels": 512}
    alone = replace(search.options, mode="stand_alone", micro_batches=1, stages=1, chunks=1)
    whole = compile_graph(search.source, POD, 1, alone).program
    _, within = drafts(2, None, MESH)
    assert_equal(trained(within.program, 1, highs), trained(whole, 1, highs))


@pytest.mark.long
def test_where_nothing_fits_there_is_no_draft() -> None:
    with pytest.raises(NotFoundError, match="no plan of blocks was found that fits"):
        pipeline(1e4, mesh=PAIR).draft()


def test_a_draft_is_not_emitted_where_none_is_expected_to_be_faster() -> None:
    with pytest.raises(NotFasterError, match="no plan of blocks is expected below 1e-06 s"):
        pipeline(mesh=PAIR).draft(below=1e-6)


@pytest.mark.long
def test_what_one_more_micro_batch_in_flight_takes_is_that_of_its_problem() -> None:
    search = pipeline()
    site = Site.of(search.source, POD, MESH, search.options, Budget())
    one, several = (BlockFront(site, site.most_frequent, count) for count in (1, 2))
    assert len(several.plans) >= len(one.plans)
    for plan in several.plans:
        assert plan.with_in_flight(1) == plan
        more = plan.with_in_flight(3)
        assert more.held_bytes - plan.held_bytes == pytest.approx(2 * plan.each_bytes)
        assert 0 < plan.each_bytes < plan.held_bytes


def test_the_stages_of_a_group_share_its_memory() -> None:
    search = pipeline(1e9, chunks=2)
    cut = search.even_cut
    assert cut is not None
    limits = search.builder.memory_limits(cut, search.problems)
    for group in range(2):
        assert sum(limit or 0.0 for limit in limits[group::2]) == pytest.approx(1e9)
    assert pipeline(1e9).builder.memory_limits(cut, search.problems) == [1e9, 1e9]


@pytest.mark.long
def test_a_plan_takes_as_much_memory_as_its_problem_says_however_many_are_in_flight():
    search, alone = pipeline(), pipeline()
    for begin, end in ((0, 3), (3, 6)):
        for in_flight in (4, 3, 1):
            plan = search.problems[0].plan(begin, end, in_flight, None)
            other = pipeline().problems[0].plan(begin, end, in_flight, None)
            assert plan is not None
            assert other is not None
            assert plan.memory_bytes == pytest.approx(other.memory_bytes, rel=1e-9)
            assert plan.decisions == other.decisions
    assert alone.problems[0].plan(0, 3, 1, 1.0) is None


def test_narrow_problems_have_the_strategies_that_are_given_and_every_storage():
    search = pipeline()
    request = search.problems[0].request_of(3, 5, 1)
    free = search.problems[0].plan(3, 5, 1, None)
    assert free is not None
    narrow = narrowed(request.recompute_space, request.planner, free.decisions.strategies)
    found = request.solve(narrow, replace(search.limits, memory_limit=None))
    assert found.decisions.strategies == free.decisions.strategies
    assert found.cost == pytest.approx(free.step_seconds, rel=1e-9)
    for choice, variable in zip(narrow.choices, narrow.problem.variables, strict=True):
        allowed = sum(cost < FORBIDDEN for cost in variable.cost)
        assert allowed > 0
        assert choice.kind == "operator" or allowed == len(variable.cost)


def test_equal_stages_share_their_tables():
    search = pipeline()
    spaces = [search.problems[0].request_of(*pair, 1).space for pair in pairwise((2, 4, 6))]
    shared = {id(pair.table) for space in spaces for pair in space.problem.pairs}
    alone = {id(pair.table) for pair in spaces[0].problem.pairs}
    assert shared == alone
    costs = [evaluate(s.problem, [0] * len(s.choices)).cost for s in spaces]
    assert costs[0] == costs[1]
    assert most_in_flight(search.schedule) == (2, 1)
