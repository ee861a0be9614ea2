"""The rows of ``benchmarks/measurements``, and how figures are read, changed and written."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from benchmarks.measurements.__main__ import is_told
from benchmarks.measurements.choice import regrets
from benchmarks.measurements.figures import ALL, MEASURED, Rates, concerns, read, rewritten
from benchmarks.measurements.intervals import Known, Spread, known
from benchmarks.measurements.programs import at, repetition, small
from benchmarks.measurements.rows import PUBLISHED, Row, groups, read_rows
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.program_work import program_work
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.timeline import simulate
from shardwright.operators.models.recipes import RECIPES
from shardwright.search.named_plan import NamedPlan

FILE = """name: x
device:
  efficiency:
    matmul: {value: 0.5, tag: assumed, source: "a"}  # gone with the figure
levels:
  - name: node
    efficiency:
      skew: {value: 1.0, tag: assumed, source: "a"}
  - name: pod
    efficiency:
      skew: {value: 2.0, tag: assumed, source: "a"}
recipes:
  fp8-rowwise: {value: 0.5, tag: assumed, source: "a"}
"""
needs_rows = pytest.mark.skipif(not PUBLISHED.exists(), reason="the published rows are not here")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("device.efficiency.matmul", 3),
        ("node.efficiency.skew", 7),
        ("pod.efficiency.skew", 10),
        ("recipes.fp8-rowwise", 12),
    ],
)
def test_a_figure_is_written_where_it_stands_and_nowhere_else(key, line):
    old, new = FILE.splitlines(), rewritten(FILE, key, "{value: 9}").splitlines()
    assert [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [line]
    assert new[line].strip() == f"{key.split('.')[-1]}: {{value: 9}}"


def test_every_fitted_figure_stands_in_all_of_its_files_alike():
    for figure in (*ALL, *MEASURED):
        for place, scale in figure.at_places:
            assert read(place) == pytest.approx(figure.value * scale, rel=1e-3)
        assert 0 < figure.value <= figure.most * (1 + 1e-3)
    assert len({figure.name for figure in ALL}) == len(ALL)


def test_rows_tell_a_figure_that_they_narrow_or_drive_away():
    """One that is driven far below its prior hardly matters there, so it is not narrowed."""
    figure = ALL[0]
    wide, far = figure.sigma, figure.prior * math.exp(-2 * figure.sigma)
    assert not is_told(figure, figure.prior, wide)
    assert is_told(figure, figure.prior, 0.5 * wide)
    assert is_told(figure, far, wide)


def test_rates_change_their_figures_alone():
    values = [figure.value / 2 for figure in ALL]
    halved = Rates(ALL, values).cluster("a100-800g", "megatron-deepspeed")
    plain = cluster("a100-800g").for_programs_of(software("megatron-deepspeed"))
    matmul = plain.device.efficiency.matmul.value
    assert halved.device.efficiency.matmul.value == pytest.approx(matmul / 2)
    assert halved.device.efficiency.memory == plain.device.efficiency.memory
    own = software("megatron-deepspeed")
    assert own is not None
    assert halved.levels[1].skew_seconds == pytest.approx(own.skew.value / 2)
    assert halved.levels[1].bandwidth == plain.levels[1].bandwidth
    assert halved.software.name == "megatron-deepspeed"


def test_a_figure_of_a_recipe_concerns_steps_by_it_alone():
    (own,) = (figure for figure in ALL if figure.name == "torchtitan recipes fp8-rowwise")
    where = "h100-96gb-3200g", "torchtitan+async_tensor"
    assert [concerns(own, *where, p) for p in ("bfloat16", "fp8-current", "fp8-rowwise")] == [
        *(False, False, True)
    ]
    assert not concerns(own, where[0], "megatron-core", "fp8-rowwise")
    halved = Rates([own], [own.value / 2]).software("torchtitan+eager")
    assert halved.recipe_share("fp8-rowwise") == pytest.approx(own.value / 2)
    assert halved.pointwise == software("torchtitan+eager").pointwise


@needs_rows
def test_every_row_is_read_or_left_out_with_a_reason():
    rows, left_out = read_rows()
    assert len(rows) + len(left_out) == 1681
    assert all(reason for _, _, reason in left_out)
    counts = Counter(row.source for row in rows)
    assert counts["vTrain single"] == 817
    assert Counter((r.source, r.precision) for r in rows if r.precision in RECIPES) == {
        ("torchtitan", "fp8-current"): 13,
        ("torchtitan", "fp8-rowwise"): 4,
        ("Megatron-Core", "fp8-current"): 7,
        ("Megatron-Core", "fp8-delayed"): 3,
    }
    assert counts["vTrain multi"] == 62
    assert counts["SC21"] == 6


@needs_rows
@pytest.mark.parametrize(
    "change",
    [
        {"precision": "amp_fp8"},
        {"sharding": "SHARD_GRAD_OP"},
        {"notes": "params 1; cpu offload True"},
        {"gpu": "gh200"},
    ],
)
def test_what_a_row_cannot_be_told_with_leaves_it_out(change, tmp_path):
    every = json.loads(PUBLISHED.read_text())["rows"]
    record = next(r for r in every if r["source"].startswith("MosaicML"))
    path = tmp_path / "rows.json"
    for changed, kept in ({}, 1), (change, 0):
        path.write_text(json.dumps({"rows": [record | changed]}))
        rows, left_out = read_rows(path)
        assert (len(rows), len(left_out)) == (kept, 1 - kept)


@needs_rows
def test_two_groups_of_several_chunks_have_a_stage_that_is_neither_first_nor_last():
    rows, _ = read_rows()
    found = [row for row in rows if row.plan.pipeline == 2 and row.plan.chunks > 1]
    assert found
    for row in found:
        assert "pipeline=3" in small(row, cluster(row.cluster)).plan


@pytest.mark.long
@needs_rows
def test_a_row_is_timed_by_the_product_s_own_path():
    rows, _ = read_rows()
    row = next(r for r in rows if r.source == "vTrain single" and r.plan.pipeline == r.layers // 6)
    described = Rates(ALL, [f.value for f in ALL]).cluster(row.cluster, row.software)
    few = program_work(small(row, described).program(), described)
    whole = at(row, row.layers, row.plan.pipeline, row.passes).program()
    found = few.seconds(described, repetition(row, described))
    assert found == pytest.approx(simulate(whole, described).step_seconds, rel=1e-9)
    assert found == pytest.approx(row.seconds, rel=0.3)


def measured(name, plan, seconds, sequence=2048):
    """Return a row of a small model that differs by its plan."""
    sizes = (("hidden", 1024), ("heads", 16), ("sequence", sequence), ("vocabulary", 51200))
    kinds = ("float16", "float32", "float32", "a100-selene", "megatron")
    return Row(name, "source", "gpt", sizes, 4, NamedPlan.parse(plan), 8, 64, *kinds, seconds)


def test_ratios_are_of_plans_of_one_group_that_are_predicted_near_each_other():
    rows = [
        measured("a", "data=8", 1.0),
        measured("b", "tensor=2,data=4", 1.1),
        measured("again", "data=8", 1.5),
        measured("slow", "tensor=8", 9.0),
        measured("unknown", "tensor=4,data=2", 1.0),
        measured("longer", "pipeline=2,data=4", 1.0, sequence=4096),
    ]
    assert groups(rows) == [[0, 1, 2, 3, 4]]
    predicted = np.array([1.0, 1.2, 1.4, 9.0, np.nan, 1.0])
    found = known(rows, np.log([row.seconds for row in rows]) - np.log(predicted))
    assert found.steps.count == 5
    ratios = [math.log(1.2 / 1.1), math.log(1.1 / 1.2 * 1.4 / 1.5)]
    assert sorted(found.ratios.by_source["source"]) == pytest.approx(
        sorted([*ratios, *(-one for one in ratios)])
    )
    assert found.apart is None  # too few
    several = Known(found.steps, Spread({"source": np.tile(ratios + [-one for one in ratios], 10)}))
    assert several.apart == pytest.approx(math.exp(max(map(abs, ratios))) - 1)


def test_the_simplest_plan_that_is_not_told_apart_has_the_regret_that_was_measured():
    rows = [
        measured("a", "tensor=2,data=4", 1.2),
        measured("b", "data=8", 1.0),
        measured("c", "tensor=8", 3.0),
    ]
    predicted = np.array([1.0, 1.05, 2.0])
    assert regrets(rows, predicted, 0.01) == pytest.approx((0.2, 0.2))
    assert regrets(rows, predicted, 0.1) == pytest.approx((0.2, 0.0))
