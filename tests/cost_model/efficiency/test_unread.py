"""What training software computes again of a block although no gradient reads it."""

from functools import cache
from math import inf

import pytest

from shardwright.api import compile
from shardwright.cost_model.efficiency.unread import unread_recomputation
from shardwright.ir.graph import Graph
from tests.shardwright.zoo.test_decoder import small

SIZES = "hidden=64,heads=4,sequence=32,vocabulary=128"
GPT = f"gpt:{SIZES},layers=2"
LLAMA = f"llama:{SIZES},kv_heads=2,layers=2"
MIXTRAL = f"mixtral:{SIZES},kv_heads=2,layers=2,experts=4"


@cache
def program(model: str | None, plan: str, devices: int) -> Graph:
    """Return the program of a named plan, by default of a decoder with latent attention."""
    asked = small("deepseek_v3") if model is None else model
    options = {"memory_limit": inf, "objective": "serial"}
    return compile(asked, devices, plan=plan, batch=model and 4, **options).plan.program


def unread(model: str | None, plan: str, devices: int = 2) -> list[list[str]]:
    """Return the operators of each block that software computes again beside the program."""
    graph = program(model, plan, devices)
    found = unread_recomputation(graph)
    assert {graph.nodes[i].provenance.role for i in found} <= {"recompute"}
    return [[graph.nodes[i].operator for i in nodes] for nodes in found.values()]


def test_of_a_whole_block_it_is_the_last_product_and_what_follows() -> None:
    assert unread(GPT, "tensor=2,recompute=full") == [["matmul", "all_reduce", "add", "add"]] * 2


def test_what_a_stage_receives_is_not_sent_again() -> None:
    plan = "pipeline=2,micro_batch=1,recompute=full"
    assert unread(GPT, plan) == [["matmul", "add", "add"]] * 2


@pytest.mark.parametrize("rule", ["selective", "layernorm"])
def test_a_part_whose_results_are_all_read_has_none(rule: str) -> None:
    assert not any(unread(GPT, f"tensor=2,recompute={rule}"))


def test_up_projections_are_no_whole_block() -> None:
    assert unread(None, "data=2,recompute=mla_up_proj") == [[], []]


@pytest.mark.parametrize("plan", ["data=2", "tensor=2", "pipeline=2,micro_batch=1"])
def test_of_a_feed_forward_it_is_its_last_product(plan: str) -> None:
    summed = ["all_reduce"] if "tensor" in plan else []
    assert unread(LLAMA, f"{plan},recompute=mlp") == [["matmul", *summed]] * 2


def test_of_experts_it_is_what_combines_their_rows() -> None:
    for operators in unread(MIXTRAL, "data=4,expert=2,recompute=moe", 4):
        assert "combine" in operators
        assert "matmul" not in operators  # attention is saved
    assert not any(unread(MIXTRAL, "data=2,recompute=moe_act"))


def test_products_that_are_saved_are_not_computed_again() -> None:
    assert unread(LLAMA, "data=2,recompute=operators") == [["matmul", "add"]] * 2


def test_blocks_within_another_cell_are_blocks() -> None:
    scopes = {node.scope for node in program(MIXTRAL, "data=2,recompute=full", 2).nodes}
    assert any(scope.startswith("decoder/blocks/0") for scope in scopes)
    assert all("combine" in operators for operators in unread(MIXTRAL, "data=2,recompute=full"))
