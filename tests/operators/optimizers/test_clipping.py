"""Gradients that are scaled down together: the same step, however a program is split."""

import json

import numpy as np
import pytest

import shardwright as sw
from shardwright.exports.table import export
from shardwright.ir.errors import OptionError
from shardwright.ir.text import parse_type
from shardwright.operators.info import operator_info, whole_kernel
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.optimizer_text import optimizer_of
from shardwright.operators.reduction.global_norm import sum_type
from shardwright.proof import prove_program
from shardwright.proof.step import UpdateRule
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize
from shardwright.verification.comparison import random_batches
from tests.extent import ANY_PLAN

MLP = "mlp:batch=8,hidden=16"
LIMIT = 0.01
ALONE = {"devices": 1, "mode": "stand_alone"}
PLACES = [
    ALONE,
    {"devices": 4, "mesh": "2x2", "search": "fully_sharded"},
    {"devices": 4, "mode": "data_parallel"},
    {"devices": 2, "micro_batches": 2, **ANY_PLAN},
    {"devices": 4, "stages": 2, "micro_batches": 2},
]


def compiled(place, limit=LIMIT, **options):
    settings = {} if limit is None else {"clip_norm": limit}
    rule = Optimizer("sgd", {"learning_rate": 1.0, **settings})
    return sw.compile(MLP, **place, optimizer=rule, **options).plan


def steps_of(plan, steps=2):
    """Return the parameters before and after each step, and the program's loss scale."""
    local = LocalCommunicator(plan.mesh)
    executor, state = Executor(plan.program, local), initialize(plan.program, 0, local)
    names = [p.name for p in plan.program.parameters if p.trainable]
    batches = random_batches(plan.document.inputs, steps, 0)

    def read():
        return {n: assemble(plan.program, n, state[n], plan.mesh).copy() for n in names}

    seen = [read()]
    for batch in batches:
        executor.step(batch, state)
        seen.append(read())
    return seen


def length_of(before, after):
    return np.sqrt(sum(((after[n] - before[n]).astype("f8") ** 2).sum() for n in before))


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 64.0, "dynamic"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_plan_is_proven_and_steps_as_far_as_the_limit(place, scale):
    plan = compiled(place, loss_scale=scale)
    verdict = sw.verify(plan, 2)
    assert verdict.proof.proven, verdict.proof
    assert verdict.equal, verdict
    before, after, _ = steps_of(plan)
    assert length_of(before, after) == pytest.approx(LIMIT, rel=1e-5)


def test_directions_stay_and_small_gradients_are_as_they_were():
    free, bound, wide = (steps_of(compiled(ALONE, limit), 1) for limit in (None, LIMIT, 1e6))
    ratio = LIMIT / length_of(*free)
    assert ratio < 0.5
    for name, before in free[0].items():
        step = free[1][name] - before
        np.testing.assert_allclose(bound[1][name] - before, step * ratio, rtol=1e-3, atol=1e-7)
        np.testing.assert_array_equal(wide[1][name], free[1][name])


def test_a_proof_finds_another_limit():
    plan = compiled(PLACES[1])
    for limit, is_proven in ((LIMIT, True), (2 * LIMIT, False), (None, False)):
        settings = {"learning_rate": 1.0} | ({} if limit is None else {"clip_norm": limit})
        rule = UpdateRule("sgd", settings)
        assert prove_program(plan.model, plan.program, rule).proven == is_proven


def test_a_plan_keeps_the_limit(tmp_path):
    found = sw.compile(MLP, 2, optimizer=optimizer_of("adamw:clip_norm=0.5"), **ANY_PLAN)
    found.write(tmp_path / "plan")
    read = sw.read_plan(tmp_path / "plan")
    assert read.document.optimizer.optimizer.clip_norm == 0.5
    assert sw.verify(read, 1).is_right
    written = json.loads(export(read, "deepspeed").files["deepspeed.json"])
    assert written["gradient_clipping"] == 0.5


def test_squares_are_added_in_a_type_that_holds_them():
    half = parse_type("f16[2]")[0]
    info = operator_info("sum_squares", [half], {"dtype": sum_type([half])})
    (total,) = whole_kernel(info, np.array([300.0, 400.0], "f2"))
    assert (total.item(), total.dtype) == (250_000.0, "f4")
    clip = operator_info("clip_by_norm", [half, *info.result_types], {"clip_norm": 5.0})
    (found,) = whole_kernel(clip, np.array([300.0, 400.0], "f2"), total)
    np.testing.assert_allclose(found, [3.0, 4.0], rtol=1e-3)
    assert sum_type([half, parse_type("f64[]")[0]]) == "float64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd:clip_norm=0", "`clip_norm` is 0"),
        ("sgd:clip_norm=-1", "`clip_norm` is -1"),
        ("adam:w/clip_norm=1", "`adam` has no setting `clip_norm`"),
        ("muon:adamw_clip_norm=1", "`adam` has no setting `clip_norm`"),
    ],
)
def test_what_is_no_limit_of_all_gradients_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        optimizer_of(text)
