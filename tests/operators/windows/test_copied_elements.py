"""What a convolution is said to copy into columns is what its kernel copies on a rank."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info
from shardwright.operators.windows import convolution
from shardwright.operators.windows.convolution import ConvolutionFamily

X, W, Y = (4, 4, 6, 8), (6, 4, 3, 3), (4, 6, 6, 8)
CASES = {
    "convolution": (X, W, {}),
    "convolution_weight_gradient": (X, Y, {"kernel": (3, 3)}),
    "transposed_convolution": (Y, W, {}),
}
MESH = Mesh((MeshAxis("x", 2),))


@pytest.mark.parametrize("factor", ["", "n", "a", "b"])
@pytest.mark.parametrize("name", CASES)
def test_what_a_rank_copies_is_counted(
    name: str, factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *shapes, attributes = CASES[name]
    kinds = [TensorType("float32", shape) for shape in shapes]
    info: Any = operator_info(name, kinds, {"padding": 1, **attributes})
    assert isinstance(info, ConvolutionFamily)
    copied, columns = [], convolution.columns

    def counted(*arguments: Any) -> Iterator[Any]:
        for block in columns(*arguments):
            copied.append(block[2].size)
            yield block

    monkeypatch.setattr(convolution, "columns", counted)
    view = info.rule.view(Strategy.of({factor: ("x",)} if factor else {}), MESH, 0)
    info.kernel(view, *(np.ones(shape, np.float32) for shape in view.operand_shapes))
    assert info.copied_elements((*view.operand_shapes, *view.result_shapes)) == sum(copied) > 0
