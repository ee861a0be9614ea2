"""Experts with capacity, against a loop over tokens."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.redistribution.seconds import fastest_paths
from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.ir.types import Ragged, TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel

GROUPS, TOKENS, FEATURES, EXPERTS, CHOICES, CAPACITY = 2, 7, 3, 4, 2, 3


def run(name: str, *arrays: Array, **attributes: int) -> Array:
    kinds = [TensorType(x.dtype.name, x.shape) for x in arrays]
    return whole_kernel(operator_info(name, kinds, attributes), *arrays)[0]


def chosen() -> Array:
    random = np.random.default_rng(0)
    order = np.argsort(random.random((GROUPS, TOKENS, EXPERTS)), axis=-1)
    return order[..., :CHOICES]


def loop(experts: Array) -> Array:
    """Deal room out one by one: first choices first, tokens in order."""
    kept = np.full(experts.shape, -1)
    for group in range(GROUPS):
        taken = [0] * EXPERTS
        for choice in range(CHOICES):
            for token in range(TOKENS):
                expert = int(experts[group, token, choice])
                if taken[expert] < CAPACITY:
                    kept[group, token, choice] = expert
                    taken[expert] += 1
    return kept


def test_room_is_dealt_out_in_order_until_an_expert_is_full() -> None:
    experts = chosen()
    kept = run("within_capacity", experts, experts=EXPERTS, capacity=CAPACITY)
    np.testing.assert_array_equal(kept, loop(experts))
    assert (kept < 0).any(), "some choice is dropped"


def test_tokens_come_back_from_their_experts_weighted() -> None:
    random = np.random.default_rng(1)
    experts = loop(chosen())
    x = random.standard_normal((GROUPS, TOKENS, FEATURES))
    weights = random.random((GROUPS, TOKENS, CHOICES))
    matrices = random.standard_normal((EXPERTS, FEATURES, FEATURES))
    rows = run("dispatch", x, experts, experts=EXPERTS)
    assert rows.shape == (EXPERTS, GROUPS, TOKENS, FEATURES)
    found = run("combine", run("grouped_matmul", rows, matrices), experts, weights)
    each = np.einsum("gsd,gskdf->gskf", x, matrices[experts])
    kept = weights * (experts >= 0)
    np.testing.assert_allclose(found, (each * kept[..., None]).sum(axis=2), rtol=1e-12)


def test_a_token_that_chooses_an_expert_twice_has_one_row_of_both_weights() -> None:
    x, twice = np.ones((1, 2)), np.array([[1, 1]])
    rows = run("dispatch", x, twice, experts=2)
    np.testing.assert_array_equal(rows, [[[0, 0]], [[1, 1]]])
    np.testing.assert_array_equal(run("combine", rows, twice), x)
    np.testing.assert_array_equal(run("combine", rows, twice, np.array([[2.0, 3.0]])), 5 * x)


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    random = np.random.default_rng(2)
    x, all_to_one = random.standard_normal((5, FEATURES)), np.full((5, 1), 2)
    rows = run("dispatch", x, all_to_one, experts=EXPERTS)
    found = run("grouped_outer", rows, rows)
    np.testing.assert_allclose(found[2], x.T @ x, rtol=1e-12)
    assert not found[[0, 1, 3]].any()


def test_as_many_rows_of_a_token_are_filled_as_it_has_choices() -> None:
    kinds = (TensorType("float32", (4, 6, 8)), TensorType("int64", (4, 6, 2)))
    rows = operator_info("dispatch", kinds, {"experts": 8, "imbalance": 1.5}).result_types[0]
    assert str(rows) == "f32[2/8*1.5, 4~, 6~, 8]"
    assert rows.filled_elements(rows.shape) == 2 * 4 * 6 * 8
    # The rank that has most of four, with two experts: half a row of a token, times the imbalance.
    assert rows.filled_elements((2, 4, 6, 8)) == 2 / 4 * 1.5 * 4 * 6 * 8
    assert rows.filled_elements((1, 4, 6, 8)) == 2 / 8 * 1.5 * 4 * 6 * 8
    matrices = TensorType("float32", (8, 8, 3))
    product = operator_info("grouped_matmul", (rows, matrices), {}).result_types[0]
    assert str(product) == "f32[2/8*1.5, 4~, 6~, 3]"
    gradient = operator_info("grouped_outer", (rows, product), {}).result_types[0]
    assert str(gradient) == "f32[8, 8, 3]"
    bias = TensorType("float32", (8, 1, 1, 3))
    assert operator_info("add", (product, bias), {}).result_types[0] == product
    dense = TensorType("float32", product.shape)
    assert operator_info("add", (product, dense), {}).result_types[0] == dense
    joined = operator_info("reshape", (rows,), {"shape": (8, 24, 8)}).result_types[0]
    assert str(joined) == "f32[2/8*1.5, 24~, 8]"


def test_the_groups_that_a_router_chooses_in_are_in_the_type_and_in_its_text() -> None:
    kinds = (TensorType("float32", (4, 8)), TensorType("int64", (4, 2)))
    rows = operator_info("dispatch", kinds, {"experts": 8, "parts": (2, 4)}).result_types[0]
    assert str(rows) == "f32[2/8*1.04 in 2/4, 4~, 8]"
    assert parse_type(str(rows)) == (rows, None)
    assert rows.filled_elements(rows.shape) == 2 * 4 * 8
    three = (kinds[0], TensorType("int64", (4, 3)))
    info = operator_info("dispatch", three, {"experts": 8, "parts": (1, 4)})
    with pytest.raises(IRError, match=r"^3 of 8 experts are to be in 1 of 4 equal groups$"):
        _ = info.result_types
    with pytest.raises(IRError, match=r"^the entries of a row are in 3 of 2 parts$"):
        Ragged(0, (1,), 2, parts=(3, 2))


def test_from_tokens_split_to_experts_split_is_one_exchange() -> None:
    """Between `dispatch` and split experts there is one all-to-all, of the rows that are filled."""
    mesh = Mesh((MeshAxis("x", 2),))
    kinds = (TensorType("float32", (4, 6, 8)), TensorType("int64", (4, 6, 2)))
    info = operator_info("dispatch", kinds, {"experts": 4})
    (strategy,) = (s for s in info.generate_strategies(mesh) if s.axes == {"t0": ("x",)})
    (left,) = info.infer_tensor_layouts(strategy, mesh)[1]
    assert left == Layout(((), ("x",), (), ()))
    planner = fastest_paths(mesh, cluster("cpu"))
    rows, split = info.result_types[0], Layout((("x",), (), (), ()))
    moves = planner.plan(rows, left, split)
    assert [move.operator for move in moves] == ["all_to_all"]
    dense = TensorType("float32", rows.shape)
    latency = planner.path_cost(TensorType("float32", (4, 2, 1, 1)), left, split)
    filled, whole = (planner.path_cost(kind, left, split) - latency for kind in (rows, dense))
    assert filled < 0.55 * whole
