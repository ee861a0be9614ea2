"""The rules of broadcast operators and of matmul hold for every shape, not only the examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.checks.spmd import assemble, run_shards, scatter
from shardwright.operators.info import OperatorInfo, operator_info, whole_kernel

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
sizes = st.sampled_from([1, 2, 3, 4, 6])
Shape = tuple[int, ...]


@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    whole = draw(st.lists(sizes, max_size=4))

    def stretched() -> Shape:
        kept = whole[draw(st.integers(0, len(whole))) :]
        return tuple(n if draw(st.booleans()) else 1 for n in kept)

    return stretched(), stretched()


@st.composite
def matmul_shapes(draw: st.DrawFn) -> tuple[Shape, Shape, dict[str, bool]]:
    first, second = draw(broadcast_shapes())
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    transpose = {"transpose_a": draw(st.booleans()), "transpose_b": draw(st.booleans())}
    left = (k, m) if transpose["transpose_a"] else (m, k)
    right = (n, k) if transpose["transpose_b"] else (k, n)
    return (*first, *left), (*second, *right), transpose


def assert_rule(info: OperatorInfo) -> None:
    random = np.random.default_rng(0)
    operands = [random.standard_normal(kind.shape) for kind in info.operand_types]
    (whole,) = whole_kernel(info, *operands)
    assert whole.shape == info.result_types[0].shape
    for strategy in info.generate_strategies(MESH):
        taken, (left,) = info.infer_tensor_layouts(strategy, MESH)
        shards = [scatter(x, layout, MESH) for x, layout in zip(operands, taken, strict=True)]
        (parts,) = run_shards(info, strategy, MESH, shards)
        found = assemble(parts, left, whole.shape, MESH)
        np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12)


def info_of(name: str, shapes: tuple[Shape, Shape], **attributes: bool) -> OperatorInfo:
    return operator_info(name, [TensorType("float64", shape) for shape in shapes], attributes)


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "less", "squared_difference"])
@given(shapes=broadcast_shapes())
def test_broadcast_operators(name: str, shapes: tuple[Shape, Shape]) -> None:
    info = info_of(name, shapes)
    assert info.result_types[0].shape == np.broadcast_shapes(*shapes)
    assert_rule(info)


@given(matmul_shapes())
def test_matmul(drawn: tuple[Shape, Shape, dict[str, bool]]) -> None:
    left, right, transpose = drawn
    assert_rule(info_of("matmul", (left, right), **transpose))


def test_matmul_flops_are_those_of_the_loops() -> None:
    left, right = (3, 4, 5), (5, 6)
    info = info_of("matmul", (left, right))
    counted = 0
    for _ in np.ndindex(3, 4, 6):
        for _ in range(5):
            counted += 2  # a product and a sum
    assert info.flops == counted
    (weight,) = whole_kernel(
        info_of("contract_leading", ((3, 4, 5), (3, 4, 6))), np.ones((3, 4, 5)), np.ones((3, 4, 6))
    )
    assert weight.shape == right
    assert info_of("contract_leading", ((3, 4, 5), (3, 4, 6))).flops == counted
