"""Convolutions need little memory besides their operands and results, however large those are."""

import tracemalloc

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel
from tests.extent import first

MOST = 12 << 20  # bytes of scratch
# Space, kernel, and groups: columns of the whole would need 9 and 25 times the operand.
CASES = first(3, [(64, 5, 1), (64, 3, 4), (64, 3, 16), (64, 3, 1)])


def scratch(name: str, *operands: Array, **attributes: object) -> int:
    kinds = [TensorType("float32", x.shape) for x in operands]
    info = operator_info(name, kinds, attributes)  # type: ignore[arg-type]
    whole_kernel(info, *operands)  # what is compiled or read at the first call counts not
    tracemalloc.start()
    results = whole_kernel(info, *operands)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most - sum(result.nbytes for result in results)


@pytest.mark.parametrize(("side", "kernel", "groups"), CASES)
def test_scratch_is_bounded(side: int, kernel: int, groups: int) -> None:
    x = np.ones((8, 16, side, side), np.float32)
    w = np.ones((16, 16 // groups, kernel, kernel), np.float32)
    how = {"padding": kernel // 2, "groups": groups}
    columns = x.nbytes * kernel * kernel
    for stride in (1, 2):
        y = np.ones((8, 16, -(-side // stride), -(-side // stride)), np.float32)
        used = (
            scratch("convolution", x, w, stride=stride, **how),
            scratch("transposed_convolution", y, w, size=(side, side), stride=stride, **how),
            scratch("convolution_weight_gradient", x, y, kernel=w.shape[2:], stride=stride, **how),
        )
        assert max(used) < min(MOST, columns / 2), used
