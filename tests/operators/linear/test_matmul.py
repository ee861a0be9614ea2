"""Matrix products of few rows are turned; their values and their order in memory stay."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info
from shardwright.operators.linear import matmul
from shardwright.operators.linear.matmul import is_faster_turned


@given(
    rows=st.sampled_from([1, 2, 3, 16, 63, 64, 65]),
    inner=st.sampled_from([1, 8, 64, 260]),
    columns=st.sampled_from([1, 127, 128, 700, 1024]),
    transpose_a=st.booleans(),
)
def test_products_with_a_transposed_matrix_are_right_and_in_order(
    rows, inner, columns, transpose_a
):
    rng = np.random.default_rng(rows * inner + columns)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((rows, inner), (columns, inner)))
    types = [TensorType("float32", x.shape) for x in (a.T if transpose_a else a, b)]
    info = operator_info("matmul", types, {"transpose_a": transpose_a, "transpose_b": True})
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "is_faster_turned", partial(is_faster_turned, wide=True))
        found = info.kernel(info.rule.view(), given_a, b)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, a.astype(float) @ b.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "dtype", "turned"),
    [
        (64, 784, 512, np.float32, True),
        (64, 784, 512, np.float64, False),
        (65, 784, 512, np.float32, False),
        (1, 784, 4096, np.float32, False),
        (4, 16, 511, np.float32, False),
        (4, 16, 512, np.float32, True),
        (4, 15, 512, np.float32, False),
    ],
)
def test_only_products_that_gain_are_turned(rows, inner, columns, dtype, turned):
    a, b = np.zeros((rows, inner), dtype), np.zeros((columns, inner), dtype)
    assert is_faster_turned(a, b, wide=True) is turned
    assert not is_faster_turned(a, b, wide=False)
