"""The outer loop over shapes of the mesh takes the cheapest plan, and tells of the others."""

import pytest

import shardwright
from shardwright.ir.errors import InfeasibleError, StrategyError

GPT = "gpt:layers=2,hidden=256,heads=4,batch=4,sequence=128"


def test_the_cheapest_shape_is_taken():
    found = shardwright.compile(GPT, 64, mesh="search")
    assert set(found.objectives) == {"2x4x8", "8x2x4"}
    for shape, objective in found.objectives.items():
        alone = shardwright.compile(GPT, 64, mesh=shape).plan.document
        assert alone.objective == pytest.approx(objective)
        assert found.plan.document.objective <= objective * (1 + 1e-9)
    assert "x".join(map(str, found.plan.mesh.shape)) in found.objectives
    coarse = shardwright.compile(GPT, 64, mesh="8x8").plan.document
    assert found.plan.document.objective <= coarse.objective * (1 + 1e-9)


def test_shapes_on_which_a_pin_cannot_be_are_left_out():
    pins = {"matmul_0": ((2, 1), (1, 4))}
    found = shardwright.compile("two_matmul", 512, mesh="search", strategies=pins)
    assert set(found.objectives) == {"64x2x4"}


def test_where_no_shape_will_do_the_reason_is_given():
    with pytest.raises(InfeasibleError, match=r"no plan fits .* every plan takes at least"):
        shardwright.compile(GPT, 64, mesh="search", memory_limit=1e4)
    with pytest.raises(StrategyError, match="cannot be split"):
        shardwright.compile(
            "two_matmul", 64, mesh="search", strategies={"matmul_0": ((3, 1), (1, 1))}
        )
