"""Intervals of predicted steps: what published runs tell, and where they tell nothing."""

import pytest

import shardwright as sw
from shardwright.compiler.plans.rates import rates
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.intervals import (
    SHARE,
    Apart,
    Step,
    step_interval,
    told_apart,
)
from shardwright.cost_model.efficiency.software import software
from shardwright.tools.answers.told import interval_of


def step(name, run_by="ideal", seconds=2.0, of_layer=0.1, is_dense=True, recipe=""):
    return Step(seconds, of_layer, cluster(name).run_by(software(run_by)), is_dense, recipe)


def interval(*given, **others):
    return step_interval(step(*given, **others))


@pytest.mark.parametrize(
    ("name", "run_by", "is_dense", "known_by"),
    [
        ("h100-3200g", "megatron-core", True, "fitted"),
        ("h100-3200g", "megatron-core+overlap", True, "fitted"),
        ("h100-3200g", "megatron-core", False, "left_out"),
        ("h100-3200g", "deepspeed", True, "left_out"),
        ("a100-pod", "torchtitan", True, "left_out"),
        ("h100-3200g", "ideal", True, "program"),
    ],
)
def test_an_interval_says_how_its_figures_are_known(name, run_by, is_dense, known_by):
    found = interval(name, run_by, is_dense=is_dense)
    assert found is not None
    assert found.known_by == known_by
    assert found.low < found.high
    assert found.document["share"] == SHARE
    assert "published steps" in found.source


def test_what_was_fitted_is_known_better_and_a_program_is_faster_than_its_runs():
    fitted, left_out = interval("h100-3200g", "megatron-core"), interval("h100-3200g", "deepspeed")
    program = interval("h100-3200g", "ideal")
    assert fitted is not None
    assert left_out is not None
    assert program is not None
    assert left_out.low < fitted.low < 2.0 < fitted.high < left_out.high
    assert program.high > left_out.high
    twice = interval("h100-3200g", "megatron-core", 4.0)
    assert twice is not None
    assert (twice.low, twice.high) == pytest.approx((2 * fitted.low, 2 * fitted.high))


@pytest.mark.parametrize(
    ("name", "run_by", "seconds"),
    [
        ("gb200-nvl72", "megatron-core", 2.0),  # scaled from another device
        ("h100-pod:figures=datasheet", "ideal", 2.0),
        ("h100-3200g", "torchtitan", 1e-3),  # shorter than all published ones
    ],
)
def test_what_no_published_step_tells_has_no_interval(name, run_by, seconds):
    assert interval(name, run_by, seconds) is None


def test_fitted_plans_are_told_apart_by_no_more_than_others():
    fitted, left_out = (
        told_apart(step("h100-3200g", name)) for name in ("megatron-core", "deepspeed")
    )
    assert fitted is not None
    assert left_out is not None
    assert (fitted.known_by, left_out.known_by) == ("fitted", "left_out")
    assert 0 < fitted.share <= left_out.share
    assert "pairs of published steps" in fitted.source
    assert fitted.document["share"] == fitted.share
    assert told_apart(step("gb200-nvl72")) is None  # no step tells
    assert told_apart(step("h100-3200g")) is None  # no ratios of programs tell


@pytest.mark.parametrize(("other", "tells"), [(1.0, False), (1.19, False), (1.21, True)])
def test_steps_are_told_apart_by_a_share_of_the_faster_one(other, tells):
    apart = Apart(0.2, "fitted", "no pair")
    assert apart.tells(2.0, 2.0 * other) == apart.tells(2.0 * other, 2.0) == tells


def test_layers_that_wait_for_a_host_that_was_not_fitted_have_no_interval():
    short = {"of_layer": 0.009}
    assert interval("h100-3200g", "deepspeed", **short) is None
    assert told_apart(step("h100-3200g", "deepspeed", **short)) is None
    assert interval("h100-3200g", "megatron-core", is_dense=False, **short) is None
    assert interval("h100-3200g", "megatron-core", **short) is not None
    assert interval("h100-3200g", "ideal", **short) is not None


def test_a_recipe_whose_figure_is_scaled_has_no_interval():
    assert interval("b200-node", "megatron-core") is not None
    assert interval("b200-node", "megatron-core", recipe="fp8-current") is None
    assert interval("h100-3200g", "megatron-core", recipe="fp8-current") is not None


def test_a_mixture_is_not_dense_where_all_of_its_experts_are_chosen():
    sizes = "layers=1,hidden=32,heads=2,kv_heads=2,inner=32,batch=4,sequence=8,vocabulary=32"
    model = f"mixtral:{sizes},experts=2,top_k=2"
    found = sw.compile(model, 2, plan="data=2", precision="bfloat16", cluster="h100-3200g")
    speed = rates(found.plan, found.compiled, found.cluster.device, 2.0)
    run_by = found.cluster.run_by(software("megatron-core"))
    told = interval_of(speed, found.plan, 2.0, run_by)
    assert told is not None
    assert told.known_by == "left_out"
