"""Extrema and products at positions, and their gradients."""

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info, whole_kernel


@pytest.mark.parametrize("kind", ["max", "min"])
def test_one_element_is_compared_at_one_position(kind: str) -> None:
    """Positions of one tuple have no dimensions of their own, and a slice may be a scalar."""
    types = [TensorType("float64", (4, 5)), TensorType("int64", (2,)), TensorType("float64", ())]
    forward = operator_info(f"scatter_nd_{kind}", types, {})
    backward = operator_info(f"scatter_nd_{kind}_gradient", [types[0], *types], {})
    x, dy = np.random.default_rng(0).normal(size=(2, 4, 5))
    place, wins = np.array([1, 2]), np.asarray(9.0 if kind == "max" else -9.0)
    y = forward.kernel(forward.rule.view(), x, place, wins)
    np.testing.assert_array_equal(np.argwhere(y != x), [place])
    of_tensor, of_slice = backward.kernel(backward.rule.view(), dy, x, place, wins)
    assert of_slice == dy[1, 2]
    np.testing.assert_array_equal(of_tensor, np.where(y == x, dy, 0))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_rows_of_segments_are_split_where_the_extremum_has_no_gradient(kind: str) -> None:
    """The cotangent is shared among all rows that attain it, so a gradient needs all of them."""
    types = [TensorType("float64", (4, 3)), TensorType("int64", (4,))]
    for differentiable, expected in ((True, "whole"), (False, kind)):
        attributes = {"segments": 2, "differentiable": differentiable}
        info = operator_info(f"unsorted_segment_{kind}", types, attributes)
        assert info.rule.kinds["i0"] == expected


def test_the_gradient_of_a_slice_is_the_product_of_all_others_at_its_position() -> None:
    """With one zero only that slice has a gradient; with two none has, nor outside the tensor."""
    x, dy = np.array([2.0, 3.0, 5.0]), np.array([1.0, 10.0, 100.0])
    positions = np.array([[0], [0], [1], [1], [2], [2], [7]])
    updates = np.array([4.0, 7.0, 0.0, 6.0, 0.0, 0.0, 9.0])
    operands = dy, x, positions, updates
    types = [TensorType(str(array.dtype), array.shape) for array in operands]
    info = operator_info("scatter_nd_mul_gradient", types, {})
    found = whole_kernel(info, *operands)[0]
    np.testing.assert_array_equal(found, [14, 8, 180, 0, 0, 0, 0])
