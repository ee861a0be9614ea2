"""Vectors that MindSpore's unit tests of operator infos publish (r1.0, 1,024 and 32 devices).

Its strategies are split counts of each operand; its private device matrix has one axis for each
dimension of the operator, here a mesh whose axes bear the names of the factors.
"""

from math import prod

import pytest

from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo, operator_info


def info_of(name: str, *shapes: tuple[int, ...], **attributes: bool) -> OperatorInfo:
    return operator_info(name, [TensorType("float32", shape) for shape in shapes], attributes)


def split(info: OperatorInfo, *counts: int) -> tuple[Strategy, Mesh]:
    """Split the factors of an operator into so many slices, each over an axis of its own."""
    factors = list(info.rule.sizes)
    mesh = Mesh(tuple(MeshAxis(f, n) for f, n in zip(factors, counts, strict=True)))
    strategy = Strategy.of({factor: (factor,) for factor in factors})
    info.check_strategy(strategy, mesh)
    return strategy, mesh


def test_matmul() -> None:
    info = info_of("matmul", (2, 4, 8, 16), (2, 4, 16, 32))
    strategy, mesh = split(info, 2, 4, 8, 16, 1)
    assert info.split_counts(strategy, mesh) == ((2, 4, 8, 16), (2, 4, 16, 1))
    assert info.infer_device_matrix(strategy, mesh) == (2, 4, 8, 16, 1)
    assert info.infer_tensor_map(strategy, mesh) == ((4, 3, 2, 1), (4, 3, 1, 0), (4, 3, 2, 0))
    assert info.infer_forward_communication(strategy, mesh) == (("sum", ("k",)),)
    assert mesh.extent(("k",)) == 16
    # The weight is the second operand: equal copies of it serve 8 slices of the rows.
    assert info.infer_mirror_ops(strategy, mesh)[1] == ("m",)
    (result,) = info.infer_tensor_layouts(strategy, mesh)[1]
    assert mesh.size // prod(result.counts(mesh)) == 16  # the divisor of the loss


def test_matmul_with_a_transposed_weight() -> None:
    info = info_of("matmul", (2, 4, 8, 16), (32, 16), transpose_b=True)
    strategy, mesh = split(info, 2, 4, 8, 16, 1)
    assert info.split_counts(strategy, mesh) == ((2, 4, 8, 16), (1, 16))
    assert info.infer_tensor_map(strategy, mesh)[1] == (0, 1)


def test_matmul_whose_weight_is_nowhere_copied() -> None:
    info = info_of("matmul", (2, 4, 8, 16), (2, 4, 16, 32))
    strategy, mesh = split(info, 2, 4, 1, 16, 8)
    assert info.split_counts(strategy, mesh) == ((2, 4, 1, 16), (2, 4, 16, 8))
    mirrored = info.infer_mirror_ops(strategy, mesh)[1]
    assert mesh.extent(mirrored) == 1


def test_prelu() -> None:
    info = info_of("prelu", (32, 32, 32, 32), (32,))
    strategy, mesh = split(info, 4, 1, 4, 4)
    operands = info.infer_tensor_layouts(strategy, mesh)[0]
    slices = [
        layout.slice_shape(kind.shape, mesh)
        for layout, kind in zip(operands, info.operand_types, strict=True)
    ]
    assert slices == [(8, 32, 8, 8), (32,)]
    assert info.operand_types[1].nbytes == 128  # what the gradient of the weight sends
    assert mesh.extent(info.infer_mirror_ops(strategy, mesh)[1]) == 64


@pytest.mark.parametrize("name", ["reshape", "flatten"])
def test_reshape(name: str) -> None:
    attributes = {"shape": (32, 25088)} if name == "reshape" else {}
    info = operator_info(name, [TensorType("float32", (32, 512, 7, 7))], attributes)
    mesh = Mesh((MeshAxis("repeated", 8), MeshAxis("batch", 4)))
    strategy = Strategy.of({"f0": ("batch",)})
    operands, results = info.infer_tensor_layouts(strategy, mesh)
    assert info.split_counts(strategy, mesh) == ((4, 1, 1, 1),)
    assert operands[0].slice_shape((32, 512, 7, 7), mesh) == (8, 512, 7, 7)
    assert results[0].slice_shape((32, 25088), mesh) == (8, 25088)
