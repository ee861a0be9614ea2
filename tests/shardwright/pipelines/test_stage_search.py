"""Numbers of stages, micro-batches and meshes searched together, against all of them one by one."""

from itertools import product

import pytest

import shardwright
from shardwright.compiler.outer import judge
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import OptionError, ShardwrightError
from tests.extent import ANY_PLAN, first

GPT = "gpt:layers=2,hidden=32,heads=4,batch=4,sequence=8,vocabulary=64,dtype=float32"
WIDE = "gpt:layers=2,hidden=64,heads=2,batch=4,sequence=32,vocabulary=256,dtype=float32"
WIDE_MEMORY = 1.38e6
GAP = 1e-4
DEEP = "mlp:batch=2,layers=4"


def one_by_one(model, devices, **options):
    """Return the cost and the bound of every configuration, compiled alone."""
    found = {}
    for stages, count in product([s for s in (1, 2, 4) if devices % s == 0], (1, 2, 4)):
        try:
            plan = shardwright.compile(
                model, devices, cluster="cpu", stages=stages, micro_batches=count, **options
            ).plan.document
        except ShardwrightError:
            continue
        found[stages, count] = plan.objective, plan.lower_bound
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "objective", "memory", "recompute"),
    first(
        1,
        [
            ("mlp:batch=2", "serial", None, "search"),
            (WIDE, "overlapped", WIDE_MEMORY, "search"),
            (GPT, "serial", None, "full"),
        ],
    ),
)
def test_the_best_of_all_stages_and_micro_batches_is_found(
    model, objective, memory, recompute, monkeypatch
):
    floors = []
    kept = judge.ProgramJudge.floor
    monkeypatch.setattr(
        judge.ProgramJudge, "floor", lambda *a, **k: floors.append(kept(*a, **k)) or floors[-1]
    )
    options = {"objective": objective, "memory_limit": memory, "recompute": recompute, "gap": GAP}
    alone = one_by_one(model, 2, **options)
    found = shardwright.compile(
        model, 2, cluster="cpu", stages="search", micro_batches="search", workers=1, **options
    )
    plan, trace = found.plan.document, found.search_trace
    # Drafts, and what is tried of other schedules, may find a plan that none of them finds alone.
    assert plan.objective <= min(cost for cost, _ in alone.values()) * (1 + 2 * GAP)
    assert plan.lower_bound <= plan.objective
    assert plan.micro_batches == trace.best.micro_batches
    assert max(found.plan.program.stages, 1) == trace.best.stages
    for item in trace.tried:
        cost = alone.get((item.configuration.stages, item.configuration.micro_batches))
        assert item.outcome != "left"
        if cost is not None:
            assert item.lower_bound <= cost[0] * (1 + 1e-9)
            assert floors[0].of(item.configuration) <= cost[0] * (1 + 1e-9)


@pytest.mark.long
def test_stages_in_a_v_are_found_where_they_are_fastest():
    """On a slow link a step in stages is fastest, and least of it is bubble in a V."""
    known = cluster("cpu")
    slow = [level.model_copy(update={"bandwidth": 1e8, "latency": 1e-7}) for level in known.levels]
    options = {"cluster": known.model_copy(update={"levels": tuple(slow)}), **ANY_PLAN}
    sizes = "layers=8,hidden=128,heads=2,kv_heads=2,inner=352,sequence=32,vocabulary=32,batch=4"
    found = shardwright.compile(
        f"llama:{sizes}", 2, stages="search", micro_batches="search", workers=1, **options
    )
    best, cost = found.search_trace.best, found.plan.document.objective
    assert (best.stages, best.chunks, best.schedule) == (2, 2, "zero_bubble_v")
    for item in found.search_trace.tried:
        one = item.configuration
        assert one.schedule != "zero_bubble_v" or one.micro_batches > one.stages
        if one.stages == 2 and one.micro_batches == best.micro_batches:
            given = {"chunks": one.chunks, "schedule": one.schedule, "stages": 2}
            alone = shardwright.compile(f"llama:{sizes}", 2, micro_batches=4, **given, **options)
            assert cost <= alone.plan.document.objective
            assert item.lower_bound <= alone.plan.document.objective


@pytest.mark.long
def test_a_model_that_fits_no_other_way_gets_stages(monkeypatch):
    found = shardwright.compile(
        *(GPT.replace("batch=4", "batch=2"), 4),
        cluster="cpu",
        stages=2,
        micro_batches="search",
        mesh="search",
        workers=1,
        effort=0.02,
        **ANY_PLAN,
    )
    assert found.search_trace.best.stages == found.plan.program.stages == 2
    assert {item.configuration.stages for item in found.search_trace.tried} == {2}
    assert "no partial sums between stages" in found.plan.document.bound_covers


@pytest.mark.long
def test_configurations_without_a_form_are_left_out_with_their_reason():
    found = shardwright.compile(
        DEEP,
        2,
        cluster="cpu",
        stages=2,
        chunks=2,
        schedule="interleaved",
        micro_batches="search",
        workers=1,
        **ANY_PLAN,
    )
    tried = found.search_trace.tried
    refused = {item.configuration: item.reason for item in tried if item.outcome == "refused"}
    assert all(one.stages == 2 and one.micro_batches == 1 for one in refused)
    assert all("needs a multiple of 2 micro-batches" in reason for reason in refused.values())
    assert refused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mesh": "1x2"}, "`stages` is search, and the mesh `1x2` is that of one number of stages"),
        ({"mode": "data_parallel"}, "which is not supported with `mode` data_parallel"),
        ({"search": "recursive_programming"}, "not supported with `search` recursive_programming"),
        ({"cost_model": "mindspore"}, "`cost_model`|`mindspore`"),
        ({"plan": "data=2"}, "`stages` has no effect with `plan`"),
        ({"schedule": "interleaved"}, "needs at least 2 chunks"),
        ({"chunks": 2, "schedule": "gpipe"}, "has one chunk for each device group, not 2"),
        ({"stages": "all"}, "expected an integer of at least 1, or `search`"),
    ],
)
def test_what_is_not_searched_together_is_refused(options, told):
    with pytest.raises(OptionError, match=told):
        shardwright.compile(GPT, 2, cluster="cpu", **{"stages": "search", **options})
