"""Matrices that cannot be inverted or factored give NaN; the others of a batch their results."""

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info, whole_kernel


@pytest.mark.parametrize("name", ["solve", "inverse", "solve_triangular", "cholesky"])
def test_a_singular_matrix_of_a_batch_gives_nan(name: str) -> None:
    matrices = np.stack([2 * np.eye(3), -np.eye(3) + np.ones((3, 3)) / 3, 3 * np.eye(3)])
    matrices[1] = 0 if name != "cholesky" else matrices[1]
    operands = [matrices, np.ones((3, 2))] if name.startswith("solve") else [matrices]
    types = [TensorType("float64", x.shape) for x in operands]
    (found,) = whole_kernel(operator_info(name, types, {}), *operands)
    assert np.isnan(found[1]).all()
    for place, size in ((0, 2.0), (2, 3.0)):
        right = np.sqrt(size) if name == "cholesky" else 1 / size
        expected = np.full((3, 2), right) if len(operands) > 1 else right * np.eye(3)
        assert np.allclose(found[place], expected, rtol=1e-15, atol=0)
