"""A mixture in pairs of passes in a V computes the training step of one device."""

import pytest

import shardwright as sw
from shardwright.ir.errors import OptionError

MIXTURE = (
    "mixtral:layers=4,hidden=16,heads=2,kv_heads=2,inner=32,experts=4,sequence=8,vocabulary=64,"
    "batch=16"
)
PLAN = "pipeline=2,data=2,expert=2,chunks=2,micro_batch=1,schedule=dualpipe_v"


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_numbers_of_a_mixture_are_those_of_one_device(recompute):
    plan = sw.compile(MIXTURE, 4, cluster="cpu", plan=f"{PLAN},recompute={recompute}").plan
    assert plan.program.schedule == "dualpipe_v"
    assert sw.prove(plan).proven
    assert sw.verify(plan).is_right


def test_too_few_micro_batches_are_refused():
    few = PLAN.replace("micro_batch=1", "micro_batch=4")
    with pytest.raises(
        OptionError, match=r"needs at least 4 micro-batches, 2 for each .* not 2; use"
    ):
        sw.compile(MIXTURE, 4, cluster="cpu", plan=few)


def test_searched_stages_need_no_number_of_micro_batches():
    """There are too few of one micro-batch for every pipeline, and one group needs no schedule."""
    given = {"stages": "search", "chunks": 2, "schedule": "dualpipe_v", "gap": 0.1}
    plan = sw.compile("mlp:batch=16,layers=8", 4, cluster="cpu", **given).plan
    assert plan.document.lower_bound <= plan.document.objective
