"""Experts with capacity, against a loop over tokens."""

import numpy as np

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
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
    """Deal slots out one by one: first choices first, tokens in order."""
    slots = np.full(experts.shape, -1)
    for group in range(GROUPS):
        filled = [0] * EXPERTS
        for choice in range(CHOICES):
            for token in range(TOKENS):
                expert = int(experts[group, token, choice])
                if filled[expert] < CAPACITY:
                    slots[group, token, choice] = expert * CAPACITY + filled[expert]
                    filled[expert] += 1
    return slots


def test_slots_are_dealt_out_in_order_until_an_expert_is_full() -> None:
    experts = chosen()
    slots = run("expert_slots", experts, experts=EXPERTS, capacity=CAPACITY)
    np.testing.assert_array_equal(slots, loop(experts))
    assert (slots < 0).any(), "some choice is dropped"


def test_tokens_come_back_from_their_experts_weighted() -> None:
    random = np.random.default_rng(1)
    experts, slots = chosen(), loop(chosen())
    x = random.standard_normal((GROUPS, TOKENS, FEATURES))
    weights = random.random((GROUPS, TOKENS, CHOICES))
    factors = random.standard_normal(EXPERTS)  # an expert multiplies by its factor
    held = run("dispatch", x, slots, experts=EXPERTS, capacity=CAPACITY)
    assert held.shape == (EXPERTS, GROUPS * CAPACITY, FEATURES)
    found = run("combine", held * factors[:, None, None], slots, weights, capacity=CAPACITY)
    kept = weights * (slots >= 0) * factors[experts]
    np.testing.assert_allclose(found, x * kept.sum(axis=-1)[..., None], rtol=1e-12)


def test_from_tokens_split_to_experts_split_is_one_exchange() -> None:
    """Between `dispatch` and split experts there is one all-to-all."""
    mesh = Mesh((MeshAxis("x", 2),))
    kinds = (TensorType("float32", (4, 6, 8)), TensorType("int64", (4, 6, 2)))
    info = operator_info("dispatch", kinds, {"experts": 4, "capacity": 3})
    (strategy,) = (s for s in info.generate_strategies(mesh) if s.axes == {"g": ("x",)})
    (left,) = info.infer_tensor_layouts(strategy, mesh)[1]
    assert left == Layout(((), ("x",), ()))
    planner = RedistributionPlanner(mesh, cluster("cpu"))
    moves = planner.plan(info.result_types[0], left, Layout((("x",), (), ())))
    assert [move.operator for move in moves] == ["all_to_all"]
