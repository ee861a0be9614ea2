"""The shrunken run finds what the proof trusts and is not so: rules, offsets, collectives."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.compiler.plans.plan import Plan
from shardwright.operators.communication.collectives import AllGather
from shardwright.operators.info import Array
from shardwright.operators.linear.matmul import MatMul
from shardwright.operators.models.dropout import Dropout
from shardwright.operators.rule import ShardView
from shardwright.proof import prove
from shardwright.proof.samples import run_samples
from tests.extent import ANY_PLAN, long_after

GPT = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile(GPT, 8, mesh="2x4", search="data_parallel").plan


@pytest.mark.parametrize(
    "model",
    long_after(
        1,
        [
            GPT,
            "unet:batch=1,side=64,width=8,depth=1",
            "mixtral:layers=1,hidden=16,heads=2,kv_heads=2,inner=16,batch=8,sequence=4,vocabulary=32",
        ],
    ),
)
def test_every_operator_of_a_plan_is_run(model: str) -> None:
    samples = run_samples(compile(model, 8, cluster="cpu", **ANY_PLAN).plan.program)
    assert samples.equal
    assert samples.skipped == ()
    assert samples.compared > 40
    assert samples.max_relative_error < 1e-12


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel"])
def test_buffers_are_packed_and_unpacked(mode: str) -> None:
    program = compile(GPT, 8, mode=mode, fusion=64.0).plan.program
    assert "pack" in {node.operator for node in program}
    samples = run_samples(program)
    assert (samples.equal, samples.skipped) == (True, ())


def difference(plan: Plan) -> str:
    """Return the operator of the first node that differs; the proof does not see it."""
    assert prove(plan).proven
    first = run_samples(plan.program).first_difference
    assert first is not None
    return plan.program.producers[first].operator


def test_a_kernel_that_divides_by_the_local_size(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MatMul.kernel

    def wrong(self: MatMul, view: ShardView, *operands: Array) -> Array:
        return np.asarray(right(self, view, *operands)) / operands[0].shape[0]

    monkeypatch.setattr(MatMul, "kernel", wrong)
    assert difference(plan) == "matmul"


def test_random_numbers_by_a_local_index(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Dropout.kernel

    def wrong(self: Dropout, view: ShardView, *operands: Array) -> Array:
        return right(self, replace(view, starts=dict.fromkeys(view.starts, 0)), *operands)

    monkeypatch.setattr(Dropout, "kernel", wrong)
    assert difference(plan) == "dropout"


def test_slices_gathered_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compile(GPT, 8, mesh="2x4", search="fully_sharded").plan
    right = AllGather.exchange

    def wrong(self: AllGather, parts: list[Array], extents: list[int]) -> list[Array]:
        return right(self, list(reversed(parts)), extents)

    monkeypatch.setattr(AllGather, "exchange", wrong)
    assert difference(plan) == "all_gather"
